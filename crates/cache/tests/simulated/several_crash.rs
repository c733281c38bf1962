//! Several volumes in one log under the crash simulator: the power fails at every operation of the log disk and
//! of the nodes, and the gateway may be lost together with its log.
//!
//! 1. With the log, every acknowledged write to each volume is there.
//! 2. Without it, whenever no round is running, the nodes *together* hold a consistent prefix of all volumes:
//!    there is a moment such that each sector of each volume holds its newest write that was acknowledged before
//!    that moment, and nothing submitted after it.
//! 3. While a round is running, the volume of each node with epochs is a consistent prefix by itself.
//! 4. All this holds if one node is unreachable for long, or for ever. Removing the volume of that node loses no
//!    data of the others.
//!
//! With a separate cache for each volume, statement 2 does not hold, as the last test shows.
//! `FOREBAY_CRASH_POINTS=n` sets how many points `crash` tries; this test tries 3 for every 100 of them, the same
//! ratio as without the variable. `FOREBAY_CRASH_SEED=n` runs one script.

mod node;

use std::{
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::support::{
    memory::Memory,
    model::{Model, SECTOR, content},
    workload::{LONGEST, runtime},
};
use cache::{Cache, CommonMember, LogVolumeIdentity, Parts, Settings, StableMemory, WriteMode};
use futures_util::future::join_all;
use parking_lot::Mutex;
use sim::{CrashVolume, Outage, Power, Rng};
use volume::{Durability, Error, Extent, Geometry, Lba, Stack, Volume};

use node::Node;

/// The parameters of a run, drawn from a seed.
#[derive(Clone, Debug)]
struct Trial {
    seed: u64,
    settings: Settings,
    /// Number of sectors of each volume.
    sizes: Vec<u64>,
    log_blocks: u64,
    /// True if each node applies all writes between two flushes atomically.
    atomic: bool,
    delay: Duration,
    /// A node that is unreachable for a long time: its index, the time when this begins, and its duration.
    away: Option<(usize, Duration, Duration)>,
    /// True to use a separate cache and log for each volume. The nodes together then hold no consistent prefix, which
    /// the test must detect.
    apart: bool,
}

impl Trial {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x07ed);
        let immediate = rng.chance(30);
        let segment_slots = [1, 4, 8][rng.below(3) as usize];
        let settings = Settings {
            dram_bytes: 256 << 10,
            nvram_bytes: 64 << 10,
            report: if immediate { WriteMode::Immediate } else { WriteMode::AfterComplete },
            destage_threshold: [0.0, 0.3, 1.0][rng.below(3) as usize],
            idle_ms: [1, 20][rng.below(2) as usize],
            destage_run_bytes: [4096, 65536][rng.below(2) as usize],
            destage_in_flight: rng.within(1..5) as usize,
            max_dirty_age_ms: [1, 20, 1000][rng.below(3) as usize],
            read_ahead_bytes: [0, 65536][rng.below(2) as usize],
            segment_slots,
            ..Settings::default()
        };
        // Choose sizes with which two of the volumes end inside of a slot.
        let mut sizes = vec![40 * 8 - 3, 24 * 8];
        sizes.extend(rng.chance(50).then_some(16 * 8 - 5));
        let log_blocks =
            6 + u64::from(segment_slots + 1) * 6 + [20, 60, 400][rng.below(3) as usize];
        let delay = Duration::from_millis([0, 1, 4][rng.below(3) as usize]);
        let (atomic, is_away) = (rng.chance(60), rng.chance(40));
        let millis = |rng: &mut Rng, most| Duration::from_millis(rng.below(most));
        // Some outages are drawn longer than most runs.
        let away = is_away.then(|| {
            let at = rng.below(sizes.len() as u64) as usize;
            (at, millis(&mut rng, 80), millis(&mut rng, 20_000))
        });
        Self { seed, settings, sizes, log_blocks, atomic, delay, away, apart: false }
    }

    /// Returns for each volume its first sector among all sectors, and its number of sectors.
    fn parts(&self) -> Vec<(usize, usize)> {
        let mut first = 0;
        let part = |&size: &u64| {
            let part = (first, size as usize);
            first += size as usize;
            part
        };
        self.sizes.iter().map(part).collect()
    }

    fn sectors(&self) -> usize {
        self.sizes.iter().sum::<u64>() as usize
    }
}

