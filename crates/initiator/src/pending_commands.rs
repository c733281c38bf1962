//! Commands between a caller and its answer: those to be sent, those to be sent again later, those
//! on their way.

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
    /// What came back. Shares memory with the receive buffer.
    pub data_in: DataSegment,
    /// What was announced and not moved, or the reverse.
    pub residual: Residual,
    /// The incarnation of the far side that answered: see [`crate::RemoteSession::generation`].
    pub generation: u64,
    /// Whether the unit had a volatile write cache in that session. It may have had none when the
    /// command was first sent.
    pub volatile_cache: bool,
}

/// A command on its way from a caller to the driver.
pub(crate) struct Job {
    pub(crate) cdb: Cdb,
    pub(crate) transfer: DataPhase,
    pub(crate) reply: oneshot::Sender<Result<PerformedCommand, CommandError>>,
    /// The command is sent at most once, and only in the session of this generation.
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
    /// What it changes.
    reach: ChangedBlocks,
    /// With the session.
    sent: bool,
    /// Sent once at least: it may have been performed.
    begun: bool,
    /// When it was last handed to the session.
    submitted: Instant,
    /// When the target was first too busy for it.
    busy_since: Option<Instant>,
    attentions: u32,
    aborts: u32,
    replays: u32,
}

/// All commands that the driver has taken and not answered.
pub(crate) struct PendingTable {
    jobs: HashMap<u64, PendingCommand>,
    next_tag: u64,
    /// To be sent, in order.
    backlog: VecDeque<u64>,
    /// To be sent later.
    delayed: Vec<(Instant, u64)>,
    /// Writes that wait for others to the same blocks, in order.
    held: VecDeque<u64>,
    /// What begun writes change: see [`PendingTable::next`].
    begun: Vec<(u64, ChangedBlocks)>,
    pub(crate) lun: Lun,
    /// There are other places where it may be served.
    pub(crate) has_choice: bool,
    command_time_out: Duration,
    busy_time_out: Duration,
    /// Commands answered, by operation code.
    pub(crate) answered: Arc<OpcodeTally>,
    /// Of the unit, as the session that there is found it.
    pub(crate) volatile_cache: bool,
    /// The generation of the session to which commands are sent.
    pub(crate) generation: u64,
}

/// What the end of a command means for others.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct CompletionNotice {
    /// What came with it and is not about it: a unit attention, or a deferred error.
    pub(crate) attention: Option<Sense>,
    /// The unit is not served here. The command waits for the place where it is.
    pub(crate) not_served: Option<Sense>,
}

/// How often a command is sent again after it was aborted for a reason of the target's, as with a
/// CRC error (Linux: 5), and after its connection was lost (a target that a command kills would
/// be killed for ever).
const MOST_ABORTS: u32 = 5;
const MOST_REPLAYS: u32 = 10;

