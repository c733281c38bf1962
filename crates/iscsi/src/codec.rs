//! Converts bytes to PDUs and back, with digests (RFC 7143, 11.1, 13.1), without I/O.
//!
//! [`Decoder`] owns the receive buffer; it checks lengths and digests, and cuts the byte stream
//! into frames. [`Pdu::parse`] interprets their headers. [`PduOutput`] is the send queue.

use std::{collections::VecDeque, io::IoSlice};

use bytes::{Buf, BufMut, Bytes, BytesMut, buf::Limit};
use crc_fast::{CrcAlgorithm, Digest};

use crate::{Bhs, DataSegment, Pdu};

/// Which parts of the PDUs of a connection have a CRC32C digest, in both directions.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Digests {
    /// True if a CRC32C digest covers the basic header and the additional header segments.
    pub header: bool,
    /// True if the data segment with its padding has a CRC32C digest.
    pub data: bool,
}

/// A complete received PDU: its headers and its data segment, without padding and digests.
#[derive(Clone, Debug)]
pub struct PduFrame {
    pub bhs: Bhs,
    /// The additional header segments (AHS); usually empty.
    pub ahs: Bytes,
    pub data: Bytes,
    /// True if the data is a piece of a much larger receive buffer, which stays in memory as long
    /// as the data does. Copy the data before keeping it for a long time.
    pub is_shared: bool,
    /// True if the data digest does not match. The receiver rejects such a PDU; the error recovery
    /// level decides if the data is requested again. (A wrong *header* digest is a [`CodecError`],
    /// since the start of the next PDU is then unknown.)
    pub data_digest_error: bool,
}

impl PduFrame {
    /// Returns the length of the PDU in bytes, with padding and without digests.
    #[must_use]
    pub fn length(&self) -> usize {
        self.bhs.len() + self.ahs.len() + self.data.len().next_multiple_of(4)
    }
}

/// An error after which the start of the next PDU is unknown. The connection must be closed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CodecError {
    #[error("header digest error")]
    HeaderDigest,
    /// The peer has sent a longer data segment than this end has declared to accept.
    #[error("a data segment of {length} bytes exceeds the limit of {limit}")]
    DataSegmentLength {
        /// DataSegmentLength in the header of the PDU, in bytes.
        length: u32,
        /// MaxRecvDataSegmentLength as declared; before that, the default of RFC 7143, 6.2.
        limit: u32,
    },
    /// The additional header segments are longer than any that RFC 7143 defines.
    #[error("additional header segments of {0} bytes exceed the limit of {AHS_LIMIT}")]
    AhsLength(u32),
}

/// Cuts a byte stream into PDUs. The decoder owns the receive buffer, so that the kernel copies
/// data to where it stays: small PDUs are cut out of a shared 64 KiB buffer, and a large data
/// segment is read into a buffer of its own.
///
/// ```text
/// loop { read the socket into buffer(); while let Some(frame) = next()? { … } }
/// ```
pub struct Decoder {
    /// Received bytes that belong to no returned frame yet. The returned frames share this memory.
    small: BytesMut,
    /// The large PDU whose data segment is being read into a buffer of its own.
    large: Option<Large>,
    /// An empty `BytesMut` that shares the memory of the last large data segment. The decoder
    /// reuses this memory for the next large segment once the frame of the last one is dropped.
    spare: BytesMut,
    /// The size in bytes of the memory that `spare` refers to.
    spare_bytes: usize,
    /// The number of bytes that `small` must hold before [`Decoder::next`] can continue: those of
    /// the basic header, then those of all headers, then those of the whole PDU.
    wanted: usize,
    /// True if the last PDU was a large one. The next PDU is then likely to be large as well, so
    /// the next read is limited to [`AFTER_LARGE`] bytes.
    streaming: bool,
    buffer_bytes: usize,
    max_data_segment_length: u32,
    digests: Digests,
}

