//! Executes the commands and task management functions of a session at the units of its target.

use std::{sync::Arc, task::Context};

use iscsi::{
    Cid, Itt,
    pdu::{TaskFunction, TaskFunctionResult},
    session::target::{
        ManagementRequest, ReceivedCommand, SendTargets, TargetCommandOutcome, TargetEvent,
        WriteAdmission,
    },
};
use scsi::{CommandCode, Lun, ScsiStatus, Sense};
use tokio::sync::mpsc;
use unit::{AttentionChange, Completion, Task, TaskAttribute, TaskManagement};

use crate::{
    driver::TargetSessionDriver,
    end_reason::ConnectionEndReason,
    execution::{BegunExecution, Execution, FinishedExecution, InFlightBytes},
    nexus_handle::NexusHandle,
    session_registry::DriverMessage,
    unitless_commands,
};

impl TargetSessionDriver<'_> {
    pub(crate) fn take_events(&mut self, context: &mut Context<'_>) {
        while let Some(event) = self.session.poll_event() {
            match event {
                // Start a flush even if other commands have to wait: writes that arrive later on other connections
                // would otherwise be performed before the flush.
                TargetEvent::Command(command)
                    if self.lines.len() > 1
                        && self.is_held_back(command.itt)
                        && !self.is_flush(&command) =>
                {
                    self.deferred.push(command);
                }
                TargetEvent::Command(command) => self.execute(command, context),
                TargetEvent::Admission(admission) => self.admit(admission),
                TargetEvent::Abort(itt) => {
                    self.deferred.abort(itt);
                    self.executions.abort(itt, context);
                }
                TargetEvent::Terminated(lun) => {
                    if let Some(NexusHandle { device, nexus }) = &self.nexus_handle
                        && let Some(unit) = device.unit(lun)
                    {
                        let condition = Sense::SOME_COMMANDS_CLEARED_BY_ISCSI_PROTOCOL_EVENT;
                        unit.change_attention(nexus, condition, AttentionChange::Raise);
                    }
                }
                TargetEvent::Management(request) => self.manage(request, context),
                TargetEvent::SendTargets(cid, which) => self.send_targets(cid, &which),
            }
        }
    }

    pub(crate) fn take_finished(
        &mut self,
        context: &mut Context<'_>,
    ) -> Result<bool, ConnectionEndReason> {
        let mut progress = false;
        while let Some(finished) = self.executions.poll(context) {
            progress = true;
            match finished {
                FinishedExecution::Command(itt, completion) => self.complete(itt, completion),
                FinishedExecution::Management(itt, function) => {
                    let result = TaskFunctionResult::Complete;
                    self.session.answer_management(itt, result);
                    self.ending.closing_all |= function == TaskFunction::TargetColdReset;
                }
            }
            if self.is_batch() {
                self.send_what_goes(context);
            }
        }
        Ok(progress)
    }

    /// Starts deferred commands whose responses can be queued again. Returns true if there was one.
    pub(crate) fn run_deferred(&mut self, context: &mut Context<'_>) -> bool {
        let mut progress = false;
        for _ in 0..self.deferred.len() {
            let Some(command) = self.deferred.pop() else { break };
            if self.is_held_back(command.itt) {
                self.deferred.push(command);
            } else {
                progress = true;
                self.execute(command, context);
            }
        }
        progress
    }

    fn execute(&mut self, command: ReceivedCommand, context: &mut Context<'_>) {
        let ReceivedCommand { itt, lun, cdb, attribute, data_out, data_in_capacity, admitted } =
            command;
        let Some(NexusHandle { device, nexus }) = &self.nexus_handle else { return };
        let command = CommandCode::of(&cdb);
        self.seat.tally.count(command);
        let task = Task {
            nexus: nexus.clone(),
            lun,
            cdb,
            attribute: task_attribute(attribute),
            data_out: data_out.into(),
            data_in_capacity,
            admitted,
        };
        let unit = if unitless_commands::is_meant(&task.cdb) { None } else { device.unit(lun) };
        let Some(unit) = unit else {
            let completion = unitless_commands::execute(&task, &device.luns);
            if unitless_commands::is_meant(&task.cdb) && completion.status == ScsiStatus::Good {
                // Withdraw the unit attention about a changed list of units: the initiator has just received the new
                // list (SPC-4, 6.33).
                device.withdraw_attention(nexus, Sense::REPORTED_LUNS_DATA_HAS_CHANGED);
            }
            self.complete(itt, completion);
            return;
        };
        let held =
            InFlightBytes { data_out: task.data_out.len(), data_in: data_in_capacity as usize };
        let started = self.executions.watch.start(command);
        match Execution::begin(unit, task, context) {
            BegunExecution::Done(completion) => {
                self.executions.watch.done_at_once(started);
                self.complete(itt, completion);
            }
            BegunExecution::Waiting(execution) => {
                self.executions.hold(itt, held, started, execution);
            }
        }
    }

    fn complete(&mut self, itt: Itt, completion: Completion) {
        self.unsent += 1;
        if let Some(sense) = completion.sense
            && sense.is(Sense::REPORTED_LUNS_DATA_HAS_CHANGED)
            && let Some(NexusHandle { device, nexus }) = &self.nexus_handle
        {
            // The list of LUNs belongs to the target, and one unit has just reported its change: withdraw the same
            // condition at the other units.
            device.withdraw_attention(nexus, Sense::REPORTED_LUNS_DATA_HAS_CHANGED);
        }
        self.session.complete(itt, outcome(completion));
    }

    /// Adopts the target's current units. Commands at removed units are aborted, and the initiator is informed by a
    /// unit attention.
    pub(crate) fn change_units(&mut self, context: &mut Context<'_>) {
        let Some(nexus_handle) = &self.nexus_handle else { return };
        // The target was removed, so this session is about to end: leave its units unchanged.
        let Some(device) = self.server.names.find(&nexus_handle.device.name) else { return };
        let gone: Vec<Lun> =
            nexus_handle.device.units_beyond(&device).map(|(lun, _)| lun).collect();
        let has_new = device.units_beyond(&nexus_handle.device).next().is_some();
        for lun in &gone {
            for itt in self.session.commands_for(*lun) {
                self.deferred.abort(itt);
                self.executions.abort(itt, context);
                let sense = Sense::LOGICAL_UNIT_NOT_SUPPORTED;
                self.complete(itt, Completion::check_condition(sense));
            }
        }
        let Some(nexus_handle) = &mut self.nexus_handle else { return };
        nexus_handle.change(device);
        self.session.use_descriptor_sense(nexus_handle.device.descriptor_sense_luns());
        if has_new || !gone.is_empty() {
            let NexusHandle { device, nexus } = nexus_handle;
            device.raise_attention(nexus, Sense::REPORTED_LUNS_DATA_HAS_CHANGED);
        }
    }

    fn admit(&mut self, admission: WriteAdmission) {
        let WriteAdmission { itt, lun, cdb, data_out_length } = admission;
        let Some(NexusHandle { device, nexus }) = &self.nexus_handle else { return };
        let admitted = match device.unit(lun) {
            Some(unit) => unit.admit(nexus, &cdb, data_out_length),
            None => Ok(None),
        };
        match admitted {
            Ok(admitted) => {
                let share = self.server.share(self.server.settings.held_bytes);
                self.session.share_solicited(share as u64);
                self.session.admit(itt, admitted);
            }
            Err(refusal) => self.complete(itt, refusal),
        }
    }

    /// Returns true for a command that makes earlier writes stable. Its response has no Data-In.
    fn is_flush(&self, command: &ReceivedCommand) -> bool {
        let device = self.nexus_handle.as_ref().map(|handle| &handle.device);
        let unit = device.and_then(|device| device.unit(command.lun));
        let flushes = unit.and_then(|unit| unit.abilities().flushes);
        flushes.is_some_and(|flushes| flushes.is_flush(&command.cdb))
    }

    /// Performs a task management function in this order: abort the tasks of this session, then those of other
    /// sessions, then inform the units, then respond.
    fn manage(&mut self, request: ManagementRequest, context: &mut Context<'_>) {
        let ManagementRequest { itt, function, lun } = request;
        let Some(NexusHandle { device, nexus }) = &self.nexus_handle else { return };
        let (device, nexus) = (Arc::clone(device), nexus.clone());
        let is_for_target =
            matches!(function, TaskFunction::TargetWarmReset | TaskFunction::TargetColdReset);
        if !is_for_target {
            if device.unit(lun).is_none() {
                self.session.answer_management(itt, TaskFunctionResult::NoLun);
                return;
            }
            self.session.abort_for(&request);
            self.take_events(context);
        }
        let others = if function == TaskFunction::AbortTaskSet {
            Vec::new()
        } else {
            self.server.registry.drivers(Some(&device.name), self.seat.number)
        };
        let cleared = (!is_for_target).then_some(lun);
        self.executions.hold_management(itt, function, async move {
            clear(&others, cleared).await;
            if let Some(function) = task_management(function) {
                match cleared {
                    Some(lun) => {
                        device.unit(lun).iter().for_each(|u| u.task_management(&nexus, function));
                    }
                    None => device.units().for_each(|u| u.task_management(&nexus, function)),
                }
            }
            if function == TaskFunction::TargetColdReset {
                // A cold reset ends all sessions of the target (RFC 7143, 11.5.1). Close the others here; this session
                // ends after the response.
                for other in &others {
                    let _ = other.send(DriverMessage::Close("target cold reset")).await;
                }
            }
        });
    }

    fn send_targets(&mut self, cid: Cid, which: &SendTargets) {
        self.last_request = std::time::Instant::now();
        let Some(line) = self.lines.iter().find(|line| line.cid == cid) else { return };
        let view = self.server.view(line.local, line.address.ip());
        let user = self.seat.user.as_deref();
        let mut targets = view.targets(self.session.initiator_name(), user);
        let wanted = match which {
            SendTargets::All => None,
            SendTargets::Named(name) => Some(name.as_str()),
            SendTargets::Own => Some(self.session.target_name().unwrap_or_default()),
        };
        targets.retain(|(name, _)| wanted.is_none_or(|wanted| wanted == name));
        let targets = targets.iter().map(|(name, addresses)| (name.as_str(), &addresses[..]));
        self.session.answer_send_targets(cid, targets);
    }
}

