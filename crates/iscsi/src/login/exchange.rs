//! Texts that span several login PDUs (the C bit; RFC 7143, 6.2), in both directions.

use bytes::{Bytes, BytesMut};

use crate::keys::{KeyError, TEXT_MAX};

/// Joins the parts of a login text that arrives in several PDUs.
#[derive(Default)]
pub(super) struct Inbox {
    begun: BytesMut,
}

impl Inbox {
    /// Adds the text of one PDU; `continues` is the C bit. Returns the complete text once a PDU
    /// without the C bit has arrived.
    pub(super) fn push(&mut self, text: Bytes, continues: bool) -> Result<Option<Bytes>, KeyError> {
        if self.begun.len() + text.len() > TEXT_MAX {
            return Err(KeyError::TooLong(TEXT_MAX));
        }
        if self.begun.is_empty() && !continues {
            return Ok(Some(text));
        }
        self.begun.extend_from_slice(&text);
        Ok((!continues).then(|| self.begun.split().freeze()))
    }
}

/// A text to send, in pieces that the peer accepts.
#[derive(Default)]
pub(super) struct LoginTextOutbox {
    rest: Bytes,
}

impl LoginTextOutbox {
    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Queues a complete login text to send. The previous text must have been sent.
    pub(super) fn put(&mut self, text: Vec<u8>) {
        debug_assert!(self.is_empty(), "one text at a time");
        self.rest = text.into();
    }

    /// Returns the next piece, and true if more pieces follow.
    pub(super) fn next(&mut self) -> (Bytes, bool) {
        let piece = self.rest.split_to(self.rest.len().min(PIECE_MAX));
        (piece, !self.rest.is_empty())
    }
}

/// The longest piece in bytes: MaxRecvDataSegmentLength of both ends during a login (RFC 7143,
/// 6.3).
const PIECE_MAX: usize = 8192;
