//! Text exchanges in full feature phase that are not finished (RFC 7143, 11.10).

use bytes::Bytes;

use crate::{Itt, Ttt};

/// An exchange of text that is not finished. One connection has one at most
/// (RFC 7143, 11.10.4: a new one without a tag resets the old).
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) itt: Itt,
    pub(super) ttt: Ttt,
    /// What the initiator has said so far, bounded by `handle_text`.
    pub(super) question: Vec<u8>,
    /// What we have still to say.
    pub(super) answer: Bytes,
}

/// A request that waits for the driver to say which targets there are.
#[derive(Debug)]
pub(super) struct PendingText {
    pub(super) exchange: Exchange,
    pub(super) is_final: bool,
    /// Answers to other keys of the same request.
    pub(super) answers: Vec<u8>,
}
