//! Task management (RFC 7143, 11.5, 11.6, 4.2.3).

use std::time::Instant;

use scsi::Lun;
use smallvec::SmallVec;

use crate::{
    Bhs, Itt, Pdu, Serial,
    pdu::{RejectReason, TaskFunction, TaskFunctionResult, TaskRequest, TaskResponse},
};

use super::{
    event::{Event, ManagementRequest},
    session::{Fenced, Postponed, Session},
    task::{Stage, Task, is_same_unit},
};

impl Session {
    pub(super) fn handle_task_request(&mut self, at: usize, request: &TaskRequest, bhs: &Bhs) {
        let itt = request.itt;
        if itt == Itt::NONE || self.tasks.contains_key(&itt) {
            self.reject(at, RejectReason::InvalidPduField, bhs);
            return;
        }
        if request.immediate && self.immediate >= self.settings.immediate_commands {
            self.reject(at, RejectReason::ImmediateCommandReject, bhs);
            return;
        }
        match request.function {
            Ok(TaskFunction::AbortTask) => {
                let result = self.abort_task(at, request);
                self.respond_to_management(at, itt, result);
            }
            Ok(
                function @ (TaskFunction::AbortTaskSet
                | TaskFunction::ClearTaskSet
                | TaskFunction::LogicalUnitReset
                | TaskFunction::TargetWarmReset
                | TaskFunction::TargetColdReset),
            ) => self.begin_management(at, request, function),
            Ok(TaskFunction::TaskReassign) => self.reassign(at, request),
            // NACA=1 is refused, so there is no ACA to clear.
            Ok(TaskFunction::ClearAca) | Err(_) => {
                self.respond_to_management(at, itt, TaskFunctionResult::NotSupported);
            }
        }
    }

    /// RFC 7143, 11.6.1: the three cases of ABORT TASK.
    fn abort_task(&mut self, at: usize, request: &TaskRequest) -> TaskFunctionResult {
        let meant = request.referenced_itt;
        if let Some(task) = self.tasks.get(&meant) {
            if task.stage == Stage::Management {
                return TaskFunctionResult::Rejected;
            }
            if is_same_unit(task.lun, request.lun) {
                self.abort(meant);
                return TaskFunctionResult::Complete;
            }
        }
        let is_held = |pdu: &Pdu| {
            matches!(pdu, Pdu::ScsiCommand(command)
                if command.itt == meant && is_same_unit(command.lun, request.lun))
        };
        if self.window.take_held(|early| is_held(&early.pdu)).is_some() {
            return TaskFunctionResult::Complete;
        }
        // A status that may be lost with its connection goes out once more (RFC 7143, 11.5.1).
        self.resend_lost(at, meant);
        let comes_before = request.ref_cmd_sn.is_before(request.cmd_sn);
        if comes_before && self.window.void(request.ref_cmd_sn) {
            TaskFunctionResult::Complete
        } else {
            TaskFunctionResult::NoTask
        }
    }

    fn begin_management(&mut self, at: usize, request: &TaskRequest, function: TaskFunction) {
        let task = Task {
            allegiance: self.connections[at].instance,
            lun: request.lun,
            cmd_sn: request.cmd_sn,
            immediate: request.immediate,
            stage: Stage::Management,
            read: false,
            write: false,
            expected_data_transfer_length: 0,
            bidirectional_read_length: None,
            solicited: 0,
            r2t_sn: 0,
            snack_tag: 0,
        };
        self.begin(request.itt, task);
        let cmd_sn = request.cmd_sn;
        let request = ManagementRequest { itt: request.itt, function, lun: request.lun };
        if request.unit().is_none() {
            // What has not come yet counts as received and aborted (RFC 7143, 4.2.3.3 b).
            self.window.plug(cmd_sn);
        }
        let until = self.now + self.settings.sequence_time;
        self.postponed.push(Postponed { request, cmd_sn, until, bursts_until: None });
        self.check_postponed();
    }

    /// Functions that need not wait any more: what their tasks were asked for has come, or comes
    /// no more, and so have all commands before them. Those whose time is over before that are
    /// rejected, and nothing has happened: commands that they should have ended would run after
    /// their answer.
    pub(super) fn check_postponed(&mut self) {
        let mut late = SmallVec::<[Itt; 1]>::new();
        let mut at = 0;
        while at < self.postponed.len() {
            let bursts_until = self.bursts_until(&self.postponed[at]);
            let postponed = &mut self.postponed[at];
            postponed.bursts_until = bursts_until;
            let (cmd_sn, max_cmd_sn) = (postponed.cmd_sn, self.window.max_cmd_sn());
            let is_ahead =
                self.window.exp_cmd_sn().is_before(cmd_sn) && !max_cmd_sn.next().is_before(cmd_sn);
            if self.now < postponed.until && (is_ahead || bursts_until.is_some()) {
                at += 1;
                continue;
            }
            let Postponed { request, cmd_sn, .. } = self.postponed.remove(at);
            if is_ahead {
                late.push(request.itt);
                continue;
            }
            if request.unit().is_none() {
                self.abort_before(None, cmd_sn);
            }
            self.events.push_back(Event::Management(request));
        }
        for itt in late {
            self.answer_management(itt, TaskFunctionResult::Rejected);
        }
    }

