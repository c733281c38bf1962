//! The state that all connections of an initiator's session share: command window, tasks and queues.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::{
    CommandFailure, CommandRequest, InitiatorCommandOutcome, InitiatorEvent, task::TaskTable,
    window::InitiatorCommandWindow,
};
use crate::{Cid, Itt, Serial, keys::Parameters, pdu::LogoutResponse};

/// The commands of an initiator's session, from their submission to their completion.
#[derive(Debug)]
pub(super) struct SessionCommands {
    pub(super) parameters: Parameters,
    pub(super) window: InitiatorCommandWindow,
    pub(super) tasks: TaskTable,
    /// Commands that wait for the command window, oldest first.
    queue: VecDeque<QueuedCommand>,
    /// Commands of failed connections that the target has not received. They are sent again on
    /// another connection with the same CmdSN, in the order of CmdSN.
    again: VecDeque<Itt>,
    /// Tasks that the target has received on a connection that failed and was logged out. TASK
    /// REASSIGN must move each of them to another connection.
    pub(super) orphans: VecDeque<Itt>,
    /// The most commands that may be queued and in flight together.
    depth: usize,
    submitted: u64,
    controls: u16,
    /// A lower bound of the deadlines of all commands: it may be too early, but never too late.
    earliest_deadline: Option<Instant>,
    pub(super) events: VecDeque<InitiatorEvent>,
    /// Responses to logouts of failed connections, which the session still has to process.
    pub(super) logged_out: Vec<LogoutResponse>,
    /// The smoothed round-trip time of pings: 7/8 of the old value and 1/8 of the last ping.
    round_trip: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct QueuedCommand {
    pub(super) request: CommandRequest,
    pub(super) order: u64,
    pub(super) deadline: Instant,
}

pub(super) enum NextCommand {
    /// A command that was never sent.
    New(QueuedCommand),
    /// Repeat this command, with the CmdSN that it has, because it was sent on a connection that failed.
    Again(Itt),
}

impl SessionCommands {
    pub(super) fn new(
        parameters: Parameters,
        window: InitiatorCommandWindow,
        depth: usize,
    ) -> Self {
        Self {
            parameters,
            window,
            tasks: TaskTable::default(),
            queue: VecDeque::new(),
            again: VecDeque::new(),
            orphans: VecDeque::new(),
            depth,
            submitted: 0,
            controls: 0,
            earliest_deadline: None,
            events: VecDeque::new(),
            logged_out: Vec::new(),
            round_trip: None,
        }
    }

    /// Returns true if lost PDUs are requested again on the connection (error recovery level 1 and
    /// above).
    pub(super) fn recovers(&self) -> bool {
        self.parameters.error_recovery_level > 0
    }

    /// Returns true if the error recovery level is 2, so that tasks can move to another connection.
    pub(super) fn reassigns(&self) -> bool {
        self.parameters.error_recovery_level >= 2
    }

    pub(super) fn unanswered(&self) -> usize {
        self.queue.len() + self.tasks.len()
    }

