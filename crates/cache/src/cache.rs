//! The cache as its users see it: a volume, a background task, and a clean stop.

mod ending;
mod extensions;
mod figures;

use std::sync::{Arc, atomic::AtomicBool};

use journal::identity::{InstanceId, LogVolumeIdentity};
use tokio::time::Instant;
use volume::{
    Data, Durability, Error, Extensions, Extent, Geometry, HalfLabel, Holding, Io, Lba, Mirror,
    MirrorError, Stack, Volume,
};

#[cfg(feature = "mutation")]
use crate::mutant::Mutant;
use crate::{
    confirm,
    core::CacheCore,
    destage, mode,
    open::{self, Parts},
    orders::Orders,
    refusal::CacheOpenError,
    resize::ResizeError,
    scrub,
    settings::Settings,
    slots::sectors::{SECTOR_BYTES, SLOT_BYTES},
    tiering::{self, TierError},
    write::HostWrite,
};

/// A persistent write-back cache in front of a volume.
///
/// The cache needs a tokio runtime, in which [`Cache::run`] must be spawned: otherwise no data is destaged.
pub struct Cache {
    shared: Arc<CacheCore>,
    /// True once the log was exported: it must not be written any more.
    exported: AtomicBool,
}

/// A point in the order of all writes to a cache, made by [`Cache::mark`]. [`Cache::drain_to`]
/// destages everything before it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WriteOrderMark(pub u64);

impl Cache {
    /// Opens the cache of a volume: recovers the content of log and NVRAM, or formats a log disk that is all
    /// zeros. Does not read or write the lower volume, but requests the claim on it.
    pub async fn open(
        settings: Settings,
        parts: Parts,
        identity: LogVolumeIdentity,
    ) -> Result<Arc<Self>, CacheOpenError> {
        let shared = open::open(settings, parts, &identity, None, None).await?;
        Ok(Self::of(shared))
    }

    pub(crate) fn of(shared: Arc<CacheCore>) -> Arc<Self> {
        Arc::new(Self { shared, exported: AtomicBool::new(false) })
    }

    pub(crate) fn shared(&self) -> &Arc<CacheCore> {
        &self.shared
    }

    /// Opens a cache on a log whose second leg is at a partner gateway. The partner opens the log when this
    /// gateway has failed. A write that only one leg has is acknowledged only after the lower volume has
    /// recorded which leg that is. With [`Settings::log_buffer`] each leg has a [`crate::LogBuffer`] in front
    /// of its disk.
    pub async fn open_pair(
        settings: Settings,
        lower: Stack,
        log: Arc<Mirror>,
        identity: LogVolumeIdentity,
    ) -> Result<Arc<Self>, CacheOpenError> {
        let parts = Parts { lower, log: Arc::clone(&log) as Stack, nvram: None };
        if !mode::fits_pair(&settings) {
            let why = "a pair reports after completion, in strict order, through its log only";
            return Err(CacheOpenError::Settings(why.into()));
        }
        // Take the claim over even if the partner still has a session with the node: only the legs decide
        // which gateway may open the log.
        let settings = Settings { takes_over: true, ..settings };
        let shared = open::open(settings, parts, &identity, Some(log), None).await?;
        Ok(Self::of(shared))
    }

    /// If the mirror is degraded, waits until the lower volume has granted that this gateway continues alone;
    /// see [`Cache::open_pair`].
    ///
    /// # Errors
    /// The lower volume does not answer, or the partner has taken over.
    pub async fn vouch(&self) -> Result<(), Error> {
        self.shared.vouch().await
    }

    /// Records that the partner of a pair does not take over before `until`: reads are answered until then.
    /// After that time, reads are answered only while the mirror is degraded and the lower volume has granted
    /// that this gateway continues alone; otherwise they get [`Error::Busy`].
    pub fn renew(&self, until: Instant) {
        if let Some(pair) = &self.shared.pair {
            pair.renew(until);
        }
    }

    /// Checks that the cache is not fenced.
    ///
    /// # Errors
    /// [`Error::Fenced`].
    pub fn check(&self) -> Result<(), Error> {
        self.shared.lower.volume.look_at_claim();
        self.shared.lower.volume.check()
    }

