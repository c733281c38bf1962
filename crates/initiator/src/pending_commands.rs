//! The commands of callers that are not answered yet: those to send, those to send again later, and those in
//! flight.

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
use scsi::{BlockCommand, Cdb, Lun, OpcodeTally, ScsiStatus, Sense, SenseKey};
use tokio::sync::oneshot;

use crate::{CommandError, InitiatorStatistics, error::is_not_served, probe::MOST_UNIT_ATTENTIONS};

/// A command that the target performed.
#[derive(Clone, Debug)]
pub struct PerformedCommand {
    /// Data-In. The data shares memory with the receive buffer.
    pub data_in: DataSegment,
    /// The residual count: the difference between the expected and the actual length of the data.
    pub residual: Residual,
    /// The generation of the session that answered: see [`crate::RemoteSession::generation`].
    pub generation: u64,
    /// True if the unit had a volatile write cache in that session. The unit may have had none when the
    /// command was first sent.
    pub volatile_cache: bool,
}

/// A command that a caller passes to the driver.
pub(crate) struct Job {
    pub(crate) cdb: Cdb,
    pub(crate) transfer: DataPhase,
    pub(crate) reply: oneshot::Sender<Result<PerformedCommand, CommandError>>,
    /// If set, the command is sent at most once, and only in the session of this generation.
    pub(crate) only_in: Option<u64>,
}

impl Job {
    /// Returns true if the command must not be sent again.
    fn is_once(&self) -> bool {
        self.only_in.is_some()
    }
}

struct PendingCommand {
    job: Job,
    reach: ChangedBlocks,
    /// True while the command is with the session.
    sent: bool,
    /// True if the command was ever sent, so that it may have been performed.
    begun: bool,
    /// The time when the command was last passed to the session.
    submitted: Instant,
    /// The time when the target first answered that it was busy.
    busy_since: Option<Instant>,
    attentions: u32,
    aborts: u32,
    replays: u32,
}

/// All commands that the driver has accepted and that are not answered.
pub(crate) struct PendingTable {
    jobs: HashMap<u64, PendingCommand>,
    next_tag: u64,
    /// Commands to be sent, in order.
    backlog: VecDeque<u64>,
    /// Commands to be sent later, each with its time.
    delayed: Vec<(Instant, u64)>,
    /// Writes that wait for earlier writes to the same blocks, in order.
    held: VecDeque<u64>,
    /// The blocks of the writes that have begun: see [`PendingTable::next`].
    begun: Vec<(u64, ChangedBlocks)>,
    pub(crate) lun: Lun,
    /// True if the unit may be served at other portals.
    pub(crate) has_choice: bool,
    command_time_out: Duration,
    busy_time_out: Duration,
    /// Commands answered, by operation code.
    pub(crate) answered: Arc<OpcodeTally>,
    /// True if the unit has a volatile cache according to the current session.
    pub(crate) volatile_cache: bool,
    /// The generation of the session to which commands are sent.
    pub(crate) generation: u64,
}

/// The consequences of a completed command for other commands.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct CompletionNotice {
    /// Sense data that is not about this command: a unit attention or a deferred error.
    pub(crate) attention: Option<Sense>,
    /// The unit is not served at this portal. The command waits until its location is found.
    pub(crate) not_served: Option<Sense>,
}

/// Maximum number of times that a command is sent again: after the target has aborted it, for example because
/// of a CRC error (Linux: 5); and after its connection was lost. The second limit protects a target that
/// crashes because of the command.
const MOST_ABORTS: u32 = 5;
const MOST_REPLAYS: u32 = 10;

