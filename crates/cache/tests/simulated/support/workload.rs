//! Seeded workloads: what hosts do with a gateway until its end, and the check of the remaining content.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use cache::{
    BootId, Cache, CacheStatistics, DestageOrder, LogErrorPolicy, LogKey, LogVolumeIdentity,
    NvramSurvival, OversizedEpoch, Parts, Settings, WriteMode,
};
use futures_util::future::join_all;
use parking_lot::Mutex;
use sim::Rng;
use volume::{Data, Durability, Error, Extent, Geometry, Lba, Volume};

use super::{
    hardware::{End, Hardware, Mutation, Remains},
    model::{Model, SECTOR, content},
};

/// The parameters of a run, all drawn from a seed before the first operation.
#[derive(Clone, Debug)]
pub struct Script {
    pub seed: u64,
    pub settings: Settings,
    pub nvram: bool,
    pub geometry: Geometry,
    pub log_blocks: u64,
    pub delay: Duration,
    pub log_delay: Duration,
    pub hosts: u64,
    pub steps: u64,
    pub mutation: Mutation,
    /// True if hosts resize the log, too.
    pub resizes: bool,
    /// True if an operator pauses destage, sets the destage rate and drains at random moments.
    pub operates: bool,
    /// True if the log disk fails from time to time.
    pub log_fails: bool,
    /// True if the cache has a read tier.
    pub tier: bool,
}

impl Script {
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x5717_c5ca);
        let report = match rng.below(10) {
            0 if seed.is_multiple_of(2) => WriteMode::Through,
            0 => WriteMode::Around,
            1..=3 => WriteMode::Immediate,
            _ => WriteMode::AfterComplete,
        };
        // In half of the scripts no write may bypass the log.
        let order =
            if seed.is_multiple_of(2) { DestageOrder::Strict } else { DestageOrder::Relaxed };
        let segment_slots = [1, 2, 4, 8][rng.below(4) as usize];
        let large = rng.chance(20);
        // A volume of blocks of 4096 bytes, or one that ends in the middle of a slot.
        let slots = [40, 48, 120][rng.below(3) as usize];
        let geometry = if large {
            Geometry { block_size: 4096, ..Geometry::with_blocks(slots) }
        } else {
            Geometry::with_blocks(slots * 8 - 3)
        };
        let settings = Self::settings(seed, (report, order), segment_slots, &mut rng);
        // A third of the scripts resizes the log.
        let resizes = seed % 3 == 1;
        let spare = if resizes { 400 } else { 0 };
        Self {
            seed,
            nvram: report == WriteMode::Immediate || rng.chance(30),
            settings,
            geometry,
            // Besides the headers, the log has room for hardly any data, for all of it, or for something in
            // between.
            log_blocks: 2
                + 4
                + u64::from(segment_slots + 1) * 6
                + [0, 10, 40, 200][rng.below(4) as usize]
                + spare,
            delay: Duration::from_millis([0, 1, 4][rng.below(3) as usize]),
            log_delay: Duration::from_millis([0, 0, 1, 5][rng.below(4) as usize]),
            hosts: rng.within(1..5),
            steps: rng.within(4..20),
            mutation: Mutation::None,
            resizes,
            operates: seed % 7 < 3,
            log_fails: seed % 5 == 2,
            tier: matches!(seed % 5, 0 | 3 | 4),
        }
    }

    /// Draws the settings of a script.
    fn settings(
        seed: u64,
        (report, order): (WriteMode, DestageOrder),
        segment_slots: u32,
        rng: &mut Rng,
    ) -> Settings {
        Settings {
            dram_bytes: 128 << 10,
            nvram_bytes: 64 << 10,
            report,
            // Half of the scripts have an NVRAM that survives a power loss. Only immediate report
            // uses it.
            nvram_survives: if seed & 2 == 0 {
                NvramSurvival::PowerLoss
            } else {
                NvramSurvival::Restart
            },
            // Most of the scripts with a failing log disk write through.
            on_log_error: match seed % 5 == 2 && seed % 4 != 3 {
                true => LogErrorPolicy::WriteThrough,
                false => LogErrorPolicy::StopWrites,
            },
            order,
            too_large: OversizedEpoch::Refused,
            destage_threshold: [0.0, 0.3, 0.7, 1.0][rng.below(4) as usize],
            idle_ms: [1, 5, 50][rng.below(3) as usize],
            destage_run_bytes: [4096, 16384, 1 << 20][rng.below(3) as usize],
            destage_in_flight: rng.within(1..5) as usize,
            max_dirty_age_ms: [1, 20, 1000][rng.below(3) as usize],
            read_ahead_bytes: [0, 16384, 1 << 20][rng.below(3) as usize],
            discard_log_bytes: [0, 8192, 1 << 20][rng.below(3) as usize],
            segment_slots,
            // With 1 segment in a frame the index overflows, with 1024 it never gets a frame.
            index_segments: [1, 3, 10, 1024][rng.below(4) as usize],
            owner: "a gateway".into(),
            log_key: seed.is_multiple_of(3).then(|| LogKey::new(&[seed as u8; 64])),
            ..Settings::default()
        }
    }

    /// Returns true if data that a read has returned survives every crash, as acknowledged data does. Returns
    /// false in three cases: acknowledged data is not stable; the log disk fails (writers get an error); or
    /// writes bypass the log (the lower volume returns them before they are stable).
    fn keeps_what_it_shows(&self) -> bool {
        let Settings { report, nvram_survives, .. } = &self.settings;
        let is_stable = match report {
            WriteMode::AfterComplete => true,
            WriteMode::Immediate => *nvram_survives == NvramSurvival::PowerLoss,
            WriteMode::Through | WriteMode::Around | WriteMode::AtFlush => false,
        };
        is_stable && self.settings.order == DestageOrder::Strict && !self.log_fails
    }

    fn sectors(&self) -> usize {
        (self.geometry.bytes() / SECTOR as u64) as usize
    }

    pub fn hardware(&self) -> Hardware {
        Hardware::new(self.geometry, self.log_blocks, 16, self.seed)
            .mutated(self.mutation)
            .with_delays(self.delay, self.log_delay)
    }

    async fn open(&self, hardware: &Hardware) -> Result<Arc<Cache>, String> {
        let parts = Parts {
            lower: hardware.lower(),
            log: hardware.log(),
            nvram: self.nvram.then(|| hardware.nvram()),
        };
        let identity = LogVolumeIdentity { name: "far volume".into(), geometry: self.geometry };
        // A log without faults never ends before its confirmed number, wherever the power failure occurs.
        let settings = Settings {
            confirmed_in: Some(hardware.confirmed()),
            boot: Some(BootId([1; 16])),
            ..self.settings.clone()
        };
        let opened = Cache::open(settings, parts, identity).await;
        let cache = opened.map_err(|error| format!("cannot be opened: {error}"))?;
        // The scripts that are known to notice a fault run without a tier.
        if self.tier && self.mutation == Mutation::None {
            let taken = cache.use_tier(hardware.tier()).await;
            taken.map_err(|error| format!("its read tier is refused: {error}"))?;
        }
        self.mutation.mutate(&cache);
        Ok(cache)
    }
}

