//! Aborts commands of a session. The initiator gets no response to an aborted command.

use scsi::Lun;

use crate::{Itt, Serial};

use super::{
    event::TargetEvent,
    session::Session,
    task::{TargetTask, TargetTaskStage, is_same_unit},
};

impl Session {
    pub(super) fn abort_where(&mut self, mut is_meant: impl FnMut(&TargetTask, Itt) -> bool) {
        let meant: Vec<Itt> = self
            .tasks
            .by_tag
            .iter()
            .filter(|(itt, task)| {
                task.stage != TargetTaskStage::Management && is_meant(task, **itt)
            })
            .map(|(itt, _)| *itt)
            .collect();
        // Remove all aborted writes from the queues before aborting the first one. Each abort frees
        // memory, and another write that is to be aborted must not get it.
        for itt in &meant {
            self.writes.incoming.remove(itt);
        }
        for connection in &mut self.connections {
            connection.writes.waiting.retain(|itt| self.writes.incoming.contains_key(itt));
        }
        for itt in meant {
            self.abort(itt);
        }
    }

    /// Aborts a command. Data that still arrives for it is ignored. The initiator stops sending
    /// data at the latest when it receives the response to its abort request.
    pub(super) fn abort(&mut self, itt: Itt) {
        self.take_gather(itt);
        if let Some(task) = self.tasks.end(itt) {
            if let Some(at) = self.position(task.allegiance) {
                self.release(at, &task);
            }
            self.events.push_back(TargetEvent::Abort(itt));
        }
    }

    /// Aborts the commands that come before CmdSN `cmd_sn`: those of unit `lun`, or of all units if
    /// `lun` is `None`.
    pub(super) fn abort_before(&mut self, lun: Option<Lun>, cmd_sn: Serial) {
        self.abort_where(|task, _| {
            task.comes_before(cmd_sn) && lun.is_none_or(|lun| is_same_unit(task.lun, lun))
        });
    }
}
