//! Task management functions that wait. Before a function is executed, it waits for requested data
//! and missing commands. Its response then waits for acknowledgments of statuses on other
//! connections (RFC 7143, 4.2.3.3).

use std::time::Instant;

use smallvec::SmallVec;

use crate::{Itt, pdu::TaskFunctionResult};

use super::{
    event::TargetEvent,
    pending_functions::{Fenced, Postponed},
    session::Session,
    task::TargetTaskStage,
};

impl Session {
    /// Answers a task management function that the driver has executed, or cannot execute.
    ///
    /// With several connections, the response "function complete" waits until the initiator has
    /// acknowledged all statuses sent on the other connections: the initiator must not receive a
    /// response to an aborted task after it (RFC 7143, 4.2.3.3 d, 11.5.1).
    pub fn answer_management(&mut self, itt: Itt, result: TaskFunctionResult) {
        let Some(task) = self.tasks.by_tag.get(&itt) else { return };
        if task.stage != TargetTaskStage::Management {
            return;
        }
        let allegiance = task.allegiance;
        // Let the writes continue that the function did not abort.
        self.resume_transfers();
        let mut awaited = SmallVec::new();
        for at in 0..self.connections.len() {
            let connection = &self.connections[at];
            let is_behind = connection.acknowledged.is_before(connection.stat_sn);
            let is_other = connection.instance != allegiance && !connection.closing;
            if result == TaskFunctionResult::Complete && is_other && is_behind {
                awaited.push((connection.instance, connection.stat_sn));
                let (window, ttt) = (self.window_numbers(), self.new_ttt());
                self.connections[at].send_nop(window, ttt);
            }
        }
        let until = self.now + self.settings.sequence_time;
        self.functions.fenced.push(Fenced { itt, allegiance, result, awaited, until });
        self.check_fences();
    }

    /// Executes the postponed functions that need not wait any longer: all earlier commands and the
    /// requested data of their tasks have arrived, or are no longer expected. A function that still
    /// waits for earlier commands when its time is over is rejected and has no effect. If it were
    /// executed then, one of these commands could arrive and be executed after the response that
    /// reports it as aborted.
    pub(super) fn check_postponed(&mut self) {
        let mut late = SmallVec::<[Itt; 1]>::new();
        let mut at = 0;
        while at < self.functions.postponed.len() {
            let bursts_until = self.bursts_until(&self.functions.postponed[at]);
            let postponed = &mut self.functions.postponed[at];
            postponed.bursts_until = bursts_until;
            let (cmd_sn, max_cmd_sn) = (postponed.cmd_sn, self.order.window.max_cmd_sn());
            let is_ahead = self.order.window.exp_cmd_sn().is_before(cmd_sn)
                && !max_cmd_sn.next().is_before(cmd_sn);
            if self.now < postponed.until && (is_ahead || bursts_until.is_some()) {
                at += 1;
                continue;
            }
            let Postponed { request, cmd_sn, .. } = self.functions.postponed.remove(at);
            if is_ahead {
                late.push(request.itt);
                continue;
            }
            if request.unit().is_none() {
                self.abort_before(None, cmd_sn);
            }
            self.events.push_back(TargetEvent::Management(request));
        }
        for itt in late {
            self.answer_management(itt, TaskFunctionResult::Rejected);
        }
    }

    /// Returns until when a function waits for data that R2Ts of this session have requested for
    /// its tasks; `None` if no such data is expected. A function does not wait for data of other
    /// sessions.
    fn bursts_until(&self, postponed: &Postponed) -> Option<Instant> {
        let is_meant =
            |itt: &Itt| self.tasks.by_tag.get(itt).is_some_and(|task| postponed.is_about(task));
        let open = self
            .writes
            .incoming
            .iter()
            .filter(|(itt, transfer)| transfer.gather.has_valid_ttt() && is_meant(itt));
        let until = open.map(|(_, transfer)| transfer.progress + self.settings.burst_silence);
        until.max().filter(|until| self.now < *until)
    }

    /// Sends the responses of executed functions for which all awaited acknowledgments have
    /// arrived, or whose time is over.
    pub(super) fn check_fences(&mut self) {
        let mut at = 0;
        while at < self.functions.fenced.len() {
            let Fenced { awaited, until, .. } = &self.functions.fenced[at];
            let waits = self.now < *until
                && awaited.iter().any(|(instance, stat_sn)| {
                    let position = self.position(*instance);
                    position.is_some_and(|at| self.connections[at].acknowledged.is_before(*stat_sn))
                });
            if waits {
                at += 1;
                continue;
            }
            let Fenced { itt, allegiance, result, .. } = self.functions.fenced.remove(at);
            self.tasks.end(itt);
            if let Some(at) = self.position(allegiance) {
                self.respond_to_management(at, itt, result);
            }
        }
    }

    /// Continues writes that no function will end any more. Then checks the functions that waited
    /// for writes which have ended.
    pub(super) fn resume_transfers(&mut self) {
        let waiting: Vec<Itt> = self.writes.incoming.keys().copied().collect();
        waiting.into_iter().for_each(|itt| self.advance_transfer(itt));
        self.check_postponed();
    }
}
