//! A trace like EMC-tel: what STICS (section 5.2) says of the one that EMC recorded at a telecommunications
//! company, and assumptions of ours where it says nothing.
//!
//! Published: 230,370 requests of 4 blocks (2 KiB), 89 % of them writes, 333 a second, of a data set of 900 MB.
//! Ours: how requests cluster in time and in space (the constants below). Times, places and kinds follow
//! from a seed.

use std::time::Duration;

use rawclient::stamp;

/// Requests of the whole trace.
pub const REQUESTS: u64 = 230_370;
/// Bytes of a request.
pub const BLOCK_BYTES: u32 = 2048;
/// The data set, in blocks of one request: 900 MB.
pub const SET_BLOCKS: u64 = 900_000_000 / BLOCK_BYTES as u64;

/// Share of writes.
const WRITES: f64 = 0.89;
/// Requests a second.
const RATE: f64 = 333.0;

/// Requests that come one after the other before there is a pause, in the mean.
const BURST: f64 = 16.0;
/// Seconds between two requests of a burst, in the mean.
const GAP: f64 = 0.0005;
/// Share of writes that follow the block that was written last.
const SEQUENTIAL: f64 = 0.4;
/// Share of writes that go to a block which was used lately.
const REWRITES: f64 = 0.3;
/// Share of reads that do.
const REREADS: f64 = 0.95;
/// How many different requests ago it was used, in the mean.
const DISTANCE: f64 = 1024.0;
/// Requests that are remembered for that.
const MEMORY: usize = 4096;

/// A trace that has not begun.
#[derive(Clone, Copy, Debug)]
pub struct BenchTraceSpec {
    seed: u64,
    requests: u64,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BenchTraceRequest {
    /// When it comes, from the beginning.
    pub at: Duration,
    /// Which block of 2 KiB.
    pub block: u32,
    /// Whether it is a write.
    pub write: bool,
}

impl BenchTraceSpec {
    /// All of it.
    pub fn new(seed: u64) -> BenchTraceSpec {
        BenchTraceSpec { seed, requests: REQUESTS }
    }

    /// The first so many requests, with the same share of writes.
    pub fn first(self, requests: u64) -> BenchTraceSpec {
        BenchTraceSpec { requests: requests.min(REQUESTS), ..self }
    }

    /// How many there are.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// The requests in the order of their times.
    pub fn events(&self) -> BenchTraceStream {
        BenchTraceStream {
            random: self.seed,
            left: self.requests,
            writes_left: (self.requests as f64 * WRITES) as u64,
            seconds: 0.0,
            last_write: 0,
            recent: Vec::with_capacity(MEMORY),
            newest: 0,
        }
    }
}

/// A trace that is being read.
#[derive(Clone, Debug)]
pub struct BenchTraceStream {
    random: u64,
    left: u64,
    writes_left: u64,
    seconds: f64,
    last_write: u32,
    /// A ring.
    recent: Vec<u32>,
    newest: usize,
}

impl Iterator for BenchTraceStream {
    type Item = BenchTraceRequest;

    fn next(&mut self) -> Option<BenchTraceRequest> {
        if self.left == 0 {
            return None;
        }
        // Exactly as many writes as there have to be.
        let write = self.uniform() * (self.left as f64) < self.writes_left as f64;
        self.writes_left -= u64::from(write);
        self.left -= 1;
        let gap = if self.uniform() < 1.0 / BURST { self.spread(PAUSE) } else { self.spread(GAP) };
        self.seconds += gap;
        let block = self.place(write);
        self.remember(block);
        if write {
            self.last_write = block;
        }
        Some(BenchTraceRequest { at: Duration::from_secs_f64(self.seconds), block, write })
    }
}

/// Seconds between two bursts, in the mean: what is left of the time.
const PAUSE: f64 = BURST / RATE - (BURST - 1.0) * GAP;

impl BenchTraceStream {
    fn place(&mut self, write: bool) -> u32 {
        let (sequential, again) = if write { (SEQUENTIAL, REWRITES) } else { (0.0, REREADS) };
        let draw = self.uniform();
        if draw < sequential {
            return ((u64::from(self.last_write) + 1) % SET_BLOCKS) as u32;
        }
        if draw < sequential + again && !self.recent.is_empty() {
            let back = self.spread(DISTANCE) as usize % self.recent.len();
            let at = (self.newest + self.recent.len() - back) % self.recent.len();
            return self.recent[at];
        }
        (self.uniform() * SET_BLOCKS as f64) as u32
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

    /// From 0 to below 1.
    fn uniform(&mut self) -> f64 {
        (stamp::next(&mut self.random) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Exponential, with this mean.
    fn spread(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.uniform()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_figures_hold() {
        let trace = BenchTraceSpec::new(1);
        let events: Vec<BenchTraceRequest> = trace.events().collect();
        assert_eq!(events.len(), 230_370);
        assert_eq!(events.iter().filter(|event| event.write).count(), 205_029);
        let seconds = events.last().unwrap().at.as_secs_f64();
        assert!((seconds - 692.0).abs() < 0.03 * 692.0, "{seconds}");
        assert!(events.is_sorted_by_key(|event| event.at));
        assert!(events.iter().all(|event| u64::from(event.block) < SET_BLOCKS));
        // All of the set, and not a corner of it.
        let reach =
            |tenth: u64| events.iter().any(|e| u64::from(e.block) / (SET_BLOCKS / 10) == tenth);
        assert!((0..10).all(reach));
    }

    #[test]
    fn a_seed_is_a_trace() {
        let first = |seed| BenchTraceSpec::new(seed).first(1000).events().collect::<Vec<_>>();
        assert_eq!(first(7), first(7));
        assert_ne!(first(7), first(8));
        assert_eq!(first(7).iter().filter(|event| event.write).count(), 890);
    }
}