/// A gateway and its nodes, which lose their power together.
struct Site {
    trial: Trial,
    power: Arc<Power>,
    nodes: Vec<Arc<Node>>,
    /// One log that all volumes share, or one log for each volume.
    logs: Vec<Arc<CrashVolume>>,
    memories: Vec<Memory>,
}

/// The content of the disks and NVRAMs after the end of a run.
struct Remains {
    nodes: Vec<Vec<u8>>,
    logs: Vec<CrashVolume>,
    memories: Vec<Vec<u8>>,
}

/// The model of all writes, and the first violation.
struct World {
    model: Mutex<Model>,
    fault: Mutex<Option<String>>,
    rounds: AtomicU64,
    /// Number of checks of all volumes while no volume had unflushed data.
    looks: AtomicU64,
}

impl World {
    fn new(trial: &Trial) -> Arc<Self> {
        Arc::new(Self {
            model: Mutex::new(Model::new(trial.sectors())),
            fault: Mutex::default(),
            rounds: AtomicU64::new(0),
            looks: AtomicU64::new(0),
        })
    }

    fn report(&self, fault: String) {
        self.fault.lock().get_or_insert(fault);
    }

    fn fault(&self) -> Result<(), String> {
        self.fault.lock().take().map_or(Ok(()), Err)
    }
}

impl Site {
    fn new(trial: &Trial) -> Self {
        let logs = if trial.apart { trial.sizes.len() } else { 1 };
        let geometry = Geometry { block_size: 4096, ..Geometry::with_blocks(trial.log_blocks) };
        let remains = Remains {
            nodes: trial.sizes.iter().map(|&size| vec![0; size as usize * SECTOR]).collect(),
            logs: (0..logs)
                .map(|log| CrashVolume::new(geometry, trial.seed + log as u64))
                .collect(),
            memories: (0..logs).map(|_| Memory::new(16).0.lock().clone()).collect(),
        };
        Self::reopen(trial, remains, trial.seed)
    }

    fn reopen(trial: &Trial, remains: Remains, seed: u64) -> Self {
        let power = Power::new();
        let nodes = remains.nodes.into_iter().zip(seed..);
        let wire = |log: CrashVolume| {
            Arc::new(log.powered_by(&power).with_outage(Outage::Hangs).with_yields(30))
        };
        let memory = |bytes: Vec<u8>| {
            let memory = Memory::new(16);
            *memory.0.lock() = bytes;
            memory
        };
        Self {
            trial: trial.clone(),
            nodes: nodes.map(|(bytes, seed)| Node::new(trial, bytes, &power, seed)).collect(),
            logs: remains.logs.into_iter().map(wire).collect(),
            memories: remains.memories.into_iter().map(memory).collect(),
            power,
        }
    }

    /// Opens the caches. Returns them and the volumes that hosts use, except the volume `without`.
    async fn open(&self, without: Option<usize>) -> Result<(Vec<Arc<Cache>>, Vec<Stack>), String> {
        let nvram = |at: usize| {
            let is_used = self.trial.settings.report == WriteMode::Immediate;
            is_used.then(|| Box::new(self.memories[at].clone()) as Box<dyn StableMemory>)
        };
        let settings = || self.trial.settings.clone();
        let failed = |error| format!("cannot be opened: {error}");
        if self.trial.apart {
            let mut caches = Vec::new();
            for (at, node) in self.nodes.iter().enumerate() {
                let identity =
                    LogVolumeIdentity { name: format!("volume {at}"), geometry: node.geometry() };
                let log = Arc::clone(&self.logs[at]) as Stack;
                let parts = Parts { lower: Arc::clone(node) as Stack, log, nvram: nvram(at) };
                caches.push(Cache::open(settings(), parts, identity).await.map_err(failed)?);
            }
            let above = caches.iter().map(|cache| Arc::clone(cache) as Stack).collect();
            return Ok((caches, above));
        }
        let nodes = self.nodes.iter().enumerate().filter(|(at, _)| Some(*at) != without);
        let members = nodes.map(|(at, node)| CommonMember {
            name: format!("volume {at}"),
            key: at as u64,
            lower: Arc::clone(node) as Stack,
        });
        let log = Arc::clone(&self.logs[0]) as Stack;
        let opened = Cache::open_common(settings(), members.collect(), log, nvram(0)).await;
        let (cache, above) = opened.map_err(failed)?;
        Ok((vec![cache], above))
    }

