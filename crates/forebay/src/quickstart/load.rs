//! The load of quickstart on a volume: random reads, random writes each followed by a flush, and streams.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use futures_util::{
    StreamExt,
    future::{join_all, try_join_all},
    stream,
};
use hdrhistogram::Histogram;
use volume::{Durability, Extent, Lba, Stack};

use super::ledger::{BLOCK, LedgerBlockVerdict, QuickstartLedger};

/// Size of one sequential read or write in blocks of 4 KiB: 64 KiB.
const PIECE: u64 = 16;
/// Size of the hot set in blocks of 4 KiB: 8 MiB.
const HOT: u64 = 2048;
/// Number of concurrent writers when the gateway is killed: equal to that of durable writes, so that both write to the
/// same blocks.
const CRASH_DEPTH: usize = 4;

/// A volume under load, with a record of the data that was written to its blocks.
#[derive(Clone)]
pub struct Subject {
    pub volume: Stack,
    /// Versions of the volume's blocks of 4 KiB.
    pub ledger: Arc<QuickstartLedger>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum QuickstartLoadKind {
    /// Random reads of 4 KiB, eight at once; 19 of 20 are in a hot set of 8 MiB.
    RandomReads,
    /// Random writes of 4 KiB, four at once, each followed by a flush.
    DurableWrites,
    /// Sequential reads of 64 KiB, eight at once.
    StreamRead,
    /// Sequential writes of 64 KiB, eight of them in flight at a time, with a flush at the end.
    StreamWrite,
}

impl QuickstartLoadKind {
    /// All kinds of load, in the order in which the quickstart runs them.
    pub const ALL: [Self; 4] =
        [Self::StreamRead, Self::RandomReads, Self::DurableWrites, Self::StreamWrite];

    pub fn name(self) -> &'static str {
        match self {
            Self::RandomReads => "4 KiB random reads",
            Self::DurableWrites => "4 KiB writes + flush",
            Self::StreamRead => "64 KiB stream reads",
            Self::StreamWrite => "64 KiB stream writes",
        }
    }

    pub fn depth(self) -> usize {
        if self == Self::DurableWrites { 4 } else { 8 }
    }
}

#[derive(Debug)]
pub struct QuickstartLoadResult {
    pub operations: u64,
    /// Bytes that the completed operations read or wrote.
    pub bytes: u64,
    /// Time from the first submission to the last answer.
    pub took: Duration,
    /// The latencies of the operations, in microseconds.
    pub latency: Histogram<u64>,
    pub wrong: u64,
}

impl QuickstartLoadResult {
    fn new() -> Self {
        // Two significant digits. An operation of more than a minute fails before it is recorded.
        let latency = Histogram::new_with_bounds(1, 60_000_000, 2).expect("bounds are right");
        Self { operations: 0, bytes: 0, took: Duration::ZERO, latency, wrong: 0 }
    }

    fn add(&mut self, blocks: u64, latency: Duration, wrong: u64) {
        self.operations += 1;
        self.bytes += blocks * BLOCK as u64;
        self.wrong += wrong;
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.latency.saturating_record(micros.max(1));
    }

    fn merge(&mut self, other: &Self) {
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.wrong += other.wrong;
        self.latency.add(&other.latency).expect("both have the same bounds");
    }

    pub fn rate(&self) -> f64 {
        self.operations as f64 / self.took.as_secs_f64().max(1e-9)
    }
}

/// Returns the blocks that a part uses: random parts use the first half, each stream uses a quarter.
fn area(part: QuickstartLoadKind, blocks: u64) -> Range<u64> {
    match part {
        QuickstartLoadKind::RandomReads | QuickstartLoadKind::DurableWrites => 0..blocks / 2,
        QuickstartLoadKind::StreamRead => blocks / 2..blocks / 4 * 3,
        QuickstartLoadKind::StreamWrite => blocks / 4 * 3..blocks,
    }
}

