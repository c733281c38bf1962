//! The events that the target's session passes to its driver, and the results that the driver returns.

use scsi::{AdmittedCommand, Cdb, Lun, ObjectSense, ScsiStatus, Sense};

use crate::{Cid, DataSegment, Itt, pdu::TaskFunction};

/// A request of the session to its driver. The driver must process events in order.
#[derive(Clone, Debug)]
pub enum TargetEvent {
    /// Execute this SCSI command, then call `complete`.
    Command(ReceivedCommand),
    /// Decide if the session may request the data of a write. Call `admit` to permit this, or
    /// `complete` to refuse the write.
    Admission(WriteAdmission),
    /// Discard the command with this tag. The session will not send its result.
    Abort(Itt),
    /// Commands for this unit were aborted because their connection ended. Raise the unit attention
    /// condition SOME COMMANDS CLEARED BY ISCSI PROTOCOL EVENT at the unit (RFC 7143, 11.14.5). The
    /// `Abort` events of these commands come before this event.
    Terminated(Lun),
    /// Execute the task management function at the units, then call `answer_management`. For TARGET
    /// WARM RESET and TARGET COLD RESET, the session has already sent an `Abort` for each of its
    /// own tasks; see [`ManagementRequest`].
    Management(ManagementRequest),
    /// The initiator has asked for a list of targets on this connection. Answer with `answer_send_targets`.
    SendTargets(Cid, SendTargets),
}

/// A SCSI command that has arrived together with all data that it writes.
#[derive(Clone, Debug)]
pub struct ReceivedCommand {
    pub itt: Itt,
    /// The addressed unit, in the form that the initiator sent.
    pub lun: Lun,
    pub cdb: Cdb,
    /// The three ATTR bits (RFC 7143, 11.3.1).
    pub attribute: u8,
    /// The data of a write in pieces, in the order of their offsets.
    pub data_out: DataSegment,
    /// The most bytes of Data-In that the initiator accepts.
    pub data_in_capacity: u32,
    /// The value that the driver passed to [`Session::admit`](super::Session::admit) for this
    /// write. `None` if no data was requested.
    pub admitted: Option<AdmittedCommand>,
}

/// A write whose data the session wants to request.
#[derive(Clone, Debug)]
pub struct WriteAdmission {
    pub itt: Itt,
    pub lun: Lun,
    pub cdb: Cdb,
    /// The length of the write in bytes, as the initiator's command states it.
    pub data_out_length: u32,
}

/// A task management function that concerns one unit or all units.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ManagementRequest {
    pub itt: Itt,
    /// The function. For ABORT TASK SET, CLEAR TASK SET and LOGICAL UNIT RESET, the driver calls
    /// `abort_for` if the unit exists. For TARGET WARM RESET and TARGET COLD RESET, the session has
    /// already aborted its own tasks.
    pub function: TaskFunction,
    /// The unit for ABORT TASK SET, CLEAR TASK SET and LOGICAL UNIT RESET; not valid for TARGET
    /// WARM RESET and TARGET COLD RESET.
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
    /// List the target with this name.
    Named(String),
    /// List the target to which this session is logged in.
    Own,
}

#[derive(Clone, Debug)]
pub struct TargetCommandOutcome {
    pub status: ScsiStatus,
    /// The sense data, which is sent only with the status CHECK CONDITION.
    pub sense: Option<Sense>,
    /// The descriptors that an object storage device adds to `sense`.
    pub object_sense: Option<Box<ObjectSense>>,
    /// The Data-In of the command, already truncated to the allocation length in its CDB. The
    /// session also truncates it to the length that the initiator accepts.
    pub data_in: DataSegment,
    /// The length in bytes of the Data-Out that the CDB requires. `None` if the initiator has
    /// announced exactly this length.
    pub data_out_length: Option<u32>,
}

impl TargetCommandOutcome {
    #[must_use]
    pub fn good(data_in: DataSegment) -> Self {
        Self { data_in, ..Self::status(ScsiStatus::Good) }
    }

    #[must_use]
    pub fn check_condition(sense: Sense) -> Self {
        Self { sense: Some(sense), ..Self::status(ScsiStatus::CheckCondition) }
    }

    /// Returns a status without sense data.
    #[must_use]
    pub fn status(status: ScsiStatus) -> Self {
        Self {
            status,
            sense: None,
            object_sense: None,
            data_in: DataSegment::new(),
            data_out_length: None,
        }
    }
}