/// The first pause before a busy target is asked again, and the longest; it doubles between.
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

    /// Takes a command; it goes behind all others.
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

    /// The next command to send. Those whose caller has gone are left out.
    ///
    /// No write is sent while another one to some of its blocks may still be performed: one that
    /// was begun and has no answer yet. Whatever of that has to be sent again then undoes nothing
    /// that came after it (decision 0006). That holds for one whose caller has gone, too.
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
            // It never was with the target, or is no more.
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

    /// The first of those that waited and need to no more.
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

    /// Does a write have to wait for one that was begun, or for one of the first `held` of those
    /// that wait?
    fn must_wait(&self, tag: u64, reach: ChangedBlocks, held: usize) -> bool {
        if reach == ChangedBlocks::Nothing {
            return false;
        }
        let mut begun = self.begun.iter();
        begun.any(|&(other, theirs)| other != tag && theirs.meets(reach))
            || self.held.iter().take(held).any(|other| self.jobs[other].reach.meets(reach))
    }

    /// Writes on their way whose callers have gone, and for which others wait: their time is up.
    pub(crate) fn in_the_way(&self) -> Vec<u64> {
        if self.held.is_empty() {
            return Vec::new();
        }
        let is_abandoned = |tag: &u64| {
            self.jobs.get(tag).is_some_and(|pending| pending.sent && pending.job.reply.is_closed())
        };
        self.begun.iter().map(|&(tag, _)| tag).filter(is_abandoned).collect()
    }

    /// When a delayed command is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.delayed.iter().map(|&(due, _)| due).min()
    }

    /// Moves the delayed commands that are due to those to be sent.
    pub(crate) fn wake(&mut self, now: Instant) {
        let Self { delayed, backlog, .. } = self;
        delayed.retain(|&(due, tag)| {
            if due <= now {
                backlog.push_back(tag);
            }
            due > now
        });
    }

    /// The session was lost: what was on its way is sent again, in order and before the rest.
    pub(crate) fn replay(
        &mut self,
        unanswered: Vec<CommandRequest>,
        statistics: &mut InitiatorStatistics,
    ) {
        self.take_back(unanswered, statistics);
        // a new connection may find the target less busy
        self.backlog.extend(self.delayed.drain(..).map(|(_, tag)| tag));
    }

    /// Commands ended without an answer; the target can do them no more.
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
                // Nobody wants it, and nobody does it any more.
                let gone = CommandError::Unreachable("the caller has gone".into());
                self.finish(request.tag, Err(gone), statistics);
            } else if pending.job.is_once() {
                self.finish(request.tag, Err(not_repeated("the session was lost")), statistics);
            } else if pending.replays > MOST_REPLAYS {
                let reason = format!("the connection was lost {MOST_REPLAYS} times");
                let error = CommandError::Unreachable(reason.into());
                self.finish(request.tag, Err(error), statistics);
            } else {
                statistics.replays += 1;
                self.backlog.push_front(request.tag);
            }
        }
    }

    /// Nothing will be answered.
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

    /// The session ended a command: it is answered, or sent again.
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
        statistics.round_trips.add(now.saturating_duration_since(pending.submitted));
        let opcode = pending.job.cdb.first().copied().unwrap_or(0);
        statistics.count_command(opcode);
        self.answered.count(opcode);
        let mut news = CompletionNotice::default();
        let answer = match result {
            Err(failure) => {
                statistics.time_outs += u64::from(failure == CommandFailure::TimedOut);
                Err(failure.into())
            }
            Ok(outcome) => match (outcome.status, outcome.sense.map(key_of)) {
                (ScsiStatus::Good, _)
                | (
                    ScsiStatus::CheckCondition,
                    // performed, with something to tell
                    Some(SenseKey::NoSense | SenseKey::RecoveredError),
                ) => {
                    let InitiatorCommandOutcome { data_in, residual, .. } = outcome;
                    let volatile_cache = self.volatile_cache;
                    Ok(PerformedCommand { data_in, residual, generation, volatile_cache })
                }
                // not performed, and nothing against it
                (ScsiStatus::CheckCondition, Some(SenseKey::UnitAttention)) => {
                    news.attention = outcome.sense;
                    pending.attentions += 1;
                    if pending.job.is_once() {
                        let why = "the target had something else to report";
                        self.finish(tag, Err(not_repeated(why)), statistics);
                        return news;
                    }
                    if pending.attentions <= MOST_UNIT_ATTENTIONS {
                        statistics.unit_attentions += 1;
                        self.backlog.push_back(tag);
                        return news;
                    }
                    Err(error_of(outcome))
                }
                (ScsiStatus::TaskAborted, _)
                | (ScsiStatus::CheckCondition, Some(SenseKey::AbortedCommand))
                | (ScsiStatus::Busy | ScsiStatus::TaskSetFull, _)
                | (ScsiStatus::CheckCondition, Some(SenseKey::NotReady))
                    if pending.job.is_once() =>
                {
                    Err(not_repeated("the target did not perform it"))
                }
                (ScsiStatus::TaskAborted, _)
                | (ScsiStatus::CheckCondition, Some(SenseKey::AbortedCommand))
                    if pending.aborts < MOST_ABORTS =>
                {
                    pending.aborts += 1;
                    statistics.retries += 1;
                    self.delayed.push((now + BUSY_PAUSE, tag));
                    return news;
                }
                (ScsiStatus::CheckCondition, _)
                    if self.has_choice
                        && !pending.job.is_once()
                        && outcome.sense.as_ref().is_some_and(is_not_served)
                        && pending.replays < MOST_REPLAYS =>
                {
                    news.not_served = outcome.sense;
                    pending.replays += 1;
                    statistics.replays += 1;
                    self.backlog.push_back(tag);
                    return news;
                }
                (ScsiStatus::Busy | ScsiStatus::TaskSetFull, _)
                | (ScsiStatus::CheckCondition, Some(SenseKey::NotReady)) => {
                    let since = *pending.busy_since.get_or_insert(now);
                    let waited = now.saturating_duration_since(since);
                    if waited < self.busy_time_out {
                        // as long as it was waited so far: the pauses double
                        let pause = waited.clamp(BUSY_PAUSE, BUSY_PAUSE_MAX);
                        statistics.retries += 1;
                        self.delayed.push((now + pause, tag));
                        return news;
                    }
                    Err(error_of(outcome))
                }
                _ => Err(error_of(outcome)),
            },
        };
        self.finish(tag, answer, statistics);
        news
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
            // An earlier try was not answered, and may have been performed.
            error if error.is_not_performed() && pending.replays + pending.aborts > 0 => {
                CommandError::Unreachable(error.to_string().into())
            }
            error => error,
        });
        statistics.failures += u64::from(answer.is_err());
        // a caller that has gone does not mind
        let _ = pending.job.reply.send(answer);
    }
}

/// The blocks that a command changes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ChangedBlocks {
    Nothing,
    /// From the first up to before the second.
    Blocks(u64, u64),
    /// Perhaps all.
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

/// What the sense says of the command that ended with it. A deferred error says the same as a unit
/// attention, whatever its key is: this command was not begun, and can be sent again.
fn key_of(sense: Sense) -> SenseKey {
    if sense.deferred { SenseKey::UnitAttention } else { sense.key }
}

/// Returns the error of a command that may be sent only once, and of which no good status has come.
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
