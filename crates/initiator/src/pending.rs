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
use scsi::{Cdb, Command, Lun, OpcodeTally, ScsiStatus, Sense, SenseKey};
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
        match Command::parse(cdb) {
            Ok(
                Command::Write(blocks)
                | Command::WriteAndVerify { transfer: blocks, .. }
                | Command::WriteSame { transfer: blocks, .. },
            ) if blocks.blocks > 0 => {
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
mod tests {
    use super::*;

    type Answered = oneshot::Receiver<Result<PerformedCommand, CommandError>>;

    fn table() -> PendingTable {
        PendingTable::new(Lun(0), Duration::from_secs(30), Duration::from_secs(1))
    }

    fn add(table: &mut PendingTable, opcode: u8, now: Instant) -> Answered {
        let (reply, answer) = oneshot::channel();
        table.add(
            Job { cdb: Cdb::new(&[opcode]), transfer: DataPhase::None, reply, only_in: None },
            now,
        );
        answer
    }

    fn ended(
        status: ScsiStatus,
        key: Option<SenseKey>,
    ) -> Result<InitiatorCommandOutcome, CommandFailure> {
        let sense = key.map(|key| Sense::new(key, 0x29, 0));
        Ok(InitiatorCommandOutcome {
            status,
            sense,
            data_in: DataSegment::new(),
            residual: Residual::None,
        })
    }

    #[test]
    fn what_was_lost_is_sent_again_first_and_in_order() {
        let (mut table, now) = (table(), Instant::now());
        let _answers: Vec<_> = (0..4).map(|opcode| add(&mut table, opcode, now)).collect();
        let sent: Vec<_> =
            std::iter::from_fn(|| table.next(now, &mut InitiatorStatistics::default()))
                .take(3)
                .collect();
        let mut statistics = InitiatorStatistics::default();
        table.replay(sent, &mut statistics);
        let again: Vec<_> =
            std::iter::from_fn(|| table.next(now, &mut InitiatorStatistics::default()))
                .map(|r| r.cdb[0])
                .collect();
        assert_eq!(again, [0, 1, 2, 3]);
        assert_eq!(statistics.replays, 3);
    }

    #[test]
    fn a_command_that_kills_its_target_is_given_up() {
        let (mut table, now) = (table(), Instant::now());
        let mut answer = add(&mut table, 0, now);
        let mut statistics = InitiatorStatistics::default();
        for _ in 0..=MOST_REPLAYS {
            assert!(answer.try_recv().is_err());
            let sent = table.next(now, &mut InitiatorStatistics::default()).into_iter().collect();
            table.replay(sent, &mut statistics);
        }
        assert!(matches!(answer.try_recv().unwrap(), Err(CommandError::Unreachable(_))));
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn only_what_was_never_sent_is_known_not_to_have_been_performed() {
        let (mut table, now) = (table(), Instant::now());
        let mut sent = add(&mut table, 0, now);
        assert!(table.next(now, &mut InitiatorStatistics::default()).is_some());
        let mut unsent = add(&mut table, 0, now);
        let error = CommandError::Unreachable("the link is down".into());
        table.fail_all(&error, &mut InitiatorStatistics::default());
        assert!(matches!(sent.try_recv().unwrap(), Err(CommandError::Unreachable(_))));
        assert!(matches!(unsent.try_recv().unwrap(), Err(CommandError::Away(_))));
    }

    /// The target may have performed the command before the connection was lost.
    #[test]
    fn a_command_that_was_sent_twice_is_not_busy() {
        let (mut table, mut now) = (table(), Instant::now());
        let mut statistics = InitiatorStatistics::default();
        let mut answer = add(&mut table, 0, now);
        let lost = table.next(now, &mut InitiatorStatistics::default()).into_iter().collect();
        table.replay(lost, &mut statistics);
        let end = now + Duration::from_secs(600);
        while table.len() > 0 {
            assert!(now < end, "it is asked for ever");
            table.wake(now);
            if let Some(request) = table.next(now, &mut InitiatorStatistics::default()) {
                table.complete(request.tag, ended(ScsiStatus::Busy, None), 1, now, &mut statistics);
            }
            now += BUSY_PAUSE_MAX;
        }
        assert!(matches!(answer.try_recv().unwrap(), Err(CommandError::Unreachable(_))));
    }

    #[test]
    fn a_busy_target_is_asked_again_for_a_bounded_time() {
        let (mut table, mut now) = (table(), Instant::now());
        let mut answer = add(&mut table, 0, now);
        let mut statistics = InitiatorStatistics::default();
        let begun = now;
        while let Some(request) = table.next(now, &mut InitiatorStatistics::default()) {
            table.complete(request.tag, ended(ScsiStatus::Busy, None), 1, now, &mut statistics);
            let Some(due) = table.deadline() else { break };
            assert!(table.next(now, &mut InitiatorStatistics::default()).is_none());
            now = due;
            table.wake(now);
        }
        assert!(matches!(answer.try_recv().unwrap(), Err(CommandError::Busy)));
        assert!((Duration::from_secs(1)..Duration::from_secs(2)).contains(&(now - begun)));
        assert!(statistics.retries < 20, "{}", statistics.retries);
    }

    #[test]
    fn unit_attentions_are_news_and_no_errors() {
        let (mut table, now) = (table(), Instant::now());
        let mut answer = add(&mut table, 0, now);
        let mut statistics = InitiatorStatistics::default();
        let mut news = 0;
        while let Some(request) = table.next(now, &mut InitiatorStatistics::default()) {
            let attention = ended(ScsiStatus::CheckCondition, Some(SenseKey::UnitAttention));
            let told = table.complete(request.tag, attention, 1, now, &mut statistics);
            news += u32::from(told.attention.is_some());
        }
        assert_eq!(news, MOST_UNIT_ATTENTIONS + 1);
        assert!(matches!(answer.try_recv().unwrap(), Err(CommandError::Check(_))));
    }

    #[test]
    fn a_command_that_met_a_deferred_error_was_not_performed() {
        for key in [SenseKey::NoSense, SenseKey::RecoveredError, SenseKey::MediumError] {
            let (mut table, now) = (table(), Instant::now());
            let mut answer = add(&mut table, 0, now);
            let mut statistics = InitiatorStatistics::default();
            let deferred = Sense { deferred: true, ..Sense::new(key, 0x0c, 0) };
            let mut news = 0;
            while let Some(request) = table.next(now, &mut InitiatorStatistics::default()) {
                assert!(answer.try_recv().is_err(), "answered, and not performed");
                let mut outcome = ended(ScsiStatus::CheckCondition, Some(key)).unwrap();
                outcome.sense = Some(deferred);
                let told = table.complete(request.tag, Ok(outcome), 1, now, &mut statistics);
                assert_eq!(told.attention, Some(deferred));
                news += 1;
            }
            assert_eq!(news, MOST_UNIT_ATTENTIONS + 1);
            assert!(matches!(answer.try_recv().unwrap(), Err(CommandError::Check(_))));
        }
    }

    #[test]
    fn a_recovered_error_is_no_error() {
        let (mut table, now) = (table(), Instant::now());
        let mut answer = add(&mut table, 0, now);
        let mut statistics = InitiatorStatistics::default();
        let tag = table.next(now, &mut InitiatorStatistics::default()).unwrap().tag;
        let recovered = ended(ScsiStatus::CheckCondition, Some(SenseKey::RecoveredError));
        table.complete(tag, recovered, 7, now, &mut statistics);
        assert_eq!(answer.try_recv().unwrap().unwrap().generation, 7);
    }

    #[test]
    fn no_write_overtakes_one_whose_caller_has_gone() {
        let (mut table, now) = (table(), Instant::now());
        let add_write = |table: &mut PendingTable| {
            let (reply, answer) = oneshot::channel();
            let transfer = DataPhase::Out(bytes::Bytes::from_static(b"x"));
            table.add(Job { cdb: Cdb::new(&[0x2a]), transfer, reply, only_in: None }, now);
            answer
        };
        let abandoned = add_write(&mut table);
        let tag = table.next(now, &mut InitiatorStatistics::default()).unwrap().tag;
        drop(abandoned);
        let _newer = add_write(&mut table);
        assert!(table.next(now, &mut InitiatorStatistics::default()).is_none());
        assert_eq!(table.in_the_way(), [tag]);
        let mut statistics = InitiatorStatistics::default();
        table.complete(tag, ended(ScsiStatus::Good, None), 1, now, &mut statistics);
        assert!(table.next(now, &mut InitiatorStatistics::default()).is_some());
    }

    fn write(table: &mut PendingTable, lba: u8, blocks: u8, now: Instant) -> Answered {
        let (reply, answer) = oneshot::channel();
        let transfer = DataPhase::Out(bytes::Bytes::from_static(b"x"));
        let cdb = Cdb::new(&[0x2a, 0, 0, 0, 0, lba, 0, 0, blocks, 0]);
        table.add(Job { cdb, transfer, reply, only_in: None }, now);
        answer
    }

    #[test]
    fn a_write_waits_for_others_to_its_blocks_and_nobody_else_for_it() {
        let (mut table, now) = (table(), Instant::now());
        let _answers: Vec<_> = [(0, 8), (7, 2), (8, 1), (20, 1)]
            .map(|(lba, blocks)| write(&mut table, lba, blocks, now))
            .into();
        let _read = add(&mut table, 0x28, now);
        let mut statistics = InitiatorStatistics::default();
        let sent = |table: &mut PendingTable| -> Vec<u64> {
            std::iter::from_fn(|| table.next(now, &mut InitiatorStatistics::default()))
                .map(|request| request.tag)
                .collect()
        };
        // the third waits for the second, which waits for the first
        assert_eq!(sent(&mut table), [0, 3, 4]);
        // busy: it may go on any time, so it still counts
        table.complete(0, ended(ScsiStatus::Busy, None), 1, now, &mut statistics);
        assert!(sent(&mut table).is_empty());
        table.wake(now + BUSY_PAUSE_MAX);
        assert_eq!(sent(&mut table), [0]);
        table.complete(0, ended(ScsiStatus::Good, None), 1, now, &mut statistics);
        assert_eq!(sent(&mut table), [1]);
        table.complete(1, ended(ScsiStatus::Good, None), 1, now, &mut statistics);
        assert_eq!(sent(&mut table), [2]);
    }

    #[test]
    fn a_write_that_is_sent_again_undoes_nothing_that_came_after_it() {
        let (mut table, now) = (table(), Instant::now());
        let _answers = [write(&mut table, 5, 1, now), write(&mut table, 5, 1, now)];
        let mut statistics = InitiatorStatistics::default();
        for _ in 0..3 {
            let request = table.next(now, &mut InitiatorStatistics::default()).unwrap();
            assert_eq!(
                (request.tag, table.next(now, &mut InitiatorStatistics::default()).is_none()),
                (0, true)
            );
            table.take_back(vec![request], &mut statistics);
        }
        assert_eq!(table.next(now, &mut InitiatorStatistics::default()).unwrap().tag, 0);
        table.complete(0, ended(ScsiStatus::Good, None), 1, now, &mut statistics);
        assert_eq!(table.next(now, &mut InitiatorStatistics::default()).unwrap().tag, 1);
    }

    /// Adds a command that may be sent once, in generation 1.
    fn add_once(table: &mut PendingTable, now: Instant) -> Answered {
        let (reply, answer) = oneshot::channel();
        let (cdb, transfer) = (Cdb::new(&[0x35]), DataPhase::None);
        table.add(Job { cdb, transfer, reply, only_in: Some(1) }, now);
        answer
    }

    fn is_not_repeated(mut answer: Answered) -> bool {
        matches!(answer.try_recv(), Ok(Err(CommandError::NotRepeated(_))))
    }

    #[test]
    fn a_command_that_may_be_sent_once_is_not_sent_again_whatever_ends_it() {
        let endings = [
            (ScsiStatus::Busy, None),
            (ScsiStatus::TaskSetFull, None),
            (ScsiStatus::TaskAborted, None),
            (ScsiStatus::CheckCondition, Some(SenseKey::UnitAttention)),
            (ScsiStatus::CheckCondition, Some(SenseKey::AbortedCommand)),
            (ScsiStatus::CheckCondition, Some(SenseKey::NotReady)),
        ];
        let now = Instant::now();
        for (status, key) in endings {
            let (mut table, mut statistics) = (table(), InitiatorStatistics::default());
            (table.generation, table.has_choice) = (1, true);
            let answer = add_once(&mut table, now);
            let request = table.next(now, &mut statistics).expect("it is sent once");
            table.complete(request.tag, ended(status, key), 1, now, &mut statistics);
            table.wake(now + BUSY_PAUSE_MAX);
            assert!(table.next(now, &mut statistics).is_none(), "{status:?} {key:?}");
            assert!(is_not_repeated(answer), "{status:?} {key:?}");
        }
    }

    /// At recovery level 2 a session hands back the commands that it could not reassign.
    #[test]
    fn a_command_that_may_be_sent_once_is_not_sent_again_in_its_own_session() {
        let (mut table, now) = (table(), Instant::now());
        let mut statistics = InitiatorStatistics::default();
        table.generation = 1;
        let answer = add_once(&mut table, now);
        let request = table.next(now, &mut statistics).expect("it is sent once");
        table.take_back(vec![request], &mut statistics);
        assert!(table.next(now, &mut statistics).is_none());
        assert!(is_not_repeated(answer));
    }

    #[test]
    fn a_command_that_may_be_sent_once_does_not_outlive_its_session() {
        let (mut table, now) = (table(), Instant::now());
        let mut statistics = InitiatorStatistics::default();
        table.generation = 1;
        let sent = add_once(&mut table, now);
        let write = write(&mut table, 5, 1, now);
        let unanswered: Vec<_> =
            std::iter::from_fn(|| table.next(now, &mut InitiatorStatistics::default())).collect();
        assert_eq!(unanswered.len(), 2);
        // This command had not been sent when the session was lost.
        let waiting = add_once(&mut table, now);
        table.replay(unanswered, &mut statistics);
        table.generation = 2;
        let again: Vec<_> = std::iter::from_fn(|| table.next(now, &mut statistics)).collect();
        assert_eq!(again.iter().map(|request| request.cdb[0]).collect::<Vec<_>>(), [0x2a]);
        assert!(is_not_repeated(sent) && is_not_repeated(waiting));
        drop(write);
    }

    #[test]
    fn a_caller_that_has_gone_sends_nothing() {
        let (mut table, now) = (table(), Instant::now());
        drop(add(&mut table, 0, now));
        assert!(table.next(now, &mut InitiatorStatistics::default()).is_none());
        assert_eq!(table.len(), 0);
    }
}
