//! The requests of the trace. EMC's own is not public; of it is known (STICS, 5.2): 230,370 requests of 2 KiB, 89 % of
//! them writes, 333 a second, over 900 MB. How they cluster in time and place is assumed here: each assumption
//! is a constant below.

use std::time::Duration;

use sim::Rng;

/// Requests of the whole trace.
pub(super) const REQUESTS: u64 = 230_370;
/// Bytes of each: four sectors.
pub(super) const BLOCK_BYTES: u32 = 2048;
/// The set, in blocks of one request.
pub(super) const SET_BLOCKS: u64 = 900_000_000 / BLOCK_BYTES as u64;

/// Published: the share of writes, and requests in a second.
const WRITES: f64 = 0.89;
const RATE: f64 = 333.0;

/// Assumed: requests of a burst and seconds between them, in the mean. The pause after a burst makes up the rate.
const BURST: f64 = 16.0;
const GAP: f64 = 0.0005;
const PAUSE: f64 = BURST / RATE - (BURST - 1.0) * GAP;
/// Assumed: the share of writes that follow the last one, and that go to a block of lately.
const SEQUENTIAL: f64 = 0.4;
const REWRITES: f64 = 0.3;
/// Assumed: the share of reads that go to a block of lately.
const REREADS: f64 = 0.95;
/// Assumed: how many requests ago that was, in the mean, and at most.
const DISTANCE: f64 = 1024.0;
const MEMORY: usize = 4096;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TraceEvent {
    /// When it is due, from the beginning.
    pub at: Duration,
    /// Which block.
    pub block: u32,
    /// Whether it writes.
    pub write: bool,
}

/// The requests in their order.
#[derive(Clone, Debug)]
pub(super) struct TraceEvents {
    rng: Rng,
    left: u64,
    writes_left: u64,
    seconds: f64,
    last_write: u32,
    /// Blocks of lately, a ring.
    recent: Vec<u32>,
    newest: usize,
}

impl TraceEvents {
    /// The first `requests` of the trace that this seed gives, with the published share of writes.
    pub fn new(seed: u64, requests: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            left: requests,
            writes_left: (requests as f64 * WRITES) as u64,
            seconds: 0.0,
            last_write: 0,
            recent: Vec::with_capacity(MEMORY),
            newest: 0,
        }
    }

    fn place(&mut self, write: bool) -> u32 {
        let (sequential, again) = if write { (SEQUENTIAL, REWRITES) } else { (0.0, REREADS) };
        let draw = self.rng.share();
        if draw < sequential {
            return ((u64::from(self.last_write) + 1) % SET_BLOCKS) as u32;
        }
        if draw < sequential + again && !self.recent.is_empty() {
            let count = self.recent.len();
            let back = self.rng.exponential(DISTANCE) as usize % count;
            return self.recent[(self.newest + count - back) % count];
        }
        self.rng.below(SET_BLOCKS) as u32
    }

    fn remember(&mut self, block: u32) {
        if self.recent.len() < MEMORY {
            self.newest = self.recent.len();
            self.recent.push(block);
        } else {
            self.newest = (self.newest + 1) % MEMORY;
            self.recent[self.newest] = block;
        }
    }
}

impl Iterator for TraceEvents {
    type Item = TraceEvent;

    fn next(&mut self) -> Option<TraceEvent> {
        if self.left == 0 {
            return None;
        }
        // So that in the end there are as many writes as there have to be.
        let write = self.rng.share() * (self.left as f64) < self.writes_left as f64;
        self.writes_left -= u64::from(write);
        self.left -= 1;
        let is_pause = self.rng.share() < 1.0 / BURST;
        self.seconds += self.rng.exponential(if is_pause { PAUSE } else { GAP });
        let block = self.place(write);
        self.remember(block);
        if write {
            self.last_write = block;
        }
        Some(TraceEvent { at: Duration::from_secs_f64(self.seconds), block, write })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_figures_hold() {
        let events: Vec<TraceEvent> = TraceEvents::new(1, REQUESTS).collect();
        assert_eq!(events.len(), 230_370);
        assert_eq!(events.iter().filter(|event| event.write).count(), 205_029);
        // 472 MB moved, of 900 MB.
        assert_eq!(events.len() as u64 * u64::from(BLOCK_BYTES) / 1_000_000, 471);
        let seconds = events.last().unwrap().at.as_secs_f64();
        assert!((seconds - 692.0).abs() < 0.03 * 692.0, "{seconds}");
        assert!(events.is_sorted_by_key(|event| event.at));
        assert!(events.iter().all(|event| u64::from(event.block) < SET_BLOCKS));
        let reached =
            |tenth: u64| events.iter().any(|it| u64::from(it.block) * 10 / SET_BLOCKS == tenth);
        assert!((0..10).all(reached));
    }

    #[test]
    fn a_seed_is_a_trace() {
        let first = |seed| TraceEvents::new(seed, 1000).collect::<Vec<_>>();
        assert_eq!(first(7), first(7));
        assert_ne!(first(7), first(8));
        assert_eq!(first(7).iter().filter(|event| event.write).count(), 890);
    }
}
