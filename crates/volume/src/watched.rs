//! Records which blocks have changed, for a copy of a volume that is in use (a move to another node).
//!
//! While there is no watcher, a call costs one additional check of a flag. While there is one, each
//! change runs to its end even if its caller drops it, and is recorded when it has ended. A copier that
//! takes a changed region and then reads it therefore gets all writes that were acknowledged before.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    Data, Durability, EpochRollback, Error, Extensions, Extent, Geometry, Io, Lba, Stack, Volume,
};

/// A volume whose changes can be watched. While they are watched, it needs a tokio runtime.
pub struct Watched {
    lower: Stack,
    is_watching: AtomicBool,
    changes: Mutex<Option<Arc<ChangedRegions>>>,
}

/// Marks the regions of a volume in which blocks have changed. The watcher reads and clears the marks.
#[derive(Debug)]
pub struct ChangedRegions {
    region_blocks: u64,
    blocks: u64,
    block_size: u32,
    /// One bit for each region, set if blocks in it have changed.
    marks: Vec<AtomicU64>,
    /// Number of writes and discards in progress.
    under_way: AtomicUsize,
    ended: Notify,
    /// Each write or discard is delayed by this number of microseconds before it begins.
    delay_us: AtomicU64,
}

/// The size of a region in bytes. A change of one block marks its whole region, which the copier then copies again, so
/// a region is small. The marks of a volume of 1 TiB take 2 MiB.
const REGION_BYTES: u64 = 64 << 10;

impl Watched {
    /// Puts a layer without a watcher in front of `lower`.
    #[must_use]
    pub fn new(lower: Stack) -> Self {
        Self { lower, is_watching: AtomicBool::new(false), changes: Mutex::default() }
    }

    /// Starts to record changes. Call this while no change is in progress: a change that began earlier is
    /// not recorded.
    pub fn watch(&self) -> Arc<ChangedRegions> {
        let changes = Arc::new(ChangedRegions::new(&self.lower.geometry()));
        *self.changes.lock() = Some(Arc::clone(&changes));
        self.is_watching.store(true, Ordering::Release);
        changes
    }

    /// Stops recording changes. Discards the marks that [`ChangedRegions::take`] has not returned yet.
    pub fn unwatch(&self) {
        self.is_watching.store(false, Ordering::Release);
        *self.changes.lock() = None;
    }

    /// Returns the volume below, from which the copier reads.
    #[must_use]
    pub fn below(&self) -> &Stack {
        &self.lower
    }

    fn watcher(&self) -> Option<Arc<ChangedRegions>> {
        self.is_watching.load(Ordering::Acquire).then(|| self.changes.lock().clone()).flatten()
    }

    /// Runs a write or discard of these blocks to its end, and records in `changes` that it has changed them.
    fn follow<'a, F>(
        &self,
        changes: Arc<ChangedRegions>,
        blocks: Range<u64>,
        change: F,
    ) -> Io<'a, ()>
    where
        F: FnOnce(Stack) -> Io<'static, ()> + Send + 'static,
    {
        let lower = Arc::clone(&self.lower);
        let call = WatchedChange::begin(changes, blocks);
        Io::new(async move {
            let running = tokio::spawn(async move {
                let delay = call.changes.delay_us.load(Ordering::Relaxed);
                if delay > 0 {
                    tokio::time::sleep(Duration::from_micros(delay)).await;
                }
                let result = change(lower).await;
                drop(call);
                result
            });
            let ended = running.await;
            ended.unwrap_or_else(|_| {
                Err(Error::Device("the volume was closed during the call".into()))
            })
        })
    }
}

