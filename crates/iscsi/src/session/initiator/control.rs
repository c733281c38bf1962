//! The requests of a connection that are not SCSI commands: pings, task management, text and logout.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use super::{
    CommandFailure, InitiatorEvent, InitiatorSessionError,
    commands::SessionCommands,
    connection::{
        InitiatorConnection, Logout, LogoutScope, Management, PendingTaskManagement, Ping,
        TextExchange,
    },
};
use crate::{
    Cid, Itt, Pdu, Ttt,
    pdu::{
        LogoutReason, LogoutRequest, LogoutResponse, NopIn, NopOut, TaskFunction,
        TaskFunctionResult, TaskRequest, TaskResponse, TextRequest, TextResponse,
    },
};

/// The longest answer to a text request in bytes: enough for SendTargets with 4,000 targets of 250 bytes each.
const TEXT_BYTES: usize = 1 << 20;

/// The most unanswered ABORT TASK requests of one connection. A target that answers commands late
/// and never answers their aborts would otherwise let them accumulate.
const MOST_ABORTS: usize = 1024;

impl InitiatorConnection {
    /// Sends a logout of the session, or of the connection `cid`. That may be this connection or one that has failed.
    pub(super) fn send_logout(
        &mut self,
        commands: &mut SessionCommands,
        reason: LogoutReason,
        cid: Cid,
    ) -> Itt {
        let itt = commands.control_itt();
        self.send(Pdu::LogoutRequest(LogoutRequest {
            immediate: true,
            reason: Ok(reason),
            itt,
            cid,
            cmd_sn: commands.window.cmd_sn(),
            exp_stat_sn: self.exp_stat_sn(),
        }));
        itt
    }

    /// Sends a logout of this connection or of the session, and waits for the answer until `abort_time_out`.
    pub(super) fn log_out(
        &mut self,
        commands: &mut SessionCommands,
        scope: LogoutScope,
        now: Instant,
    ) {
        if matches!(self.logout, Logout::Sent { .. } | Logout::Done { .. }) {
            return;
        }
        let reason = match scope {
            LogoutScope::Connection => LogoutReason::CloseConnection,
            LogoutScope::Session => LogoutReason::CloseSession,
        };
        let itt = self.send_logout(commands, reason, self.cid);
        self.logout = Logout::Sent { itt, deadline: now + self.timing.abort_time_out, scope };
    }

    pub(super) fn handle_logout(
        &mut self,
        commands: &mut SessionCommands,
        pdu: &LogoutResponse,
        now: Instant,
    ) -> Result<(), InitiatorSessionError> {
        if !self.take_stat_sn(commands, &pdu.numbers, now)? {
            return Ok(());
        }
        if let Some(at) = self.foreign_logouts.iter().position(|itt| *itt == pdu.itt) {
            self.foreign_logouts.swap_remove(at);
            commands.logged_out.push(*pdu);
            return Ok(());
        }
        match self.logout {
            Logout::Sent { itt, scope, .. } if itt == pdu.itt => {
                self.logout = Logout::Done { time2wait: pdu.time2wait, result: pdu.result, scope };
                Ok(())
            }
            _ => Err(InitiatorSessionError::Protocol("a logout response without a request")),
        }
    }

