//! Logout Request and Response (RFC 7143, 11.14, 11.15).

use super::{Cid, Itt, Numbers};
use crate::Serial;

/// Why the initiator leaves.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum LogoutReason {
    CloseSession = 0,
    CloseConnection = 1,
    RemoveConnectionForRecovery = 2,
}

/// How it ended.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum LogoutResult {
    Closed = 0,
    CidNotFound = 1,
    RecoveryNotSupported = 2,
    CleanupFailed = 3,
}

/// A request to close.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LogoutRequest {
    /// Deliver at once.
    pub immediate: bool,
    /// Why. A value that the standard does not define stays a number.
    pub reason: Result<LogoutReason, u8>,
    /// The tag.
    pub itt: Itt,
    /// Which connection; unused for `CloseSession`.
    pub cid: Cid,
    /// Place in the session's command order.
    pub cmd_sn: Serial,
    /// Statuses up to before this one have arrived.
    pub exp_stat_sn: Serial,
}

/// The answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LogoutResponse {
    /// How it ended.
    pub result: LogoutResult,
    /// The request's tag.
    pub itt: Itt,
    /// Sequence numbers.
    pub numbers: Numbers,
    /// Seconds to wait before reconnecting.
    pub time2wait: u16,
    /// Seconds that the tasks are kept after that.
    pub time2retain: u16,
}
