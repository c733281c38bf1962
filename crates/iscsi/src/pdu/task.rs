//! Task Management Function Request and Response (RFC 7143, 11.5, 11.6).

use scsi::Lun;

use super::header::{self, Encoded, FINAL, put_lun, put_numbers, put_u32};
use super::{Bhs, Itt, Numbers, ParseError};
use crate::Serial;

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

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TaskRequest {
    /// True if the target delivers the request at once, outside the CmdSN order.
    pub immediate: bool,
    /// `Err` holds a value that the standard does not define.
    pub function: Result<TaskFunction, u8>,
    /// The unit that the function is for; not valid for functions that affect the whole target.
    pub lun: Lun,
    pub itt: Itt,
    /// The task to abort (ABORT TASK) or to reassign (TASK REASSIGN), otherwise NONE.
    pub referenced_itt: Itt,
    pub cmd_sn: Serial,
    pub exp_stat_sn: Serial,
    /// The CmdSN of the task to abort (ABORT TASK).
    pub ref_cmd_sn: Serial,
    /// The next DataSN or R2TSN that the initiator expects (TASK REASSIGN).
    pub exp_data_sn: u32,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TaskResponse {
    pub result: TaskFunctionResult,
    pub itt: Itt,
    pub numbers: Numbers,
}

impl TaskRequest {
    pub(super) const OPCODE: u8 = 0x02;

    pub(super) fn parse(bhs: &Bhs) -> Self {
        Self {
            immediate: header::is_immediate(bhs),
            function: TaskFunction::parse(bhs[1] & !FINAL),
            lun: header::lun(bhs),
            itt: header::itt(bhs),
            referenced_itt: Itt(header::u32_at(bhs, 20)),
            cmd_sn: header::serial_at(bhs, 24),
            exp_stat_sn: header::serial_at(bhs, 28),
            ref_cmd_sn: header::serial_at(bhs, 32),
            exp_data_sn: header::u32_at(bhs, 36),
        }
    }

    pub(super) fn encode(self) -> Encoded {
        let function = self.function.map_or_else(|code| code, |function| function as u8);
        let opcode = Self::OPCODE | header::immediate_bit(self.immediate);
        let mut bhs = header::header(opcode, FINAL | function, self.itt);
        put_lun(&mut bhs, self.lun);
        put_u32(&mut bhs, 20, self.referenced_itt.0);
        put_u32(&mut bhs, 24, self.cmd_sn.0);
        put_u32(&mut bhs, 28, self.exp_stat_sn.0);
        put_u32(&mut bhs, 32, self.ref_cmd_sn.0);
        put_u32(&mut bhs, 36, self.exp_data_sn);
        header::bare(bhs)
    }
}

impl TaskResponse {
    pub(super) const OPCODE: u8 = 0x22;

    pub(super) fn parse(bhs: &Bhs) -> Result<Self, ParseError> {
        Ok(Self {
            result: TaskFunctionResult::parse(bhs[2])?,
            itt: header::itt(bhs),
            numbers: header::numbers(bhs),
        })
    }

    pub(super) fn encode(self) -> Encoded {
        let mut bhs = header::header(Self::OPCODE, FINAL, self.itt);
        bhs[2] = self.result as u8;
        put_numbers(&mut bhs, self.numbers);
        header::bare(bhs)
    }
}

impl TaskFunction {
    fn parse(code: u8) -> Result<Self, u8> {
        Ok(match code {
            1 => Self::AbortTask,
            2 => Self::AbortTaskSet,
            3 => Self::ClearAca,
            4 => Self::ClearTaskSet,
            5 => Self::LogicalUnitReset,
            6 => Self::TargetWarmReset,
            7 => Self::TargetColdReset,
            8 => Self::TaskReassign,
            _ => return Err(code),
        })
    }
}

impl TaskFunctionResult {
    fn parse(code: u8) -> Result<Self, ParseError> {
        Ok(match code {
            0 => Self::Complete,
            1 => Self::NoTask,
            2 => Self::NoLun,
            3 => Self::StillAllegiant,
            4 => Self::ReassignNotSupported,
            5 => Self::NotSupported,
            6 => Self::AuthorizationFailed,
            255 => Self::Rejected,
            _ => return Err(ParseError::Field("task management response")),
        })
    }
}