pub struct World {
    pub model: Mutex<Model>,
    pub fault: Mutex<Option<String>>,
    /// The time of the call of the last successful flush.
    pub flushed: AtomicU64,
    /// The time of the call of the last successful drain.
    pub drained: AtomicU64,
    /// Numbers of successful drains and of failures of the log disk.
    pub drains: AtomicU64,
    pub log_failures: AtomicU64,
    /// Number of successful resizes of the log.
    pub resizes: AtomicU64,
    /// The statistics of the last cache that was shut down without a crash.
    pub statistics: Mutex<CacheStatistics>,
}

impl World {
    pub fn new(script: &Script) -> Arc<Self> {
        let model = Mutex::new(Model::new(script.sectors()));
        Arc::new(Self {
            model,
            fault: Mutex::new(None),
            flushed: AtomicU64::new(0),
            drained: AtomicU64::new(0),
            drains: AtomicU64::new(0),
            log_failures: AtomicU64::new(0),
            resizes: AtomicU64::new(0),
            statistics: Mutex::default(),
        })
    }

    pub fn report(&self, fault: String) {
        self.fault.lock().get_or_insert(fault);
    }

    /// Drains the cache and records the time: everything before it must be in the lower volume from then on.
    pub async fn drain(&self, cache: &Cache, power: &sim::Power) {
        let called = self.model.lock().now();
        let drained = tokio::time::timeout(Duration::from_secs(2), cache.drain()).await;
        if matches!(drained, Ok(Ok(()))) && !power.is_off() {
            self.drained.fetch_max(called, Ordering::Relaxed);
            self.drains.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Checks that the lower volume holds everything that was written before the last drain was called, in
    /// whatever order writes have reached it.
    pub fn check_drained(&self, bytes: &[u8]) -> Result<(), String> {
        let (model, drained) = (self.model.lock(), self.drained.load(Ordering::Relaxed));
        for (sector, bytes) in bytes.chunks(SECTOR).enumerate() {
            let checked = model.check(sector, bytes, drained);
            checked.map_err(|fault| format!("below, drained at {drained}: {fault}"))?;
        }
        Ok(())
    }
}

/// Runs the hosts of a script on some hardware until they are done or the power fails.
pub fn run(script: &Script, hardware: &Hardware, world: &Arc<World>, seed: u64) {
    runtime().block_on(async {
        let work = async {
            let cache = match script.open(hardware).await {
                Ok(cache) => cache,
                Err(fault) => return world.report(fault),
            };
            tokio::spawn(cache.run());
            let hosts = (0..script.hosts).map(|host| {
                let rng = Rng::new(seed.wrapping_mul(31).wrapping_add(host));
                Host { script, cache: &cache, world, hardware, rng }.run()
            });
            join_all(hosts).await;
            *world.statistics.lock() = cache.statistics();
            match seed % 4 {
                0 => drop(cache.stop().await),
                1 => world.drain(&cache, &hardware.power).await,
                _ => {}
            }
        };
        tokio::select! {
            () = work => {}
            () = power_off(hardware) => {}
            () = tokio::time::sleep(LONGEST) => world.report("it does not come to an end".into()),
        }
    });
}

/// Maximum virtual time of a run, which no script reaches unless it hangs.
pub const LONGEST: Duration = Duration::from_secs(3600);

/// Opens the remains of a run and checks every sector. With `drain`, also drains and checks the lower volume
/// alone.
pub fn check(
    script: &Script,
    remains: Remains,
    world: &World,
    drain: bool,
    seed: u64,
) -> Result<Remains, String> {
    let hardware = Hardware::reopen(remains, seed);
    let mut values = Vec::new();
    let work = async {
        let cache = script.open(&hardware).await?;
        let data = read_all(script, cache.as_ref()).await?;
        let now = u64::MAX;
        for (sector, bytes) in data.chunks(SECTOR).enumerate() {
            values.push(world.model.lock().check(sector, bytes, now)?);
        }
        if drain {
            tokio::spawn(cache.run());
            cache.drain().await.map_err(|error| format!("cannot be drained: {error}"))?;
            let lower = hardware.lower_contents().read(0..script.geometry.bytes());
            if lower != data {
                let differs = |sector: &usize| {
                    let range = sector * SECTOR..(sector + 1) * SECTOR;
                    lower[range.clone()] != data[range]
                };
                let sectors: Vec<_> = (0..script.sectors()).filter(differs).collect();
                return Err(format!("drained, the lower volume differs in sectors {sectors:?}"));
            }
        }
        Ok::<(), String>(())
    };
    let late = |_| Err("recovery does not come to an end".into());
    let limited = async { tokio::time::timeout(LONGEST, work).await.unwrap_or_else(late) };
    runtime().block_on(limited)?;
    world.model.lock().settle(&values);
    Ok(hardware.end(End::Kill, &mut Rng::new(seed)))
}

/// Opens the remains of a run, with losses if the script accepts them. Returns the content of the volume.
pub fn contents(script: &Script, remains: Remains, seed: u64) -> Result<Vec<u8>, String> {
    let hardware = Hardware::reopen(remains, seed);
    runtime().block_on(async {
        let cache = script.open(&hardware).await?;
        read_all(script, cache.as_ref()).await
    })
}

pub async fn read_all(script: &Script, volume: &dyn Volume) -> Result<Vec<u8>, String> {
    let blocks = script.geometry.blocks as u32;
    let read = volume.read(Extent { lba: Lba(0), blocks }).await;
    let data = read.map_err(|error| format!("cannot be read: {error}"))?;
    Ok(data.into_bytes().to_vec())
}

pub fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().expect("a runtime without I/O")
}

pub async fn power_off(hardware: &Hardware) {
    // All calls hang when the power is off. In virtual time this timer is then the next event, so the loop
    // ends.
    while !hardware.power.is_off() {
        tokio::time::sleep(Duration::from_millis(7)).await;
    }
}

pub struct Host<'a> {
    pub script: &'a Script,
    pub cache: &'a Cache,
    pub world: &'a World,
    pub hardware: &'a Hardware,
    pub rng: Rng,
}

