//! Task management functions (RFC 7143, 11.5, 11.6, 4.2.3).

use scsi::Lun;

use crate::{
    Bhs, Itt, Pdu,
    pdu::{RejectReason, TaskFunction, TaskFunctionResult, TaskRequest},
};

use super::{
    event::ManagementRequest,
    pending_functions::Postponed,
    session::Session,
    task::{TargetTask, TargetTaskStage, is_same_unit},
};

impl Session {
    pub(super) fn handle_task_request(&mut self, at: usize, request: &TaskRequest, bhs: &Bhs) {
        let itt = request.itt;
        if itt == Itt::NONE || self.tasks.by_tag.contains_key(&itt) {
            self.reject(at, RejectReason::InvalidPduField, bhs);
            return;
        }
        if request.immediate && self.tasks.immediate >= self.settings.immediate_commands {
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
            // CLEAR ACA is not supported: the target refuses commands with NACA=1, so no ACA condition ever exists.
            Ok(TaskFunction::ClearAca) | Err(_) => {
                self.respond_to_management(at, itt, TaskFunctionResult::NotSupported);
            }
        }
    }

    /// Performs ABORT TASK, for which RFC 7143, 11.6.1 distinguishes three cases: the task exists,
    /// its command has not arrived, or it has ended.
    fn abort_task(&mut self, at: usize, request: &TaskRequest) -> TaskFunctionResult {
        let meant = request.referenced_itt;
        if let Some(task) = self.tasks.by_tag.get(&meant) {
            if task.stage == TargetTaskStage::Management {
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
        if self.order.window.take_held(|early| is_held(&early.pdu)).is_some() {
            return TaskFunctionResult::Complete;
        }
        // The task may have ended on a failed connection, so that its status was lost. Send that
        // status again (RFC 7143, 11.5.1).
        self.resend_lost(at, meant);
        let comes_before = request.ref_cmd_sn.is_before(request.cmd_sn);
        if comes_before && self.order.window.void(request.ref_cmd_sn) {
            TaskFunctionResult::Complete
        } else {
            TaskFunctionResult::NoTask
        }
    }

    fn begin_management(&mut self, at: usize, request: &TaskRequest, function: TaskFunction) {
        let task = TargetTask {
            allegiance: self.connections[at].instance,
            lun: request.lun,
            cmd_sn: request.cmd_sn,
            immediate: request.immediate,
            stage: TargetTaskStage::Management,
            read: false,
            write: false,
            expected_data_transfer_length: 0,
            bidirectional_read_length: None,
            solicited: 0,
            r2t_sn: 0,
            snack_tag: 0,
        };
        self.tasks.begin(request.itt, task);
        let cmd_sn = request.cmd_sn;
        let request = ManagementRequest { itt: request.itt, function, lun: request.lun };
        if request.unit().is_none() {
            // Count earlier commands that have not arrived as received and aborted (RFC 7143,
            // 4.2.3.3 b).
            self.order.window.plug(cmd_sn);
        }
        let until = self.now + self.settings.sequence_time;
        self.functions.postponed.push(Postponed { request, cmd_sn, until, bursts_until: None });
        self.check_postponed();
    }

    /// Aborts the commands of this session that `request` affects, with an `Abort` event for each.
    /// The driver calls this if the unit exists.
    pub fn abort_for(&mut self, request: &ManagementRequest) {
        if let Some(task) = self.tasks.by_tag.get(&request.itt) {
            let before = task.cmd_sn;
            self.abort_before(Some(request.lun), before);
        }
    }

    /// Aborts the commands of this session for unit `lun`, or all of them, because another session
    /// has cleared or reset them. Each abort is an event. The session then sends a NOP-In with the
    /// new window, since the initiator gets no response that would report it (RFC 7143, 11.19).
    pub fn abort_tasks(&mut self, lun: Option<Lun>) {
        let before = self.tasks();
        self.abort_where(|task, _| lun.is_none_or(|lun| is_same_unit(task.lun, lun)));
        if self.tasks() < before {
            let window = self.window_numbers();
            let open = self.connections.iter_mut().filter(|connection| !connection.closing);
            open.for_each(|connection| connection.send_nop(window, crate::Ttt::NONE));
        }
    }

    /// Returns the commands of this session for one unit that are in progress: those that the
    /// driver executes, and writes whose data is incomplete.
    #[must_use]
    pub fn commands_for(&self, lun: Lun) -> Vec<Itt> {
        let is_meant = |task: &TargetTask| {
            task.stage != TargetTaskStage::Management && is_same_unit(task.lun, lun)
        };
        self.tasks.by_tag.iter().filter(|(_, task)| is_meant(task)).map(|(itt, _)| *itt).collect()
    }
}
