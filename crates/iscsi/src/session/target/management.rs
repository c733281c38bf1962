//! Task management (RFC 7143, 11.5, 11.6, 4.2.3).

use scsi::Lun;

use crate::{
    Bhs, Itt, Pdu, Serial,
    pdu::{RejectReason, TaskFunction, TaskFunctionResult, TaskRequest, TaskResponse},
};

use super::{
    connection::{Connection, Error},
    event::{Event, ManagementRequest},
    session::Session,
    task::{Stage, Task, is_same_unit},
};

impl Connection {
    pub(super) fn handle_task_request(
        &mut self,
        session: &mut Session,
        request: &TaskRequest,
        bhs: &Bhs,
    ) -> Result<(), Error> {
        let itt = request.itt;
        if itt == Itt::NONE || session.tasks.contains_key(&itt) {
            self.reject(session, RejectReason::InvalidPduField, bhs);
            return Ok(());
        }
        if request.immediate && session.immediate >= session.settings.immediate_commands {
            self.reject(session, RejectReason::ImmediateCommandReject, bhs);
            return Ok(());
        }
        match request.function {
            Ok(TaskFunction::AbortTask) => {
                let result = self.abort_task(session, request);
                self.respond_to_management(session, itt, result);
                // Counting a number as received may let others pass.
                self.take_held(session)?;
            }
            Ok(
                function @ (TaskFunction::AbortTaskSet
                | TaskFunction::ClearTaskSet
                | TaskFunction::LogicalUnitReset
                | TaskFunction::TargetWarmReset
                | TaskFunction::TargetColdReset),
            ) => self.ask_driver(session, request, function),
            // ERL 0 and 1 know no reassignment; NACA=1 is refused, so there is no ACA to clear.
            Ok(TaskFunction::TaskReassign) => {
                let result = TaskFunctionResult::ReassignNotSupported;
                self.respond_to_management(session, itt, result);
            }
            Ok(TaskFunction::ClearAca) | Err(_) => {
                self.respond_to_management(session, itt, TaskFunctionResult::NotSupported);
            }
        }
        Ok(())
    }

    /// RFC 7143, 11.6.1: the three cases of ABORT TASK.
    fn abort_task(&mut self, session: &mut Session, request: &TaskRequest) -> TaskFunctionResult {
        let meant = request.referenced_itt;
        let is_task = session.tasks.get(&meant).is_some_and(|task| {
            task.stage != Stage::Management && is_same_unit(task.lun, request.lun)
        });
        if is_task {
            self.abort(session, meant);
            return TaskFunctionResult::Complete;
        }
        let is_held = |pdu: &Pdu| {
            matches!(pdu, Pdu::ScsiCommand(command)
                if command.itt == meant && is_same_unit(command.lun, request.lun))
        };
        if session.window.take_held(|early| is_held(&early.pdu)).is_some() {
            return TaskFunctionResult::Complete;
        }
        let comes_before = request.ref_cmd_sn.is_before(request.cmd_sn);
        if comes_before && session.window.void(request.ref_cmd_sn) {
            TaskFunctionResult::Complete
        } else {
            TaskFunctionResult::NoTask
        }
    }

    fn ask_driver(&mut self, session: &mut Session, request: &TaskRequest, function: TaskFunction) {
        let task = Task {
            allegiance: self.cid,
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
        };
        session.begin(request.itt, task);
        if matches!(function, TaskFunction::TargetWarmReset | TaskFunction::TargetColdReset) {
            self.abort_before(session, None, request.cmd_sn);
        }
        self.events.push_back(Event::Management(ManagementRequest {
            itt: request.itt,
            function,
            lun: request.lun,
        }));
    }

    /// Aborts what `request` is about, in this session: to be called for a unit that exists. The
    /// aborts are events.
    pub fn abort_for(&mut self, session: &mut Session, request: &ManagementRequest) {
        if let Some(task) = session.tasks.get(&request.itt) {
            let before = task.cmd_sn;
            self.abort_before(session, Some(request.lun), before);
        }
    }

    /// Aborts all commands of this session, or those for one unit: another session has cleared or
    /// reset them. The aborts are events. No answer tells the initiator that the window is open
    /// again, so a NOP-In does (RFC 7143, 11.19).
    pub fn abort_tasks(&mut self, session: &mut Session, lun: Option<Lun>) {
        let before = session.tasks();
        self.abort_where(session, |task, _| lun.is_none_or(|lun| is_same_unit(task.lun, lun)));
        if session.tasks() < before {
            self.tell_window(session);
        }
    }

    /// Aborts commands up to the one with `cmd_sn`: an immediate request reaches no further.
    fn abort_before(&mut self, session: &mut Session, lun: Option<Lun>, cmd_sn: Serial) {
        self.abort_where(session, |task, _| {
            !cmd_sn.is_before(task.cmd_sn) && lun.is_none_or(|lun| is_same_unit(task.lun, lun))
        });
    }

    pub(super) fn abort_where(
        &mut self,
        session: &mut Session,
        mut is_meant: impl FnMut(&Task, Itt) -> bool,
    ) {
        let meant: Vec<Itt> = session
            .tasks
            .iter()
            .filter(|(itt, task)| task.stage != Stage::Management && is_meant(task, **itt))
            .map(|(itt, _)| *itt)
            .collect();
        for itt in meant {
            self.abort(session, itt);
        }
    }

    /// Forgets a command. Data that is still on its way for it is ignored when it comes: the
    /// initiator stops sending with the response to its request at the latest.
    fn abort(&mut self, session: &mut Session, itt: Itt) {
        self.gathers.remove(&itt);
        if let Some(task) = session.end(itt) {
            self.release(session, &task);
            self.events.push_back(Event::Abort(itt));
        }
    }

    /// What a task management function asked for has happened, or cannot.
    pub fn answer_management(
        &mut self,
        session: &mut Session,
        itt: Itt,
        result: TaskFunctionResult,
    ) {
        if session.tasks.get(&itt).is_some_and(|task| task.stage == Stage::Management) {
            session.end(itt);
            self.respond_to_management(session, itt, result);
        }
    }

    fn respond_to_management(&mut self, session: &Session, itt: Itt, result: TaskFunctionResult) {
        let numbers = self.next_numbers(session);
        self.send(Pdu::TaskResponse(TaskResponse { result, itt, numbers }));
    }
}
