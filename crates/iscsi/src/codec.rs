//! Bytes to PDUs and back, with digests (RFC 7143, 11.1, 13.1).

use std::io::IoSlice;

use bytes::{Bytes, BytesMut, buf::Limit};

use crate::{Bhs, Pdu};

/// Which digests a connection uses, one setting for each direction.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Digests {
    /// CRC32C over basic and additional headers.
    pub header: bool,
    /// CRC32C over the data segment and its padding.
    pub data: bool,
}

/// What arrived, whole: header, additional header segments, data segment without padding.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The header.
    pub bhs: Bhs,
    /// Additional header segments; usually empty.
    pub ahs: Bytes,
    /// The data segment.
    pub data: Bytes,
    /// The data digest did not fit the data: to be rejected, and recovered or not as the
    /// recovery level says. (A wrong *header* digest is an [`Error`]: framing is lost.)
    pub data_digest_error: bool,
}

/// The stream makes no sense any more: the connection must be dropped.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Error {
    /// The header digest is wrong.
    #[error("header digest error")]
    HeaderDigest,
    /// The data segment is longer than what we declared that we take.
    #[error("a data segment of {length} bytes, where {limit} is the limit")]
    DataSegmentLength {
        /// As in the header.
        length: u32,
        /// As declared (MaxRecvDataSegmentLength) or by RFC 7143 6.2 before that.
        limit: u32,
    },
    /// Additional headers longer than any that RFC 7143 defines.
    #[error("additional headers of {0} bytes")]
    AhsLength(u32),
}

/// Takes a byte stream apart. It owns the receive buffer, so that a payload is copied from the
/// kernel straight to where it stays: small PDUs are cut out of a shared 64 KiB buffer, a large
/// data segment is read into a buffer of its own.
///
/// ```text
/// loop { read the socket into buffer(); while let Some(frame) = next()? { … } }
/// ```
pub struct Decoder {
    _private: (),
}

impl Decoder {
    /// A decoder that holds at most about `buffer_bytes` for small PDUs and refuses data segments
    /// above `max_data_segment_length`.
    #[must_use]
    pub fn new(_buffer_bytes: usize, _max_data_segment_length: u32) -> Self {
        todo!()
    }

    /// Both change when login ends.
    pub fn configure(&mut self, _buffer_bytes: usize, _max: u32, _digests: Digests) {
        todo!()
    }

    /// Where the next bytes from the peer are appended; has room for at least one.
    pub fn buffer(&mut self) -> Limit<&mut BytesMut> {
        todo!()
    }

    /// The next PDU, if all of it is there.
    pub fn next(&mut self) -> Result<Option<Frame>, Error> {
        todo!()
    }

    /// Bytes held now, for limits and counters.
    #[must_use]
    pub fn held(&self) -> usize {
        todo!()
    }
}

/// Queued output: headers in an arena, payload by reference, ready for vectored writes.
#[derive(Default)]
pub struct Output {
    _private: (),
}

impl Output {
    /// Appends a PDU with its padding and digests.
    pub fn push(&mut self, _pdu: Pdu, _digests: Digests) {
        todo!()
    }

    /// True if all was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        todo!()
    }

    /// Bytes not yet written.
    #[must_use]
    pub fn len(&self) -> usize {
        todo!()
    }

    /// Fills `slices` from the front and returns how many were used.
    pub fn slices<'a>(&'a self, _slices: &mut [IoSlice<'a>]) -> usize {
        todo!()
    }

    /// The first `count` bytes were written.
    pub fn advance(&mut self, _count: usize) {
        todo!()
    }
}
