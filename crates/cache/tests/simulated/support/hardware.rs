//! The hardware of a gateway: a log disk, a far volume behind a slow link, an NVRAM and a read tier, on one
//! power supply.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use cache::{
    Cache, ConfirmedIn, ConfirmedStore, ConfirmedWrites, InstanceId, Mutant, StableMemory,
    length_for,
};
use parking_lot::Mutex;
use sim::{CrashVolume, FlushGuarantee, Outage, Power, Rng, StableDiskImage};
use tokio::time::Instant;
use volume::{Data, Durability, Error, Extensions, Extent, Geometry, Io, Lba, Stack, Volume};

use super::tier::Rotting;

/// A deliberate fault, such as a sync that is left out. The simulator must notice it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mutation {
    None,
    /// Fault to detect: the log disk acknowledges stable writes that are not stable.
    LogNotStable,
    /// Fault to detect: the lower volume acknowledges flushes and stable writes that are not stable, as if the tail of
    /// the log were moved before the flush.
    LowerNotFlushed,
    /// Fault to detect: the superblock is written without waiting until it is stable.
    SuperblockNotStable,
    /// Fault to detect: when a cache is opened, the log is not flushed before new segments follow.
    OpeningNotFlushed,
    /// Fault to detect: the frames of the log's index are written without waiting for them to be stable.
    IndexNotStable,
    RoundNotFlushed,
    /// Fault to detect: a discard that bypassed the log is not flushed.
    DiscardNotFlushed,
    /// Fault to detect: a write that bypasses the log is acknowledged before it is stable.
    BypassNotStable,
    /// Fault to detect: the NVRAM loses its content.
    NvramForgets,
    /// The cache itself has a fault.
    Cache(Mutant),
}

impl Mutation {
    /// Switches the fault on in the cache, unless it is a fault of the hardware.
    pub fn mutate(self, cache: &Cache) {
        if let Self::Cache(mutant) = self {
            cache.mutate(mutant);
        }
    }
}

/// A function that checks the content of the lower volume.
pub type Observer = Arc<dyn Fn(&StableDiskImage) + Send + std::marker::Sync>;

/// The contents of all devices after a run has ended.
pub struct Remains {
    log: CrashVolume,
    lower: CrashVolume,
    pub nvram: Vec<u8>,
    tier: Arc<Rotting>,
    confirmed: Arc<Confirmed>,
}

impl Remains {
    pub fn lower_contents(&self) -> StableDiskImage {
        self.lower.contents()
    }
}

/// The way in which a run ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum End {
    /// The gateway and the far volume lose their power.
    Power,
    /// Only the gateway loses its power; the far volume keeps its volatile data.
    NearPower,
    /// Only the process is killed: all disks keep their volatile data.
    Kill,
}

pub struct Hardware {
    pub power: Arc<Power>,
    log: Arc<CrashVolume>,
    lower: Arc<CrashVolume>,
    nvram: Arc<Mutex<NvramState>>,
    /// The log disk fails writes until this time.
    log_fails: Arc<Mutex<Option<Instant>>>,
    tier: Arc<Rotting>,
    confirmed: Arc<Confirmed>,
    mutation: Mutation,
    delay: Duration,
    log_delay: Duration,
    observer: Option<Observer>,
    seed: u64,
}

struct NvramState {
    bytes: Vec<u8>,
    writes: u64,
    /// Number of NVRAM writes that complete; the power fails in the middle of the next one.
    last: u64,
    rng: Rng,
}

impl Hardware {
    pub fn new(lower: Geometry, log_blocks: u64, nvram_slots: u64, seed: u64) -> Self {
        let log = Geometry { block_size: 4096, ..Geometry::with_blocks(log_blocks) };
        Self::assemble(
            CrashVolume::new(log, seed),
            CrashVolume::new(lower, seed + 1),
            vec![0; length_for(nvram_slots) as usize],
            // The tier has few slots, so that it wraps around. One block in ten is corrupt.
            Rotting::new(TIER_SLOTS, 10, seed),
            Arc::default(),
            seed,
        )
    }

