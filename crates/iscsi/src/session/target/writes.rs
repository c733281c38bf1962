//! The writes of a session whose data is incomplete.

use std::time::Instant;

use super::{
    task::{IncomingWrite, Tasks},
    waiting::WaitingWriteBytes,
};

/// The incomplete writes of a session, and the checks of their progress.
#[derive(Debug)]
pub(super) struct SessionWrites {
    /// Writes whose data is incomplete, by tag.
    pub(super) incoming: Tasks<IncomingWrite>,
    /// The memory of waiting commands and of `incoming`, and its limit.
    pub(super) memory: WaitingWriteBytes,
    /// True if the data of the present PDU is a piece of a larger buffer
    /// ([`PduFrame::is_shared`](crate::codec::PduFrame::is_shared)). Data that must wait is then
    /// copied: it would keep the whole buffer in memory, and be charged for its own length only.
    pub(super) is_shared: bool,
    /// The most bytes that may be requested on one connection at a time.
    pub(super) solicited_share: u64,
    /// When the progress of waiting writes is checked next.
    pub(super) stall_check: Option<Instant>,
    /// When the data sequences are checked next, from error recovery level 1 on.
    pub(super) sequence_check: Option<Instant>,
    /// The time since which other sessions lack memory for their writes.
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
