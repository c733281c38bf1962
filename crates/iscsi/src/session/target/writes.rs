//! The writes of a session whose data is incomplete.

use std::time::Instant;

use super::{
    task::{IncomingWrite, Tasks},
    waiting::WaitingWriteBytes,
};

/// The writes of a session whose data is incomplete, and the checks of their progress.
#[derive(Debug)]
pub(super) struct SessionWrites {
    /// Writes whose data is incomplete, by tag.
    pub(super) incoming: Tasks<IncomingWrite>,
    /// The memory in bytes that waiting commands and incomplete writes use, and its limit.
    pub(super) memory: WaitingWriteBytes,
    /// True if the data of the PDU that is being processed is a piece of a larger buffer
    /// ([`PduFrame::is_shared`](crate::codec::PduFrame::is_shared)). Data that must wait is then
    /// copied. Otherwise it would keep the whole buffer in memory, but be charged only for its own
    /// length.
    pub(super) is_shared: bool,
    /// Maximum number of bytes that R2Ts of one connection may request at the same time.
    pub(super) solicited_share: u64,
    /// When the progress of waiting writes is checked next.
    pub(super) stall_check: Option<Instant>,
    /// When the data sequences are checked next, from error recovery level 1 on.
    pub(super) sequence_check: Option<Instant>,
    /// The time since when other sessions lack memory for their writes; `None` if they do not.
    pub(super) contended_since: Option<Instant>,
}

impl SessionWrites {
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
