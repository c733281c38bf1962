//! The interface between a transport and a logical unit.

use std::sync::Arc;

use scsi::{AdmittedCommand, Cdb, Lun, ObjectSense, ScsiStatus, Sense};
use volume::{Data, Reply};

use crate::abilities::UnitAbilities;

/// The reply of a unit to a command: the completion itself, or a future that returns it.
pub type UnitReply<'a> = Reply<'a, Completion>;

/// A logical unit, which executes SCSI commands.
pub trait LogicalUnit: Send + Sync + 'static {
    /// Executes one command. Dropping the returned future aborts the command.
    fn execute(&self, task: Task) -> UnitReply<'_>;

    /// Checks a command before its data is solicited. Returns the result for [`Task::admitted`], if the unit has one.
    ///
    /// # Errors
    /// The completion (BUSY, TASK SET FULL, RESERVATION CONFLICT or CHECK CONDITION) of a command that would be
    /// refused; the task ends with it.
    fn admit(
        &self,
        nexus: &Nexus,
        cdb: &Cdb,
        data_out_length: u32,
    ) -> Result<Option<AdmittedCommand>, Completion>;

    /// Performs the part of a task management function that concerns the unit. The caller aborts the tasks, whose
    /// futures it holds. `nexus` asked for the function.
    fn task_management(&self, nexus: &Nexus, function: TaskManagement);

    /// Adds a nexus. The first command of the nexus is answered with a unit attention condition.
    fn nexus_opened(&self, nexus: &Nexus);

    /// Sets the other units and the target ports that a nexus has access to. Call this right after the nexus
    /// has begun and whenever that changes. Third-party copies and reports of ports need it; without it, a
    /// unit copies only within itself and reports only the port of the nexus.
    fn nexus_reaches(&self, _nexus: &Nexus, _neighbours: Arc<dyn Neighbours>) {}

    /// Removes a nexus that has ended, with its reservations and other state in the unit.
    fn nexus_closed(&self, nexus: &Nexus);

    /// Raises or withdraws a unit attention condition of this nexus, for an event that the target has noticed: its list
    /// of units has changed, or a protocol error has ended commands of the nexus.
    fn change_attention(&self, _nexus: &Nexus, _condition: Sense, _change: AttentionChange) {}

    fn abilities(&self) -> UnitAbilities<'_> {
        UnitAbilities::default()
    }
}

/// Whether to raise or to withdraw a unit attention condition of one nexus.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AttentionChange {
    /// Makes the unit report the condition once, unless it waits to be reported already.
    Raise,
    /// Removes the condition, because the initiator has learned of the event in another way.
    Withdraw,
}

/// The target of a nexus: the units that the nexus has access to, and the target's ports.
pub trait Neighbours: Send + Sync + 'static {
    fn unit(&self, naa: &[u8; 16]) -> Option<Arc<dyn LogicalUnit>>;

    /// Returns the relative identifiers of the target's ports, ascending: see [`Nexus::target_port`].
    fn target_ports(&self) -> &[u16];
}

/// An initiator port together with a target port (SAM-5, I_T nexus). Two values with the same number are the same
/// nexus.
#[derive(Clone, Debug)]
pub struct Nexus {
    /// Unique in the process while the nexus lives.
    pub number: u64,
    /// The initiator port's name: iSCSI name, `,i,0x` and ISID (RFC 7143, 3.4.3).
    pub initiator_port: Arc<str>,
    /// The target port's relative identifier, which is the tag of its portal group: 1 to 65,535.
    pub target_port: u16,
}

/// A SCSI command, from its arrival to its status.
#[derive(Clone, Debug)]
pub struct Task {
    pub nexus: Nexus,
    /// The LUN of the addressed unit, in the form that the initiator has sent.
    pub lun: Lun,
    pub cdb: Cdb,
    pub attribute: TaskAttribute,
    /// All data that came with the command, in order.
    pub data_out: Data,
    /// Bytes of Data-In that the initiator can take.
    pub data_in_capacity: u32,
    /// The result that [`LogicalUnit::admit`] of this unit returned for this command. `None` if the data was
    /// unsolicited.
    pub admitted: Option<AdmittedCommand>,
}

/// Task attributes (SAM-5, 8.9; wire values of RFC 7143, 11.3.1).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum TaskAttribute {
    #[default]
    Untagged,
    Simple,
    Ordered,
    HeadOfQueue,
    Aca,
    /// A command that another task of the same nexus sends and waits for, for example a part of a copy. Such
    /// a command waits for no other task, and reports no unit attention condition.
    Nested,
}

/// The result of a command: its status, its sense data and the data that it returns.
#[derive(Clone, Debug)]
pub struct Completion {
    pub status: ScsiStatus,
    /// The sense data, with CHECK CONDITION.
    pub sense: Option<Sense>,
    /// The descriptors that an object storage device adds to `sense`.
    pub object_sense: Option<Box<ObjectSense>>,
    /// The Data-In of the command, cut to its allocation length. The transport also cuts it to the length
    /// that the initiator can take, and reports the residual count.
    pub data_in: Data,
    /// Bytes of Data-Out that the command takes according to its CDB, or of Data-In that it would return
    /// without a limit. The transport reports the difference from the announced length as residual count.
    /// `None`: the announced length is exact.
    pub data_out_length: Option<u32>,
}

impl Completion {
    #[must_use]
    pub fn good(data_in: Data) -> Self {
        Self { data_in, ..Self::status(ScsiStatus::Good) }
    }

    #[must_use]
    pub fn check_condition(sense: Sense) -> Self {
        Self { sense: Some(sense), ..Self::status(ScsiStatus::CheckCondition) }
    }

    /// Returns a completion with a status without sense data: BUSY, TASK SET FULL, RESERVATION CONFLICT.
    #[must_use]
    pub fn status(status: ScsiStatus) -> Self {
        Self {
            status,
            sense: None,
            object_sense: None,
            data_in: Data::new(),
            data_out_length: None,
        }
    }
}

/// The task management functions of SAM-5, 7.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TaskManagement {
    AbortTask,
    AbortTaskSet,
    ClearAca,
    ClearTaskSet,
    LogicalUnitReset,
    TargetWarmReset,
    TargetColdReset,
}

impl TaskManagement {
    /// Returns true if the function resets the unit or the whole target.
    #[must_use]
    pub const fn is_reset(self) -> bool {
        matches!(self, Self::LogicalUnitReset | Self::TargetWarmReset | Self::TargetColdReset)
    }
}
