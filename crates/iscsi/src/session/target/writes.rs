//! The writes of a session whose data is not complete.

use std::time::Instant;

use super::{
    task::{IncomingWrite, Tasks},
    waiting::WaitingWriteBytes,
};

/// The incomplete writes of a session, and the checks of their progress.
#[derive(Debug)]
pub(super) struct SessionWrites {
    /// Writes whose data is not complete, by tag.
    pub(super) incoming: Tasks<IncomingWrite>,
    /// Memory that waiting commands and `incoming` hold, and its limit.
    pub(super) memory: WaitingWriteBytes,
    /// The data of the PDU at hand is a piece of a larger buffer
    /// ([`Frame::is_shared`](crate::codec::PduFrame::is_shared)). Data that has to wait is copied then: it would
    /// keep the whole buffer in memory, and be charged for its own length only.
    pub(super) is_shared: bool,
    /// The limit of the bytes that one connection may have been asked for at once.
    pub(super) solicited_share: u64,
    /// When the progress of the waiting writes is checked next.
    pub(super) stall_check: Option<Instant>,
    /// When the sequences of data are checked next, from recovery level 1 on.
    pub(super) sequence_check: Option<Instant>,
    /// Since when other sessions have lacked room for their writes.
    pub(super) contended_since: Option<Instant>,
}

impl SessionWrites {
    /// Returns the state of a session without writes.
    pub(super) fn new(solicited_share: u64) -> Self {
        Self {
            incoming: Tasks::default(),
            memory: WaitingWriteBytes::unlimited(),
            is_shared: false,
            solicited_share,
            stall_check: None,
            sequence_check: None,
            contended_since: None,
        }
    }
}
