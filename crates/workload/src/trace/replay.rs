//! Sends each request of a trace when it is due, independently of earlier responses, and compares
//! every read with the data that was written.

use std::{
    collections::HashMap,
    num::NonZeroU64,
    thread,
    time::{Duration, Instant},
};

use futures_util::{
    StreamExt,
    future::{BoxFuture, FutureExt},
    stream::FuturesUnordered,
};
use sim::Rng;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use volume::{Data, Durability, Extent, Lba, Volume};

use super::{
    events::{TraceEvent, TraceEvents},
    queue::TraceQueue,
};
use crate::{Error, remote_unit::failed};

/// The state of a replay of a trace on a volume.
pub(super) struct TraceReplay<'a> {
    volume: &'a dyn Volume,
    seed: u64,
    durability: Durability,
    in_flight: FuturesUnordered<BoxFuture<'a, CompletedTraceRequest>>,
    queue: TraceQueue,
    /// The number of writes to each block. The expected content of a block is derived from this number.
    versions: HashMap<u32, u32>,
    answered: TraceReplayResult,
}

/// The measured values of a replay.
#[derive(Debug, Default)]
pub(super) struct TraceReplayResult {
    /// The requests with their response times, in the order of the times at which they were due.
    pub requests: Vec<AnsweredTraceRequest>,
    /// Number of requests that had to wait for an earlier request for the same block.
    pub held: u64,
    /// Number of reads whose data was compared.
    pub compared: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct AnsweredTraceRequest {
    /// The time at which the request was due, from the beginning of the trace.
    pub due: Duration,
    pub write: bool,
    /// Time from the moment at which the request was due to its response.
    pub response: Duration,
}

struct CompletedTraceRequest {
    event: TraceEvent,
    at: Instant,
    found: Result<Option<Data>, volume::Error>,
}

const SECTORS: u32 = TraceEvents::BLOCK_BYTES / 512;
/// Maximum number of requests in flight while blocks are read back.
const AT_ONCE: usize = 32;
/// Number of responses between two progress reports.
const TELL: usize = 64;

impl<'a> TraceReplay<'a> {
    pub fn new(volume: &'a dyn Volume, seed: u64, durable: bool) -> Self {
        Self {
            volume,
            seed,
            durability: if durable { Durability::Stable } else { Durability::Volatile },
            in_flight: FuturesUnordered::new(),
            queue: TraceQueue::default(),
            versions: HashMap::new(),
            answered: TraceReplayResult::default(),
        }
    }

    /// Replays all events at `speed` times the speed of the trace.
    pub async fn put(
        &mut self,
        events: TraceEvents,
        speed: f64,
        progress: &(dyn Fn(f64) + Sync),
    ) -> Result<(), Error> {
        let events: Vec<TraceEvent> =
            events.map(|it| TraceEvent { at: it.at.div_f64(speed), ..it }).collect();
        let count = events.len();
        let begun = Instant::now();
        let mut due = at_their_times(begun, events)?;
        loop {
            tokio::select! {
                Some(event) = due.recv() => {
                    if let Some(event) = self.queue.admit(event) {
                        self.begin(event);
                    }
                }
                Some(done) = self.in_flight.next() => {
                    let CompletedTraceRequest { event, at, .. } = done;
                    // Measure from the time when the request was due. This includes the time that
                    // it waited for an earlier request for its block.
                    let response = at.saturating_duration_since(begun + event.at);
                    let request = AnsweredTraceRequest { due: event.at, write: event.write, response };
                    self.answered.requests.push(request);
                    self.answer(done)?;
                    if let Some(event) = self.queue.release() {
                        self.begin(event);
                    }
                    let so_far = self.answered.requests.len();
                    if so_far.is_multiple_of(TELL) {
                        progress(so_far as f64 / count as f64);
                    }
                }
                else => break,
            }
        }
        self.answered.requests.sort_by_key(|request| request.due);
        self.answered.held = self.queue.held_in_all();
        Ok(())
    }