    pub(super) fn handle_nop(
        &mut self,
        commands: &mut SessionCommands,
        pdu: NopIn,
        now: Instant,
    ) -> Result<(), InitiatorSessionError> {
        if pdu.itt == Itt::NONE {
            commands.window.update(&pdu.numbers);
            if commands.recovers() && self.statuses.expect(pdu.numbers.stat_sn) {
                self.ask_for_statuses(now);
            }
        } else {
            if !self.take_stat_sn(commands, &pdu.numbers, now)? {
                return Ok(());
            }
            match self.liveness.ping.take_if(|ping| ping.itt == pdu.itt) {
                Some(ping) => {
                    commands.note_round_trip(now.saturating_duration_since(ping.sent));
                    // The target is alive, so the next ping can wait longer.
                    self.liveness.probe_after =
                        (self.liveness.probe_after * 2).min(self.timing.ping_after);
                    self.review(commands, &ping, now)?;
                }
                // The target has repeated the answer to an earlier ping because of a SNACK. That ping was answered or
                // dropped.
                None if commands.recovers() => {}
                None => {
                    return Err(InitiatorSessionError::Protocol(
                        "an answer to a NOP-Out that was not sent",
                    ));
                }
            }
        }
        if pdu.ttt != Ttt::NONE {
            self.send(Pdu::NopOut(NopOut {
                immediate: true,
                lun: pdu.lun,
                itt: Itt::NONE,
                ttt: pdu.ttt,
                cmd_sn: commands.window.cmd_sn(),
                exp_stat_sn: self.exp_stat_sn(),
                data: Bytes::new(),
            }));
        }
        Ok(())
    }

    pub(super) fn handle_task_response(
        &mut self,
        commands: &mut SessionCommands,
        pdu: TaskResponse,
        now: Instant,
    ) -> Result<(), InitiatorSessionError> {
        if !self.take_stat_sn(commands, &pdu.numbers, now)? {
            return Ok(());
        }
        let Some(index) = self.requests.iter().position(|request| request.itt == pdu.itt) else {
            return Err(InitiatorSessionError::Protocol(
                "a task management response without a request",
            ));
        };
        let request = self.requests.swap_remove(index);
        let itt = request.task;
        // The task may have ended before the target received this request. The task then keeps the outcome that it had.
        let Some(task) = commands.tasks.get_mut(itt) else { return Ok(()) };
        match (request.kind, pdu.result) {
            // No response to the task has arrived. The target would have sent one before this answer. If it was lost, a
            // SNACK has requested it, but the task ends here all the same.
            (Management::Abort, TaskFunctionResult::Complete | TaskFunctionResult::NoTask) => {
                if let Some(task) = self.finish(commands, itt) {
                    let request = task.request;
                    if task.returns {
                        commands.events.push_back(InitiatorEvent::Returned(vec![request]));
                    } else {
                        commands.complete(request.tag, Err(CommandFailure::TimedOut));
                    }
                }
                Ok(())
            }
            (Management::Abort, _) => {
                Err(InitiatorSessionError::Unanswered("a command that the target cannot abort"))
            }
            (Management::Reassign { .. }, TaskFunctionResult::Complete) => {
                task.forget_r2ts();
                self.counters.reassigned += 1;
                self.adopt(commands, itt);
                Ok(())
            }
            // The target does not have the task any more, and may or may not have executed it.
            (Management::Reassign { .. }, TaskFunctionResult::NoTask) => {
                if let Some(task) = commands.tasks.remove(itt) {
                    commands.events.push_back(InitiatorEvent::Returned(vec![task.request]));
                }
                Ok(())
            }
            // The target refuses the reassignment, but may still have the task. Abort the task on this connection. RFC
            // 7143, 11.5.1 allows this once the connection that the task came from is logged out.
            (Management::Reassign { .. }, _) => {
                (task.returns, task.deadline) = (true, now);
                self.adopt(commands, itt);
                Ok(())
            }
        }
    }

    /// Asks the target to move a task of a logged-out connection to this connection (TASK REASSIGN at error recovery
    /// level 2; RFC 7143, 7.2.2).
    pub(super) fn send_reassign(
        &mut self,
        commands: &mut SessionCommands,
        task_itt: Itt,
        now: Instant,
    ) {
        let itt = commands.control_itt();
        let cmd_sn = commands.window.cmd_sn();
        let Some(task) = commands.tasks.get_mut(task_itt) else { return };
        // As soon as the target has received the request, it may send PDUs of the task on this connection.
        task.allegiance = self.cid;
        let exp_data_sn = task.gather.change_connection();
        let deadline = now + self.timing.abort_time_out;
        let kind = Management::Reassign { deadline };
        self.requests.push(PendingTaskManagement { itt, task: task_itt, kind });
        self.send(Pdu::TaskRequest(TaskRequest {
            immediate: true,
            function: Ok(TaskFunction::TaskReassign),
            lun: scsi::Lun(0),
            itt,
            referenced_itt: task_itt,
            cmd_sn,
            exp_stat_sn: self.exp_stat_sn(),
            ref_cmd_sn: crate::Serial(0),
            exp_data_sn,
        }));
    }

