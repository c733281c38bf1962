//! What the machine tells its driver, and what it gets back.

use scsi::{AdmittedCommand, Cdb, Lun, ScsiStatus, Sense};

use crate::{Cid, DataSegment, Itt, pdu::TaskFunction};

/// What the driver must do next. Events are to be taken in order.
#[derive(Clone, Debug)]
pub enum TargetEvent {
    /// Perform a command, then call `complete`.
    Command(ReceivedCommand),
    /// Say whether the data of a write is wanted: `admit`, or `complete` to refuse.
    Admission(WriteAdmission),
    /// Forget a command: no answer to it will be sent.
    Abort(Itt),
    /// Commands for this unit ended with the connection that they came on: the initiator is to be
    /// told at the next command there, SOME COMMANDS CLEARED BY ISCSI PROTOCOL EVENT (RFC 7143,
    /// 11.14.5). Comes after their aborts.
    Terminated(Lun),
    /// Tell the units, then call `answer_management`. Tasks of this session that are meant were
    /// aborted by events before this one where no unit was named; see [`ManagementRequest`].
    Management(ManagementRequest),
    /// Call `answer_send_targets` for this connection.
    SendTargets(Cid, SendTargets),
}

/// A command with all its data.
#[derive(Clone, Debug)]
pub struct ReceivedCommand {
    /// Its tag.
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

/// A write whose data would have to be asked for.
#[derive(Clone, Debug)]
pub struct WriteAdmission {
    /// Its tag.
    pub itt: Itt,
    /// The addressed unit.
    pub lun: Lun,
    /// The command.
    pub cdb: Cdb,
    /// Bytes announced.
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
    /// The unit that it is about; `None`: all of them.
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
    /// All that it may see; only in a discovery session.
    All,
    /// One, by name.
    Named(String),
    /// The one it is connected to.
    Own,
}

/// How a command ended.
#[derive(Clone, Debug)]
pub struct TargetCommandOutcome {
    /// The status.
    pub status: ScsiStatus,
    /// Why, with CHECK CONDITION.
    pub sense: Option<Sense>,
    /// What the command returns, cut to its allocation length. It is cut here to what the
    /// initiator has room for.
    pub data_in: DataSegment,
    /// How many bytes of Data-Out the command takes by its CDB. `None`: what was announced.
    pub data_out_length: Option<u32>,
}

impl TargetCommandOutcome {
    /// GOOD, with this to return.
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