    /// Runs hosts that write to all volumes, until they are done or the power fails.
    fn run(&self, world: &Arc<World>) {
        self.observe(world);
        let seed = self.trial.seed;
        runtime().block_on(async {
            let work = async {
                let (caches, above) = match self.open(None).await {
                    Ok(opened) => opened,
                    Err(fault) => return world.report(fault),
                };
                let away = self.trial.away.map(|(at, from, long)| {
                    let node = Arc::clone(&self.nodes[at]);
                    tokio::spawn(async move {
                        tokio::time::sleep(from).await;
                        node.away.store(true, Ordering::SeqCst);
                        tokio::time::sleep(long).await;
                        node.away.store(false, Ordering::SeqCst);
                    })
                });
                caches.iter().for_each(|cache| drop(tokio::spawn(cache.run())));
                let hosts = (0..3).map(|host| {
                    let rng = Rng::new(seed.wrapping_mul(31).wrapping_add(host));
                    Host { site: self, above: &above, world, rng }.run()
                });
                join_all(hosts).await;
                if seed.is_multiple_of(3) {
                    if let Some(away) = away {
                        let _ = away.await;
                    }
                    for cache in &caches {
                        // The drain may fail while a link is down.
                        drop(cache.drain().await);
                    }
                }
                let rounds = caches.iter().map(|cache| cache.statistics().destage.rounds).sum();
                world.rounds.fetch_add(rounds, Ordering::Relaxed);
            };
            let power_off = async {
                while !self.power.is_off() {
                    tokio::time::sleep(Duration::from_millis(7)).await;
                }
            };
            tokio::select! {
                () = work => {}
                () = power_off => {}
                () = tokio::time::sleep(LONGEST) => world.report("it does not come to an end".into()),
            }
        });
        for node in &self.nodes {
            *node.observer.lock() = None;
        }
    }

    fn observe(&self, world: &Arc<World>) {
        for node in &self.nodes {
            let (nodes, world) = (self.nodes.clone(), Arc::clone(world));
            let observer = move || {
                if !nodes.iter().all(|node| node.is_quiet()) {
                    return;
                }
                let all = nodes.iter().flat_map(|node| node.stable.lock().clone());
                let all: Vec<u8> = all.collect();
                world.looks.fetch_add(1, Ordering::Relaxed);
                if let Err(fault) = world.model.lock().check_prefix(&all, 0, &|_| false) {
                    world.report(format!("together they hold no consistent prefix: {fault}"));
                }
            };
            *node.observer.lock() = Some(Arc::new(observer));
        }
    }

    /// Ends a run: the gateway loses its power or is killed, and the nodes may lose their power, too.
    fn end(&self, rng: &mut Rng) -> Remains {
        self.power.fail();
        let (kill, far) = (rng.chance(30), rng.chance(50));
        let left = |log: &Arc<CrashVolume>, rng: &mut Rng| match kill {
            true => log.goes_on(self.trial.seed),
            false => CrashVolume::reopen(log.crash(rng), self.trial.seed),
        };
        Remains {
            nodes: self.nodes.iter().map(|node| node.left(far, rng)).collect(),
            logs: self.logs.iter().map(|log| left(log, rng)).collect(),
            memories: self.memories.iter().map(|memory| memory.0.lock().clone()).collect(),
        }
    }

    /// Checks the content of the nodes without the log.
    fn check_nodes(&self, remains: &Remains, world: &World) -> Result<(), String> {
        let model = world.model.lock();
        if self.trial.atomic {
            for ((first, _), bytes) in self.trial.parts().into_iter().zip(&remains.nodes) {
                let checked = model.check_prefix_from(first, bytes, 0, &|_| false);
                checked
                    .map_err(|fault| format!("a node alone holds no consistent prefix: {fault}"))?;
            }
        }
        if self.nodes.iter().all(|node| node.is_quiet()) {
            let checked = model.check_prefix(&remains.nodes.concat(), 0, &|_| false);
            checked.map_err(|fault| {
                format!("the nodes together hold no consistent prefix: {fault}")
            })?;
        }
        Ok(())
    }