/// A PDU with a long data segment, which the decoder reads into a buffer of its own.
struct Large {
    bhs: Bhs,
    ahs: Bytes,
    length: usize,
    /// Data segment, padding and digest, followed by up to [`TAIL`] bytes of the next PDU.
    body: BytesMut,
    body_length: usize,
    /// The size in bytes of the memory that `body` refers to. The capacity of `body` may be
    /// smaller, since it begins after the previous data segment in this memory.
    buffer_bytes: usize,
}

/// The length of a basic header segment in bytes.
const BHS: usize = 48;
const DIGEST: usize = 4;
/// The limit for additional header segments. RFC 7143 defines an extended CDB (4 + 244 bytes) and a
/// bidirectional read length (8).
const AHS_LIMIT: usize = 256;
/// From this length in bytes on, a data segment is read into its own buffer. Below, a second system
/// call costs more than keeping 64 KiB of shared buffer in memory.
pub(crate) const LARGE: usize = 16 * 1024;
/// The number of bytes that are read beyond a large data segment. The next PDU's header then
/// arrives with the same system call.
const TAIL: usize = 512;
/// The most bytes that the first read after a large PDU requests. The next data segment may be large, too: a part of it
/// that a longer read puts into the shared buffer would have to be copied.
const AFTER_LARGE: usize = 4096;
/// The least space in bytes that each read offers the socket, unless the whole buffer is smaller.
/// With 16 KiB, a target served half as many small writes per second as with 32 KiB or more.
const MIN_READ: usize = 32 * 1024;
/// The most memory in bytes that is kept for the next large data segment: twice the default
/// MaxRecvDataSegmentLength of 256 KiB.
const MAX_SPARE: usize = 512 * 1024;

impl Decoder {
    /// Makes a decoder that uses about `buffer_bytes` (at least 2 KiB) for small PDUs, and refuses
    /// data segments longer than `max_data_segment_length` bytes.
    #[must_use]
    pub fn new(buffer_bytes: usize, max_data_segment_length: u32) -> Self {
        Self {
            small: BytesMut::new(),
            large: None,
            spare: BytesMut::new(),
            spare_bytes: 0,
            wanted: BHS,
            streaming: false,
            buffer_bytes: buffer_bytes.max(2048),
            max_data_segment_length,
            digests: Digests::default(),
        }
    }

    /// Sets the buffer size, the longest data segment (`max`) and the digests. Call it at the end
    /// of the login, which changes all three.
    pub fn configure(&mut self, buffer_bytes: usize, max: u32, digests: Digests) {
        self.buffer_bytes = buffer_bytes.max(2048);
        self.max_data_segment_length = max;
        self.digests = digests;
    }

    /// Returns the buffer to append received bytes to. The buffer has space for at least one byte.
    pub fn buffer(&mut self) -> Limit<&mut BytesMut> {
        if self.large.is_none() {
            self.make_room();
        }
        match &mut self.large {
            Some(large) => {
                let missing = large.body_length.saturating_sub(large.body.len());
                (&mut large.body).limit(missing + TAIL)
            }
            None => {
                let room = self.small.capacity() - self.small.len();
                let at_header = self.streaming && self.small.len() < BHS;
                (&mut self.small).limit(if at_header { room.min(AFTER_LARGE) } else { room })
            }
        }
    }

    /// Returns the number of bytes that are missing until the PDU that has begun to arrive is
    /// complete. Returns 0 between two PDUs, and while the length of the PDU is unknown.
    #[must_use]
    pub fn missing(&self) -> usize {
        match &self.large {
            Some(large) => large.body_length.saturating_sub(large.body.len()),
            None if self.small.len() < BHS => 0,
            None => self.wanted.saturating_sub(self.small.len()),
        }
    }

    /// Makes space in the shared buffer: at least for the PDU at its front, and enough for a read
    /// to be worth its system call.
    fn make_room(&mut self) {
        let length = self.small.len();
        let room = self.small.capacity() - length;
        if room + length >= self.buffer_bytes
            || self.small.try_reclaim(self.buffer_bytes.saturating_sub(length))
        {
            return;
        }
        let least = self.wanted.saturating_sub(length).max(MIN_READ.min(self.buffer_bytes / 2));
        if room < least {
            // Allocate a new buffer: frames in use keep the old one in memory. Only the bytes of an
            // incomplete PDU are copied.
            let mut fresh = BytesMut::with_capacity(self.buffer_bytes.max(self.wanted));
            fresh.extend_from_slice(&self.small);
            self.small = fresh;
        }
    }