    /// Checks, by the label of a leg of the mirrored log, that the leg may be filled from the other one: the partner
    /// must not have used it alone.
    pub fn may_rejoin(&self, label: Option<HalfLabel>) -> Result<(), &'static str> {
        self.shared.may_rejoin(label)
    }

    /// Checks that a leg that is to be filled has no segments that this log lacks.
    ///
    /// # Errors
    /// The leg has such segments, or it cannot be read.
    pub async fn has_all_of(&self, half: &Stack) -> Result<(), String> {
        self.shared.has_all_of(half).await
    }

    /// Replaces a leg of a pair's log, lost or not, by `device`, and fills it.
    ///
    /// # Errors
    /// The other leg does not hold everything, or the device cannot be a leg.
    pub async fn rejoin(&self, half: usize, device: Stack) -> Result<(), MirrorError> {
        self.shared.rejoin(half, device).await
    }

    /// Fences the cache: all calls fail from now on, and it stops writing to its log, which the partner uses.
    pub fn abandon(&self, reason: &str) {
        self.shared.lower.volume.fence(&Error::Fenced(reason.into()));
        self.shared.state.lock().destage.is_stopping = true;
        self.shared.signals.wake_destage.notify_one();
        self.shared.signals.changed.notify_waiters();
    }

    /// Runs the background work of the cache until [`Cache::stop`]: destage from the log to the lower volume,
    /// scrubbing, writes to the read tier, and updates of the confirmed numbers. Spawn it once, and do not drop it
    /// while the cache is in use: a write to the lower volume that is dropped in the middle may overtake a later one.
    pub fn run(&self) -> impl Future<Output = ()> + Send + 'static {
        let destage = destage::run(Arc::clone(&self.shared));
        let scrub = scrub::run(Arc::clone(&self.shared));
        let tier = tiering::run(Arc::clone(&self.shared));
        let confirming = confirm::run(Arc::clone(&self.shared));
        async {
            tokio::select! {
                () = destage => {}
                () = scrub => {}
                () = tier => {}
                () = confirming => {}
            }
        }
    }

    /// Uses a local disk with blocks of 4096 bytes as a read tier: it holds clean slots that were evicted
    /// from memory. The disk must not be used otherwise. The former content of the disk is void. Call this
    /// once. An error of the disk ends the tier ([`TierStatistics::error`](crate::TierStatistics::error)) and
    /// is not returned here.
    ///
    /// # Errors
    /// See [`TierError`].
    pub async fn use_tier(&self, disk: Stack) -> Result<(), TierError> {
        self.shared.use_tier(disk).await
    }

    /// Records that the disk of the read tier cannot be used, and why.
    pub fn go_without_tier(&self, reason: Arc<str>) {
        self.shared.end_tier(Error::Device(reason));
    }

    /// Records that the log's file was removed, cut short or replaced. From now on a write is not
    /// acknowledged merely because it is in the log, and destage sends everything that can be read to the
    /// lower volume without waiting for idle periods. Events name the blocks that cannot be read. Hosts get
    /// `reason` in the error.
    pub fn lose_log(&self, reason: &str) {
        self.shared.lose_log(reason);
    }

    /// Returns true after [`Cache::lose_log`], until [`Cache::regain_log`] succeeds.
    #[must_use]
    pub fn has_lost_log(&self) -> bool {
        self.shared.state.lock().log.lost.is_some()
    }

    /// Ends the effect of [`Cache::lose_log`]. Call this when the same file has its name back and has lost no
    /// byte. Returns false if a part of the log could not be read meanwhile: then the log is used again only
    /// after the next start.
    pub fn regain_log(&self) -> bool {
        self.shared.regain_log()
    }

    /// Returns the instance id of the log and the number of times that the log was opened.
    pub async fn instance(&self) -> (InstanceId, u64) {
        let superblock = self.shared.log.superblock.lock().await;
        (superblock.instance, superblock.generation)
    }

    /// Removes a range of bytes from the cache: whole slots, none of them dirty. Returns false if a slot is
    /// dirty; then a part of the range was removed. Call this when another gateway is about to change the
    /// lower volume.
    #[must_use]
    pub fn forget(&self, start: u64, length: u64) -> bool {
        self.shared.drop_clean(start, length)
    }

    /// Divides the volume into parts of `part_bytes` bytes. Returns the numbers of the parts with dirty data,
    /// ascending.
    #[must_use]
    pub fn dirty_parts(&self, part_bytes: u64) -> Vec<u64> {
        self.shared.dirty_parts(part_bytes)
    }

    /// Returns the state of the claim on the lower volume. The state is also `Refused` after the log was
    /// exported, or was taken over by the partner.
    #[must_use]
    pub fn holding(&self) -> Holding {
        match self.check() {
            Err(Error::Fenced(reason)) => Holding::Refused(reason),
            _ => self.shared.lower.volume.holding(),
        }
    }

    /// Destages everything that was acknowledged until now. Returns when the data is stable in the lower
    /// volume. [`Cache::run`] does the work; while the lower volume does not answer, this waits.
    pub async fn drain(&self) -> Result<(), Error> {
        let mark = self.mark().await?;
        self.drain_to(mark).await
    }

    /// Returns a point after all writes acknowledged until now. In the mode in which writes become stable
    /// with the next flush, the point is after the last flush.
    pub async fn mark(&self) -> Result<WriteOrderMark, Error> {
        let shared = &self.shared;
        if shared.rules.epochs_end_by_flush {
            let flushed = shared.state.lock().queue.ends.last_serial;
            shared.committed(flushed).await?;
            return Ok(WriteOrderMark(shared.state.lock().epochs.end()));
        }
        shared.settle().await?;
        Ok(WriteOrderMark(shared.state.lock().log.ring.next() - 1))
    }

    /// Returns true if the lower volume has all acknowledged writes. In the mode in which writes become
    /// stable with the next flush, it must have all flushed writes.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        let state = self.shared.state.lock();
        if self.shared.rules.epochs_end_by_flush {
            state.queue.ends.pending == 0 && state.epochs.oldest().is_none()
        } else {
            state.table.dirty() + state.queue.pending_slots() == 0
        }
    }

    /// Destages everything before a mark, without waiting for idle periods. Returns [`Error::Busy`] at once
    /// if destage is held.
    pub async fn drain_to(&self, mark: WriteOrderMark) -> Result<(), Error> {
        self.shared.drain_to(mark.0).await
    }

    /// Changes the size of the log to `blocks` blocks of 4096 bytes, superblocks included, while it is in
    /// use. The log disk must have that many blocks already. A larger size takes effect at once. A smaller
    /// one waits for destage; when this returns, the blocks beyond may be removed from the disk. A shrink
    /// that was dropped in the middle leaves some blocks unused, until it is requested again or the log is
    /// opened again.
    ///
    /// # Errors
    /// See [`ResizeError`].
    pub async fn resize(&self, blocks: u64) -> Result<(), ResizeError> {
        self.shared.resize(blocks).await
    }

    pub async fn log_blocks(&self) -> u64 {
        self.shared.log.superblock.lock().await.log_blocks
    }

    /// Pauses destage until [`Cache::resume`], at most until the cache is closed: writes still go into the
    /// log. Calls to the lower volume that are in flight are completed.
    pub fn pause(&self) {
        self.order(|orders| _ = orders.paused_since.get_or_insert_with(Instant::now));
    }

    pub fn resume(&self) {
        self.order(|orders| orders.paused_since = None);
    }

    /// Sets how many bytes per second destage may send from now on. With 0 no data is sent; `None` means no
    /// limit. Writes that bypass a full log are not limited.
    pub fn set_destage_rate(&self, rate: Option<u64>) {
        self.order(|orders| orders.rate = rate);
    }

    fn order(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.shared.state.lock().destage.orders);
        self.shared.signals.wake_destage.notify_one();
        self.shared.signals.changed.notify_waiters();
    }

    /// Switches on a deliberate fault, which the tests have to detect.
    #[cfg(feature = "mutation")]
    pub fn mutate(&self, mutant: Mutant) {
        self.shared.mutation.begin(mutant);
        self.shared.state.lock().tier.is_mutated = mutant == Mutant::TierKeepsOverwritten;
    }

    /// Returns the first sector and the number of sectors of an extent. Fails if it is not inside the volume.
    fn sectors(&self, extent: Extent) -> Result<(u64, u64), Error> {
        let end = extent.lba.0.checked_add(u64::from(extent.blocks));
        let last = self.shared.lower.extents.end(extent.lba.0);
        if extent.blocks == 0 || end.is_none_or(|end| end > last) {
            return Err(Error::OutOfRange(extent));
        }
        let factor = self.shared.lower.sectors_per_block();
        Ok((extent.lba.0 * factor, u64::from(extent.blocks) * factor))
    }

    fn writable(&self) -> Result<(), Error> {
        if self.shared.lower.opened.read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }

    fn count(&self, lba: Lba) {
        self.shared.counters.requests.add(1);
        self.notice_growth(self.shared.lower.extents.place(lba.0));
    }

    /// Wakes destage if the lower volume number `place` has become larger than the part of it that the cache uses.
    fn notice_growth(&self, place: usize) {
        if self.shared.has_grown(place) {
            self.shared.signals.wake_destage.notify_one();
        }
    }
}