    /// Recovers from the log and checks all volumes; then drains, and checks that the nodes hold everything. If a
    /// volume is to be removed, checks the others, and that the removed one receives nothing. Returns the number
    /// of slots that the log had of the removed volume.
    fn check_all(
        &self,
        remains: Remains,
        world: &World,
        (seed, given_up): (u64, Option<usize>),
    ) -> Result<u64, String> {
        let site = Self::reopen(&self.trial, remains, seed);
        let others = || (0..site.nodes.len()).filter(|at| Some(*at) != given_up);
        let work = async {
            let lost = match given_up {
                Some(at) => site.give_up(at).await?,
                None => 0,
            };
            let (caches, above) = site.open(given_up).await?;
            let mut read = Vec::new();
            for volume in &above {
                let blocks = volume.geometry().blocks as u32;
                let data = loop {
                    match volume.read(Extent { lba: Lba(0), blocks }).await {
                        Ok(data) => break data,
                        Err(Error::Unreachable(_)) => {}
                        Err(error) => return Err(format!("cannot be read: {error}")),
                    }
                };
                read.extend_from_slice(&data.into_bytes());
            }
            let parts = self.trial.parts();
            let sectors = others().flat_map(|at| parts[at].0..parts[at].0 + parts[at].1);
            for (sector, bytes) in sectors.zip(read.chunks(SECTOR)) {
                world.model.lock().check(sector, bytes, u64::MAX)?;
            }
            let before = given_up.map(|at| site.nodes[at].stable.lock().clone());
            for cache in &caches {
                tokio::spawn(cache.run());
                cache.drain().await.map_err(|error| format!("cannot be drained: {error}"))?;
            }
            if before != given_up.map(|at| site.nodes[at].stable.lock().clone()) {
                return Err("the one that was given up has got something".to_owned());
            }
            let below = others().flat_map(|at| site.nodes[at].stable.lock().clone());
            match below.eq(read.iter().copied()) {
                true => Ok(lost),
                false => Err("drained, the nodes have something else".to_owned()),
            }
        };
        let late = |_| Err("recovery does not come to an end".to_owned());
        let limited = async { tokio::time::timeout(LONGEST, work).await.unwrap_or_else(late) };
        runtime().block_on(limited)
    }
}

impl Site {
    /// Removes a volume and discards the log's dirty data of it. Returns the number of discarded slots.
    async fn give_up(&self, at: usize) -> Result<u64, String> {
        let log = Arc::clone(&self.logs[0]) as Stack;
        let failed = |error| format!("cannot be given up: {error}");
        // The power may have failed before the log was formatted.
        let Ok(info) = cache::inspect(&log).await else { return Ok(0) };
        let Some(member) = info.members.iter().find(|member| member.key == at as u64) else {
            return Ok(0);
        };
        let is_used = self.trial.settings.report == WriteMode::Immediate;
        let nvram = is_used.then(|| Box::new(self.memories[0].clone()) as Box<dyn StableMemory>);
        let slots = cache::dirty_of(&log, nvram, member, false).await.map_err(failed)?;
        if slots > 0 {
            cache::give_up(&log, member, slots).await.map_err(failed)?;
        }
        Ok(slots)
    }
}

struct Host<'a> {
    site: &'a Site,
    above: &'a [Stack],
    world: &'a World,
    rng: Rng,
}

impl Host<'_> {
    async fn run(mut self) {
        for _ in 0..14 {
            if self.site.power.is_off() {
                return;
            }
            match self.rng.below(100) {
                0..65 => self.change(false).await,
                65..72 => self.change(true).await,
                72..78 => drop(self.above[0].flush().await),
                78..90 => self.read().await,
                _ => {
                    let pause = self.rng.below(60);
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                }
            }
        }
    }

    /// Draws an extent. Returns the index of the volume, its first sector in the model, and the extent's first
    /// sector and length.
    fn place(&mut self) -> (usize, usize, u64, u64) {
        let at = self.rng.below(self.above.len() as u64) as usize;
        let (first, size) = self.site.trial.parts()[at];
        let count = self.rng.within(1..40).min(size as u64);
        let hot = if self.rng.chance(50) { 48 } else { size as u64 };
        let lba = self.rng.below(hot).min(size as u64 - count);
        (at, first, lba, count)
    }

    async fn change(&mut self, zeros: bool) {
        let (at, first, lba, count) = self.place();
        let (from, many) = (first + lba as usize, count as usize);
        let id = self.world.model.lock().submit(from, many, zeros);
        let result = match zeros {
            true => self.above[at].discard(Extent { lba: Lba(lba), blocks: count as u32 }).await,
            false => {
                let bytes: Vec<u8> = (from..from + many).flat_map(|s| content(s, id)).collect();
                self.above[at].write(Lba(lba), bytes.into(), Durability::Volatile).await
            }
        };
        // An answer after the power failure has not reached a host.
        let acknowledged = result.is_ok() && !self.site.power.is_off();
        if let Err(error @ (Error::Medium { .. } | Error::OutOfRange(_))) = result {
            self.world.report(format!("a write failed: {error}"));
        }
        self.world.model.lock().end(id, from, many, acknowledged);
    }

    async fn read(&mut self) {
        let (at, first, lba, count) = self.place();
        let as_of = self.world.model.lock().now();
        let read = self.above[at].read(Extent { lba: Lba(lba), blocks: count as u32 }).await;
        match read {
            Ok(data) => {
                for (i, bytes) in data.into_bytes().chunks(SECTOR).enumerate() {
                    let sector = first + lba as usize + i;
                    if let Err(fault) = self.world.model.lock().check(sector, bytes, as_of) {
                        self.world.report(format!("a read got it wrong: {fault}"));
                    }
                }
            }
            Err(Error::Unreachable(_)) => {}
            Err(error) => self.world.report(format!("a read failed: {error}")),
        }
    }
}