    /// Returns the next complete PDU; `None` if more bytes have to arrive first.
    #[allow(clippy::should_implement_trait)] // it is fallible, and `None` is not the end
    pub fn next(&mut self) -> Result<Option<PduFrame>, CodecError> {
        if self.large.is_some() {
            return Ok(self.next_large());
        }
        self.wanted = BHS;
        let Some(bhs) = self.small.first_chunk::<BHS>() else { return Ok(None) };
        let ahs_length = usize::from(bhs[4]) * 4;
        let length = u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]);
        let header_length = BHS + ahs_length;
        let header_end = header_length + if self.digests.header { DIGEST } else { 0 };
        if !self.digests.header {
            // Without a header digest, check the lengths as soon as the basic header has arrived.
            // Garbage is then refused instead of making the decoder wait for the bytes that the
            // header announces.
            self.check_lengths(ahs_length, length)?;
        }
        if self.small.len() < header_end {
            self.wanted = header_end;
            return Ok(None);
        }
        if self.digests.header {
            let told = &self.small[header_length..header_end];
            if told != crc32c(&self.small[..header_length]).to_le_bytes() {
                return Err(CodecError::HeaderDigest);
            }
            self.check_lengths(ahs_length, length)?;
        }
        let length = length as usize;
        let body_length = body_length(length, self.digests);
        let whole = header_end + body_length;
        if self.small.len() < whole {
            if length < LARGE && whole <= self.buffer_bytes {
                self.wanted = whole;
                return Ok(None);
            }
            self.begin_large(header_length, header_end, length, body_length);
            return Ok(None);
        }

        let bhs = *bhs;
        let ahs = Bytes::copy_from_slice(&self.small[BHS..header_length]);
        self.small.advance(header_end);
        self.streaming = length >= LARGE;
        if length == 0 {
            let data = Bytes::new();
            return Ok(Some(PduFrame {
                bhs,
                ahs,
                data,
                is_shared: false,
                data_digest_error: false,
            }));
        }
        let data_digest_error = self.digests.data && !data_digest_fits(&self.small[..body_length]);
        let data = self.small.split_to(length).freeze();
        self.small.advance(body_length - length);
        Ok(Some(PduFrame { bhs, ahs, data, is_shared: true, data_digest_error }))
    }

    fn check_lengths(&self, ahs_length: usize, length: u32) -> Result<(), CodecError> {
        let limit = self.max_data_segment_length;
        if length > limit {
            return Err(CodecError::DataSegmentLength { length, limit });
        }
        if ahs_length > AHS_LIMIT {
            return Err(CodecError::AhsLength(ahs_length as u32));
        }
        Ok(())
    }

    /// Starts to read a large PDU: copies the part of its data segment that has arrived from the
    /// shared buffer to the segment's own buffer.
    fn begin_large(&mut self, header: usize, header_end: usize, length: usize, body_length: usize) {
        let bhs = *self.small.first_chunk::<BHS>().expect("next() has seen the header");
        let ahs = Bytes::copy_from_slice(&self.small[BHS..header]);
        let mut body = std::mem::take(&mut self.spare);
        let mut buffer_bytes = self.spare_bytes;
        if !body.try_reclaim(body_length + TAIL) {
            body = BytesMut::with_capacity(body_length + TAIL);
            buffer_bytes = body.capacity();
        }
        body.extend_from_slice(&self.small[header_end..]);
        self.small.clear();
        self.large = Some(Large { bhs, ahs, length, body, body_length, buffer_bytes });
    }

    fn next_large(&mut self) -> Option<PduFrame> {
        let Large { bhs, ahs, length, mut body, body_length, buffer_bytes } =
            self.large.take_if(|large| large.body.len() >= large.body_length)?;
        if body.len() > body_length {
            self.make_room();
            self.small.extend_from_slice(&body[body_length..]);
        }
        body.truncate(body_length);
        let data_digest_error = self.digests.data && length > 0 && !data_digest_fits(&body);
        // A reused buffer may have been allocated for a longer data segment. This frame would then
        // keep much more memory than its data needs.
        let is_shared = buffer_bytes > 2 * length + TAIL;
        body.truncate(length);
        let data = body.split().freeze();
        if data.len() <= MAX_SPARE {
            (self.spare, self.spare_bytes) = (body, buffer_bytes);
        }
        self.streaming = true;
        Some(PduFrame { bhs, ahs, data, is_shared, data_digest_error })
    }

    /// Removes and returns the bytes received after the last PDU. Use it when the byte stream
    /// changes its format, for example when compression begins. Call it only while no data segment
    /// of 16 KiB or more is incomplete, as is always the case during a login.
    pub fn take_rest(&mut self) -> BytesMut {
        debug_assert!(self.large.is_none(), "login PDUs are small");
        std::mem::take(&mut self.small)
    }

    /// Frees the memory that the decoder keeps only for future PDUs. Call it for an idle
    /// connection, or for a session that must not hold more memory.
    pub fn rest(&mut self) {
        self.spare = BytesMut::new();
        if self.small.len() < BHS {
            // Keep the bytes of an incomplete header.
            self.small = BytesMut::from(&self.small[..]);
        }
    }

    /// Returns the number of bytes of memory that the decoder uses, for limits and counters.
    #[must_use]
    pub fn held(&self) -> usize {
        let large = self.large.as_ref().map_or(0, |large| large.body.capacity());
        self.small.capacity() + large + self.spare.capacity()
    }
}

