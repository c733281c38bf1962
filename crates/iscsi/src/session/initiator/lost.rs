//! The recovery of a failed connection, until its tasks continue on another one or fail.

use std::time::Instant;

use crate::{Cid, Itt};

/// A connection that has failed and whose tasks wait for the recovery.
#[derive(Debug)]
pub(super) struct FailedConnection {
    pub(super) cid: Cid,
    pub(super) step: ConnectionRecoveryStep,
    /// The number of logouts that were sent for the connection.
    pub(super) attempts: u32,
}

/// The steps of the recovery of one connection, in their order; see the module `recovery`.
#[derive(Debug)]
pub(super) enum ConnectionRecoveryStep {
    /// The recovery may start at this time, after the Time2Wait that was negotiated.
    Waiting(Instant),
    LoggingOut {
        on: Cid,
        itt: Itt,
        deadline: Instant,
    },
    /// The target has logged the connection out. From this time on, its tasks may be moved to
    /// another connection.
    Resting(Instant),
}
