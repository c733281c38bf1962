//! The cache as its users see it: a volume, a background driver, a clean end.

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
/// Must live inside a tokio runtime; [`Cache::run`] must be spawned in it, or nothing goes down.
pub struct Cache {
    shared: Arc<CacheCore>,
    /// The log is no longer ours to write to.
    exported: AtomicBool,
}

/// A point in the order of writes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WriteOrderMark(pub u64);

impl Cache {
    /// Opens the cache of a volume: recovers what the log and the NVRAM hold, or formats a log
    /// disk that is all zeros. Asks nothing of the lower volume but its geometry.
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

    /// Opens a cache on a log whose second half is at a partner gateway. The partner opens the log when this
    /// gateway is gone. A write that only one half has is acknowledged only after the lower volume has noted
    /// which half that is. With [`Settings::log_buffer`] each half has a [`crate::LogBuffer`] in front of its
    /// disk.
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
        // The partner may hang at its session with the node: which half is right decides, not who is there.
        let settings = Settings { takes_over: true, ..settings };
        let shared = open::open(settings, parts, &identity, Some(log), None).await?;
        Ok(Self::of(shared))
    }

    /// Asks the lower volume to know that the log is alone, if it is; see [`Cache::open_pair`].
    ///
    /// # Errors
    /// It does not answer, or the partner has taken over.
    pub async fn vouch(&self) -> Result<(), Error> {
        self.shared.vouch().await
    }

    /// The partner of a pair does not take over before `until`: reads are answered until then. Later only
    /// while the log is alone, and the lower volume knows; otherwise they get [`Error::Busy`].
    pub fn renew(&self, until: Instant) {
        if let Some(pair) = &self.shared.pair {
            pair.renew(until);
        }
    }

    /// Why it takes nothing any more, once it is shut out.
    ///
    /// # Errors
    /// [`Error::Fenced`].
    pub fn check(&self) -> Result<(), Error> {
        self.shared.lower.volume.look_at_claim();
        self.shared.lower.volume.check()
    }

    /// Whether a half that says this of itself may be filled: not one that somebody may have gone on with.
    pub fn may_rejoin(&self, label: Option<HalfLabel>) -> Result<(), &'static str> {
        self.shared.may_rejoin(label)
    }

    /// Whether a half that is to be filled has nothing that the log should have.
    ///
    /// # Errors
    /// What it has; or it cannot be read.
    pub async fn has_all_of(&self, half: &Stack) -> Result<(), String> {
        self.shared.has_all_of(half).await
    }

    /// Takes another device for a half of a pair's log, lost or not, and fills it.
    ///
    /// # Errors
    /// The other half does not hold everything, or the device cannot be a half.
    pub async fn rejoin(&self, half: usize, device: Stack) -> Result<(), MirrorError> {
        self.shared.rejoin(half, device).await
    }

    /// It takes nothing any more, from anybody, and writes nothing to its log: that is the partner's.
    pub fn abandon(&self, reason: &str) {
        self.shared.lower.volume.fence(&Error::Fenced(reason.into()));
        self.shared.state.lock().destage.is_stopping = true;
        self.shared.signals.wake_destage.notify_one();
        self.shared.signals.changed.notify_waiters();
    }

    /// Level 2 destage, scrubbing and writes of the read tier, until [`Cache::stop`]. To be spawned once, and
    /// not dropped while the cache is in use: a write to the lower volume that is given up in the middle may
    /// overtake a later one.
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

    /// Takes a local disk with blocks of 4096 bytes, used by nothing else, for a second read tier, once: it holds
    /// clean slots that leave memory. What it held before is void. Its failures are no errors here: they end
    /// the tier ([`TierStatistics::error`](crate::TierStatistics::error)).
    ///
    /// # Errors
    /// See [`TierError`].
    pub async fn use_tier(&self, disk: Stack) -> Result<(), TierError> {
        self.shared.use_tier(disk).await
    }

    /// Notes that the disk of the read tier cannot be used, and why.
    pub fn go_without_tier(&self, reason: Arc<str>) {
        self.shared.end_tier(Error::Device(reason));
    }

    /// Notes that the log's file was removed, cut short or replaced. From now on no write is
    /// acknowledged because it is in the log, and destage sends everything that can be read to the lower
    /// volume without waiting for idle moments. Events name the blocks that cannot be read. Hosts get
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
    /// byte. Returns false if a part of the log could not be read meanwhile: then only the next start uses it
    /// again.
    pub fn regain_log(&self) -> bool {
        self.shared.regain_log()
    }

    /// The id of the log, and how often it was opened.
    pub async fn instance(&self) -> (InstanceId, u64) {
        let superblock = self.shared.log.superblock.lock().await;
        (superblock.instance, superblock.generation)
    }

    /// Forgets what it has of a part of the volume, in bytes: whole slots, none of them dirty. False if
    /// one is; then it is forgotten in part. For who knows that the lower volume is changed by others.
    #[must_use]
    pub fn forget(&self, start: u64, length: u64) -> bool {
        self.shared.drop_clean(start, length)
    }

    /// The parts of so many bytes, numbered, of which there is dirty data, ascending.
    #[must_use]
    pub fn dirty_parts(&self, part_bytes: u64) -> Vec<u64> {
        self.shared.dirty_parts(part_bytes)
    }

    /// How the claim on the lower volume stands; refused, too, once its log is exported or the
    /// partner's.
    #[must_use]
    pub fn holding(&self) -> Holding {
        match self.check() {
            Err(Error::Fenced(reason)) => Holding::Refused(reason),
            _ => self.shared.lower.volume.holding(),
        }
    }

    /// Sends down what was acknowledged until now, and returns when the lower volume has it,
    /// stable. [`Cache::run`] does the work; while the lower volume is away, this waits.
    pub async fn drain(&self) -> Result<(), Error> {
        let mark = self.mark().await?;
        self.drain_to(mark).await
    }

    /// Returns a point after all writes acknowledged until now; where writes count with the next flush, after
    /// the last one.
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

    /// Whether the lower volume has everything; where writes count with the next flush, all that was
    /// flushed.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        let state = self.shared.state.lock();
        if self.shared.rules.epochs_end_by_flush {
            state.queue.ends.pending == 0 && state.epochs.oldest().is_none()
        } else {
            state.table.dirty() + state.queue.pending_slots() == 0
        }
    }

    /// Sends down all that is before a mark, without waiting for idle moments. [`Error::Busy`] at
    /// once while destage is held.
    pub async fn drain_to(&self, mark: WriteOrderMark) -> Result<(), Error> {
        self.shared.drain_to(mark.0).await
    }

    /// Gives the log so many blocks of 4096 bytes, superblocks included, while it is at work. Its disk
    /// has to have them already. Growing is done at once; shrinking waits for destage, and when it is
    /// done, the disk may lose what is beyond. Given up in the middle, a log that shrinks does not
    /// use all that it has, until it is asked again or opened again.
    ///
    /// # Errors
    /// See [`ResizeError`].
    pub async fn resize(&self, blocks: u64) -> Result<(), ResizeError> {
        self.shared.resize(blocks).await
    }

    /// How many blocks of 4096 bytes the log has.
    pub async fn log_blocks(&self) -> u64 {
        self.shared.log.superblock.lock().await.log_blocks
    }

    /// Begins nothing more at the lower volume until [`Cache::resume`]: writes go on into the log.
    /// What is on its way arrives. Lasts as long as this object.
    pub fn pause(&self) {
        self.order(|orders| _ = orders.paused_since.get_or_insert_with(Instant::now));
    }

    /// Ends a pause.
    pub fn resume(&self) {
        self.order(|orders| orders.paused_since = None);
    }

    /// Bytes per second that destage may send from now on; 0: none, `None`: as many as the link
    /// takes. Writes that go past a full log are not held up by it.
    pub fn set_destage_rate(&self, rate: Option<u64>) {
        self.order(|orders| orders.rate = rate);
    }

    fn order(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.shared.state.lock().destage.orders);
        self.shared.signals.wake_destage.notify_one();
        self.shared.signals.changed.notify_waiters();
    }

    /// Does something wrong from now on. A test has to notice that.
    #[cfg(feature = "mutation")]
    pub fn mutate(&self, mutant: Mutant) {
        self.shared.mutation.begin(mutant);
        self.shared.state.lock().tier.is_mutated = mutant == Mutant::TierKeepsOverwritten;
    }

    /// First sector and number of sectors of an extent, if it is inside the volume.
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

    /// Has destage look, if there is more of a lower volume than is used.
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
            // Segments of the log keep what was written until others take their place.
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
            // Those that are told early are done at once, as a rule.
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

/// One in so many calls that are done at once is timed, since reading the clock twice takes 70 ns.
const SAMPLED: u64 = 16;
/// Of writes that wait for the log disk, one in so many.
const SAMPLED_WAITING: u64 = 4;

#[cfg(test)]
mod tests {
    use std::{sync::atomic::Ordering, time::Duration};

    use tokio::time::timeout;
    use volume::{Claim, ExclusiveWriter, MemVolume};

    use super::*;
    use crate::LogVolumeIdentity;

    /// A far volume that grants the first claim, if any, and refuses the next.
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
    async fn a_fenced_pair_lets_nobody_wait_for_its_log() {
        let (mirror, cache) = open(true).await;
        let cache = cache.expect("opened");
        mirror.release(1).await.expect("lost");
        let write = cache.write(Lba(0), Data::zeros(4096), Durability::Stable);
        let written = timeout(Duration::from_secs(10), write).await.expect("it ends");
        assert!(written.is_err(), "{written:?}");
        // One that had passed every check, and was queued after that.
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