    /// How long data is waited for that this session was asked for with R2Ts, of tasks that end;
    /// `None` if that is over. Other sessions are not waited for.
    fn bursts_until(&self, postponed: &Postponed) -> Option<Instant> {
        let is_meant = |itt: &Itt| self.tasks.get(itt).is_some_and(|task| postponed.is_about(task));
        let open = self
            .gathers
            .iter()
            .filter(|(itt, transfer)| transfer.gather.has_valid_ttt() && is_meant(itt));
        let until = open.map(|(_, transfer)| transfer.progress + self.settings.burst_silence);
        until.max().filter(|until| self.now < *until)
    }

    /// A function is about to end this task: it is asked for no more data, and does not begin.
    pub(super) fn is_about_to_end(&self, itt: Itt) -> bool {
        !self.postponed.is_empty()
            && self
                .tasks
                .get(&itt)
                .is_some_and(|task| self.postponed.iter().any(|postponed| postponed.is_about(task)))
    }

    /// Aborts what `request` is about, in this session: to be called for a unit that exists. The
    /// aborts are events.
    pub fn abort_for(&mut self, request: &ManagementRequest) {
        if let Some(task) = self.tasks.get(&request.itt) {
            let before = task.cmd_sn;
            self.abort_before(Some(request.lun), before);
        }
    }

    /// Aborts all commands of this session, or those for one unit: another session has cleared or
    /// reset them. The aborts are events. No answer tells the initiator that the window is open
    /// again, so a NOP-In does (RFC 7143, 11.19).
    pub fn abort_tasks(&mut self, lun: Option<Lun>) {
        let before = self.tasks();
        self.abort_where(|task, _| lun.is_none_or(|lun| is_same_unit(task.lun, lun)));
        if self.tasks() < before {
            let window = self.window_numbers();
            let open = self.connections.iter_mut().filter(|connection| !connection.closing);
            open.for_each(|connection| connection.send_nop(window, crate::Ttt::NONE));
        }
    }

    /// The commands of this session for one unit that have come and are not over: those that the
    /// driver has, and writes whose data is on its way.
    #[must_use]
    pub fn commands_for(&self, lun: Lun) -> Vec<Itt> {
        let is_meant = |task: &Task| task.stage != Stage::Management && is_same_unit(task.lun, lun);
        self.tasks.iter().filter(|(_, task)| is_meant(task)).map(|(itt, _)| *itt).collect()
    }

    /// Aborts commands before `cmd_sn`.
    fn abort_before(&mut self, lun: Option<Lun>, cmd_sn: Serial) {
        self.abort_where(|task, _| {
            task.comes_before(cmd_sn) && lun.is_none_or(|lun| is_same_unit(task.lun, lun))
        });
    }

    /// What a task management function asked for has happened, or cannot.
    ///
    /// With several connections the answer that it is complete waits until what went out on the
    /// others has arrived: no answer to a task may come after it (RFC 7143, 4.2.3.3 d, 11.5.1).
    pub fn answer_management(&mut self, itt: Itt, result: TaskFunctionResult) {
        let Some(task) = self.tasks.get(&itt) else { return };
        if task.stage != Stage::Management {
            return;
        }
        let allegiance = task.allegiance;
        // Tasks that waited for their end, and were not aborted after all, go on.
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
        self.fenced.push(Fenced { itt, allegiance, result, awaited, until });
        self.check_fences();
    }

    /// Answers that need not wait any more.
    pub(super) fn check_fences(&mut self) {
        let mut at = 0;
        while at < self.fenced.len() {
            let Fenced { awaited, until, .. } = &self.fenced[at];
            let waits = self.now < *until
                && awaited.iter().any(|(instance, stat_sn)| {
                    let position = self.position(*instance);
                    position.is_some_and(|at| self.connections[at].acknowledged.is_before(*stat_sn))
                });
            if waits {
                at += 1;
                continue;
            }
            let Fenced { itt, allegiance, result, .. } = self.fenced.remove(at);
            self.end(itt);
            if let Some(at) = self.position(allegiance) {
                self.respond_to_management(at, itt, result);
            }
        }
    }

    pub(super) fn respond_to_management(
        &mut self,
        at: usize,
        itt: Itt,
        result: TaskFunctionResult,
    ) {
        self.send_status(at, |numbers| Pdu::TaskResponse(TaskResponse { result, itt, numbers }));
    }
}
