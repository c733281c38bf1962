//! The state of a failed connection until its tasks continue elsewhere or end.

use std::time::Instant;

use crate::{Cid, Itt};

/// A failed connection whose tasks wait.
#[derive(Debug)]
pub(super) struct FailedConnection {
    pub(super) cid: Cid,
    pub(super) step: ConnectionRecoveryStep,
    /// The number of logouts that were sent for the connection.
    pub(super) attempts: u32,
}

/// The steps of the recovery in their order; see `recovery`.
#[derive(Debug)]
pub(super) enum ConnectionRecoveryStep {
    /// The recovery may start at this time (Time2Wait).
    Waiting(Instant),
    LoggingOut {
        on: Cid,
        itt: Itt,
        deadline: Instant,
    },
    /// The target has logged the connection out. The tasks may be requested at this time.
    Resting(Instant),
}