/// Runs a trial up to one crash and checks the result. Returns the number of slots that were discarded with a
/// removed volume.
fn crash(trial: &Trial, operation: u64) -> Result<u64, String> {
    let site = Site::new(trial);
    site.power.fail_after(operation);
    let world = World::new(trial);
    site.run(&world);
    world.fault()?;
    let mut rng = Rng::new(trial.seed.wrapping_add(operation << 20));
    let remains = site.end(&mut rng);
    site.check_nodes(&remains, &world)?;
    let seed = rng.next_u64() >> 8;
    let given_up = trial.away.filter(|_| !trial.apart && rng.chance(40)).map(|(at, ..)| at);
    site.check_all(remains, &world, (seed, given_up))
        .map_err(|fault| format!("{given_up:?} given up: {fault}"))
}

/// Crashes one trial at every `step`-th operation. Returns the numbers of crashes, of rounds and checks in the
/// run without a crash, and of crashes after which data was discarded.
fn crash_everywhere(trial: &Trial, step: usize) -> Result<[u64; 4], String> {
    let site = Site::new(trial);
    let world = World::new(trial);
    site.run(&world);
    world.fault().map_err(|fault| format!("without a crash: {fault}"))?;
    let (mut count, mut given_up) = (0, 0);
    for operation in (trial.seed % step as u64..site.power.operations()).step_by(step) {
        let lost = crash(trial, operation);
        let lost = lost.map_err(|fault| format!("after {operation}: {fault}"))?;
        given_up += u64::from(lost > 0);
        count += 1;
    }
    let [rounds, looks] = [&world.rounds, &world.looks].map(|n| n.load(Ordering::Relaxed));
    Ok([count, rounds, looks, given_up])
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn with_the_log_no_write_is_lost_and_without_it_all_volumes_hold_one_prefix() {
    if let Some(seed) = number("FOREBAY_CRASH_SEED") {
        let trial = Trial::new(seed);
        println!("{trial:#?}");
        println!("{:?}", crash_everywhere(&trial, 1).unwrap());
        return;
    }
    let wanted = number("FOREBAY_CRASH_POINTS").map_or(POINTS, |points| points * 3 / 100);
    let (mut sums, mut seed, started) = ([0; 4], 0, Instant::now());
    while sums[0] < wanted {
        seed += 1;
        match crash_everywhere(&Trial::new(seed), STEP) {
            Ok(counted) => sums.iter_mut().zip(counted).for_each(|(sum, n)| *sum += n),
            Err(fault) => panic!("seed {seed}, {fault}; FOREBAY_CRASH_SEED shows it alone"),
        }
    }
    let [points, rounds, looks, given_up] = sums;
    writeln!(
        std::io::stdout(),
        "{points} crash points in {seed} scripts of several volumes, {:.1} s: {rounds} rounds, {looks} looks, \
         {given_up} times something was given up",
        started.elapsed().as_secs_f64()
    )
    .expect("stdout is there");
    assert!(rounds > 100 && looks > 100 && given_up > 20, "every path was gone");
}

#[test]
fn volumes_that_are_destaged_independently_are_detected() {
    let noticed = (1..=MUTANT_SCRIPTS).find_map(|seed| {
        let trial = Trial { apart: true, ..Trial::new(seed) };
        crash_everywhere(&trial, 1000).err()
    });
    let fault = noticed.expect("no script shows that they are of different moments");
    assert!(fault.contains("together"), "{fault}");
}

/// Number of crash points if FOREBAY_CRASH_POINTS is not set.
const POINTS: u64 = 600;
/// Distance between two crash points, in disk operations.
const STEP: usize = 7;
/// Maximum number of scripts with which separate caches may stay unnoticed.
const MUTANT_SCRIPTS: u64 = 20;
