//! The commands of callers that are not answered yet. Some are to be sent, some are to be sent again later, and some
//! are in flight.

mod changed_blocks;
mod verdict;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use iscsi::{
    DataSegment,
    pdu::Residual,
    session::initiator::{CommandFailure, CommandRequest, DataPhase, InitiatorCommandOutcome},
};
use scsi::{Cdb, CommandCode, Lun, OpcodeTally, ReceivedObjectSense, ScsiStatus, Sense};
use tokio::sync::oneshot;

use self::{
    changed_blocks::ChangedBlocks,
    verdict::{CommandOutcomeKind, CommandVerdict, error_of, not_repeated},
};
use crate::{CommandError, InitiatorStatistics, error::is_not_served, probe::MOST_UNIT_ATTENTIONS};

pub(crate) use self::changed_blocks::ChangedObject;

/// A command that the target performed.
#[derive(Clone, Debug)]
pub struct PerformedCommand {
    /// GOOD, or CHECK CONDITION with NO SENSE or RECOVERED ERROR. The answer to a command with a [`CommandSource`] has
    /// any status.
    pub status: ScsiStatus,
    /// The sense data: with RECOVERED ERROR it says what the target had to do differently.
    pub sense: Option<Sense>,
    /// The descriptors of an object drive in the sense data.
    pub object_sense: Option<Box<ReceivedObjectSense>>,
    /// Data-In. The data shares memory with the receive buffer.
    pub data_in: DataSegment,
    /// The residual count: the difference between the expected and the actual length of the data.
    pub residual: Residual,
    /// The generation of the session that answered: see [`crate::RemoteSession::generation`].
    pub generation: u64,
    /// True if the unit had a volatile write cache in the session that answered. It may have had none when the command
    /// was first sent.
    pub volatile_cache: bool,
}

/// A command that a caller passes to the driver.
pub(crate) struct Job {
    pub(crate) cdb: Cdb,
    pub(crate) transfer: DataPhase,
    pub(crate) reply: oneshot::Sender<Result<PerformedCommand, CommandError>>,
    pub(crate) repetition: CommandRepetition,
    /// Makes the command again when it is sent again, or sent late. `None`: the bytes stay the same.
    pub(crate) source: Option<Arc<dyn CommandSource>>,
}

/// Whether the initiator may send a command again after the session was lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum CommandRepetition {
    Allowed,
    /// The command is sent at most once, and only while the session has this generation.
    OnlyIn(u64),
    /// A second execution could have another effect. The command is sent again only after a status which says that the
    /// target did not begin it. After a lost session the caller has to find out whether it was performed.
    Forbidden,
}

/// Makes a command whose bytes depend on the time at which it is sent, such as one with a signature.
pub(crate) trait CommandSource: Send + Sync {
    fn make(&self) -> (Cdb, DataPhase);

    /// Returns the object that the command changes: see [`PendingTable::next`].
    fn changes(&self) -> Option<ChangedObject>;
}

impl Job {
    /// Makes a job without a command source.
    pub(crate) fn new(
        cdb: Cdb,
        transfer: DataPhase,
        reply: oneshot::Sender<Result<PerformedCommand, CommandError>>,
        repetition: CommandRepetition,
    ) -> Self {
        Self { cdb, transfer, reply, repetition, source: None }
    }

    /// Returns true if the command must be sent at most once.
    fn is_once(&self) -> bool {
        matches!(self.repetition, CommandRepetition::OnlyIn(_))
    }
}

struct PendingCommand {
    job: Job,
    reach: ChangedBlocks,
    /// True while the session has the command in its queue or has sent it.
    sent: bool,
    /// True if the command was sent at least once, so that the target may have executed it.
    begun: bool,
    /// The time when the command was last passed to the session; before, the time when its bytes were made.
    submitted: Instant,
    /// The generation of the session for which the bytes of the command were made.
    made_in: u64,
    /// The time of the target's first answer BUSY to this command.
    busy_since: Option<Instant>,
    attentions: u32,
    aborts: u32,
    replays: u32,
}

