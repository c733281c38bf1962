//! Events of the session machine for its driver, and the outcomes that the driver returns.

use scsi::{AdmittedCommand, Cdb, Lun, ScsiStatus, Sense};

use crate::{Cid, DataSegment, Itt, pdu::TaskFunction};

/// A request of the session machine to its driver. The driver must handle events in order.
#[derive(Clone, Debug)]
pub enum TargetEvent {
    /// Perform a command, then call `complete`.
    Command(ReceivedCommand),
    /// Decide whether the data of a write is requested: call `admit`, or `complete` to refuse the write.
    Admission(WriteAdmission),
    /// Forget a command: no answer to it will be sent.
    Abort(Itt),
    /// Commands for this unit ended with their connection. Raise the unit attention condition SOME COMMANDS CLEARED BY
    /// ISCSI PROTOCOL EVENT (RFC 7143, 11.14.5) at the unit. Comes after the aborts of these commands.
    Terminated(Lun),
    /// Perform the function at the units, then call `answer_management`. If the function is for the whole target,
    /// events before this one have aborted the tasks of this session; see [`ManagementRequest`].
    Management(ManagementRequest),
    /// Call `answer_send_targets` for this connection.
    SendTargets(Cid, SendTargets),
}

/// A command with all its data.
#[derive(Clone, Debug)]
pub struct ReceivedCommand {
    /// The tag of the command.
    pub itt: Itt,
    /// The addressed unit, as the initiator wrote it.
    pub lun: Lun,
    /// The command.
    pub cdb: Cdb,
    /// The three ATTR bits (RFC 7143, 11.3.1).
    pub attribute: u8,
    /// The data of a write, in order.
    pub data_out: DataSegment,
    /// How many bytes of Data-In the initiator has room for.
    pub data_in_capacity: u32,
    /// What the driver passed to [`Session::admit`](super::Session::admit). `None` if no data was requested.
    pub admitted: Option<AdmittedCommand>,
}

/// A write whose data has to be requested.
#[derive(Clone, Debug)]
pub struct WriteAdmission {
    /// The tag of the command.
    pub itt: Itt,
    /// The addressed unit.
    pub lun: Lun,
    /// The command.
    pub cdb: Cdb,
    /// The bytes of Data-Out that the initiator has announced.
    pub data_out_length: u32,
}

/// A task management function for a unit, or for all of them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ManagementRequest {
    /// The tag of the request.
    pub itt: Itt,
    /// ABORT TASK SET, CLEAR TASK SET, LOGICAL UNIT RESET (call `abort_for` if the unit exists),
    /// TARGET WARM RESET, TARGET COLD RESET (the session's tasks are aborted already).
    pub function: TaskFunction,
    /// The unit, for the first three.
    pub lun: Lun,
}

impl ManagementRequest {
    /// Returns the unit that the function is for; `None` if it is for all units.
    #[must_use]
    pub fn unit(&self) -> Option<Lun> {
        let is_for_target =
            matches!(self.function, TaskFunction::TargetWarmReset | TaskFunction::TargetColdReset);
        (!is_for_target).then_some(self.lun)
    }
}

/// Which targets the initiator asks for (RFC 7143, Appendix C).
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SendTargets {
    /// All targets that the initiator may see; only in a discovery session.
    All,
    /// The target with this name.
    Named(String),
    /// The target of this session.
    Own,
}

/// How a command ended.
#[derive(Clone, Debug)]
pub struct TargetCommandOutcome {
    /// The status.
    pub status: ScsiStatus,
    /// The sense data, with CHECK CONDITION.
    pub sense: Option<Sense>,
    /// The Data-In of the command, cut to its allocation length. The session cuts it to the length that the initiator
    /// has room for.
    pub data_in: DataSegment,
    /// The bytes of Data-Out that the command takes by its CDB. `None`: as many as were announced.
    pub data_out_length: Option<u32>,
}

impl TargetCommandOutcome {
    /// GOOD with this Data-In.
    #[must_use]
    pub fn good(data_in: DataSegment) -> Self {
        Self { status: ScsiStatus::Good, sense: None, data_in, data_out_length: None }
    }

    /// CHECK CONDITION.
    #[must_use]
    pub fn check_condition(sense: Sense) -> Self {
        Self { sense: Some(sense), ..Self::status(ScsiStatus::CheckCondition) }
    }

    /// A status without sense data.
    #[must_use]
    pub fn status(status: ScsiStatus) -> Self {
        Self { status, sense: None, data_in: DataSegment::new(), data_out_length: None }
    }
}