    /// Returns the number of TASK REASSIGN requests on this connection without a response.
    pub(super) fn reassigning(&self) -> usize {
        let is_reassign =
            |request: &&PendingTaskManagement| matches!(request.kind, Management::Reassign { .. });
        self.requests.iter().filter(is_reassign).count()
    }

    /// Returns the earliest deadline for the answer to a TASK REASSIGN; `None` if all are answered.
    pub(super) fn reassign_deadline(&self) -> Option<Instant> {
        let deadlines = self.requests.iter().filter_map(|request| match request.kind {
            Management::Reassign { deadline } => Some(deadline),
            Management::Abort => None,
        });
        deadlines.min()
    }

    /// Handles a rejected task management function: the target has too many immediate requests. The abort or
    /// reassignment will be requested again.
    pub(super) fn handle_refused_management(
        &mut self,
        commands: &mut SessionCommands,
        itt: Itt,
    ) -> Result<(), InitiatorSessionError> {
        let Some(index) = self.requests.iter().position(|request| request.itt == itt) else {
            return Ok(());
        };
        let request = self.requests.swap_remove(index);
        if let Some(task) = commands.tasks.get_mut(request.task) {
            task.retries += 1;
            task.abort = None;
            if task.retries > MOST_REFUSALS {
                return Err(InitiatorSessionError::Unanswered(
                    "a task management function that the target keeps rejecting",
                ));
            }
            if task.lost {
                commands.orphans.push_back(request.task);
            }
        }
        Ok(())
    }

    pub(super) fn begin_text(
        &mut self,
        commands: &mut SessionCommands,
        text: Bytes,
        wanted: bool,
        now: Instant,
    ) {
        let itt = commands.control_itt();
        let deadline = now + self.timing.ping_after + self.timing.ping_time_out;
        self.text = Some(TextExchange { itt, answer: BytesMut::new(), deadline, wanted });
        self.send(Pdu::TextRequest(TextRequest {
            immediate: true,
            is_final: true,
            continues: false,
            lun: scsi::Lun(0),
            itt,
            ttt: Ttt::NONE,
            cmd_sn: commands.window.cmd_sn(),
            exp_stat_sn: self.exp_stat_sn(),
            text,
        }));
    }

    pub(super) fn handle_text(
        &mut self,
        commands: &mut SessionCommands,
        pdu: TextResponse,
        now: Instant,
    ) -> Result<(), InitiatorSessionError> {
        if !self.take_stat_sn(commands, &pdu.numbers, now)? {
            return Ok(());
        }
        let text = self.text.as_mut().filter(|text| text.itt == pdu.itt);
        let text =
            text.ok_or(InitiatorSessionError::Protocol("a text response without a request"))?;
        if text.answer.len() + pdu.text.len() > TEXT_BYTES {
            return Err(InitiatorSessionError::Protocol("a text answer of more than 1 MiB"));
        }
        text.answer.extend_from_slice(&pdu.text);
        if pdu.is_final && !pdu.continues {
            let text = self.text.take().expect("just looked at");
            if text.wanted {
                commands.events.push_back(InitiatorEvent::Text(text.answer.freeze()));
            }
            return Ok(());
        }
        // Refuse an empty text response that is not the last one: a target could otherwise continue the exchange
        // forever.
        if pdu.text.is_empty() {
            return Err(InitiatorSessionError::Protocol(
                "an empty text response that is not the last",
            ));
        }
        if pdu.ttt == Ttt::NONE {
            return Err(InitiatorSessionError::Protocol(
                "a text response that continues and has no tag",
            ));
        }
        self.send(Pdu::TextRequest(TextRequest {
            immediate: true,
            is_final: true,
            continues: false,
            lun: pdu.lun,
            itt: pdu.itt,
            ttt: pdu.ttt,
            cmd_sn: commands.window.cmd_sn(),
            exp_stat_sn: self.exp_stat_sn(),
            text: Bytes::new(),
        }));
        Ok(())
    }

