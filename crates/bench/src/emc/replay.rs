//! A trace at its times on a session: each request when it is due, whatever has been answered, and every
//! read compared with what was written.

use std::collections::HashMap;
use std::iter::Peekable;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;
use rawclient::crowd::CrowdConnection;
use rawclient::session::ClientSessionOptions;
use rawclient::stamp::{self, BlockStampState};
use rawclient::{
    ClientLogin, ClientResponse, ClientScsiCommand, ClientSession, ClientSlotAction, ClientWorkload,
};
use rig::machine;
use rustix::event::{PollFd, PollFlags, Timespec};
use workload::{TraceEvent, TraceEvents, TraceQueue};

use crate::load::histogram;

/// How fast time passes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BenchTracePace {
    /// Seconds of the trace in one of ours.
    pub speed: f64,
}

impl BenchTracePace {
    /// When something is due that comes so long after the beginning.
    pub fn due(self, begun: Instant, at: Duration) -> Instant {
        begun + at.div_f64(self.speed)
    }
}

/// Blocks as the trace counts them have so many of the target's.
const SECTORS: u32 = TraceEvents::BLOCK_BYTES / 512;

/// So long before a request is due we are awake, and look at the clock: an idle processor of a virtual machine
/// takes about that to come back, which is no time of the server's. It keeps the processors warm, too, for all servers.
const AWAKE: Duration = Duration::from_micros(150);
/// Nothing takes longer than this.
const SILENCE: Duration = Duration::from_secs(30);

/// One replay.
pub struct BenchTraceReplay {
    events: Peekable<TraceEvents>,
    pace: BenchTracePace,
    durable: bool,
    begun: Instant,
    queue: TraceQueue,
    in_flight: HashMap<u64, BenchTraceCommand>,
    number: u64,
    /// Version of each block that was written.
    versions: HashMap<u32, u64>,
    latency: Histogram<u64>,
    wrong: Option<String>,
}

/// A command in flight.
#[derive(Clone, Copy)]
struct BenchTraceCommand {
    event: TraceEvent,
    /// From when its time counts: when it was due, or the one before it was answered.
    from: Instant,
}

impl BenchTraceReplay {
    /// Of a trace; its writes are stable when they are answered if they are durable (FUA).
    pub fn new(trace: TraceEvents, pace: BenchTracePace, durable: bool) -> BenchTraceReplay {
        BenchTraceReplay {
            events: trace.peekable(),
            pace,
            durable,
            begun: Instant::now(),
            queue: TraceQueue::default(),
            in_flight: HashMap::new(),
            number: 0,
            versions: HashMap::new(),
            latency: histogram(),
            wrong: None,
        }
    }

    /// All of it. Returns how long it took.
    pub fn run(&mut self, login: &ClientLogin, shape: ClientSessionOptions) -> Result<Duration> {
        let mut session = ClientSession::open(login, shape)?;
        // Or the kernel takes 50 us more to wake us.
        machine::wake_on_time(|| self.put_all(&mut session))?;
        match self.wrong.take() {
            None => Ok(self.begun.elapsed()),
            Some(wrong) => bail!(wrong),
        }
    }

    fn put_all(&mut self, session: &mut ClientSession) -> Result<()> {
        self.begun = Instant::now();
        loop {
            let now = Instant::now();
            if session.send(self, now)? {
                return Ok(());
            }
            if self.wait(session, now)? {
                session.receive(self, Instant::now())?;
            }
        }
    }