/// Returns the length in bytes that a data segment takes on the wire, with padding and digest.
fn body_length(length: usize, digests: Digests) -> usize {
    length.next_multiple_of(4) + if digests.data && length > 0 { DIGEST } else { 0 }
}

/// Returns true if the digest at the end of `body` matches the bytes before it.
fn data_digest_fits(body: &[u8]) -> bool {
    body.split_last_chunk().is_some_and(|(data, told)| *told == crc32c(data).to_le_bytes())
}

/// Returns the CRC32C of `bytes` (RFC 7143, 13.1), which is sent in little-endian order.
fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Returns the CRC32C of a data segment followed by `padding` zero bytes.
fn crc32c_of_segment(data: &DataSegment, padding: usize) -> u32 {
    if let ([piece], 0) = (data.as_slice(), padding) {
        return crc32c(piece);
    }
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    data.iter().for_each(|piece| digest.update(piece));
    digest.update(&[0; 3][..padding]);
    digest.finalize() as u32
}

/// The send queue of a connection. Headers are copied into an arena and data is queued by
/// reference, ready for vectored writes.
#[derive(Debug, Default)]
pub struct PduOutput {
    /// Headers, digests, padding and short data, in the order of `chunks`.
    arena: Vec<u8>,
    /// The number of bytes of `arena` that are written.
    arena_at: usize,
    /// The unwritten output in order. No chunk is empty.
    chunks: VecDeque<PduOutputChunk>,
    length: usize,
    /// The number of bytes that were written since the queue was made.
    written: u64,
}

#[derive(Debug)]
enum PduOutputChunk {
    /// This number of bytes of the arena, which follow the bytes of the chunk before. Adjacent chunks are merged, so
    /// that ten write responses need only one slice.
    Arena(usize),
    Payload(Bytes),
}

/// Data up to this length in bytes is copied into the arena, which is cheaper than a separate
/// slice.
const COPIED: usize = 256;
/// The memory of an empty arena is freed if it is larger than this, and reused otherwise.
const KEPT_ARENA: usize = 64 * 1024;