/// Lets other drivers abort their commands at a unit, or at all units if `lun` is `None`, and waits until they have.
async fn clear(drivers: &[mpsc::Sender<DriverMessage>], lun: Option<Lun>) {
    let (done, mut all_done) = mpsc::channel(1);
    for driver in drivers {
        // Ignore a failed send: a driver that has ended has no commands in progress.
        let _ = driver.send(DriverMessage::Clear { lun, done: done.clone() }).await;
    }
    drop(done);
    while all_done.recv().await.is_some() {}
}

fn outcome(completion: Completion) -> TargetCommandOutcome {
    TargetCommandOutcome {
        status: completion.status,
        sense: completion.sense,
        object_sense: completion.object_sense,
        data_in: completion.data_in.into_parts(),
        data_out_length: completion.data_out_length,
    }
}

/// Task attributes of RFC 7143, 11.3.1. Reserved values are treated as untagged.
fn task_attribute(attribute: u8) -> TaskAttribute {
    match attribute {
        1 => TaskAttribute::Simple,
        2 => TaskAttribute::Ordered,
        3 => TaskAttribute::HeadOfQueue,
        4 => TaskAttribute::Aca,
        _ => TaskAttribute::Untagged,
    }
}

fn task_management(function: TaskFunction) -> Option<TaskManagement> {
    Some(match function {
        TaskFunction::AbortTask => TaskManagement::AbortTask,
        TaskFunction::AbortTaskSet => TaskManagement::AbortTaskSet,
        TaskFunction::ClearAca => TaskManagement::ClearAca,
        TaskFunction::ClearTaskSet => TaskManagement::ClearTaskSet,
        TaskFunction::LogicalUnitReset => TaskManagement::LogicalUnitReset,
        TaskFunction::TargetWarmReset => TaskManagement::TargetWarmReset,
        TaskFunction::TargetColdReset => TaskManagement::TargetColdReset,
        TaskFunction::TaskReassign => return None,
    })
}
