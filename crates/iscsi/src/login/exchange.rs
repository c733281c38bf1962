//! Texts that span several PDUs (the C bit; RFC 7143, 6.2), in both directions.

use bytes::{Bytes, BytesMut};

use crate::keys::{KeyError, TEXT_MAX};

/// Text on its way in.
#[derive(Default)]
pub(super) struct Inbox {
    begun: BytesMut,
}

impl Inbox {
    /// Takes the text of one PDU. Returns the whole when `continues` says that this was its end.
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

/// Text on its way out, in pieces that the peer takes.
#[derive(Default)]
pub(super) struct LoginTextOutbox {
    rest: Bytes,
}

impl LoginTextOutbox {
    /// Nothing is left to send.
    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// A whole text. The one before it must be gone.
    pub(super) fn put(&mut self, text: Vec<u8>) {
        debug_assert!(self.is_empty(), "one text at a time");
        self.rest = text.into();
    }

    /// The next piece, and whether more follow.
    pub(super) fn next(&mut self) -> (Bytes, bool) {
        let piece = self.rest.split_to(self.rest.len().min(PIECE_MAX));
        (piece, !self.rest.is_empty())
    }
}

/// MaxRecvDataSegmentLength of both ends during login (RFC 7143, 6.3).
const PIECE_MAX: usize = 8192;
