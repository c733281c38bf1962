//! A gateway whose lower volume is on a node with a log of its own and atomic epochs. The link between the two is
//! cut at times, and the node loses its power and is restarted.

mod link;

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use cache::{Cache, DestageOrder, LogErrorPolicy, LogVolumeIdentity, Parts, Settings, WriteMode};
use futures_util::future::join_all;
use parking_lot::Mutex;
use sim::Rng;
use tokio::sync::watch;
use volume::{Extent, Lba, Stack, Volume};

use super::{
    hardware::{End, Hardware, Mutation, Remains},
    model::SECTOR,
    workload::{Host, LONGEST, Script, World, power_off, read_all, runtime},
};
use link::Link;

/// A deliberate fault, which the tests must notice.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wrong {
    Nothing,
    /// A fault of the gateway's hardware or cache.
    Gateway(Mutation),
    /// A fault of the node's hardware or cache.
    Node(Mutation),
    /// Fault to detect: the flush that ends a round is acknowledged but not sent.
    FlushNotSent,
    /// Fault to detect: the flush is sent although the node has lost a part of the epoch.
    HalfFlushed,
    /// Fault to detect: the flush is sent, and acknowledged before the node answers.
    FlushNotAwaited,
    /// Fault to detect: the node does not treat unflushed writes as an incomplete epoch.
    NoMarkers,
    /// Fault to detect: writes and discards bypass the gateway's log.
    Bypass,
    /// Fault to detect: the unflushed writes of a lost gateway are not rolled back.
    NotRolledBack,
    /// Fault to detect: the node performs writes that follow a flush although that flush has not ended.
    FlushOvertaken,
    /// Fault to detect: the initiator repeats a failed flush after the writes that followed it.
    FlushSentAgain,
}

/// A script for the gateway, and the settings of the node.
#[derive(Clone, Debug)]
pub struct Trial {
    pub script: Script,
    pub node: Settings,
    pub node_log_blocks: u64,
    pub promise: Promise,
    pub wrong: Wrong,
}

/// The guarantee for the node's content when the gateway is lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Promise {
    /// The node holds a consistent prefix.
    Prefix,
    /// The node holds a consistent prefix, except that writes which bypassed a failing log disk may be there early.
    PrefixExceptThrough,
    /// The node holds all writes before the last drain.
    Drained,
}

impl Trial {
    pub fn new(seed: u64) -> Self {
        let mut script = Script::new(seed);
        let mut rng = Rng::new(seed ^ 0x0e70_c4ed);
        // A quarter of the scripts uses relaxed order.
        if seed % 4 != 3 {
            script.settings.order = DestageOrder::Strict;
        }
        if script.settings.report == WriteMode::Through {
            script.settings.report = WriteMode::AfterComplete;
        }
        let writes_through = script.log_fails
            && script.settings.on_log_error == LogErrorPolicy::WriteThrough
            && script.settings.report != WriteMode::Around;
        let promise = match script.settings.order {
            DestageOrder::Relaxed => Promise::Drained,
            DestageOrder::Strict if writes_through => Promise::PrefixExceptThrough,
            DestageOrder::Strict => Promise::Prefix,
        };
        script.steps += 10;
        let segment_slots = [1, 2, 4, 8][rng.below(4) as usize];
        let node = Settings {
            report: WriteMode::AtFlush,
            on_log_error: LogErrorPolicy::StopWrites,
            order: DestageOrder::Strict,
            segment_slots,
            destage_threshold: [0.0, 0.5][rng.below(2) as usize],
            max_dirty_age_ms: [1, 50][rng.below(2) as usize],
            idle_ms: 1,
            ..script.settings.clone()
        };
        Self {
            node,
            node_log_blocks: 6
                + u64::from(segment_slots + 1) * 6
                + [20, 60, 200][rng.below(3) as usize],
            script,
            promise,
            wrong: Wrong::Nothing,
        }
    }

    /// Injects a deliberate fault into the trial.
    pub fn with(mut self, wrong: Wrong) -> Self {
        self.wrong = wrong;
        match wrong {
            Wrong::Gateway(mutation) => self.script.mutation = mutation,
            Wrong::NoMarkers => self.node.report = WriteMode::AfterComplete,
            Wrong::Bypass => self.script.settings.order = DestageOrder::Relaxed,
            // The fault `NotRolledBack` shows when a gateway is lost in the middle of a round. Commands of an
            // operator would hide it.
            Wrong::NotRolledBack => self.script.operates = false,
            _ => {}
        }
        self
    }