    pub fn reopen(remains: Remains, seed: u64) -> Self {
        let (log, lower) = (remains.log.goes_on(seed), remains.lower.goes_on(seed + 1));
        Self::assemble(log, lower, remains.nvram, remains.tier, remains.confirmed, seed)
    }

    fn assemble(
        log: CrashVolume,
        lower: CrashVolume,
        nvram: Vec<u8>,
        tier: Arc<Rotting>,
        confirmed: Arc<Confirmed>,
        seed: u64,
    ) -> Self {
        let power = Power::new();
        let wire =
            |disk: CrashVolume| disk.powered_by(&power).with_outage(Outage::Hangs).with_yields(30);
        let nvram = NvramState { bytes: nvram, writes: 0, last: u64::MAX, rng: Rng::new(seed + 2) };
        Self {
            log: Arc::new(wire(log)),
            lower: Arc::new(wire(lower)),
            nvram: Arc::new(Mutex::new(nvram)),
            log_fails: Arc::default(),
            tier,
            confirmed,
            power,
            mutation: Mutation::None,
            delay: Duration::ZERO,
            log_delay: Duration::ZERO,
            observer: None,
            seed,
        }
    }

    /// Sets a function that is called after each flush of the lower volume.
    pub fn observed(mut self, observer: Observer) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Injects a fault. Must be called before the first operation.
    pub fn mutated(mut self, mutation: Mutation) -> Self {
        self.mutation = mutation;
        let ignore = |disk: &mut Arc<CrashVolume>, power: &Arc<Power>| {
            let image = disk.contents();
            *disk = Arc::new(
                CrashVolume::reopen(image, self.seed)
                    .powered_by(power)
                    .with_outage(Outage::Hangs)
                    .with_yields(30)
                    .with_sync(FlushGuarantee::Ignored),
            );
        };
        match mutation {
            Mutation::LogNotStable => ignore(&mut self.log, &self.power),
            Mutation::LowerNotFlushed => ignore(&mut self.lower, &self.power),
            _ => {}
        }
        self
    }

    /// Sets the time that each call takes on the link to the lower volume and on the log disk.
    pub fn with_delays(mut self, delay: Duration, log_delay: Duration) -> Self {
        (self.delay, self.log_delay) = (delay, log_delay);
        self
    }

    /// Makes the log disk fail writes for this time. The data may be written all the same.
    pub fn fail_log(&self, lasts: Duration) {
        *self.log_fails.lock() = Some(Instant::now() + lasts);
    }

    pub fn log(&self) -> Stack {
        Arc::new(LogDisk {
            disk: Arc::clone(&self.log),
            fails: Arc::clone(&self.log_fails),
            mutation: self.mutation,
            delay: self.log_delay,
            rng: Mutex::new(Rng::new(self.seed + 4)),
        })
    }

    pub fn lower(&self) -> Stack {
        Arc::new(Remote {
            disk: Arc::clone(&self.lower),
            delay: self.delay,
            mutation: self.mutation,
            discarded: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            observer: self.observer.clone(),
            rng: Mutex::new(Rng::new(self.seed + 3)),
        })
    }

    /// Returns a second reference to the same devices, for a caller that must not hold a lock on them.
    pub fn twin(&self) -> Self {
        Self {
            power: Arc::clone(&self.power),
            log: Arc::clone(&self.log),
            lower: Arc::clone(&self.lower),
            nvram: Arc::clone(&self.nvram),
            log_fails: Arc::clone(&self.log_fails),
            tier: Arc::clone(&self.tier),
            confirmed: Arc::clone(&self.confirmed),
            mutation: self.mutation,
            delay: self.delay,
            log_delay: self.log_delay,
            observer: self.observer.clone(),
            seed: self.seed,
        }
    }