    /// Returns when [`InitiatorConnection::check`] must be called. `last_message_elsewhere` is the time at which
    /// another connection of the session last received a PDU; `None` if the session has only this connection.
    pub(super) fn poll_timeout(
        &self,
        commands: &SessionCommands,
        last_message_elsewhere: Option<Instant>,
    ) -> Instant {
        let mut next = match &self.liveness.ping {
            None => self.ping_due(commands, last_message_elsewhere),
            Some(ping) => {
                let judged = self.silent_since(ping) + self.timing.ping_time_out;
                let suspected = self.liveness.carried.max(ping.sent) + self.suspect_after(commands);
                // If this connection is silent and others exist, wake up early to ping those: their answers show if the
                // whole target is silent.
                let is_suspect =
                    last_message_elsewhere.is_some() && self.liveness.last_message <= ping.sent;
                if is_suspect && !ping.suspected { judged.min(suspected) } else { judged }
            }
        };
        if self.liveness.ping.as_ref().is_some_and(|ping| ping.suspected)
            && self.is_stalled(last_message_elsewhere)
        {
            next = self.liveness.last_message;
        }
        if let Some(text) = &self.text {
            next = next.min(text.deadline);
        }
        if let Some(deadline) = self.reassign_deadline() {
            next = next.min(deadline);
        }
        match self.logout {
            Logout::Draining(deadline) | Logout::Sent { deadline, .. } => next.min(deadline),
            Logout::No | Logout::Ending | Logout::Done { .. } => next,
        }
    }

