//! Events of the session for its driver, and the outcomes that the driver returns.

use scsi::{AdmittedCommand, Cdb, Lun, ScsiStatus, Sense};

use crate::{Cid, DataSegment, Itt, pdu::TaskFunction};

/// A request of the session to its driver. The driver must process events in order.
#[derive(Clone, Debug)]
pub enum TargetEvent {
    /// Execute a command, then call `complete`.
    Command(ReceivedCommand),
    /// Decide if the data of a write may be requested: call `admit`, or `complete` to refuse the
    /// write.
    Admission(WriteAdmission),
    /// Discard a command, whose outcome will not be sent.
    Abort(Itt),
    /// Commands for this unit ended with their connection. Raise the unit attention condition SOME
    /// COMMANDS CLEARED BY ISCSI PROTOCOL EVENT at the unit (RFC 7143, 11.14.5). This event comes
    /// after the aborts of these commands.
    Terminated(Lun),
    /// Execute the function at the units, then call `answer_management`. If the function is for the
    /// whole target, earlier events have aborted the tasks of this session; see
    /// [`ManagementRequest`].
    Management(ManagementRequest),
    /// Call `answer_send_targets` for this connection.
    SendTargets(Cid, SendTargets),
}

/// A command with all its data.
#[derive(Clone, Debug)]
pub struct ReceivedCommand {
    pub itt: Itt,
    /// The addressed unit, in the form that the initiator sent.
    pub lun: Lun,
    pub cdb: Cdb,
    /// The three ATTR bits (RFC 7143, 11.3.1).
    pub attribute: u8,
    /// The data of a write, in order.
    pub data_out: DataSegment,
    /// The most bytes of Data-In that the initiator accepts.
    pub data_in_capacity: u32,
    /// The argument of [`Session::admit`](super::Session::admit). `None` if no data was requested.
    pub admitted: Option<AdmittedCommand>,
}

/// A write for which data must be requested.
#[derive(Clone, Debug)]
pub struct WriteAdmission {
    pub itt: Itt,
    pub lun: Lun,
    pub cdb: Cdb,
    /// The length of the write in bytes, as the initiator announced it.
    pub data_out_length: u32,
}

/// A task management function for one unit, or for all of them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ManagementRequest {
    pub itt: Itt,
    /// ABORT TASK SET, CLEAR TASK SET or LOGICAL UNIT RESET (call `abort_for` if the unit exists);
    /// TARGET WARM RESET or TARGET COLD RESET (the session's tasks are aborted already).
    pub function: TaskFunction,
    /// The unit, for the first three functions.
    pub lun: Lun,
}

impl ManagementRequest {
    /// Returns the unit that the function is for; `None` for all units.
    #[must_use]
    pub fn unit(&self) -> Option<Lun> {
        let is_for_target =
            matches!(self.function, TaskFunction::TargetWarmReset | TaskFunction::TargetColdReset);
        (!is_for_target).then_some(self.lun)
    }
}

/// The targets that the initiator asks for (RFC 7143, Appendix C).
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SendTargets {
    /// All targets that the initiator may see; only in a discovery session.
    All,
    /// The target with this name.
    Named(String),
    /// The target of this session.
    Own,
}

/// The outcome of a command.
#[derive(Clone, Debug)]
pub struct TargetCommandOutcome {
    pub status: ScsiStatus,
    /// Sent with CHECK CONDITION only.
    pub sense: Option<Sense>,
    /// The Data-In of the command, truncated to its allocation length. The session truncates it
    /// further to the length that the initiator accepts.
    pub data_in: DataSegment,
    /// The length in bytes of the Data-Out that the CDB asks for. `None` if it equals the announced
    /// length.
    pub data_out_length: Option<u32>,
}

impl TargetCommandOutcome {
    /// Returns GOOD with this Data-In.
    #[must_use]
    pub fn good(data_in: DataSegment) -> Self {
        Self { status: ScsiStatus::Good, sense: None, data_in, data_out_length: None }
    }

    /// Returns CHECK CONDITION with this sense data.
    #[must_use]
    pub fn check_condition(sense: Sense) -> Self {
        Self { sense: Some(sense), ..Self::status(ScsiStatus::CheckCondition) }
    }

    /// Returns a status without sense data.
    #[must_use]
    pub fn status(status: ScsiStatus) -> Self {
        Self { status, sense: None, data_in: DataSegment::new(), data_out_length: None }
    }
}