/// All commands that the driver has accepted and that are not answered.
pub(crate) struct PendingTable {
    jobs: HashMap<u64, PendingCommand>,
    next_tag: u64,
    /// The tags of commands that can be sent at once, in order.
    backlog: VecDeque<u64>,
    /// The tags of commands that are to be sent again later, each with the time for that.
    delayed: Vec<(Instant, u64)>,
    /// The tags of writes that wait for earlier writes to the same blocks, in order.
    held: VecDeque<u64>,
    /// The blocks of the writes that have begun: see [`PendingTable::next`].
    begun: Vec<(u64, ChangedBlocks)>,
    pub(crate) lun: Lun,
    /// True if other portals may serve the unit as well.
    pub(crate) has_choice: bool,
    command_time_out: Duration,
    busy_time_out: Duration,
    /// Counts the answered commands by operation code.
    pub(crate) answered: Arc<OpcodeTally>,
    /// True if the unit has a volatile cache according to the current session.
    pub(crate) volatile_cache: bool,
    /// The generation of the session to which commands are sent.
    pub(crate) generation: u64,
}

/// News about the unit that a completed command has brought and that concerns all commands.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct CompletionNotice {
    /// A unit attention or a deferred error: sense data that is not about the command itself.
    pub(crate) attention: Option<Sense>,
    /// Sense data which says that the unit is not served at this portal. The command stays in the table until the
    /// unit's portal is found.
    pub(crate) not_served: Option<Sense>,
}

/// How often a command is sent again after the target has aborted it, for example because of a CRC error (Linux: 5
/// times).
const MOST_ABORTS: u32 = 5;
/// How often a command is sent again after its connection was lost. The limit protects a target that crashes because of
/// the command.
const MOST_REPLAYS: u32 = 10;

/// The most time between making the bytes of a command with a [`CommandSource`] and sending them. An object drive refuses
/// a signature whose time is outside of a window, by default of 5 minutes.
const MOST_AGE: Duration = Duration::from_secs(5);

/// The first and the longest pause before a command is sent to a busy target again. Each pause is twice as long as the
/// one before.
const BUSY_PAUSE: Duration = Duration::from_millis(10);
/// Maximum pause before a command is sent again to a target that was busy.
const BUSY_PAUSE_MAX: Duration = Duration::from_millis(500);