impl Volume for Cache {
    fn geometry(&self) -> Geometry {
        let shared = &self.shared;
        Geometry {
            physical_block_size: shared.lower.opened.physical_block_size.max(SLOT_BYTES as u32),
            volatile_cache: shared.rules.is_volatile,
            epoch_blocks: shared.limits.epoch_slots * shared.lower.blocks_per_slot(),
            atomic_blocks: 0,
            key_erasable: false,
            // A write does not overwrite the log's older copy of a block, so the older data stays readable on the log
            // disk.
            in_place: false,
            ..shared.lower.present_geometry()
        }
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        self.count(extent.lba);
        let counters = &self.shared.counters;
        let number = counters.traffic.reads.add(1);
        let range = self.shared.readable().and_then(|()| self.sectors(extent));
        let (sector, sectors) = match range {
            Ok(range) => range,
            Err(error) => return Io::done(Err(error)),
        };
        counters.traffic.read_bytes.add(sectors * SECTOR_BYTES as u64);
        let begun = number.is_multiple_of(SAMPLED).then(Instant::now);
        let (hit, purpose) = self.shared.begin_read(sector, sectors);
        match hit {
            Some(data) => {
                if let Some(begun) = begun {
                    self.shared.times.reads.add(begun.elapsed(), SAMPLED);
                }
                Io::done(Ok(data))
            }
            None => Io::new(async move {
                let begun = begun.unwrap_or_else(Instant::now);
                let data = self.shared.read(sector, sectors, purpose).await;
                self.shared.times.reads.add(begun.elapsed(), 1);
                data
            }),
        }
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        self.count(lba);
        let number = self.shared.counters.traffic.writes.add(1);
        self.shared.counters.traffic.written_bytes.add(data.len() as u64);
        Io::new(async move {
            let block = self.shared.lower.opened.block_size as usize;
            let blocks = u32::try_from(data.len() / block).unwrap_or(0);
            let (sector, _) = self.sectors(Extent { lba, blocks })?;
            self.shared.lower.volume.check()?;
            self.writable()?;
            // In the modes that acknowledge before the log disk has the data, a write usually returns at
            // once, so only one in `SAMPLED` is measured.
            let is_early = self.shared.rules.is_early();
            let weight = if is_early { SAMPLED } else { SAMPLED_WAITING };
            let begun = number.is_multiple_of(weight).then(Instant::now);
            let write = HostWrite { sector, data, durability, has_begun: false };
            let written = mode::write(&self.shared, write).await;
            if durability == Durability::Stable {
                self.shared.confirm();
            }
            if let Some(begun) = begun {
                self.shared.times.writes.add(begun.elapsed(), weight);
            }
            written
        })
    }

