//! Unfinished text exchanges in full feature phase (RFC 7143, 11.10).

use bytes::Bytes;

use crate::{Itt, Ttt};

/// An unfinished text exchange. A connection has at most one: a new exchange without a tag resets
/// the old one (RFC 7143, 11.10.4).
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) itt: Itt,
    pub(super) ttt: Ttt,
    /// The part of the initiator's text request that has arrived. `handle_text` limits its length.
    pub(super) question: Vec<u8>,
    /// The part of the target's text response that is still to be sent.
    pub(super) answer: Bytes,
}

/// A text request with SendTargets, which waits until the driver has listed the targets.
#[derive(Debug)]
pub(super) struct PendingText {
    pub(super) exchange: Exchange,
    pub(super) is_final: bool,
    /// The answers to the keys of the request other than SendTargets.
    pub(super) answers: Vec<u8>,
}
