//! The end of a connection, and what happens to its tasks at each error recovery level (RFC 7143,
//! 6.3.4, 7.1.4.3, 7.6, 7.14, 11.14).

use std::time::{Duration, Instant};

use bytes::Bytes;
use scsi::Lun;
use smallvec::SmallVec;

use crate::{
    Cid, Itt, Pdu, Serial,
    pdu::{AsyncEvent, AsyncMessage},
};

use super::{
    event::TargetEvent,
    retained::Retained,
    session::{ReassignableConnection, Session},
    task::{AdmissionState, Instance, TargetTask, TargetTaskStage, Tasks, is_same_unit},
};

/// The most failed connections of one session whose tasks are kept; no known initiator has more.
/// When one more fails, the tasks of the oldest are aborted.
const LOST: usize = 8;

impl Session {
    /// Removes a connection whose socket is closed or about to be closed. If the connection was not
    /// logged out, it has failed: at error recovery level 2 its tasks wait for reassignment, below
    /// that they are aborted.
    pub fn drop_connection(&mut self, cid: Cid, now: Instant) {
        let Some(at) = self.index(cid) else { return };
        self.now = now;
        let connection = self.remove_connection(at);
        if !connection.closing {
            let instance = connection.instance;
            self.suspend(cid, instance, connection.retained, false);
            let event = AsyncEvent::ConnectionDropped {
                cid,
                time2wait: self.parameters.default_time2wait,
                time2retain: self.time2retain(),
            };
            if let Some(other) = self.connections.iter().position(|other| !other.closing) {
                self.send_async(other, event);
            }
        }
        self.check_fences();
        self.resume_transfers();
    }

    /// Returns the seconds for which the tasks of a failed connection are kept: Time2Retain, or 0
    /// below error recovery level 2.
    pub(super) fn time2retain(&self) -> u16 {
        if self.recovers(2) { self.parameters.default_time2retain } else { 0 }
    }

    /// Returns the time at which the tasks of a connection that fails now are aborted.
    pub(super) fn deadline(&self) -> Instant {
        let seconds = self.parameters.default_time2wait + self.parameters.default_time2retain;
        self.now + Duration::from_secs(seconds.into())
    }

    /// Prepares the tasks of a connection for reassignment. Aborts them instead if no tasks are
    /// kept.
    pub(super) fn suspend(
        &mut self,
        cid: Cid,
        instance: Instance,
        retained: Retained,
        is_logged_out: bool,
    ) {
        // Discard commands that wait for their turn, since they count as not received. Immediate
        // commands do not survive their connection either (RFC 7143, 7.14, 11.14).
        self.order.window.discard_held(|early| early.allegiance == instance);
        if self.time2retain() == 0 {
            self.terminate(instance);
            return;
        }
        self.end_management(instance);
        self.terminate_where(|task| task.allegiance == instance && task.immediate);
        let own = |task: &TargetTask| task.allegiance == instance;
        for (itt, transfer) in &mut self.writes.incoming {
            if self.tasks.by_tag.get(itt).is_some_and(own) {
                transfer.gather.reopen();
            }
        }
        let mut responses = Tasks::default();
        for response in retained.into_responses() {
            responses.insert(response.itt, response);
        }
        if self.lost.len() == LOST {
            let oldest = self.lost.remove(0).instance;
            self.terminate(oldest);
        }
        let deadline = self.deadline();
        self.lost.push(ReassignableConnection {
            instance,
            cid,
            is_logged_out,
            deadline,
            responses,
        });
    }

    /// Aborts all tasks of a connection that cannot be recovered, and forgets the connection.
    pub(super) fn terminate(&mut self, instance: Instance) {
        self.order.window.discard_held(|early| early.allegiance == instance);
        self.end_management(instance);
        self.terminate_where(|task| task.allegiance == instance);
        self.lost.retain(|lost| lost.instance != instance);
    }