impl ChangedRegions {
    fn new(geometry: &Geometry) -> Self {
        let region_blocks = REGION_BYTES / u64::from(geometry.block_size);
        let regions = geometry.blocks.div_ceil(region_blocks);
        Self {
            region_blocks,
            blocks: geometry.blocks,
            block_size: geometry.block_size,
            marks: (0..regions.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            under_way: AtomicUsize::new(0),
            ended: Notify::new(),
            delay_us: AtomicU64::new(0),
        }
    }

    /// Marks these blocks as changed; ignores blocks that did not exist when the watch began.
    pub fn mark(&self, blocks: Range<u64>) {
        let end = blocks.end.min(self.blocks);
        let mut region = blocks.start / self.region_blocks;
        while region * self.region_blocks < end {
            self.marks[(region / 64) as usize].fetch_or(1 << (region % 64), Ordering::AcqRel);
            region += 1;
        }
    }

    /// Returns the next changed blocks from `from` on, at most `most_bytes` bytes but at least one
    /// region, and removes their marks. The caller must read the blocks after this call.
    pub fn take(&self, from: Lba, most_bytes: u64) -> Option<Extent> {
        let regions = self.blocks.div_ceil(self.region_blocks);
        let mut region = from.0.div_ceil(self.region_blocks);
        while region < regions && !self.take_one(region) {
            // Skip 64 regions at once if no bit of them is set.
            let is_clear = self.marks[(region / 64) as usize].load(Ordering::Acquire) == 0;
            region = if is_clear { (region / 64 + 1) * 64 } else { region + 1 };
        }
        if region >= regions {
            return None;
        }
        let most = (most_bytes / REGION_BYTES).max(1);
        let mut end = region + 1;
        while end < regions && end - region < most && self.take_one(end) {
            end += 1;
        }
        let lba = region * self.region_blocks;
        let blocks = (end * self.region_blocks).min(self.blocks) - lba;
        Some(Extent { lba: Lba(lba), blocks: blocks as u32 })
    }

    fn take_one(&self, region: u64) -> bool {
        let (word, bit) = (&self.marks[(region / 64) as usize], 1 << (region % 64));
        word.load(Ordering::Acquire) & bit != 0 && word.fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// Returns the total size of the changed regions, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let marked: u64 = self
            .marks
            .iter()
            .map(|word| u64::from(word.load(Ordering::Acquire).count_ones()))
            .sum();
        (marked * REGION_BYTES).min(self.blocks * u64::from(self.block_size))
    }

    /// Returns true if no region has changed and no change is in progress.
    #[must_use]
    pub fn is_still(&self) -> bool {
        self.under_way.load(Ordering::Acquire) == 0 && self.bytes() == 0
    }

    /// Sets the delay of each change before it begins, so that the copier can catch up.
    pub fn slow_down(&self, delay: Duration) {
        self.delay_us.store(delay.as_micros() as u64, Ordering::Relaxed);
    }

    /// Waits until no change is in progress.
    pub async fn settle(&self) {
        loop {
            let ended = self.ended.notified();
            if self.under_way.load(Ordering::Acquire) == 0 {
                return;
            }
            ended.await;
        }
    }
}

/// A change in progress. When dropped, it marks its blocks as changed, whether it succeeded or not.
struct WatchedChange {
    changes: Arc<ChangedRegions>,
    blocks: Range<u64>,
}

impl WatchedChange {
    fn begin(changes: Arc<ChangedRegions>, blocks: Range<u64>) -> Self {
        changes.under_way.fetch_add(1, Ordering::AcqRel);
        Self { changes, blocks }
    }
}

impl Drop for WatchedChange {
    fn drop(&mut self) {
        self.changes.mark(self.blocks.clone());
        self.changes.under_way.fetch_sub(1, Ordering::AcqRel);
        self.changes.ended.notify_waiters();
    }
}

fn range(extent: Extent) -> Range<u64> {
    extent.lba.0..extent.end().0
}

impl Volume for Watched {
    fn geometry(&self) -> Geometry {
        self.lower.geometry()
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        self.lower.read(extent)
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        let Some(changes) = self.watcher() else {
            return self.lower.write(lba, data, durability);
        };
        match self.lower.geometry().check_write(lba, data.len()) {
            Ok(extent) => self.follow(changes, range(extent), move |lower| {
                Io::new(async move { lower.write(lba, data, durability).await })
            }),
            Err(error) => Io::done(Err(error)),
        }
    }

    fn flush(&self) -> Io<'_, ()> {
        self.lower.flush()
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        match self.watcher() {
            Some(changes) => self.follow(changes, range(extent), move |lower| {
                Io::new(async move { lower.discard(extent).await })
            }),
            None => self.lower.discard(extent),
        }
    }

    fn admit(&self, bytes: usize) -> Result<(), Error> {
        self.lower.admit(bytes)
    }