    pub fn nvram(&self) -> Box<dyn StableMemory> {
        Box::new(Nvram { state: Arc::clone(&self.nvram), power: Arc::clone(&self.power) })
    }

    /// Returns the disk of the read tier. It survives every end, because a restart does not use its content.
    pub fn tier(&self) -> Stack {
        Arc::clone(&self.tier) as Stack
    }

    /// Returns the numbers of disk operations and of NVRAM writes.
    pub fn operations(&self) -> (u64, u64) {
        (self.power.operations(), self.nvram.lock().writes)
    }

    /// Makes the power fail in the middle of the NVRAM write after `writes` complete ones.
    pub fn fail_nvram_after(&self, writes: u64) {
        self.nvram.lock().last = writes;
    }

    pub fn lower_contents(&self) -> StableDiskImage {
        self.lower.contents()
    }

    /// Ends the run with this failure, and returns the contents that the devices keep.
    pub fn end(&self, end: End, rng: &mut Rng) -> Remains {
        self.power.fail();
        let left = |disk: &CrashVolume, keeps: bool, rng: &mut Rng| match keeps {
            true => disk.goes_on(self.seed),
            false => CrashVolume::reopen(disk.crash(rng), self.seed),
        };
        let mut nvram = self.nvram.lock().bytes.clone();
        if self.mutation == Mutation::NvramForgets {
            // Erase everything except the header: this is the worst loss that is not noticed at once.
            nvram[4096..].fill(0);
        }
        Remains {
            log: left(&self.log, end == End::Kill, rng),
            lower: left(&self.lower, end != End::Power, rng),
            nvram,
            tier: Arc::clone(&self.tier),
            confirmed: Arc::clone(&self.confirmed),
        }
    }

    /// Returns a store of confirmed numbers that loses nothing at any kind of end: the strictest possible store.
    pub fn confirmed(&self) -> ConfirmedIn {
        let (confirmed, power) = (Arc::clone(&self.confirmed), Arc::clone(&self.power));
        ConfirmedIn(Arc::new(Powered { confirmed, power }))
    }
}

/// The newest confirmed numbers of each log.
type Confirmed = Mutex<Vec<(InstanceId, ConfirmedWrites)>>;

struct Powered {
    confirmed: Arc<Confirmed>,
    power: Arc<Power>,
}

impl ConfirmedStore for Powered {
    fn recall(&self, instance: InstanceId) -> Result<Option<ConfirmedWrites>, String> {
        let mut confirmed = self.confirmed.lock();
        let at = confirmed.iter().position(|(other, _)| *other == instance);
        let found = at.map(|at| confirmed.remove(at).1);
        // The last entry belongs to the log that is open.
        confirmed.push((instance, found.unwrap_or_default()));
        Ok(found)
    }

    fn note(&self, noted: ConfirmedWrites) {
        // After the power failure no number is recorded, and no call is acknowledged.
        if !self.power.is_off()
            && let Some((_, last)) = self.confirmed.lock().last_mut()
        {
            *last = noted;
        }
    }

    fn sync(&self) {}
}

struct Nvram {
    state: Arc<Mutex<NvramState>>,
    power: Arc<Power>,
}

impl StableMemory for Nvram {
    fn len(&self) -> usize {
        self.state.lock().bytes.len()
    }

    fn read(&self, offset: usize, to: &mut [u8]) {
        to.copy_from_slice(&self.state.lock().bytes[offset..offset + to.len()]);
    }

    fn write(&mut self, offset: usize, from: &[u8]) {
        let mut state = self.state.lock();
        if self.power.is_off() {
            return;
        }
        let mut kept = from.len();
        if state.writes >= state.last {
            // The power failure keeps a random number of the first bytes of this write.
            kept = state.rng.below(kept as u64 + 1) as usize;
            self.power.fail();
        }
        state.writes += 1;
        state.bytes[offset..offset + kept].copy_from_slice(&from[..kept]);
    }
}