    /// Until something comes, or is due that was not at `sent`, when all was sent that there was room for.
    /// True if it is the former.
    fn wait(&mut self, session: &ClientSession, sent: Instant) -> Result<bool> {
        let due = self.events.peek().map(|event| self.pace.due(self.begun, event.at));
        // What was due then waits for room in the window.
        let due = due.filter(|due| *due > sent);
        let left = |due: Instant| due.saturating_duration_since(Instant::now());
        let limit = due.map_or(SILENCE, |due| left(due).saturating_sub(AWAKE).min(SILENCE));
        let sending = CrowdConnection::<BenchTraceReplay>::is_sending(session);
        let out = if sending { PollFlags::OUT } else { PollFlags::empty() };
        let mut polled = [PollFd::new(
            CrowdConnection::<BenchTraceReplay>::socket(session),
            PollFlags::IN | out,
        )];
        let limit = Timespec::try_from(limit)?;
        let ready = rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, Some(&limit)))?;
        ensure!(ready > 0 || due.is_some(), "no answer for {SILENCE:?}");
        Ok(polled[0].revents().intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR))
    }

    /// The next request that may go, and from when its time counts.
    fn next_event(&mut self, now: Instant) -> Option<(TraceEvent, Instant)> {
        if let Some(event) = self.queue.release() {
            return Some((event, now));
        }
        loop {
            let (begun, pace) = (self.begun, self.pace);
            let event = self.events.next_if(|event| pace.due(begun, event.at) <= now)?;
            if let Some(event) = self.queue.admit(event) {
                return Some((event, pace.due(begun, event.at)));
            }
        }
    }

    /// From when a request was due to its answer, nanoseconds.
    pub fn latency(&self) -> &Histogram<u64> {
        &self.latency
    }

    /// What each block holds that was written.
    pub fn versions(&self) -> &HashMap<u32, u64> {
        &self.versions
    }

    /// In words.
    pub fn said(&self) -> String {
        let quantile = |part| self.latency.value_at_quantile(part) as f64 / 1e6;
        format!(
            "mean {:.2} ms, p50 {:.2}, p99 {:.2}, p99.99 {:.2} ms; {} requests waited for one of their block",
            self.latency.mean() / 1e6,
            quantile(0.5),
            quantile(0.99),
            quantile(0.9999),
            self.queue.held_in_all()
        )
    }

    fn note(&mut self, wrong: String) {
        self.wrong.get_or_insert(wrong);
    }
}

impl ClientWorkload for BenchTraceReplay {
    fn next(&mut self, now: Instant, payload: &mut [u8]) -> ClientSlotAction {
        let Some((event, from)) = self.next_event(now).filter(|_| self.wrong.is_none()) else {
            let is_over = self.events.peek().is_none() && self.in_flight.is_empty();
            return if is_over || self.wrong.is_some() {
                ClientSlotAction::Stop
            } else {
                ClientSlotAction::Wait
            };
        };
        self.number += 1;
        self.in_flight.insert(self.number, BenchTraceCommand { event, from });
        let (lba, sectors) = (event.block * SECTORS, SECTORS as u16);
        let request = if event.write {
            stamp::fill(payload, event.block.into(), self.number);
            ClientScsiCommand::write(lba, sectors, 512, self.durable)
        } else {
            ClientScsiCommand::read(lba, sectors, 512)
        };
        ClientSlotAction::Send(request, self.number)
    }

    fn answered(&mut self, now: Instant, answer: &ClientResponse<'_>) {
        let Some(BenchTraceCommand { event, from }) = self.in_flight.remove(&answer.number) else {
            return self.note(format!("an answer to nothing, {}", answer.number));
        };
        let TraceEvent { block, write, .. } = event;
        self.queue.answered(block);
        self.latency.saturating_record(now.saturating_duration_since(from).as_nanos() as u64);
        if answer.status != 0 {
            let (status, sense) = (answer.status, answer.sense);
            return self.note(format!("block {block}: status {status:#04x}, sense {sense:x?}"));
        }
        if write {
            self.versions.insert(block, answer.number);
        } else if let Err(wrong) = is_right(block, self.versions.get(&block), answer.data) {
            self.note(wrong);
        }
    }
}

/// Whether a block holds what was written to it last.
fn is_right(block: u32, version: Option<&u64>, data: &[u8]) -> Result<(), String> {
    let expected =
        version.map_or(BlockStampState::Empty, |version| BlockStampState::Version(*version));
    match stamp::read(data, block.into()) {
        found if found == expected => Ok(()),
        found => Err(format!("block {block} holds {found:?} and not {expected:?}")),
    }
}