impl Subject {
    /// Runs one kind of load: random loads for `time`, sequential loads once over their blocks.
    pub async fn run(
        &self,
        part: QuickstartLoadKind,
        time: Duration,
    ) -> Result<QuickstartLoadResult, volume::Error> {
        let start = Instant::now();
        let places = QuickstartAddresses::new(part, self.ledger.blocks());
        let places = &places;
        let workers = (0..part.depth()).map(|worker| async move {
            let mut own = places.of_worker(worker);
            let mut measured = QuickstartLoadResult::new();
            while places.in_order() || start.elapsed() < time {
                let Some((first, count)) = own.next() else { break };
                let (latency, wrong) = self.operation(part, first, count).await?;
                measured.add(count, latency, wrong);
            }
            Ok::<_, volume::Error>(measured)
        });
        let mut all = QuickstartLoadResult::new();
        for measured in try_join_all(workers).await? {
            all.merge(&measured);
        }
        if part == QuickstartLoadKind::StreamWrite {
            self.volume.flush().await?;
        }
        all.took = start.elapsed();
        Ok(all)
    }

    /// Performs one read or write. Returns its latency and the number of blocks with wrong data.
    async fn operation(
        &self,
        part: QuickstartLoadKind,
        first: u64,
        count: u64,
    ) -> Result<(Duration, u64), volume::Error> {
        let start = Instant::now();
        match part {
            QuickstartLoadKind::RandomReads | QuickstartLoadKind::StreamRead => {
                let data = self.volume.read(self.extent(first, count)).await?.into_bytes();
                let latency = start.elapsed();
                Ok((latency, self.wrong(first, &data)))
            }
            QuickstartLoadKind::DurableWrites | QuickstartLoadKind::StreamWrite => {
                let data = self.ledger.submit(first, count);
                let start = Instant::now();
                self.volume.write(self.lba(first), data.into(), Durability::Volatile).await?;
                if part == QuickstartLoadKind::DurableWrites {
                    self.volume.flush().await?;
                }
                self.ledger.acknowledge(first, count);
                Ok((start.elapsed(), 0))
            }
        }
    }

    /// Writes each block of the volume once.
    pub async fn fill(&self) -> Result<(), volume::Error> {
        let pieces = (0..self.ledger.blocks()).step_by(64);
        let mut writes = stream::iter(pieces)
            .map(|first| async move {
                let count = 64.min(self.ledger.blocks() - first);
                let data = self.ledger.submit(first, count);
                self.volume.write(self.lba(first), data.into(), Durability::Volatile).await?;
                self.ledger.acknowledge(first, count);
                Ok::<_, volume::Error>(())
            })
            .buffer_unordered(8);
        while let Some(written) = writes.next().await {
            written?;
        }
        self.volume.flush().await
    }

    /// Writes random blocks without flushes until a write fails, and returns the number of acknowledged writes. A crash
    /// must not lose them: a gateway with `after-complete` has made them stable.
    pub async fn write_until_it_fails(&self) -> u64 {
        let places =
            QuickstartAddresses::new(QuickstartLoadKind::DurableWrites, self.ledger.blocks());
        let places = &places;
        let workers = (0..CRASH_DEPTH).map(|worker| async move {
            let mut acknowledged = 0;
            for (first, count) in places.of_worker(worker) {
                let data = self.ledger.submit(first, count);
                let write = self.volume.write(self.lba(first), data.into(), Durability::Volatile);
                if let Err(error) = write.await {
                    tracing::debug!(%error, "a writer stops");
                    break;
                }
                self.ledger.acknowledge(first, count);
                acknowledged += 1;
            }
            acknowledged
        });
        join_all(workers).await.into_iter().sum()
    }

    /// Reads every block. Returns the number of wrong blocks.
    pub async fn verify(&self) -> Result<u64, volume::Error> {
        let pieces = (0..self.ledger.blocks()).step_by(64);
        let mut reads = stream::iter(pieces)
            .map(|first| async move {
                let count = 64.min(self.ledger.blocks() - first);
                let data = self.volume.read(self.extent(first, count)).await?.into_bytes();
                Ok::<_, volume::Error>(self.wrong(first, &data))
            })
            .buffer_unordered(8);
        let mut wrong = 0;
        while let Some(read) = reads.next().await {
            wrong += read?;
        }
        Ok(wrong)
    }

    fn wrong(&self, first: u64, data: &[u8]) -> u64 {
        let judged = (first..).zip(data.chunks(BLOCK));
        judged
            .filter(|(block, bytes)| self.ledger.judge(*block, bytes) == LedgerBlockVerdict::Lost)
            .count() as u64
    }

    fn per_block(&self) -> u64 {
        BLOCK as u64 / u64::from(self.volume.geometry().block_size)
    }

