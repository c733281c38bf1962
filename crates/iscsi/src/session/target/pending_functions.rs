//! Task management functions that wait for earlier commands, and responses that wait for
//! acknowledgments.

use std::time::Instant;

use smallvec::SmallVec;

use crate::{Itt, Serial, pdu::TaskFunctionResult};

use super::{
    event::ManagementRequest,
    task::{Instance, TargetTask, TargetTaskStage, is_same_unit},
};

/// The waiting task management functions of a session. They are few, since each is a task.
#[derive(Debug, Default)]
pub(super) struct PendingFunctions {
    /// Functions that wait for earlier commands.
    pub(super) postponed: Vec<Postponed>,
    /// Responses that wait for acknowledgments.
    pub(super) fenced: Vec<Fenced>,
}

/// A task management function that waits until the bursts that were requested for its tasks have
/// arrived, and all commands before it (RFC 7143, 4.2.3.3 a, b).
#[derive(Debug)]
pub(super) struct Postponed {
    pub(super) request: ManagementRequest,
    pub(super) cmd_sn: Serial,
    /// The time when the function takes effect or is rejected at the latest.
    pub(super) until: Instant,
    /// The time until which the function waits for data on its way; arriving data extends it.
    /// `None` if no data is on its way.
    pub(super) bursts_until: Option<Instant>,
}

impl Postponed {
    /// Returns true if the function ends this task.
    pub(super) fn is_about(&self, task: &TargetTask) -> bool {
        let is_unit = self.request.unit().is_none_or(|lun| is_same_unit(task.lun, lun));
        task.stage != TargetTaskStage::Management && is_unit && task.comes_before(self.cmd_sn)
    }

    /// Returns when the function must be checked.
    pub(super) fn due(&self) -> Instant {
        self.bursts_until.map_or(self.until, |bursts| bursts.min(self.until))
    }
}

/// A response that waits until the initiator has received the statuses that other connections sent
/// before it (RFC 7143, 4.2.2.3.3 b).
#[derive(Debug)]
pub(super) struct Fenced {
    pub(super) itt: Itt,
    pub(super) allegiance: Instance,
    pub(super) result: TaskFunctionResult,
    /// For each connection the ExpStatSN that acknowledges all statuses sent before.
    pub(super) awaited: SmallVec<[(Instance, Serial); 4]>,
    pub(super) until: Instant,
}
