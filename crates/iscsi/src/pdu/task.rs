//! Task Management Function Request and Response (RFC 7143, 11.5, 11.6).

use scsi::Lun;

use super::{Itt, Numbers};
use crate::Serial;

/// What to do with tasks.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum TaskFunction {
    AbortTask = 1,
    AbortTaskSet = 2,
    ClearAca = 3,
    ClearTaskSet = 4,
    LogicalUnitReset = 5,
    TargetWarmReset = 6,
    TargetColdReset = 7,
    TaskReassign = 8,
}

/// How the function ended.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum TaskFunctionResult {
    Complete = 0,
    NoTask = 1,
    NoLun = 2,
    StillAllegiant = 3,
    ReassignNotSupported = 4,
    NotSupported = 5,
    AuthorizationFailed = 6,
    Rejected = 255,
}

/// A request to manage tasks.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TaskRequest {
    /// Deliver at once.
    pub immediate: bool,
    /// The function. A value that the standard does not define stays a number.
    pub function: Result<TaskFunction, u8>,
    /// The unit, where the function has one.
    pub lun: Lun,
    /// The tag of this request.
    pub itt: Itt,
    /// The task that is meant (ABORT TASK, TASK REASSIGN), else NONE.
    pub referenced_itt: Itt,
    /// Place in the session's command order.
    pub cmd_sn: Serial,
    /// Statuses up to before this one have arrived.
    pub exp_stat_sn: Serial,
    /// CmdSN of the task that is meant (ABORT TASK).
    pub ref_cmd_sn: Serial,
    /// Next DataSN or R2TSN expected (TASK REASSIGN).
    pub exp_data_sn: u32,
}

/// The answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TaskResponse {
    /// How it ended.
    pub result: TaskFunctionResult,
    /// The request's tag.
    pub itt: Itt,
    /// Sequence numbers.
    pub numbers: Numbers,
}