    fn lba(&self, block: u64) -> Lba {
        Lba(block * self.per_block())
    }

    fn extent(&self, first: u64, count: u64) -> Extent {
        let blocks = u32::try_from(count * self.per_block()).expect("a piece of a stream is small");
        Extent { lba: self.lba(first), blocks }
    }
}

/// The addresses of the blocks that a load uses, equal in every run.
struct QuickstartAddresses {
    part: QuickstartLoadKind,
    area: Range<u64>,
    /// Position in the sequence of blocks, which all workers of a load share.
    next: AtomicU64,
}

impl QuickstartAddresses {
    fn new(part: QuickstartLoadKind, blocks: u64) -> Self {
        let area = area(part, blocks);
        Self { part, next: AtomicU64::new(area.start), area }
    }

    fn in_order(&self) -> bool {
        matches!(self.part, QuickstartLoadKind::StreamRead | QuickstartLoadKind::StreamWrite)
    }

    /// Returns the blocks of one worker's operations: first block and count. Random workers have disjoint blocks, so
    /// that no block has two writers.
    fn of_worker(&self, worker: usize) -> impl Iterator<Item = (u64, u64)> {
        let mut random = QuickstartRandom(0x1234_5678_9abc_def1 + worker as u64);
        std::iter::from_fn(move || {
            if self.in_order() {
                let first = self.next.fetch_add(PIECE, Relaxed);
                let count = PIECE.min(self.area.end.saturating_sub(first));
                return (count > 0).then_some((first, count));
            }
            let depth = self.part.depth() as u64;
            let own = ((self.area.end - self.area.start) / depth).max(1);
            let hot =
                self.part == QuickstartLoadKind::RandomReads && !random.draw().is_multiple_of(20);
            let among = if hot { (HOT / depth).min(own) } else { own };
            // The multiplication by an odd number spreads the hot set over the area.
            let nth = (random.draw() % among).wrapping_mul(0x2545_f491) % own;
            Some((self.area.start + nth * depth + worker as u64, 1))
        })
    }
}

/// A random number generator (xorshift64*).
struct QuickstartRandom(u64);

impl QuickstartRandom {
    fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }
}

#[cfg(test)]
mod tests {
    use volume::{Geometry, MemVolume};

    use super::*;

    fn subject() -> Subject {
        // A volume of 16 Ki blocks of 512 bytes: 8 MiB.
        let volume = Arc::new(MemVolume::new(Geometry::with_blocks(16 << 10)));
        Subject { volume, ledger: Arc::new(QuickstartLedger::new(2048)) }
    }

    #[tokio::test]
    async fn every_kind_of_load_leaves_a_volume_that_verifies() {
        let subject = subject();
        subject.fill().await.unwrap();
        for part in QuickstartLoadKind::ALL {
            let measured = subject.run(part, Duration::from_millis(5)).await.unwrap();
            assert!(measured.operations > 0, "{part:?}");
            assert_eq!(measured.wrong, 0, "{part:?}");
            assert_eq!(measured.latency.len(), measured.operations);
        }
        assert_eq!(subject.ledger.acknowledged(), 2048);
        assert_eq!(subject.verify().await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_stream_writes_its_area_once() {
        let subject = subject();
        let measured = subject.run(QuickstartLoadKind::StreamWrite, Duration::ZERO).await.unwrap();
        assert_eq!(measured.operations, 512 / PIECE);
        assert_eq!(measured.bytes, 2 << 20);
        assert_eq!(subject.ledger.acknowledged(), 512);
    }

    #[tokio::test]
    async fn a_lost_write_is_seen() {
        let subject = subject();
        subject.fill().await.unwrap();
        let extent = Extent { lba: Lba(8 * 77), blocks: 8 };
        subject.volume.discard(extent).await.unwrap();
        assert_eq!(subject.verify().await.unwrap(), 1);
    }

    #[test]
    fn no_block_has_two_writers() {
        let places = QuickstartAddresses::new(QuickstartLoadKind::DurableWrites, 4096);
        let mut seen = std::collections::HashMap::new();
        for worker in 0..QuickstartLoadKind::DurableWrites.depth() {
            for (block, _) in places.of_worker(worker).take(1000) {
                assert_eq!(*seen.entry(block).or_insert(worker), worker);
                assert!(block < 2048);
            }
        }
    }
}
