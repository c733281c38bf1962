//! What a session remembers of a connection that failed, until its tasks go on or end.

use std::time::Instant;

use crate::{Cid, Itt};

/// A connection that failed, while its tasks wait.
#[derive(Debug)]
pub(super) struct FailedConnection {
    pub(super) cid: Cid,
    /// How far its recovery is.
    pub(super) step: ConnectionRecoveryStep,
    /// Logouts that were sent for it.
    pub(super) attempts: u32,
}

/// The steps in their order; see `recovery`.
#[derive(Debug)]
pub(super) enum ConnectionRecoveryStep {
    /// No recovery before then (Time2Wait).
    Waiting(Instant),
    LoggingOut {
        on: Cid,
        itt: Itt,
        deadline: Instant,
    },
    /// The target counts it as logged out; no task is asked for before then.
    Resting(Instant),
}
