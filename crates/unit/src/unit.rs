//! What a transport hands to a logical unit, and what it gets back.

use std::sync::Arc;

use scsi::{AdmittedCommand, Cdb, Lun, ScsiStatus, Sense};
use volume::{Data, Reply};

use crate::abilities::UnitAbilities;

/// The reply to a command: its completion, or a future of the completion.
pub type UnitReply<'a> = Reply<'a, Completion>;

/// A logical unit: one command in, one completion out.
pub trait LogicalUnit: Send + Sync + 'static {
    /// Performs one command. Dropping the future aborts the task.
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

    /// A nexus begins. Its first command is answered with a unit attention condition.
    fn nexus_opened(&self, nexus: &Nexus);

    /// Says which other units and which target ports a nexus reaches, right after the nexus began and whenever that
    /// changes. Third-party copies and reports of ports need this; without it, a unit copies within itself and reports
    /// the port of the nexus only.
    fn nexus_reaches(&self, _nexus: &Nexus, _neighbours: Arc<dyn Neighbours>) {}

    /// A nexus ended. The unit drops everything that it holds for the nexus.
    fn nexus_closed(&self, nexus: &Nexus);

    /// Raises or withdraws a unit attention condition of this nexus for an event that happened above the unit.
    fn change_attention(&self, _nexus: &Nexus, _condition: Sense, _change: AttentionChange) {}

    /// What the unit can do besides answering commands.
    fn abilities(&self) -> UnitAbilities<'_> {
        UnitAbilities::default()
    }
}

/// What becomes of a unit attention condition of one nexus.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AttentionChange {
    /// The unit reports the condition once. Nothing happens if it waits already.
    Raise,
    /// The nexus has learned of the event elsewhere: the unit does not report it any more.
    Withdraw,
}

/// The target of a nexus: the units that the nexus reaches, and the ports through which it can reach them.
pub trait Neighbours: Send + Sync + 'static {
    /// Returns the unit with this NAA designator.
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
    /// The target port's relative identifier: the tag of the portal group, 1 to 65,535.
    pub target_port: u16,
}

/// One command from arrival to status.
#[derive(Clone, Debug)]
pub struct Task {
    /// The nexus that sent the command.
    pub nexus: Nexus,
    /// The addressed unit, as the initiator wrote it.
    pub lun: Lun,
    /// The command.
    pub cdb: Cdb,
    /// Order relative to other tasks.
    pub attribute: TaskAttribute,
    /// All data that came with the command, in order.
    pub data_out: Data,
    /// How many bytes of Data-In the initiator has room for.
    pub data_in_capacity: u32,
    /// What this unit returned for this command from [`LogicalUnit::admit`]. `None` if the data came without being
    /// solicited.
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
    /// A part of another task of the same nexus, which waits for the part. The part waits for no other task, and
    /// reports no unit attention condition.
    Nested,
}

/// How a command ended.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The status.
    pub status: ScsiStatus,
    /// The sense data, with CHECK CONDITION.
    pub sense: Option<Sense>,
    /// The Data-In of the command, already cut to its allocation length. The transport cuts it to the length that the
    /// initiator has room for, and reports the residual.
    pub data_in: Data,
    /// How many bytes of Data-Out the command takes by its CDB, or of Data-In it would return if there were room; the
    /// transport reports the difference from what was announced. `None`: exactly what was announced.
    pub data_out_length: Option<u32>,
}

impl Completion {
    /// GOOD with this Data-In.
    #[must_use]
    pub fn good(data_in: Data) -> Self {
        Self { status: ScsiStatus::Good, sense: None, data_in, data_out_length: None }
    }

    /// CHECK CONDITION.
    #[must_use]
    pub fn check_condition(sense: Sense) -> Self {
        Self {
            status: ScsiStatus::CheckCondition,
            sense: Some(sense),
            data_in: Data::new(),
            data_out_length: None,
        }
    }

    /// A status without sense data: BUSY, TASK SET FULL, RESERVATION CONFLICT.
    #[must_use]
    pub fn status(status: ScsiStatus) -> Self {
        Self { status, sense: None, data_in: Data::new(), data_out_length: None }
    }
}

/// Task management functions (SAM-5, 7).
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
    /// Returns true for a reset of the unit or of its target.
    #[must_use]
    pub const fn is_reset(self) -> bool {
        matches!(self, Self::LogicalUnitReset | Self::TargetWarmReset | Self::TargetColdReset)
    }
}