/// Copies data, because the simulated disk keeps a reference to it and the cache has few pages.
fn copied(data: &Data) -> Data {
    let mut bytes = vec![0; data.len()];
    data.copy_to_slice(&mut bytes);
    bytes.into()
}

struct LogDisk {
    disk: Arc<CrashVolume>,
    fails: Arc<Mutex<Option<Instant>>>,
    mutation: Mutation,
    delay: Duration,
    rng: Mutex<Rng>,
}

impl LogDisk {
    async fn wait(&self) {
        let delay = self.delay * self.rng.lock().below(3) as u32;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }
}

impl LogDisk {
    fn is_failing(&self) -> bool {
        self.fails.lock().is_some_and(|until| Instant::now() < until)
    }
}

impl Volume for LogDisk {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        self.disk.read(extent)
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        let superblock = lba.0 < 2;
        let data = copied(&data);
        let synced = match self.mutation {
            Mutation::SuperblockNotStable => !superblock,
            Mutation::IndexNotStable => !data.clone().into_bytes().starts_with(b"FBYLOGIX"),
            _ => true,
        };
        let durability = if synced { durability } else { Durability::Volatile };
        Io::new(async move {
            self.wait().await;
            if self.is_failing() {
                if self.rng.lock().chance(50) {
                    self.disk.write(lba, data, Durability::Volatile).await?;
                }
                return Err(Error::NoSpace);
            }
            self.disk.write(lba, data, durability).await?;
            self.wait().await;
            Ok(())
        })
    }

    fn flush(&self) -> Io<'_, ()> {
        // The cache flushes this log only while it opens it. Its other writes to the log are stable
        // writes and need no flush.
        match self.mutation {
            Mutation::OpeningNotFlushed => Io::done(Ok(())),
            _ => self.disk.flush(),
        }
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        self.disk.discard(extent)
    }

    fn admit(&self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions::default()
    }
}

/// The lower volume behind a slow link that sometimes fails.
struct Remote {
    disk: Arc<CrashVolume>,
    delay: Duration,
    mutation: Mutation,
    /// True if a discard was sent since the last flush: the next flush is that of the discard.
    discarded: AtomicBool,
    calls: AtomicU64,
    observer: Option<Observer>,
    rng: Mutex<Rng>,
}

impl Remote {
    async fn travel(&self) -> Result<(), Error> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let (delay, away) = {
            let mut rng = self.rng.lock();
            let delay = self.delay * rng.below(5) as u32 / 2;
            (delay, !self.delay.is_zero() && rng.chance(3))
        };
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if away { Err(Error::Unreachable("the link is down".into())) } else { Ok(()) }
    }
}

impl Volume for Remote {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        Io::new(async move {
            self.travel().await?;
            let data = self.disk.read(extent).await?;
            self.travel().await?;
            Ok(data)
        })
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        Io::new(async move {
            self.travel().await?;
            let synced = self.mutation != Mutation::BypassNotStable;
            let durability = if synced { durability } else { Durability::Volatile };
            self.disk.write(lba, copied(&data), durability).await?;
            self.travel().await
        })
    }

    fn flush(&self) -> Io<'_, ()> {
        Io::new(async move {
            self.travel().await?;
            let of_discard = self.discarded.swap(false, Ordering::Relaxed);
            let synced = match self.mutation {
                Mutation::RoundNotFlushed => of_discard,
                Mutation::DiscardNotFlushed => !of_discard,
                _ => true,
            };
            if synced {
                self.disk.flush().await?;
            }
            if let Some(observer) = &self.observer {
                observer(&self.disk.contents());
            }
            self.travel().await
        })
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        Io::new(async move {
            self.travel().await?;
            self.discarded.store(true, Ordering::Relaxed);
            self.disk.discard(extent).await?;
            self.travel().await
        })
    }

    fn admit(&self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions::default()
    }
}

/// Number of slots of the tier: the smallest number that a read tier may have.
const TIER_SLOTS: u64 = 64;