/// Reads every block that was written, from `login`.
pub fn check_all(login: &ClientLogin, versions: &HashMap<u32, u64>) -> Result<()> {
    let shape =
        ClientSessionOptions { depth: 64, bytes: TraceEvents::BLOCK_BYTES as usize, keep: true };
    let mut session = ClientSession::open(login, shape)?;
    let blocks = versions.keys().copied().collect();
    let mut sweep = Sweep { versions, blocks, left: versions.len(), wrong: None };
    session.run(&mut sweep).context("reading it all")?;
    match sweep.wrong {
        None => Ok(()),
        Some(wrong) => bail!("at the far side {wrong}"),
    }
}

struct Sweep<'a> {
    versions: &'a HashMap<u32, u64>,
    blocks: Vec<u32>,
    left: usize,
    wrong: Option<String>,
}

impl ClientWorkload for Sweep<'_> {
    fn next(&mut self, _now: Instant, _payload: &mut [u8]) -> ClientSlotAction {
        match self.blocks.pop() {
            Some(block) => {
                let request = ClientScsiCommand::read(block * SECTORS, SECTORS as u16, 512);
                ClientSlotAction::Send(request, block.into())
            }
            None if self.left == 0 => ClientSlotAction::Stop,
            None => ClientSlotAction::Wait,
        }
    }

    fn answered(&mut self, _now: Instant, answer: &ClientResponse<'_>) {
        self.left -= 1;
        let block = answer.number as u32;
        let found = match answer.status {
            0 => is_right(block, self.versions.get(&block), answer.data),
            status => Err(format!("block {block}: status {status:#04x}")),
        };
        if let Err(wrong) = found {
            self.wrong.get_or_insert(wrong);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_block_is_what_was_written_last() {
        let mut data = vec![0; TraceEvents::BLOCK_BYTES as usize];
        assert!(is_right(7, None, &data).is_ok() && is_right(7, Some(&1), &data).is_err());
        stamp::fill(&mut data, 7, 2);
        assert!(is_right(7, Some(&2), &data).is_ok());
        assert!(is_right(7, Some(&3), &data).is_err() && is_right(8, Some(&2), &data).is_err());
    }

    #[test]
    fn requests_of_one_block_follow_each_other() {
        let mut replay =
            BenchTraceReplay::new(TraceEvents::new(1, 3000), BenchTracePace { speed: 1e6 }, false);
        let later = replay.begun + Duration::from_secs(60);
        let mut payload = vec![0; TraceEvents::BLOCK_BYTES as usize];
        // Nobody answers: each block is sent for once.
        while let ClientSlotAction::Send(..) = replay.next(later, &mut payload) {}
        let waiting = replay.queue.waiting();
        assert!(waiting > 0);
        let blocks: HashSet<u32> = replay.in_flight.values().map(|sent| sent.event.block).collect();
        assert_eq!(blocks.len(), replay.in_flight.len());
        assert_eq!(replay.in_flight.len() + waiting, 3000);
        // A request that waited is sent when the one before it is answered, and counts from then.
        let mut once = HashSet::new();
        let held = TraceEvents::new(1, 3000).find(|event| !once.insert(event.block)).unwrap();
        let block = held.block;
        let first = replay.in_flight.iter().find(|(_, sent)| sent.event.block == block);
        let (number, write) = first.map(|(number, sent)| (*number, sent.event.write)).unwrap();
        let data = vec![0; TraceEvents::BLOCK_BYTES as usize];
        let sent = replay.begun;
        let answer = ClientResponse { number, sent, status: 0, sense: [0; 3], data: &data };
        replay.answered(later, &answer);
        assert_eq!(replay.versions.contains_key(&block), write);
        assert!(matches!(replay.next(later, &mut payload), ClientSlotAction::Send(..)));
        assert_eq!(replay.queue.waiting(), waiting - 1);
        let sent = replay.in_flight.values().find(|sent| sent.event.block == block);
        assert!(sent.is_some_and(|sent| sent.from == later));
    }
}