    pub(super) fn waiting(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn submit(
        &mut self,
        request: CommandRequest,
        now: Instant,
    ) -> Result<(), CommandRequest> {
        if self.unanswered() >= self.depth {
            return Err(request);
        }
        if let Some(data) = request.transfer.data_out() {
            assert!(u32::try_from(data.len()).is_ok(), "EDTL has 32 bits");
        }
        let deadline = now + request.time_out;
        self.note_deadline(deadline);
        self.queue.push_back(QueuedCommand { request, order: self.submitted, deadline });
        self.submitted += 1;
        Ok(())
    }

    pub(super) fn expire(&mut self, tag: u64, now: Instant) {
        let tasks = self.tasks.iter_mut().filter(|(_, task)| task.abort.is_none());
        let sent = tasks.map(|(_, task)| (task.request.tag, &mut task.deadline));
        let waiting = self.queue.iter_mut().map(|w| (w.request.tag, &mut w.deadline));
        let found = sent.chain(waiting).find(|(found, _)| *found == tag);
        if let Some((_, deadline)) = found
            && *deadline > now
        {
            *deadline = now;
            self.note_deadline(now);
        }
    }

    pub(super) fn take_unanswered(&mut self) -> Vec<CommandRequest> {
        self.again.clear();
        self.orphans.clear();
        let sent = self.tasks.drain().map(|task| (task.order, task.request));
        let waiting = self.queue.drain(..).map(|waiting| (waiting.order, waiting.request));
        let mut all: Vec<_> = sent.chain(waiting).collect();
        all.sort_by_key(|&(order, _)| order);
        all.into_iter().map(|(_, request)| request).collect()
    }

    /// Returns a tag for a PDU other than a command: ping, task management function, text, logout.
    /// The low half of the tag is one that the task table never uses.
    pub(super) fn control_itt(&mut self) -> Itt {
        self.controls = self.controls.wrapping_add(1);
        Itt(u32::from(self.controls) << 16 | 0xfffe)
    }

    /// Returns the command to send next; `None` if the queue is empty or the command window is closed.
    pub(super) fn next_to_send(&mut self) -> Option<NextCommand> {
        while let Some(itt) = self.again.pop_front() {
            if self.tasks.get(itt).is_some_and(|task| task.lost) {
                return Some(NextCommand::Again(itt));
            }
        }
        if !self.window.is_open() || self.tasks.is_full() {
            return None;
        }
        self.queue.pop_front().map(NextCommand::New)
    }

    /// Divides the tasks of a failed connection into two groups. Returns those that the target has received, in the
    /// order of submission. Queues the others in `again`, to be sent again.
    pub(super) fn split_lost(&mut self, cid: Cid) -> Vec<Itt> {
        let expected = self.window.exp_cmd_sn();
        let mut known = Vec::new();
        for (itt, task) in self.tasks.iter() {
            if !(task.lost && task.allegiance == cid) {
                continue;
            }
            if task.cmd_sn.is_before(expected) {
                known.push((task.order, itt));
            } else if !self.again.contains(&itt) {
                self.again.push_back(itt);
            }
        }
        let tasks = &self.tasks;
        let distance =
            |itt: &Itt| tasks.get(*itt).map_or(0, |task| task.cmd_sn.distance_from(expected));
        self.again.make_contiguous().sort_by_key(distance);
        known.sort_unstable_by_key(|&(order, _)| order);
        known.into_iter().map(|(_, itt)| itt).collect()
    }

    /// Returns the first command of this connection that the target has not received. `cmd_sn`
    /// comes from a ping that was sent later and is answered, so the command should have arrived.
    pub(super) fn first_missed(&self, cid: Cid, cmd_sn: Serial) -> Option<Itt> {
        let expected = self.window.exp_cmd_sn();
        if !expected.is_before(cmd_sn) {
            return None;
        }
        let mut tasks = self.tasks.iter();
        let found =
            tasks.find(|(_, task)| task.cmd_sn == expected && task.allegiance == cid && !task.lost);
        found.map(|(itt, _)| itt)
    }

    pub(super) fn complete(
        &mut self,
        tag: u64,
        result: Result<InitiatorCommandOutcome, CommandFailure>,
    ) {
        self.events.push_back(InitiatorEvent::Completed { tag, result });
    }

    pub(super) fn note_deadline(&mut self, deadline: Instant) {
        let earliest = self.earliest_deadline.map_or(deadline, |earliest| earliest.min(deadline));
        self.earliest_deadline = Some(earliest);
    }

    pub(super) fn earliest_deadline(&self) -> Option<Instant> {
        self.earliest_deadline
    }

    /// Completes the queued commands that have reached their time-out before they were sent.
    pub(super) fn expire_waiting(&mut self, now: Instant) {
        let (expired, waiting): (VecDeque<_>, _) =
            self.queue.drain(..).partition(|waiting: &QueuedCommand| waiting.deadline <= now);
        self.queue = waiting;
        for waiting in expired {
            self.complete(waiting.request.tag, Err(CommandFailure::TimedOut));
        }
    }

    /// Computes the earliest deadline again. Tasks without a connection are left out, since they
    /// cannot be aborted before they have one.
    pub(super) fn recompute_deadline(&mut self) {
        let tasks = self.tasks.iter().filter(|(_, task)| !task.lost).map(|(_, task)| task.deadline);
        self.earliest_deadline = tasks.chain(self.queue.iter().map(|w| w.deadline)).min();
    }

    pub(super) fn note_round_trip(&mut self, time: Duration) {
        let smooth = |before: Duration| (before * 7 + time) / 8;
        self.round_trip = Some(self.round_trip.map_or(time, smooth));
    }

    pub(super) fn round_trip(&self) -> Duration {
        self.round_trip.unwrap_or_default()
    }
}