    fn extensions(&self) -> Extensions<'_> {
        let below = self.lower.extensions();
        Extensions { rollback: below.rollback.and(Some(self)), ordered_flush: None, ..below }
    }
}

impl EpochRollback for Watched {
    fn roll_back(&self) -> Io<'_, ()> {
        let Some(changes) = self.watcher() else { return self.lower.extensions().roll_back() };
        self.follow(changes, 0..u64::MAX, |lower| {
            Io::new(async move { lower.extensions().roll_back().await })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FaultCallKind as Kind, FaultRule, FaultVolume, MemVolume, Symptom};

    const REGION: u64 = REGION_BYTES / 512;

    fn extent(lba: u64, blocks: u64) -> Extent {
        Extent { lba: Lba(lba), blocks: blocks as u32 }
    }

    /// Takes all changed blocks, in extents of at most four regions.
    fn taken(changes: &ChangedRegions) -> Vec<Extent> {
        let mut from = Lba(0);
        let next = || {
            let extent = changes.take(from, 4 * REGION_BYTES)?;
            from = extent.end();
            Some(extent)
        };
        std::iter::from_fn(next).collect()
    }

    async fn write(volume: &Watched, lba: u64, byte: u8) {
        let data = Data::from(vec![byte; 512]);
        volume.write(Lba(lba), data, Durability::Volatile).await.unwrap();
    }

    #[tokio::test]
    async fn each_changed_region_is_reported_once_and_as_a_whole() {
        let lower = Arc::new(MemVolume::new(Geometry::with_blocks(200 * REGION + 5)));
        let volume = Watched::new(lower);
        write(&volume, 0, 1).await;
        let changes = volume.watch();
        assert!(changes.is_still());
        for lba in [3 * REGION, 3 * REGION + 1, 4 * REGION, 100 * REGION - 1, 200 * REGION + 4] {
            write(&volume, lba, 1).await;
        }
        volume.discard(extent(5 * REGION, 3 * REGION)).await.unwrap();
        assert_eq!(changes.bytes(), 7 * REGION_BYTES);
        assert_eq!(
            taken(&changes),
            [
                extent(3 * REGION, 4 * REGION),
                extent(7 * REGION, REGION),
                extent(99 * REGION, REGION),
                extent(200 * REGION, 5)
            ]
        );
        assert!(changes.is_still());
        changes.mark(0..u64::MAX);
        assert_eq!(changes.bytes(), (200 * REGION + 5) * 512);
        volume.unwatch();
        write(&volume, 0, 2).await;
    }

    /// The caller drops its write before the write reaches the volume below. The write must be recorded
    /// when it is performed: a copier that has copied the region before would otherwise not copy it
    /// again.
    #[tokio::test(start_paused = true)]
    async fn a_write_whose_caller_dropped_it_is_recorded_when_it_is_performed() {
        let lower: Stack = Arc::new(MemVolume::new(Geometry::with_blocks(16 * REGION)));
        let slow = crate::Latency { write: Duration::from_secs(1), ..crate::Latency::default() };
        let volume = Watched::new(Arc::new(crate::DelayVolume::new(Arc::clone(&lower), slow)));
        let changes = volume.watch();
        let data = Data::from(vec![9; 512]);
        let call = volume.write(Lba(0), data, Durability::Volatile);
        assert!(tokio::time::timeout(Duration::from_millis(10), call).await.is_err());
        assert!(!changes.is_still() && changes.bytes() == 0);
        changes.settle().await;
        assert_eq!(taken(&changes), [extent(0, REGION)]);
        let read = lower.read(extent(0, 1)).await.unwrap();
        assert_eq!(read.into_bytes()[0], 9, "it runs to its end");
    }

    #[tokio::test]
    async fn a_failed_write_is_recorded_as_a_change() {
        let lower = FaultVolume::new(Arc::new(MemVolume::new(Geometry::with_blocks(16 * REGION))));
        lower.faults().add(FaultRule::always(Kind::Write, Symptom::Fails(Error::NoSpace)));
        let volume = Watched::new(Arc::new(lower));
        let changes = volume.watch();
        let data = Data::from(vec![9; 512]);
        assert!(volume.write(Lba(0), data, Durability::Volatile).await.is_err());
        assert_eq!(taken(&changes), [extent(0, REGION)]);
    }
}
