//! What the commands of a session do at its units, and what other sessions are told of it.

use std::task::Context;

use iscsi::{
    Cid,
    pdu::{TaskFunction, TaskFunctionResult},
    session::target::{Admission, Command, Event, ManagementRequest, Outcome, SendTargets},
};
use tokio::sync::mpsc;
use unit::{Completion, Task, TaskAttribute, TaskManagement};

use crate::{
    device,
    driver::Driver,
    end::End,
    execution::{Execution, Finished},
    registry::Order,
};

impl Driver<'_> {
    pub(crate) fn take_events(&mut self, context: &mut Context<'_>) {
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::Command(command)
                    if self.lines.len() > 1 && self.is_held_back(command.itt) =>
                {
                    self.deferred.push(command);
                }
                Event::Command(command) => self.execute(command, context),
                Event::Admission(admission) => self.admit(admission),
                Event::Abort(itt) => {
                    self.deferred.abort(itt);
                    self.executions.abort(itt, context);
                }
                Event::Management(request) => self.manage(request, context),
                Event::SendTargets(cid, which) => self.send_targets(cid, &which),
            }
        }
    }

    pub(crate) fn take_finished(&mut self, context: &mut Context<'_>) -> Result<bool, End> {
        let mut progress = false;
        while let Some(finished) = self.executions.poll(context) {
            progress = true;
            match finished {
                Finished::Command(itt, completion) => self.complete(itt, completion),
                Finished::Management(itt, function) => {
                    let result = TaskFunctionResult::Complete;
                    self.session.answer_management(itt, result);
                    self.closing_all |= function == TaskFunction::TargetColdReset;
                }
            }
            if self.is_batch() {
                self.send_what_goes(context);
            }
        }
        Ok(progress)
    }

    /// Begins what had to wait for room for its answer. True if there was any.
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

    fn execute(&mut self, command: Command, context: &mut Context<'_>) {
        let Command { itt, lun, cdb, attribute, data_out, data_in_capacity } = command;
        let task = Task {
            nexus: self.nexus.clone(),
            lun,
            cdb,
            attribute: task_attribute(attribute),
            data_out: data_out.into_iter().collect(),
            data_in_capacity,
        };
        let Some(device) = self.device else { return };
        let unit = if device::is_meant(&task.cdb) { None } else { device.unit(lun) };
        let Some(unit) = unit else {
            let completion = device::execute(&task, &device.luns);
            self.complete(itt, completion);
            return;
        };
        let bytes = task.data_out.len();
        let mut execution: Execution<'_> = unit.execute(task);
        match execution.as_mut().poll(context) {
            std::task::Poll::Ready(completion) => self.complete(itt, completion),
            std::task::Poll::Pending => self.executions.hold(itt, bytes, execution),
        }
    }

    fn complete(&mut self, itt: iscsi::Itt, completion: Completion) {
        self.unsent += 1;
        self.session.complete(itt, outcome(completion));
    }

    fn admit(&mut self, admission: Admission) {
        let Admission { itt, lun, cdb, data_out_length } = admission;
        let unit = self.device.and_then(|device| device.unit(lun));
        match unit.and_then(|unit| unit.admit(&self.nexus, &cdb, data_out_length)) {
            Some(refusal) => self.complete(itt, refusal),
            None => self.session.admit(itt),
        }
    }

    /// Own tasks first, then those of other sessions, then the units are told, then the answer.
    fn manage(&mut self, request: ManagementRequest, context: &mut Context<'_>) {
        let ManagementRequest { itt, function, lun } = request;
        let Some(device) = self.device else { return };
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
            self.surroundings.registry.drivers(Some(&device.name), self.seat.number)
        };
        let nexus = self.nexus.clone();
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
                // All sessions of the target end (RFC 7143, 11.5.1); ours after the answer.
                for other in &others {
                    let _ = other.send(Order::Close("target cold reset")).await;
                }
            }
        });
    }

    fn send_targets(&mut self, cid: Cid, which: &SendTargets) {
        let Some(line) = self.lines.iter().find(|line| line.cid == cid) else { return };
        let door = self.surroundings.door(line.local, line.address.ip());
        let user = self.seat.user.as_deref();
        let mut targets = door.targets(self.session.initiator_name(), user);
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

/// Has other drivers abort what they have in progress at a unit, or at all; returns when they did.
async fn clear(drivers: &[mpsc::Sender<Order>], lun: Option<scsi::Lun>) {
    let (done, mut all_done) = mpsc::channel(1);
    for driver in drivers {
        // A driver that has gone has nothing in progress.
        let _ = driver.send(Order::Clear { lun, done: done.clone() }).await;
    }
    drop(done);
    while all_done.recv().await.is_some() {}
}

fn outcome(completion: Completion) -> Outcome {
    Outcome {
        status: completion.status,
        sense: completion.sense,
        data_in: completion.data_in.into_parts(),
        data_out_length: completion.data_out_length,
    }
}

/// RFC 7143, 11.3.1; reserved values count as untagged.
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