/// The first and the longest pause before a command is repeated at a busy target. The pause doubles in
/// between.
const BUSY_PAUSE: Duration = Duration::from_millis(10);
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

    /// Adds a command behind all others.
    pub(crate) fn add(&mut self, job: Job, now: Instant) {
        let tag = self.next_tag;
        self.next_tag += 1;
        let (attentions, aborts, replays) = (0, 0, 0);
        let reach = ChangedBlocks::of(&job.cdb, &job.transfer);
        let pending = PendingCommand {
            job,
            reach,
            sent: false,
            begun: false,
            submitted: now,
            busy_since: None,
            attentions,
            aborts,
            replays,
        };
        self.jobs.insert(tag, pending);
        self.backlog.push_back(tag);
    }

    /// Returns the next command to send. Skips commands whose callers no longer wait.
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
            if job.only_in.is_some_and(|only_in| only_in != self.generation) {
                self.finish(tag, Err(not_repeated("the session was lost")), statistics);
                continue;
            }
            if !job.reply.is_closed() {
                break tag;
            }
            // The target has never received this command, or has dropped it.
            self.remove(tag);
        };
        let pending = self.jobs.get_mut(&tag)?;
        if pending.reach != ChangedBlocks::Nothing && !pending.begun {
            self.begun.push((tag, pending.reach));
        }
        (pending.submitted, pending.sent, pending.begun) = (now, true, true);
        Some(CommandRequest {
            tag,
            lun: self.lun,
            cdb: pending.job.cdb.clone(),
            transfer: pending.job.transfer.clone(),
            time_out: self.command_time_out,
        })
    }

    /// Takes the first waiting write that need not wait any more.
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

    /// Returns true if a write has to wait for one that has begun, or for one of the first `held` waiting writes.
    fn must_wait(&self, tag: u64, reach: ChangedBlocks, held: usize) -> bool {
        if reach == ChangedBlocks::Nothing {
            return false;
        }
        let mut begun = self.begun.iter();
        begun.any(|&(other, theirs)| other != tag && theirs.meets(reach))
            || self.held.iter().take(held).any(|other| self.jobs[other].reach.meets(reach))
    }

    /// Returns the writes in flight whose callers no longer wait and which delay other writes. They are to be
    /// aborted now.
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

    /// Moves the delayed commands that are due to the commands to be sent.
    pub(crate) fn wake(&mut self, now: Instant) {
        let Self { delayed, backlog, .. } = self;
        delayed.retain(|&(due, tag)| {
            if due <= now {
                backlog.push_back(tag);
            }
            due > now
        });
    }

    /// Handles the loss of a session: the commands in flight are sent again, in order and before all others.
    pub(crate) fn replay(
        &mut self,
        unanswered: Vec<CommandRequest>,
        statistics: &mut InitiatorStatistics,
    ) {
        self.take_back(unanswered, statistics);
        // A new connection may find the target less busy.
        self.backlog.extend(self.delayed.drain(..).map(|(_, tag)| tag));
    }

    /// Takes back commands that ended without an answer and that the target can no longer perform.
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
                // The caller no longer waits, and the target will not perform the command.
                let gone = CommandError::Unreachable("the caller no longer waits".into());
                self.finish(request.tag, Err(gone), statistics);
            } else if pending.job.is_once() {
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

    /// Fails all commands with this error.
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

    /// Handles a command that the session has completed: answers it, or sends it again.
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
        let opcode = pending.job.cdb.first().copied().unwrap_or(0);
        statistics.count_command(opcode);
        self.answered.count(opcode);
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
                    CommandVerdict::Performed => {
                        let InitiatorCommandOutcome { data_in, residual, .. } = outcome;
                        let volatile_cache = self.volatile_cache;
                        Ok(PerformedCommand { data_in, residual, generation, volatile_cache })
                    }
                    CommandVerdict::Failed => Err(error_of(outcome)),
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
            // An earlier attempt was not answered, and may have been performed.
            error if error.is_not_performed() && pending.replays + pending.aborts > 0 => {
                CommandError::Unreachable(error.to_string().into())
            }
            error => error,
        });
        statistics.calls.failures += u64::from(answer.is_err());
        // If the caller no longer waits, the answer is dropped.
        let _ = pending.job.reply.send(answer);
    }
}

/// The kinds of outcomes that are treated alike.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum CommandOutcomeKind {
    /// The command was performed. Sense data, if there is any, is additional information.
    Performed,
    /// The target answered with a unit attention condition. The command was not performed, and may be sent
    /// again.
    UnitAttention,
    /// The target aborted the command. It was not performed, and may be sent again.
    Aborted,
    /// The target or the unit cannot perform the command now. It was not performed, and may be sent again.
    Busy,
    /// All outcomes that fit none of the other kinds.
    Failed,
}

