//! Generates a trace like EMC-tel, which EMC recorded at a telecommunications company and which is
//! not public. STICS (section 5.2) describes it: 230,370 requests of 4 blocks (2 KiB), 89 % of them
//! writes, 333 per second, in a data set of 900 MB. How requests cluster in time and in space is
//! our assumption; each assumption is a constant below. Times, blocks and kinds of requests follow
//! from a seed.

use std::time::Duration;

use sim::Rng;

/// Size of the data set, in blocks of 2 KiB.
const SET_BLOCKS: u64 = TraceEvents::SET_BLOCKS;

/// Published numbers: the share of writes, and the number of requests per second.
const WRITES: f64 = 0.89;
const RATE: f64 = 333.0;

/// Our assumption: mean number of requests in a burst, and mean seconds between two requests of a burst. The pause
/// after a burst is computed so that the mean rate is [`RATE`].
const BURST: f64 = 16.0;
const GAP: f64 = 0.0005;
const PAUSE: f64 = BURST / RATE - (BURST - 1.0) * GAP;
/// Our assumption: the share of writes that go to the block after that of the previous write, and the share that go to
/// a recently used block.
const SEQUENTIAL: f64 = 0.4;
const REWRITES: f64 = 0.3;
/// Our assumption: the share of reads that are for a recently used block.
const REREADS: f64 = 0.95;
/// Our assumption: a recently used block was used this many requests ago on average, and at most
/// [`MEMORY`] requests ago.
const DISTANCE: f64 = 1024.0;
const MEMORY: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TraceEvent {
    /// The time at which the request is due, from the beginning of the trace.
    pub at: Duration,
    /// The number of the block, in units of [`TraceEvents::BLOCK_BYTES`].
    pub block: u32,
    /// True for a write, false for a read.
    pub write: bool,
}

/// Iterates over the requests of a trace in the order of their times.
#[derive(Clone, Debug)]
pub struct TraceEvents {
    rng: Rng,
    left: u64,
    writes_left: u64,
    seconds: f64,
    last_write: u32,
    /// Ring buffer of the blocks that were used last.
    recent: Vec<u32>,
    newest: usize,
}

impl TraceEvents {
    pub const REQUESTS: u64 = 230_370;
    /// Bytes of a request: four sectors.
    pub const BLOCK_BYTES: u32 = 2048;
    /// Size of the data set in blocks: 900 MB.
    pub const SET_BLOCKS: u64 = 900_000_000 / Self::BLOCK_BYTES as u64;

    /// Returns the first `requests` requests of the trace with this seed. However few requests these are, the share of
    /// writes among them is the published one.
    #[must_use]
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
        // The probability of a write is the number of remaining writes divided by that of remaining requests. The total
        // number of writes is therefore exact.
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
        let events: Vec<TraceEvent> = TraceEvents::new(1, TraceEvents::REQUESTS).collect();
        assert_eq!(events.len(), 230_370);
        assert_eq!(events.iter().filter(|event| event.write).count(), 205_029);
        // The requests transfer 472 MB of the data set of 900 MB.
        assert_eq!(events.len() as u64 * u64::from(TraceEvents::BLOCK_BYTES) / 1_000_000, 471);
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

    /// The generated requests must never change, since published results refer to them. The digest
    /// is FNV-1a.
    #[test]
    fn the_trace_of_seed_1_never_changes() {
        let digest =
            TraceEvents::new(1, TraceEvents::REQUESTS).fold(0xcbf2_9ce4_8422_2325, |sum, it| {
                let words = [it.at.as_micros() as u64, u64::from(it.block), u64::from(it.write)];
                words.iter().fold(sum, |sum: u64, word| (sum ^ word).wrapping_mul(0x0100_0000_01b3))
            });
        assert_eq!(digest, DIGEST);
    }

    const DIGEST: u64 = 0xa153_c8a8_b24e_3072;
}
