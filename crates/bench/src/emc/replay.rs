//! Replays a trace on a session. It sends each request when it is due, independently of earlier
//! responses, and compares every read with the data that was written.

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

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BenchTracePace {
    /// Seconds of the trace per second of the replay.
    pub speed: f64,
}

impl BenchTracePace {
    /// Returns the time at which a request is due. `begun` is the start of the replay, `at` the
    /// request's time in the trace.
    pub fn due(self, begun: Instant, at: Duration) -> Instant {
        begun + at.div_f64(self.speed)
    }
}

/// Number of logical blocks of the target (512 bytes) in one block of the trace.
const SECTORS: u32 = TraceEvents::BLOCK_BYTES / 512;

/// The thread busy-waits for the last part, of this length, of the time until a request is due. If the thread slept
/// until then, the latency would include the wake-up of an idle processor, which in a virtual machine takes about as
/// long as this and is no part of the server's time. The busy-waiting also keeps the processors out of sleep states,
/// for all servers alike.
const AWAKE: Duration = Duration::from_micros(150);
/// If the target takes longer than this for a response, the replay fails.
const SILENCE: Duration = Duration::from_secs(30);

/// A replay of a trace, as the workload of a session.
pub struct BenchTraceReplay {
    events: Peekable<TraceEvents>,
    pace: BenchTracePace,
    durable: bool,
    begun: Instant,
    queue: TraceQueue,
    in_flight: HashMap<u64, BenchTraceCommand>,
    number: u64,
    /// The version that was written last to each block.
    versions: HashMap<u32, u64>,
    latency: Histogram<u64>,
    wrong: Option<String>,
}

#[derive(Clone, Copy)]
struct BenchTraceCommand {
    event: TraceEvent,
    /// The start of the request's latency: when it was due, or when the preceding request for the
    /// same block was answered.
    from: Instant,
}

impl BenchTraceReplay {
    /// Returns a replay of a trace that has not started yet. If `durable` is true, writes have FUA.
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

    /// Replays the whole trace through one session. Returns the time that it took.
    pub fn run(&mut self, login: &ClientLogin, shape: ClientSessionOptions) -> Result<Duration> {
        let mut session = ClientSession::open(login, shape)?;
        // Replay with the smallest timer slack. With the default, the kernel may wake the thread up to 50 us too late.
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

    /// Waits until a response arrives or the next request is due. `sent` is the time of the last
    /// attempt to send. Returns true if the socket can be read.
    fn wait(&mut self, session: &ClientSession, sent: Instant) -> Result<bool> {
        let due = self.events.peek().map(|event| self.pace.due(self.begun, event.at));
        // A request that was already due at `sent` is waiting for space in the command window. Only
        // a response makes space, so do not wake up for this request.
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

    /// Returns the next request that may be sent, and the time at which its latency starts.
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

    /// Returns the latencies in nanoseconds: from the time when a request was due until its
    /// response.
    pub fn latency(&self) -> &Histogram<u64> {
        &self.latency
    }

    /// Returns the version that was written last to each block.
    pub fn versions(&self) -> &HashMap<u32, u64> {
        &self.versions
    }

    /// Returns quantiles of the latencies as text.
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
            return self.note(format!("a response arrived for unknown command {}", answer.number));
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

/// Fails unless the data of the block carries the stamp of the last write to the block.
fn is_right(block: u32, version: Option<&u64>, data: &[u8]) -> Result<(), String> {
    let expected =
        version.map_or(BlockStampState::Empty, |version| BlockStampState::Version(*version));
    match stamp::read(data, block.into()) {
        found if found == expected => Ok(()),
        found => Err(format!("block {block} holds {found:?} instead of {expected:?}")),
    }
}

/// Reads every block that the trace has written, and compares it with its last version.
pub fn check_all(login: &ClientLogin, versions: &HashMap<u32, u64>) -> Result<()> {
    let shape =
        ClientSessionOptions { depth: 64, bytes: TraceEvents::BLOCK_BYTES as usize, keep: true };
    let mut session = ClientSession::open(login, shape)?;
    let blocks = versions.keys().copied().collect();
    let mut sweep = Sweep { versions, blocks, left: versions.len(), wrong: None };
    session.run(&mut sweep).context("reading all blocks that were written")?;
    match sweep.wrong {
        None => Ok(()),
        Some(wrong) => bail!("on the far volume: {wrong}"),
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
    fn a_block_must_hold_the_last_write() {
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
        // Nothing is answered in this test. Therefore the first request for each block is in flight, and all others
        // wait.
        while let ClientSlotAction::Send(..) = replay.next(later, &mut payload) {}
        let waiting = replay.queue.waiting();
        assert!(waiting > 0);
        let blocks: HashSet<u32> = replay.in_flight.values().map(|sent| sent.event.block).collect();
        assert_eq!(blocks.len(), replay.in_flight.len());
        assert_eq!(replay.in_flight.len() + waiting, 3000);
        // A request that waited is sent when the preceding request for its block is answered. Its
        // latency starts then.
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