    fn flush(&self) -> Io<'_, ()> {
        self.count(Lba(0));
        self.shared.counters.traffic.flushes.add(1);
        if let Err(error) = self.shared.lower.volume.check() {
            return Io::done(Err(error));
        }
        match mode::begin_flush(&self.shared) {
            Err(error) => return Io::done(Err(error)),
            Ok(true) => {}
            Ok(false) => {
                self.shared.confirm();
                return Io::done(Ok(()));
            }
        }
        Io::new(async move {
            let begun = Instant::now();
            let flushed = mode::flush(&self.shared).await;
            self.shared.times.flushes.add(begun.elapsed(), 1);
            flushed
        })
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        self.count(extent.lba);
        self.shared.counters.traffic.discards.add(1);
        Io::new(async move {
            let (sector, sectors) = self.sectors(extent)?;
            self.shared.lower.volume.check()?;
            self.writable()?;
            let begun = Instant::now();
            let discarded = mode::discard(&self.shared, sector, sectors).await;
            self.shared.times.discards.add(begun.elapsed(), 1);
            discarded
        })
    }

    fn admit(&self, bytes: usize) -> Result<(), Error> {
        self.shared.lower.volume.check()?;
        mode::admit(&self.shared, bytes)
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions {
            provisioning: Some(self),
            resizable: Some(self),
            rollback: Some(self),
            flushed_reads: Some(self),
            writer: Some(self),
            ..Extensions::default()
        }
    }
}