    /// Makes all writes stable. Then reads back up to `most` of the written blocks and compares
    /// them.
    pub async fn read_back(&mut self, most: u64) -> Result<(), Error> {
        self.volume.flush().await.map_err(failed("flush"))?;
        let mut blocks: Vec<u32> = self.versions.keys().copied().collect();
        blocks.sort_unstable();
        let step = (blocks.len() as u64).div_ceil(most.max(1)).max(1);
        let mut blocks = blocks.into_iter().step_by(step as usize);
        if most == 0 {
            return Ok(());
        }
        loop {
            while self.in_flight.len() < AT_ONCE
                && let Some(block) = blocks.next()
            {
                self.begin(TraceEvent { at: Duration::ZERO, block, write: false });
            }
            match self.in_flight.next().await {
                Some(done) => self.answer(done)?,
                None => return Ok(()),
            }
        }
    }

    pub fn answered(self) -> TraceReplayResult {
        self.answered
    }

    fn begin(&mut self, event: TraceEvent) {
        let volume = self.volume;
        let lba = Lba(u64::from(event.block) * u64::from(SECTORS));
        let call: BoxFuture<'a, Result<Option<Data>, volume::Error>> = if event.write {
            let version = self.versions.entry(event.block).or_default();
            *version += 1;
            let mut data = Data::new();
            data.push(content(self.seed, event.block, *version).into());
            let durability = self.durability;
            async move { volume.write(lba, data, durability).await.map(|()| None) }.boxed()
        } else {
            let extent = Extent { lba, blocks: SECTORS };
            async move { volume.read(extent).await.map(Some) }.boxed()
        };
        let timed = async move {
            let found = call.await;
            CompletedTraceRequest { event, at: Instant::now(), found }
        };
        self.in_flight.push(timed.boxed());
    }

    fn answer(&mut self, done: CompletedTraceRequest) -> Result<(), Error> {
        let CompletedTraceRequest { event: TraceEvent { block, write, .. }, found, .. } = done;
        self.queue.answered(block);
        let found = found.map_err(failed(if write { "write" } else { "read" }))?;
        // Blocks that the trace has not written cannot be compared: their earlier content is
        // unknown.
        let (Some(found), Some(version)) = (found, self.versions.get(&block)) else {
            return Ok(());
        };
        self.answered.compared += 1;
        if found.into_bytes() == content(self.seed, block, *version) {
            return Ok(());
        }
        let what = format!("block {block} of 2 KiB does not hold the data of its write {version}");
        Err(Error::Wrong(what))
    }
}

/// Starts a thread that sends each event to the returned receiver when it is due. The runtime's
/// timers would have a resolution of milliseconds only.
fn at_their_times(
    begun: Instant,
    events: Vec<TraceEvent>,
) -> Result<UnboundedReceiver<TraceEvent>, Error> {
    // An unbounded channel is safe here: it never holds more than the events of the trace.
    let (sender, receiver) = unbounded_channel();
    let thread = thread::Builder::new().name("trace".to_owned()).spawn(move || {
        // Set the smallest timer slack. With the default, the kernel may take 50 us more to wake
        // the thread.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        for event in events {
            thread::sleep((begun + event.at).saturating_duration_since(Instant::now()));
            // End the thread if the receiver is closed, since the replay has ended early.
            if sender.send(event).is_err() {
                return;
            }
        }
    });
    thread.map(|_| receiver).map_err(Error::system("start a thread"))
}

/// Returns the data of a block after the write with this version number.
fn content(seed: u64, block: u32, version: u32) -> Vec<u8> {
    let place = u64::from(block) << 32 | u64::from(version);
    let mut bytes = vec![0; TraceEvents::BLOCK_BYTES as usize];
    Rng::new(seed ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15)).fill(&mut bytes);
    bytes
}