impl PduOutput {
    /// Appends a PDU with its padding and digests. Returns its length in bytes without digests.
    pub fn push(&mut self, pdu: Pdu, digests: Digests) -> usize {
        let (bhs, ahs, data) = pdu.encode();
        debug_assert!(ahs.len() % 4 == 0 && ahs.len() / 4 == usize::from(bhs[4]));
        self.compact();
        let start = self.arena.len();
        self.arena.extend_from_slice(&bhs);
        self.arena.extend_from_slice(&ahs);
        if digests.header {
            let digest = crc32c(&self.arena[start..]);
            self.arena.extend_from_slice(&digest.to_le_bytes());
        }
        self.arena_grew(start);
        let length: usize = data.iter().map(Bytes::len).sum();
        let header = bhs.len() + ahs.len();
        if length == 0 {
            return header;
        }
        let padding = length.next_multiple_of(4) - length;
        let digest = digests.data.then(|| crc32c_of_segment(&data, padding));
        for piece in data {
            if piece.len() <= COPIED {
                let start = self.arena.len();
                self.arena.extend_from_slice(&piece);
                self.arena_grew(start);
            } else {
                self.length += piece.len();
                self.chunks.push_back(PduOutputChunk::Payload(piece));
            }
        }
        let start = self.arena.len();
        self.arena.extend_from_slice(&[0; 3][..padding]);
        if let Some(digest) = digest {
            self.arena.extend_from_slice(&digest.to_le_bytes());
        }
        self.arena_grew(start);
        header + length + padding
    }

    fn arena_grew(&mut self, start: usize) {
        let grown = self.arena.len() - start;
        self.length += grown;
        match self.chunks.back_mut() {
            _ if grown == 0 => {}
            Some(PduOutputChunk::Arena(length)) => *length += grown,
            _ => self.chunks.push_back(PduOutputChunk::Arena(grown)),
        }
    }

    /// Removes the written part of the arena. Without this, the arena would grow for as long as a
    /// slow peer never lets the queue become empty.
    fn compact(&mut self) {
        if self.arena_at >= KEPT_ARENA && self.arena_at * 2 >= self.arena.len() {
            self.arena.drain(..self.arena_at);
            self.arena_at = 0;
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the number of queued bytes that are still to be written to the connection.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns the number of bytes written since the queue was made.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Returns the position of the end of the queue, counted like [`PduOutput::written`]: once
    /// `written` returns this number, all output queued now is written.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.written + self.length as u64
    }

    /// Returns the queued bytes that are still to be written, in order. No piece is empty.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let mut at = self.arena_at;
        self.chunks.iter().map(move |chunk| match chunk {
            PduOutputChunk::Arena(length) => {
                at += length;
                &self.arena[at - length..at]
            }
            PduOutputChunk::Payload(bytes) => bytes,
        })
    }

    /// Fills `slices` from the front of the queue and returns the number used.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut used = 0;
        for (slice, piece) in slices.iter_mut().zip(self.pieces()) {
            *slice = IoSlice::new(piece);
            used += 1;
        }
        used
    }

    /// Removes the first `count` bytes, which were written.
    ///
    /// # Panics
    /// If the queue has fewer bytes.
    pub fn advance(&mut self, count: usize) {
        self.length = self.length.checked_sub(count).expect("no more is written than was queued");
        self.written += count as u64;
        let mut left = count;
        while left > 0 {
            let front = self.chunks.front_mut().expect("the length counts the chunks");
            let taken = match front {
                PduOutputChunk::Arena(length) => {
                    let taken = left.min(*length);
                    *length -= taken;
                    self.arena_at += taken;
                    (taken, *length == 0)
                }
                PduOutputChunk::Payload(bytes) => {
                    let taken = left.min(bytes.len());
                    bytes.advance(taken);
                    (taken, bytes.is_empty())
                }
            };
            left -= taken.0;
            if taken.1 {
                self.chunks.pop_front();
            }
        }
        if self.length == 0 {
            self.arena_at = 0;
            self.arena.clear();
            if self.arena.capacity() > KEPT_ARENA {
                self.arena = Vec::new();
            }
        }
    }
}