impl PendingTable {
    pub(crate) fn new(lun: Lun, command_time_out: Duration, busy_time_out: Duration) -> Self {
        Self {
            jobs: HashMap::new(),
            next_tag: 0,
            backlog: VecDeque::new(),
            delayed: Vec::new(),
            held: VecDeque::new(),
            begun: Vec::new(),
            lun,
            has_choice: false,
            command_time_out,
            busy_time_out,
            answered: Arc::default(),
            volatile_cache: true,
            generation: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Adds a command to the end of the queue.
    pub(crate) fn add(&mut self, job: Job, now: Instant) {
        let tag = self.next_tag;
        self.next_tag += 1;
        let (attentions, aborts, replays) = (0, 0, 0);
        let reach = match &job.source {
            None => ChangedBlocks::of(&job.cdb, &job.transfer),
            Some(source) => source.changes().map_or(ChangedBlocks::Nothing, ChangedBlocks::Object),
        };
        let pending = PendingCommand {
            job,
            reach,
            sent: false,
            begun: false,
            submitted: now,
            made_in: self.generation,
            busy_since: None,
            attentions,
            aborts,
            replays,
        };
        self.jobs.insert(tag, pending);
        self.backlog.push_back(tag);
    }

    /// Returns the next command to send. Drops commands whose callers no longer wait.
    ///
    /// A write is not sent while another write to some of its blocks may still be performed: one that has
    /// begun and is not answered, even if its caller no longer waits. Thus a write that has to be sent again
    /// can never overwrite newer data (decision 0006).
    pub(crate) fn next(
        &mut self,
        now: Instant,
        statistics: &mut InitiatorStatistics,
    ) -> Option<CommandRequest> {
        let tag = loop {
            let tag = match self.next_held() {
                Some(tag) => tag,
                None => self.next_in_order()?,
            };
            let job = &self.jobs[&tag].job;
            if matches!(job.repetition, CommandRepetition::OnlyIn(only_in) if only_in != self.generation)
            {
                self.finish(tag, Err(not_repeated("the session was lost")), statistics);
                continue;
            }
            if !job.reply.is_closed() {
                break tag;
            }
            // The caller no longer waits. The target has never received this command, or has dropped it, so it is not
            // sent.
            self.remove(tag);
        };
        let pending = self.jobs.get_mut(&tag)?;
        if pending.reach != ChangedBlocks::Nothing && !pending.begun {
            self.begun.push((tag, pending.reach));
        }
        pending.renew(now, self.generation);
        (pending.submitted, pending.sent, pending.begun) = (now, true, true);
        Some(CommandRequest {
            tag,
            lun: self.lun,
            cdb: pending.job.cdb.clone(),
            transfer: pending.job.transfer.clone(),
            time_out: self.command_time_out,
        })
    }

    /// Removes and returns the first waiting write that no earlier write delays any more.
    fn next_held(&mut self) -> Option<u64> {
        let is_free = |at: &usize| {
            let tag = self.held[*at];
            !self.must_wait(tag, self.jobs[&tag].reach, *at)
        };
        let free = (0..self.held.len()).find(is_free)?;
        self.held.remove(free)
    }

    fn next_in_order(&mut self) -> Option<u64> {
        loop {
            let tag = self.backlog.pop_front()?;
            let pending = &self.jobs[&tag];
            if pending.begun || !self.must_wait(tag, pending.reach, self.held.len()) {
                return Some(tag);
            }
            self.held.push_back(tag);
        }
    }

    /// Returns true if a write that changes the blocks `reach` must wait: for a write that has begun, or for one of the
    /// first `held` writes in the queue of waiting writes.
    fn must_wait(&self, tag: u64, reach: ChangedBlocks, held: usize) -> bool {
        if reach == ChangedBlocks::Nothing {
            return false;
        }
        let mut begun = self.begun.iter();
        begun.any(|&(other, theirs)| other != tag && theirs.meets(reach))
            || self.held.iter().take(held).any(|other| self.jobs[other].reach.meets(reach))
    }

    /// Returns the writes in flight whose callers no longer wait, if any other write waits. The driver aborts them, so
    /// that other writes can be sent.
    pub(crate) fn in_the_way(&self) -> Vec<u64> {
        if self.held.is_empty() {
            return Vec::new();
        }
        let is_abandoned = |tag: &u64| {
            self.jobs.get(tag).is_some_and(|pending| pending.sent && pending.job.reply.is_closed())
        };
        self.begun.iter().map(|&(tag, _)| tag).filter(is_abandoned).collect()
    }

    /// Returns when the next delayed command is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.delayed.iter().map(|&(due, _)| due).min()
    }

    /// Makes the delayed commands that are due ready to be sent.
    pub(crate) fn wake(&mut self, now: Instant) {
        let Self { delayed, backlog, .. } = self;
        delayed.retain(|&(due, tag)| {
            if due <= now {
                backlog.push_back(tag);
            }
            due > now
        });
    }

    /// Handles the loss of a session: the commands in flight will be sent again, in their order and before all others.
    pub(crate) fn replay(
        &mut self,
        unanswered: Vec<CommandRequest>,
        statistics: &mut InitiatorStatistics,
    ) {
        self.take_back(unanswered, statistics);
        // Send delayed commands at once as well: on a new connection, the target may be less busy.
        self.backlog.extend(self.delayed.drain(..).map(|(_, tag)| tag));
    }

    /// Makes commands ready to be sent again that ended without an answer and that the target no longer performs. Fails
    /// those that must not be sent again.
    pub(crate) fn take_back(
        &mut self,
        unanswered: Vec<CommandRequest>,
        statistics: &mut InitiatorStatistics,
    ) {
        for request in unanswered.into_iter().rev() {
            let Some(pending) = self.jobs.get_mut(&request.tag) else { continue };
            pending.replays += 1;
            pending.sent = false;
            if pending.job.reply.is_closed() {
                // Remove the command: its caller no longer waits, and the target will not perform it.
                let gone = CommandError::Unreachable("the caller no longer waits".into());
                self.finish(request.tag, Err(gone), statistics);
            } else if pending.job.repetition != CommandRepetition::Allowed {
                self.finish(request.tag, Err(not_repeated("the session was lost")), statistics);
            } else if pending.replays > MOST_REPLAYS {
                let reason = format!("the connection was lost {MOST_REPLAYS} times");
                let error = CommandError::Unreachable(reason.into());
                self.finish(request.tag, Err(error), statistics);
            } else {
                statistics.recovery.replays += 1;
                self.backlog.push_front(request.tag);
            }
        }
    }

    /// Fails all commands with this error. Commands that were never sent get `Away` instead of `Unreachable`.
    pub(crate) fn fail_all(&mut self, error: &CommandError, statistics: &mut InitiatorStatistics) {
        self.backlog.clear();
        self.delayed.clear();
        self.held.clear();
        let jobs: Vec<_> = self.jobs.iter().map(|(tag, pending)| (*tag, pending.begun)).collect();
        for (tag, begun) in jobs {
            let error = match error {
                CommandError::Unreachable(reason) if !begun => CommandError::Away(reason.clone()),
                error => error.clone(),
            };
            self.finish(tag, Err(error), statistics);
        }
    }

    /// Handles a command that the session has completed: passes the answer to the caller, or sends the command again.
    pub(crate) fn complete(
        &mut self,
        tag: u64,
        result: Result<InitiatorCommandOutcome, CommandFailure>,
        generation: u64,
        now: Instant,
        statistics: &mut InitiatorStatistics,
    ) -> CompletionNotice {
        let Some(pending) = self.jobs.get_mut(&tag) else { return CompletionNotice::default() };
        pending.sent = false;
        statistics.calls.round_trips.add(now.saturating_duration_since(pending.submitted));
        let command = CommandCode::of(&pending.job.cdb);
        statistics.count_command(command);
        self.answered.count(command);
        let mut notice = CompletionNotice::default();
        let answer = match result {
            Err(failure) => {
                statistics.calls.time_outs += u64::from(failure == CommandFailure::TimedOut);
                Err(failure.into())
            }
            Ok(outcome) => {
                let kind = CommandOutcomeKind::of(&outcome);
                if kind == CommandOutcomeKind::UnitAttention {
                    notice.attention = outcome.sense;
                }
                match pending.judge(kind, &outcome, self.has_choice, self.busy_time_out, now) {
                    CommandVerdict::Failed if pending.job.source.is_none() => {
                        Err(error_of(outcome))
                    }
                    CommandVerdict::Performed | CommandVerdict::Failed => {
                        let volatile_cache = self.volatile_cache;
                        Ok(PerformedCommand {
                            status: outcome.status,
                            sense: outcome.sense,
                            object_sense: outcome.object_sense,
                            data_in: outcome.data_in,
                            residual: outcome.residual,
                            generation,
                            volatile_cache,
                        })
                    }
                    CommandVerdict::NotRepeated(why) => Err(not_repeated(why)),
                    CommandVerdict::AfterAttention => {
                        statistics.recovery.unit_attentions += 1;
                        self.backlog.push_back(tag);
                        return notice;
                    }
                    CommandVerdict::Elsewhere => {
                        notice.not_served = outcome.sense;
                        statistics.recovery.replays += 1;
                        self.backlog.push_back(tag);
                        return notice;
                    }
                    CommandVerdict::Later(pause) => {
                        statistics.calls.retries += 1;
                        self.delayed.push((now + pause, tag));
                        return notice;
                    }
                }
            }
        };
        self.finish(tag, answer, statistics);
        notice
    }

    fn remove(&mut self, tag: u64) -> Option<PendingCommand> {
        let pending = self.jobs.remove(&tag)?;
        if pending.begun && pending.reach != ChangedBlocks::Nothing {
            self.begun.retain(|&(begun, _)| begun != tag);
        }
        Some(pending)
    }

    fn finish(
        &mut self,
        tag: u64,
        answer: Result<PerformedCommand, CommandError>,
        statistics: &mut InitiatorStatistics,
    ) {
        let Some(pending) = self.remove(tag) else { return };
        let answer = answer.map_err(|error| match error {
            // Do not say that the command was not performed: an earlier attempt was not answered and may have been
            // performed.
            error if error.is_not_performed() && pending.replays + pending.aborts > 0 => {
                CommandError::Unreachable(error.to_string().into())
            }
            error => error,
        });
        statistics.calls.failures += u64::from(answer.is_err());
        // Ignore the error of `send`: the caller no longer waits for the answer.
        let _ = pending.job.reply.send(answer);
    }
}

impl PendingCommand {
    /// Makes the bytes of the command again if they were sent before, or may be too old for the target.
    fn renew(&mut self, now: Instant, generation: u64) {
        let Some(source) = &self.job.source else { return };
        let age = now.saturating_duration_since(self.submitted);
        if self.begun || self.made_in != generation || age > MOST_AGE {
            (self.job.cdb, self.job.transfer) = source.make();
            self.made_in = generation;
        }
    }