    fn node_mutation(&self) -> Mutation {
        if let Wrong::Node(mutation) = self.wrong { mutation } else { Mutation::None }
    }

    fn node_hardware(&self, remains: Option<Remains>, seed: u64) -> Hardware {
        let hardware = match remains {
            Some(remains) => Hardware::reopen(remains, seed),
            None => Hardware::new(self.script.geometry, self.node_log_blocks, 0, seed),
        };
        hardware.mutated(self.node_mutation()).with_delays(Duration::ZERO, self.script.log_delay)
    }

    async fn open_node(&self, hardware: &Hardware) -> Result<Arc<Cache>, String> {
        let parts = Parts { lower: hardware.lower(), log: hardware.log(), nvram: None };
        let identity = LogVolumeIdentity { name: "home".into(), geometry: self.script.geometry };
        let opened = Cache::open(self.node.clone(), parts, identity).await;
        let cache = opened.map_err(|error| format!("the node cannot be opened: {error}"))?;
        tokio::spawn(cache.run());
        Ok(cache)
    }
}

/// While the node is on: the number of its start, and its cache.
type Up = Option<(u64, Arc<Cache>)>;

/// A gateway, a node, and the link between them.
pub struct Site {
    pub trial: Trial,
    pub gateway: Hardware,
    pub node: Arc<Mutex<Hardware>>,
    up: watch::Sender<Up>,
    /// The epoch size that the node reported last.
    epoch_blocks: AtomicU64,
    cut: AtomicBool,
    /// The values of the writes that bypassed the log.
    through: Mutex<HashSet<u64>>,
    /// Counts rounds of the gateway, power failures of the node, split rounds, roll-backs at the node, flushes that
    /// writes have followed, and failures of such flushes.
    pub reached: Mutex<[u64; 6]>,
    seed: u64,
}

/// The content of all devices of gateway and node after the end of a run.
pub struct Left {
    pub gateway: Remains,
    pub node: Remains,
}

impl Site {
    pub fn new(trial: &Trial) -> Arc<Self> {
        Self::assemble(trial, trial.script.hardware(), None, trial.script.seed)
    }

    /// Starts gateway and node from the disk contents that an earlier run has left.
    pub fn reopen(trial: &Trial, left: Left, seed: u64) -> Arc<Self> {
        let gateway = Hardware::reopen(left.gateway, seed)
            .mutated(trial.script.mutation)
            .with_delays(trial.script.delay, trial.script.log_delay);
        Self::assemble(trial, gateway, Some(left.node), seed)
    }