impl CommandOutcomeKind {
    fn of(outcome: &InitiatorCommandOutcome) -> Self {
        match (outcome.status, outcome.sense.map(key_of)) {
            (ScsiStatus::Good, _) => Self::Performed,
            (ScsiStatus::CheckCondition, Some(key)) => match key {
                SenseKey::NoSense | SenseKey::RecoveredError => Self::Performed,
                SenseKey::UnitAttention => Self::UnitAttention,
                SenseKey::AbortedCommand => Self::Aborted,
                SenseKey::NotReady => Self::Busy,
                _ => Self::Failed,
            },
            (ScsiStatus::TaskAborted, _) => Self::Aborted,
            (ScsiStatus::Busy | ScsiStatus::TaskSetFull, _) => Self::Busy,
            _ => Self::Failed,
        }
    }
}

/// The next step of a command that the session has completed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum CommandVerdict {
    /// The caller gets the outcome.
    Performed,
    /// The caller gets the outcome as an error.
    Failed,
    /// The caller gets an error for this reason: the command was not performed and must not be sent again.
    NotRepeated(&'static str),
    /// Send the command again: it was answered with a unit attention condition.
    AfterAttention,
    /// Send the command again when the location of the unit is found.
    Elsewhere,
    /// Send the command again after this pause.
    Later(Duration),
}

impl PendingCommand {
    /// Decides how the command continues, and counts the attempt. `has_choice`: the unit may be served at
    /// other portals. `busy_time_out`: the longest time for which a busy target is asked again.
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
                    // Pause for as long as the command has waited so far, so that the pauses double.
                    CommandVerdict::Later(waited.clamp(BUSY_PAUSE, BUSY_PAUSE_MAX))
                } else {
                    CommandVerdict::Failed
                }
            }
            CommandOutcomeKind::Aborted | CommandOutcomeKind::Failed => CommandVerdict::Failed,
        }
    }
}

/// The blocks that a command changes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ChangedBlocks {
    Nothing,
    /// The range from the first block number up to, but not including, the second.
    Blocks(u64, u64),
    /// Possibly all blocks of the unit.
    Everything,
}

impl ChangedBlocks {
    fn of(cdb: &Cdb, transfer: &DataPhase) -> Self {
        if !matches!(transfer, DataPhase::Out(_)) {
            return Self::Nothing;
        }
        match BlockCommand::parse_known(cdb) {
            Some(Ok(
                BlockCommand::Write(blocks)
                | BlockCommand::WriteAndVerify { transfer: blocks, .. }
                | BlockCommand::WriteSame { transfer: blocks, .. },
            )) if blocks.blocks > 0 => {
                Self::Blocks(blocks.lba, blocks.lba.saturating_add(blocks.blocks.into()))
            }
            _ => Self::Everything,
        }
    }

    fn meets(self, other: Self) -> bool {
        match (self, other) {
            (Self::Nothing, _) | (_, Self::Nothing) => false,
            (Self::Blocks(first, end), Self::Blocks(other, other_end)) => {
                first < other_end && other < end
            }
            _ => true,
        }
    }
}

/// Returns the key of the sense data as it concerns the command that ended with it. A deferred error is treated like
/// a unit attention, whatever its key: this command was not begun and can be sent again.
fn key_of(sense: Sense) -> SenseKey {
    if sense.deferred { SenseKey::UnitAttention } else { sense.key }
}

/// Returns the error of a command that may be sent only once and has not ended with GOOD.
fn not_repeated(why: &str) -> CommandError {
    CommandError::NotRepeated(why.into())
}

fn error_of(outcome: InitiatorCommandOutcome) -> CommandError {
    match (outcome.status, outcome.sense) {
        (ScsiStatus::Busy | ScsiStatus::TaskSetFull, _) => CommandError::Busy,
        (_, Some(sense)) => CommandError::Check(sense),
        (status, None) => CommandError::Status(status),
    }
}

#[cfg(test)]
mod tests;