    /// Decides what to do with the command, and counts the attempt. `has_choice` is true if the unit may be served at
    /// other portals. `busy_time_out` is the longest time for which the command is sent again to a busy target.
    fn judge(
        &mut self,
        kind: CommandOutcomeKind,
        outcome: &InitiatorCommandOutcome,
        has_choice: bool,
        busy_time_out: Duration,
        now: Instant,
    ) -> CommandVerdict {
        let is_once = self.job.is_once();
        let is_elsewhere = || {
            let is_check = outcome.status == ScsiStatus::CheckCondition;
            has_choice && !is_once && is_check && outcome.sense.as_ref().is_some_and(is_not_served)
        };
        match kind {
            CommandOutcomeKind::Performed => CommandVerdict::Performed,
            CommandOutcomeKind::UnitAttention => {
                self.attentions += 1;
                if is_once {
                    CommandVerdict::NotRepeated("the target answered with a unit attention")
                } else if self.attentions <= MOST_UNIT_ATTENTIONS {
                    CommandVerdict::AfterAttention
                } else {
                    CommandVerdict::Failed
                }
            }
            CommandOutcomeKind::Aborted | CommandOutcomeKind::Busy if is_once => {
                CommandVerdict::NotRepeated("the target did not perform the command")
            }
            CommandOutcomeKind::Aborted if self.job.repetition == CommandRepetition::Forbidden => {
                CommandVerdict::NotRepeated("the target aborted the command")
            }
            CommandOutcomeKind::Aborted if self.aborts < MOST_ABORTS => {
                self.aborts += 1;
                CommandVerdict::Later(BUSY_PAUSE)
            }
            _ if self.replays < MOST_REPLAYS && is_elsewhere() => {
                self.replays += 1;
                CommandVerdict::Elsewhere
            }
            CommandOutcomeKind::Busy => {
                let since = *self.busy_since.get_or_insert(now);
                let waited = now.saturating_duration_since(since);
                if waited < busy_time_out {
                    // Pause for as long as the command has waited since the target was first busy. The pauses then
                    // double.
                    CommandVerdict::Later(waited.clamp(BUSY_PAUSE, BUSY_PAUSE_MAX))
                } else {
                    CommandVerdict::Failed
                }
            }
            CommandOutcomeKind::Aborted | CommandOutcomeKind::Failed => CommandVerdict::Failed,
        }
    }
}

#[cfg(test)]
mod tests;