    /// Aborts the tasks for which `is_meant` returns true, because their connection ends. The
    /// initiator gets no response to them, so each unit that had such a task must report this with
    /// a unit attention condition (RFC 7143, 11.14.5).
    fn terminate_where(&mut self, is_meant: impl Fn(&TargetTask) -> bool) {
        let mut units = SmallVec::<[Lun; 4]>::new();
        let commands =
            self.tasks.by_tag.values().filter(|task| task.stage != TargetTaskStage::Management);
        for task in commands.filter(|task| is_meant(task)) {
            if !units.iter().any(|lun| is_same_unit(*lun, task.lun)) {
                units.push(task.lun);
            }
        }
        self.abort_where(|task, _| is_meant(task));
        self.events.extend(units.into_iter().map(TargetEvent::Terminated));
    }

    /// Ends the task management functions of a connection that ends. No response is sent, since it
    /// would have to use that connection.
    fn end_management(&mut self, instance: Instance) {
        let is_meant = |task: &TargetTask| {
            task.stage == TargetTaskStage::Management && task.allegiance == instance
        };
        let meant: Vec<Itt> = self
            .tasks
            .by_tag
            .iter()
            .filter(|(_, task)| is_meant(task))
            .map(|(itt, _)| *itt)
            .collect();
        for itt in meant {
            self.tasks.end(itt);
            self.functions.postponed.retain(|postponed| postponed.request.itt != itt);
            self.functions.fenced.retain(|fenced| fenced.itt != itt);
        }
    }

    /// Moves the task `itt` to the connection `to`, on which its transfer continues.
    pub(super) fn move_task(&mut self, itt: Itt, to: usize) {
        let Some(task) = self.tasks.by_tag.get_mut(&itt) else { return };
        let connection = &mut self.connections[to];
        task.allegiance = connection.instance;
        task.snack_tag = 0; // required by RFC 7143, 7.2.2
        connection.writes.solicited += task.solicited;
        if let Some(transfer) = self.writes.incoming.get_mut(&itt) {
            (transfer.progress, transfer.begun) = (self.now, self.now);
            if transfer.admission == AdmissionState::Waiting {
                connection.writes.waiting.push_back(itt);
            }
            self.grant_waiting(to);
            self.advance_transfer(itt);
        }
    }

    pub(super) fn send_async(&mut self, at: usize, event: AsyncEvent) {
        self.send_status(at, |numbers| {
            Pdu::Async(AsyncMessage { lun: Lun(0), event, numbers, data: Bytes::new() })
        });
    }

    /// Asks the initiator on every connection to log out within `seconds` (RFC 7143, 11.9.1).
    pub fn ask_for_logout(&mut self, seconds: u16) {
        self.tell_all(AsyncEvent::LogoutRequested { time: seconds });
    }

    /// Announces on every connection that the target will close all of them and keeps no task, and
    /// that the initiator may open a new session after `time2wait` seconds (RFC 7143, 11.9.1).
    pub fn announce_end(&mut self, time2wait: u16) {
        self.tell_all(AsyncEvent::SessionDropped { time2wait, time2retain: 0 });
    }

    fn tell_all(&mut self, event: AsyncEvent) {
        for at in 0..self.connections.len() {
            if !self.connections[at].closing {
                self.send_async(at, event);
            }
        }
    }

    /// Ends the session and all its tasks. The connections then send only the output that is queued.
    pub(super) fn end_all(&mut self) {
        self.ended = true;
        self.order.window.discard_held(|_| true);
        self.abort_where(|_, _| true);
        let management: Vec<Itt> = self.tasks.by_tag.keys().copied().collect();
        management.into_iter().for_each(|itt| _ = self.tasks.end(itt));
        self.functions.postponed.clear();
        self.functions.fenced.clear();
        self.lost.clear();
    }

    /// Records the statuses that an ExpStatSN acknowledges, and sends the responses that waited for
    /// these acknowledgments.
    pub(super) fn note_acknowledged(&mut self, at: usize, exp_stat_sn: Serial) {
        let is_new = self.connections[at].note_acknowledged(exp_stat_sn);
        if is_new && !self.functions.fenced.is_empty() {
            self.check_fences();
        }
    }
}
