//! Task management functions that wait: for commands before them, or for acknowledgments.

use std::time::Instant;

use smallvec::SmallVec;

use crate::{Itt, Serial, pdu::TaskFunctionResult};

use super::{
    event::ManagementRequest,
    task::{Instance, TargetTask, TargetTaskStage, is_same_unit},
};

/// The task management functions of a session that wait. They are few, since each is a task.
#[derive(Debug, Default)]
pub(super) struct PendingFunctions {
    /// Functions that wait for commands before them.
    pub(super) postponed: Vec<Postponed>,
    /// Responses to functions that wait for acknowledgments.
    pub(super) fenced: Vec<Fenced>,
}

/// A task management function that waits until the bursts that were requested for its tasks have come, and all commands
/// before it (RFC 7143, 4.2.3.3 a, b).
#[derive(Debug)]
pub(super) struct Postponed {
    pub(super) request: ManagementRequest,
    pub(super) cmd_sn: Serial,
    /// When the function takes effect at the latest.
    pub(super) until: Instant,
    /// Until when the function waits for data that is on its way. More data extends the time. `None` if no data is on
    /// its way.
    pub(super) bursts_until: Option<Instant>,
}

impl Postponed {
    /// Returns true if the function ends this task.
    pub(super) fn is_about(&self, task: &TargetTask) -> bool {
        let is_unit = self.request.unit().is_none_or(|lun| is_same_unit(task.lun, lun));
        task.stage != TargetTaskStage::Management && is_unit && task.comes_before(self.cmd_sn)
    }

    /// Returns when the function has to be checked.
    pub(super) fn due(&self) -> Instant {
        self.bursts_until.map_or(self.until, |bursts| bursts.min(self.until))
    }
}

/// A response that waits until the initiator has the statuses that other connections sent before it (RFC 7143,
/// 4.2.2.3.3 b).
#[derive(Debug)]
pub(super) struct Fenced {
    pub(super) itt: Itt,
    pub(super) allegiance: Instance,
    pub(super) result: TaskFunctionResult,
    /// The statuses that must have been acknowledged: for each connection the StatSN of the last one.
    pub(super) awaited: SmallVec<[(Instance, Serial); 4]>,
    pub(super) until: Instant,
}
