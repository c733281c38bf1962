//! Task management functions that wait for earlier commands, and responses that wait for
//! acknowledgments.

use std::time::Instant;

use smallvec::SmallVec;

use crate::{Itt, Serial, pdu::TaskFunctionResult};

use super::{
    event::ManagementRequest,
    task::{Instance, TargetTask, TargetTaskStage, is_same_unit},
};

/// The task management functions of a session that wait. There are only a few, since each is a task
/// and counts against the limits for tasks.
#[derive(Debug, Default)]
pub(super) struct PendingFunctions {
    /// Functions that are not executed yet, because they wait for data or for earlier commands.
    pub(super) postponed: Vec<Postponed>,
    /// Responses of executed functions that wait for acknowledgments of the initiator.
    pub(super) fenced: Vec<Fenced>,
}

/// A task management function that is not executed yet. It waits until all commands before it have
/// arrived, and until the bursts that R2Ts have requested for its tasks have arrived (RFC 7143,
/// 4.2.3.3 a, b).
#[derive(Debug)]
pub(super) struct Postponed {
    pub(super) request: ManagementRequest,
    pub(super) cmd_sn: Serial,
    /// The latest time at which the function is executed or rejected.
    pub(super) until: Instant,
    /// The time until which the function waits for requested data. Each arrival of such data
    /// extends it. `None` if no such data is expected.
    pub(super) bursts_until: Option<Instant>,
}

impl Postponed {
    /// Returns true if this task management function will end `task`.
    pub(super) fn is_about(&self, task: &TargetTask) -> bool {
        let is_unit = self.request.unit().is_none_or(|lun| is_same_unit(task.lun, lun));
        task.stage != TargetTaskStage::Management && is_unit && task.comes_before(self.cmd_sn)
    }

    /// Returns the time at which `check_postponed` has to check this function again.
    pub(super) fn due(&self) -> Instant {
        self.bursts_until.map_or(self.until, |bursts| bursts.min(self.until))
    }
}

/// The response of an executed function. It waits until the initiator has acknowledged the statuses
/// that other connections sent before it (RFC 7143, 4.2.2.3.3 b).
#[derive(Debug)]
pub(super) struct Fenced {
    pub(super) itt: Itt,
    pub(super) allegiance: Instance,
    pub(super) result: TaskFunctionResult,
    /// For each other connection, the ExpStatSN that acknowledges all statuses sent on it before
    /// this response.
    pub(super) awaited: SmallVec<[(Instance, Serial); 4]>,
    pub(super) until: Instant,
}