/// One in this many calls that return at once is measured, since reading the clock twice takes 70 ns.
const SAMPLED: u64 = 16;
/// Measure the waiting time of one in this number of the writes that wait for the log disk.
const SAMPLED_WAITING: u64 = 4;

#[cfg(test)]
mod tests {
    use std::{sync::atomic::Ordering, time::Duration};

    use tokio::time::timeout;
    use volume::{Claim, ExclusiveWriter, MemVolume};

    use super::*;
    use crate::LogVolumeIdentity;

    /// A far volume that grants the first claim, if it supports claims, and refuses later ones.
    struct Node {
        memory: MemVolume,
        keeps_claims: bool,
        is_asked: AtomicBool,
    }

    impl Volume for Node {
        fn geometry(&self) -> Geometry {
            self.memory.geometry()
        }

        fn read(&self, extent: Extent) -> Io<'_, Data> {
            self.memory.read(extent)
        }

        fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
            self.memory.write(lba, data, durability)
        }

        fn flush(&self) -> Io<'_, ()> {
            self.memory.flush()
        }

        fn discard(&self, extent: Extent) -> Io<'_, ()> {
            self.memory.discard(extent)
        }

        fn admit(&self, _: usize) -> Result<(), Error> {
            Ok(())
        }

        fn extensions(&self) -> Extensions<'_> {
            Extensions { writer: Some(self), ..Extensions::default() }
        }
    }

    impl ExclusiveWriter for Node {
        fn claim(&self, _claim: Claim) -> Io<'_, Holding> {
            let holding = if !self.keeps_claims {
                Holding::Unsupported
            } else if self.is_asked.swap(true, Ordering::Relaxed) {
                Holding::Refused("the partner has it".into())
            } else {
                Holding::Held
            };
            Io::done(Ok(holding))
        }

        fn holding(&self) -> Holding {
            Holding::Unsupported
        }

        fn release(&self) -> Io<'_, ()> {
            Io::done(Ok(()))
        }
    }

    async fn open(keeps_claims: bool) -> (Arc<Mirror>, Result<Arc<Cache>, CacheOpenError>) {
        let geometry = Geometry { block_size: 4096, ..Geometry::with_blocks(402) };
        let half = || Some(Arc::new(MemVolume::new(geometry)) as Stack);
        let mirror = Mirror::open([half(), half()], [1; 16], false).await.expect("a mirror");
        let mirror = Arc::new(mirror);
        let memory = MemVolume::new(Geometry::with_blocks(2048));
        let node = Arc::new(Node { memory, keeps_claims, is_asked: false.into() });
        let identity = LogVolumeIdentity { name: "far".into(), geometry: node.geometry() };
        let settings = Settings {
            dram_bytes: 1 << 20,
            nvram_bytes: 256 << 10,
            segment_slots: 8,
            ..Settings::default()
        };
        let cache = Cache::open_pair(settings, node, Arc::clone(&mirror), identity).await;
        (mirror, cache)
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_at_a_fenced_pair_fails_and_does_not_wait_for_the_log() {
        let (mirror, cache) = open(true).await;
        let cache = cache.expect("opened");
        mirror.release(1).await.expect("lost");
        let write = cache.write(Lba(0), Data::zeros(4096), Durability::Stable);
        let written = timeout(Duration::from_secs(10), write).await.expect("it ends");
        assert!(written.is_err(), "{written:?}");
        // Simulate a write that has passed every check, and was queued after the cache was fenced.
        let shared = &cache.shared;
        let serial = {
            let mut state = shared.state.lock();
            state.commits.serial += 1;
            state.commits.serial
        };
        let late = timeout(Duration::from_secs(60), shared.committed(serial)).await;
        assert!(matches!(late, Ok(Err(Error::Fenced(_)))), "{late:?}");
    }

    #[tokio::test]
    async fn a_pair_over_a_volume_that_keeps_no_claims_is_not_opened() {
        let (_mirror, cache) = open(false).await;
        assert!(matches!(cache.map(drop), Err(CacheOpenError::NoWitness)));
    }
}