impl Host<'_> {
    pub async fn run(mut self) {
        for _ in 0..self.script.steps {
            if self.hardware.power.is_off() {
                return;
            }
            if self.script.resizes && self.rng.chance(20) {
                self.resize().await;
                continue;
            }
            if self.script.operates && self.rng.chance(15) {
                self.operate().await;
                continue;
            }
            if self.script.log_fails && self.rng.chance(8) {
                let lasts = [1, 20, 300][self.rng.below(3) as usize];
                self.hardware.fail_log(Duration::from_millis(lasts));
                self.world.log_failures.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            match self.rng.below(100) {
                0..55 => self.write().await,
                55..62 => self.discard().await,
                62..70 => self.flush().await,
                70..90 => self.read().await,
                _ => {
                    let pause = self.rng.below(60);
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                }
            }
        }
    }

    /// Draws an extent of whole blocks, in sectors; extents of different hosts often overlap.
    fn extent(&mut self, most: u64) -> (usize, usize) {
        let block = u64::from(self.script.geometry.block_size) / 512;
        let blocks = self.script.geometry.blocks;
        let most = most / block;
        let count = if self.rng.chance(30) { 1 } else { self.rng.within(1..most + 1) };
        let hot = if self.rng.chance(50) { (64 / block).min(blocks) } else { blocks };
        let first = self.rng.below(hot).min(blocks - count.min(blocks));
        let count = count.min(blocks - first);
        ((first * block) as usize, (count * block) as usize)
    }

    fn blocks(&self, first: usize, count: usize) -> Extent {
        let block = self.script.geometry.block_size as usize / SECTOR;
        Extent { lba: Lba((first / block) as u64), blocks: (count / block) as u32 }
    }

    async fn write(&mut self) {
        let (first, count) = self.extent(64);
        let id = self.world.model.lock().submit(first, count, false);
        let bytes: Vec<u8> = (first..first + count).flat_map(|s| content(s, id)).collect();
        let mut data = Data::new();
        // Split the data into pieces, like data that arrives from a network.
        let piece = [512, 1536, 4096, 65536][self.rng.below(4) as usize];
        bytes.chunks(piece).for_each(|p| data.push(bytes::Bytes::copy_from_slice(p)));
        let stable = self.rng.chance(30);
        let durability = if stable { Durability::Stable } else { Durability::Volatile };
        let lba = self.blocks(first, count).lba;
        let result = Self::limited(self.rng.fork(), self.cache.write(lba, data, durability)).await;
        self.end(id, first, count, result);
    }

    /// Resizes the log. No data may be lost, whatever the result is.
    async fn resize(&mut self) {
        let least = 2 + 4 + u64::from(self.script.settings.segment_slots + 1) * 6;
        let blocks = self.rng.within(least..self.script.log_blocks + 1);
        let resized = Self::limited(self.rng.fork(), self.cache.resize(blocks)).await;
        if matches!(resized, Some(Ok(()))) {
            self.world.resizes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Performs a random command of an operator.
    async fn operate(&mut self) {
        match self.rng.below(6) {
            0 => self.cache.pause(),
            1 | 2 => {
                self.cache.resume();
                self.cache.set_destage_rate(None);
            }
            3 => {
                let rate = [0, 1 << 18, 1 << 20][self.rng.below(3) as usize];
                self.cache.set_destage_rate(Some(rate));
            }
            _ => self.world.drain(self.cache, &self.hardware.power).await,
        }
    }

    async fn flush(&mut self) {
        let called = self.world.model.lock().now();
        if self.cache.flush().await.is_ok() && !self.hardware.power.is_off() {
            self.world.flushed.fetch_max(called, Ordering::Relaxed);
        }
    }

    async fn discard(&mut self) {
        let (first, count) = self.extent(128);
        let id = self.world.model.lock().submit(first, count, true);
        let extent = self.blocks(first, count);
        let result = Self::limited(self.rng.fork(), self.cache.discard(extent)).await;
        self.end(id, first, count, result);
    }

    fn end(&self, id: u64, first: usize, count: usize, result: Option<Result<(), Error>>) {
        // An answer after the power failure has not reached a host.
        let acknowledged = matches!(result, Some(Ok(()))) && !self.hardware.power.is_off();
        if let Some(Err(error @ (Error::Medium { .. } | Error::OutOfRange(_)))) = result {
            self.world.report(format!("a write failed: {error}"));
        }
        self.world.model.lock().end(id, first, count, acknowledged);
    }

    async fn read(&mut self) {
        let (first, count) = self.extent(128);
        let as_of = self.world.model.lock().now();
        let extent = self.blocks(first, count);
        match Self::limited(self.rng.fork(), self.cache.read(extent)).await {
            Some(Ok(data)) => {
                let bytes = data.into_bytes();
                let is_kept = self.script.keeps_what_it_shows() && !self.hardware.power.is_off();
                for (i, sector) in bytes.chunks(SECTOR).enumerate() {
                    let mut model = self.world.model.lock();
                    match model.check(first + i, sector, as_of) {
                        Ok(value) if is_kept => model.show(first + i, value),
                        Ok(_) => {}
                        Err(fault) => self.world.report(format!("a read got it wrong: {fault}")),
                    }
                }
            }
            Some(Err(Error::Unreachable(_))) | None => {}
            Some(Err(error)) => self.world.report(format!("a read failed: {error}")),
        }
    }

    /// Sometimes drops a call in the middle, as ABORT TASK does.
    async fn limited<T>(mut rng: Rng, call: impl Future<Output = T>) -> Option<T> {
        if rng.chance(90) {
            return Some(call.await);
        }
        let polls = rng.below(6);
        let mut call = std::pin::pin!(call);
        for _ in 0..polls {
            tokio::select! {
                biased;
                value = &mut call => return Some(value),
                () = sim::yield_now() => {}
            }
        }
        None
    }
}