    /// Checks the deadlines of pings and other requests. Returns true if this connection is silent for so long that the
    /// caller should ping the other connections, to find out if the target is alive.
    pub(super) fn check(
        &mut self,
        commands: &mut SessionCommands,
        last_message_elsewhere: Option<Instant>,
        now: Instant,
    ) -> Result<bool, InitiatorSessionError> {
        if self.text.as_ref().is_some_and(|text| text.deadline <= now) {
            return Err(InitiatorSessionError::Unanswered("a text request"));
        }
        if self.reassign_deadline().is_some_and(|deadline| deadline <= now) {
            return Err(InitiatorSessionError::Unanswered("a TASK REASSIGN"));
        }
        if let Logout::Sent { deadline, .. } = self.logout
            && deadline <= now
        {
            return Err(InitiatorSessionError::Unanswered("a logout"));
        }
        if self.is_stalled(last_message_elsewhere) {
            return Err(InitiatorSessionError::Stalled);
        }
        let suspect_after = self.suspect_after(commands);
        let ping_due = self.ping_due(commands, last_message_elsewhere);
        let silent_since = self.liveness.ping.as_ref().map(|ping| self.silent_since(ping));
        match &mut self.liveness.ping {
            Some(_)
                if silent_since.is_some_and(|since| since + self.timing.ping_time_out <= now) =>
            {
                Err(InitiatorSessionError::Silent)
            }
            Some(ping)
                if last_message_elsewhere.is_some()
                    && !ping.suspected
                    && self.liveness.last_message <= ping.sent
                    && self.liveness.carried.max(ping.sent) + suspect_after <= now =>
            {
                ping.suspected = true;
                Ok(true)
            }
            None if ping_due <= now => {
                self.ping(commands, now);
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    /// Returns true if the answer to the ping is overdue although another connection has received a PDU since the ping
    /// was sent.
    fn is_stalled(&self, last_message_elsewhere: Option<Instant>) -> bool {
        let Some(ping) = &self.liveness.ping else { return false };
        ping.suspected
            && self.liveness.last_message <= ping.sent
            && last_message_elsewhere.is_some_and(|last| last > ping.sent)
    }

    /// Records that bytes were transferred at time `at`. The connection is then slow but has not failed: its ping waits
    /// behind other data in transit.
    pub(super) fn note_carried(&mut self, at: Instant) {
        self.liveness.carried = self.liveness.carried.max(at);
        if let Some(ping) = &mut self.liveness.ping {
            ping.suspected = false;
        }
    }

    /// Returns the start of the target's silence, which is never before the ping was sent. A process that was suspended
    /// for a while must first send a ping before it considers the target silent.
    fn silent_since(&self, ping: &Ping) -> Instant {
        self.liveness.last_message.max(self.liveness.carried).max(ping.sent)
    }

    /// Returns since when the target has sent nothing although a ping is unanswered; `None` if no ping is unanswered.
    pub(super) fn owed_since(&self) -> Option<Instant> {
        self.liveness.ping.as_ref().map(|ping| self.silent_since(ping))
    }

    fn suspect_after(&self, commands: &SessionCommands) -> Duration {
        let usual = commands.round_trip() * 4;
        usual.max(self.timing.stall_time_out).min(self.timing.ping_time_out)
    }

    fn ping_due(
        &self,
        commands: &SessionCommands,
        last_message_elsewhere: Option<Instant>,
    ) -> Instant {
        let mut due = self.liveness.last_message + self.timing.ping_after;
        if self.expects() && (commands.recovers() || last_message_elsewhere.is_some()) {
            due = due.min(self.liveness.last_message + self.liveness.probe_after);
        }
        // On a busy connection PDUs arrive all the time, so no silence causes a ping. If a PDU is missing, send a ping
        // all the same: its answer shows what was lost.
        self.losses.missing_since.map_or(due, |since| due.min(since + self.timing.probe_after))
    }

    /// Sends a ping, whose answer shows that the target is alive and which commands it has
    /// received.
    pub(super) fn ping(&mut self, commands: &mut SessionCommands, now: Instant) {
        if self.liveness.ping.is_some() {
            return;
        }
        let (itt, cmd_sn) = (commands.control_itt(), commands.window.cmd_sn());
        self.send(Pdu::NopOut(NopOut {
            immediate: true,
            lun: scsi::Lun(0),
            itt,
            ttt: Ttt::NONE,
            cmd_sn,
            exp_stat_sn: self.exp_stat_sn(),
            data: Bytes::new(),
        }));
        let end = self.output.end();
        self.liveness.ping = Some(Ping { itt, sent: now, cmd_sn, end, suspected: false });
    }

    pub(super) fn abort_late_tasks(
        &mut self,
        commands: &mut SessionCommands,
        now: Instant,
    ) -> Result<(), InitiatorSessionError> {
        let mut late = Vec::new();
        for (itt, task) in commands.tasks.iter() {
            if task.allegiance == self.cid && !task.lost && task.deadline <= now {
                if task.abort.is_some() {
                    return Err(InitiatorSessionError::Unanswered("an ABORT TASK"));
                }
                late.push((itt, task.request.lun, task.cmd_sn));
            }
        }
        if self.requests.len() + late.len() > MOST_ABORTS {
            return Err(InitiatorSessionError::Unanswered("more than 1,000 ABORT TASK requests"));
        }
        for (itt, lun, ref_cmd_sn) in late {
            let abort = commands.control_itt();
            let task = commands.tasks.get_mut(itt).expect("just found");
            task.abort = Some(abort);
            task.deadline = now + self.timing.abort_time_out;
            self.requests.push(PendingTaskManagement {
                itt: abort,
                task: itt,
                kind: Management::Abort,
            });
            self.send(Pdu::TaskRequest(TaskRequest {
                immediate: true,
                function: Ok(TaskFunction::AbortTask),
                lun,
                itt: abort,
                referenced_itt: itt,
                cmd_sn: commands.window.cmd_sn(),
                exp_stat_sn: self.exp_stat_sn(),
                ref_cmd_sn,
                exp_data_sn: 0,
            }));
        }
        Ok(())
    }
}

/// The most times that the target may reject one immediate request for lack of resources before the connection fails.
const MOST_REFUSALS: u32 = 20;