    fn assemble(trial: &Trial, gateway: Hardware, node: Option<Remains>, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            trial: trial.clone(),
            gateway,
            node: Arc::new(Mutex::new(trial.node_hardware(node, seed + 100))),
            up: watch::Sender::new(None),
            epoch_blocks: AtomicU64::new(0),
            cut: AtomicBool::new(false),
            through: Mutex::default(),
            reached: Mutex::default(),
            seed,
        })
    }

    fn link(self: &Arc<Self>) -> Stack {
        Arc::new(Link::new(Arc::clone(self), Rng::new(self.seed + 7)))
    }

    /// Starts the node, and restarts it after each power failure.
    async fn keep_node(self: Arc<Self>, world: Arc<World>) {
        let mut rng = Rng::new(self.seed + 8);
        for incarnation in 1.. {
            let hardware = self.node.lock().twin();
            let work = async {
                match self.trial.open_node(&hardware).await {
                    Ok(cache) => {
                        let blocks = cache.geometry().epoch_blocks;
                        self.epoch_blocks.store(blocks, Ordering::SeqCst);
                        self.up.send_replace(Some((incarnation, cache)));
                    }
                    Err(fault) => world.report(fault),
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = work => {}
                () = power_off(&hardware) => {}
            }
            self.up.send_replace(None);
            tokio::time::sleep(Duration::from_millis(rng.below(60))).await;
            let end = [End::Power, End::Kill, End::NearPower][rng.below(3) as usize];
            let mut node = self.node.lock();
            let remains = node.end(end, &mut rng);
            *node = self.trial.node_hardware(Some(remains), rng.next_u64() >> 8);
            self.reached.lock()[1] += 1;
        }
    }

    async fn open_gateway(self: &Arc<Self>) -> Result<Arc<Cache>, String> {
        let script = &self.trial.script;
        let node_was_there = self.up.subscribe().wait_for(Option::is_some).await.is_ok();
        assert!(node_was_there, "it is owned by this site");
        let parts = Parts {
            lower: self.link(),
            log: self.gateway.log(),
            nvram: script.nvram.then(|| self.gateway.nvram()),
        };
        let identity = LogVolumeIdentity { name: "far volume".into(), geometry: script.geometry };
        let opened = Cache::open(script.settings.clone(), parts, identity).await;
        let cache = opened.map_err(|error| format!("the gateway cannot be opened: {error}"))?;
        script.mutation.mutate(&cache);
        Ok(cache)
    }

    /// Lets hosts work until they are done or the gateway fails. Then the gateway is lost, and the content that the
    /// node returns is checked.
    pub fn run(self: &Arc<Self>, world: &Arc<World>) {
        runtime().block_on(async {
            tokio::spawn(Arc::clone(self).keep_node(Arc::clone(world)));
            let (sender, destage) = watch::channel(None);
            let work = async {
                // If the gateway was started before, opening it recovers its earlier data.
                let gateway = match self.open_gateway().await {
                    Ok(gateway) => gateway,
                    Err(fault) => return world.report(fault),
                };
                sender.send_replace(Some(tokio::spawn(gateway.run()).abort_handle()));
                let script = &self.trial.script;
                let hosts = (0..script.hosts).map(|host| {
                    let rng = Rng::new(self.seed.wrapping_mul(31).wrapping_add(host));
                    Host { script, cache: &gateway, world, hardware: &self.gateway, rng }.run()
                });
                tokio::join!(join_all(hosts), self.drain(&gateway, world), self.look(world));
                let counted = gateway.statistics();
                self.reached.lock()[0] += counted.destage.rounds;
                self.reached.lock()[2] += counted.order.split_rounds;
                *world.statistics.lock() = counted;
            };
            tokio::select! {
                () = work => {}
                () = power_off(&self.gateway) => {}
                () = tokio::time::sleep(LONGEST) => world.report("it does not come to an end".into()),
            }
            self.cut.store(true, Ordering::SeqCst);
            if let Some(destage) = &*destage.borrow() {
                destage.abort();
            }
            let looks = self.seed.is_multiple_of(3) || self.trial.wrong == Wrong::NotRolledBack;
            if looks
                && let Err(fault) = self.check_seen(world).await
            {
                world.report(format!("seen at the node: {fault}"));
            }
        });
    }

    async fn drain(&self, gateway: &Cache, world: &World) {
        let mut rng = Rng::new(self.seed + 9);
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_millis(rng.below(150))).await;
            world.drain(gateway, &self.gateway.power).await;
        }
    }

    /// Reads the node as another initiator while the gateway works: each image must be a consistent prefix.
    async fn look(&self, world: &World) {
        let (promise, node) = (self.trial.promise, &self.trial.node);
        if promise == Promise::Drained || node.report != WriteMode::AtFlush {
            return;
        }
        let mut rng = Rng::new(self.seed + 10);
        for _ in 0..LOOKS {
            tokio::time::sleep(Duration::from_millis(rng.below(40))).await;
            let Some((_, node)) = self.up.borrow().clone() else { continue };
            let hardware = self.node.lock().twin();
            let least = world.drained.load(Ordering::Relaxed);
            let seen = tokio::select! {
                seen = read_flushed(&self.trial.script, &node) => seen,
                () = power_off(&hardware) => continue,
            };
            let checked = seen.and_then(|bytes| self.check_prefix_from(least, world, &bytes));
            if let Err(fault) = checked {
                return world.report(format!("read beside the gateway: {fault}"));
            }
        }
    }

    /// Checks the content that the node returns while it keeps running after the loss of the gateway.
    async fn check_seen(&self, world: &World) -> Result<(), String> {
        let Some((_, node)) = self.up.borrow().clone() else { return Ok(()) };
        let hardware = self.node.lock().twin();
        // Wait until all calls of the gateway have been answered or aborted.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let seen = async {
            let mut beside = None;
            if self.trial.wrong != Wrong::NotRolledBack
                && self.trial.node.report == WriteMode::AtFlush
            {
                beside = Some(read_flushed(&self.trial.script, &node).await?);
                let rolled_back = node.extensions().roll_back().await;
                rolled_back.map_err(|error| format!("cannot be rolled back: {error}"))?;
            }
            self.reached.lock()[3] += node.statistics().order.rolled_back;
            let all = read_all(&self.trial.script, node.as_ref()).await?;
            if beside.is_some_and(|beside| beside != all) {
                return Err("a read beside the claim is not what a roll-back leaves".to_owned());
            }
            Ok(all)
        };
        tokio::select! {
            seen = seen => self.check_prefix(world, &seen?),
            () = power_off(&hardware) => Ok(()),
        }
    }

    fn check_prefix(&self, world: &World, bytes: &[u8]) -> Result<(), String> {
        self.check_prefix_from(world.drained.load(Ordering::Relaxed), world, bytes)
    }

    /// Checks that the image is a consistent prefix of a moment not before `least`.
    fn check_prefix_from(&self, least: u64, world: &World, bytes: &[u8]) -> Result<(), String> {
        let model = world.model.lock();
        let through = self.through.lock();
        match self.trial.promise {
            Promise::Prefix => model.check_prefix(bytes, least, &|_| false),
            // A discard writes zeros whether or not it bypassed the log, so accept each discard early.
            Promise::PrefixExceptThrough => model.check_prefix(bytes, least, &|write| {
                write.value == 0 || through.contains(&write.value)
            }),
            Promise::Drained => {
                drop(model);
                world.check_drained(bytes)
            }
        }
    }

    /// Ends gateway and node, each in a random way.
    pub fn end(&self, rng: &mut Rng) -> Left {
        let ends = [End::Power, End::Kill, End::NearPower, End::Power];
        Left {
            gateway: self.gateway.end(ends[rng.below(4) as usize], rng),
            node: self.node.lock().end(ends[rng.below(4) as usize], rng),
        }
    }

    /// Checks that the node alone holds a consistent prefix.
    pub fn check_node_alone(&self, node: Remains, world: &World) -> Result<Remains, String> {
        let (bytes, remains) = node_contents(&self.trial, node, self.seed + 11)?;
        self.check_prefix(world, &bytes).map_err(|fault| format!("the node alone: {fault}"))?;
        Ok(remains)
    }

    /// Checks that gateway and node together have every acknowledged write.
    pub fn check_both(&self, left: Left, world: &World, drain: bool) -> Result<Left, String> {
        let mut quiet = self.trial.clone();
        quiet.script.delay = Duration::ZERO;
        let site = Self::reopen(&quiet, left, self.seed + 12);
        let mut values = Vec::new();
        let work = async {
            tokio::spawn(Arc::clone(&site).keep_node(Arc::clone(&World::new(&quiet.script))));
            let gateway = site.open_gateway().await?;
            let data = read_all(&quiet.script, gateway.as_ref()).await?;
            for (sector, bytes) in data.chunks(SECTOR).enumerate() {
                let checked = world.model.lock().check(sector, bytes, u64::MAX);
                values.push(checked.map_err(|fault| format!("with the log: {fault}"))?);
            }
            if drain {
                tokio::spawn(gateway.run());
                gateway.drain().await.map_err(|error| format!("cannot be drained: {error}"))?;
                let node = site.up.borrow().clone().ok_or("the node is not there")?.1;
                let lower = read_all(&quiet.script, node.as_ref()).await?;
                if lower != data {
                    return Err("drained, the node holds something else".to_owned());
                }
            }
            Ok(())
        };
        let late = |_| Err("recovery does not come to an end".into());
        let limited = async { tokio::time::timeout(LONGEST, work).await.unwrap_or_else(late) };
        runtime().block_on(limited)?;
        world.model.lock().settle(&values);
        let mut rng = Rng::new(self.seed);
        Ok(Left {
            gateway: site.gateway.end(End::Kill, &mut rng),
            node: site.node.lock().end(End::Kill, &mut rng),
        })
    }
}

/// Reads the whole volume as of the last flush.
async fn read_flushed(script: &Script, node: &Cache) -> Result<Vec<u8>, String> {
    let blocks = script.geometry.blocks as u32;
    let read = node.extensions().read_flushed(Extent { lba: Lba(0), blocks }).await;
    let data = read.map_err(|error| format!("cannot be read as of the last flush: {error}"))?;
    Ok(data.into_bytes().to_vec())
}

/// Returns the data of the node after a restart without the gateway, from its disks alone.
pub fn node_contents(
    trial: &Trial,
    remains: Remains,
    seed: u64,
) -> Result<(Vec<u8>, Remains), String> {
    let hardware = trial.node_hardware(Some(remains), seed);
    let bytes = runtime().block_on(async {
        let node = trial.open_node(&hardware).await?;
        read_all(&trial.script, node.as_ref()).await
    })?;
    Ok((bytes, hardware.end(End::Kill, &mut Rng::new(seed))))
}

/// Number of times that another initiator reads the node's whole volume during a run.
const LOOKS: u32 = 4;
