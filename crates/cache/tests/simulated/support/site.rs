//! A gateway whose lower volume is that of a node, which has a log of its own and writes that count
//! by flush; a link between the two that is cut, and a node that loses power and comes back.

use std::{
    collections::HashSet,
    pin::pin,
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
use volume::{
    Data, Durability, Error, Extent, FlushBegunCallback, Geometry, Io, Lba, Stack, Volume,
};

use super::{
    hardware::{End, Hardware, Mutation, Remains},
    model::{SECTOR, value_of},
    workload::{Host, LONGEST, Script, World, power_off, read_all, runtime},
};

/// What is done wrong on purpose.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wrong {
    Nothing,
    /// At the gateway.
    Gateway(Mutation),
    /// At the node.
    Node(Mutation),
    /// The flush that ends a round is answered and not sent.
    FlushNotSent,
    /// It is sent though the node has lost half of what it is for.
    HalfFlushed,
    /// It is sent, and not waited for.
    FlushNotAwaited,
    /// The node takes what is not flushed for whole.
    NoMarkers,
    /// Writes and discards go past the gateway's log.
    Bypass,
    /// What a lost gateway has left is not rolled back.
    NotRolledBack,
    /// The node performs writes that follow a flush although that flush has not ended.
    FlushOvertaken,
    /// A flush that failed is sent again by the initiator, behind the writes that followed it.
    FlushSentAgain,
}

/// A script for the gateway, and what is different at the node.
#[derive(Clone, Debug)]
pub struct Trial {
    pub script: Script,
    pub node: Settings,
    pub node_log_blocks: u64,
    pub promise: Promise,
    pub wrong: Wrong,
}

/// What the node alone is when the gateway is lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Promise {
    /// A past.
    Past,
    /// That, but for what was written through while the log disk failed: it may be there early.
    PastButThrough,
    /// No older than the last drain.
    Drained,
}

impl Trial {
    pub fn new(seed: u64) -> Self {
        let mut script = Script::new(seed);
        let mut rng = Rng::new(seed ^ 0x0e70_c4ed);
        // A quarter of them is relaxed.
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
            DestageOrder::Strict if writes_through => Promise::PastButThrough,
            DestageOrder::Strict => Promise::Past,
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

    /// The same with something done wrong.
    pub fn with(mut self, wrong: Wrong) -> Self {
        self.wrong = wrong;
        match wrong {
            Wrong::Gateway(mutation) => self.script.mutation = mutation,
            Wrong::NoMarkers => self.node.report = WriteMode::AfterComplete,
            Wrong::Bypass => self.script.settings.order = DestageOrder::Relaxed,
            // Seen where a gateway is lost in the middle of a round, without anybody's help.
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

/// The node while it is on.
type Up = Option<(u64, Arc<Cache>)>;

/// What runs where.
pub struct Site {
    pub trial: Trial,
    pub gateway: Hardware,
    pub node: Arc<Mutex<Hardware>>,
    up: watch::Sender<Up>,
    /// What the node said of its epochs last.
    epoch_blocks: AtomicU64,
    cut: AtomicBool,
    /// What was written through, by what it holds.
    through: Mutex<HashSet<u64>>,
    /// Counts rounds of the gateway, power failures of the node, split rounds, roll-backs at the node, flushes that
    /// writes have followed, and failures of such flushes.
    pub reached: Mutex<[u64; 6]>,
    seed: u64,
}

/// What is left of both.
pub struct Left {
    pub gateway: Remains,
    pub node: Remains,
}

impl Site {
    pub fn new(trial: &Trial) -> Arc<Self> {
        Self::assemble(trial, trial.script.hardware(), None, trial.script.seed)
    }

    /// From what was left.
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
        Arc::new(Link {
            site: Arc::clone(self),
            rng: Mutex::new(Rng::new(self.seed + 7)),
            unflushed: Mutex::default(),
            followed: Followed::default(),
        })
    }

    /// Starts the node, and starts it again after each power failure.
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

    /// Lets hosts work until they are done or the gateway fails. Then what is seen at the node, the
    /// gateway being lost, is checked; and what is on its disks.
    pub fn run(self: &Arc<Self>, world: &Arc<World>) {
        runtime().block_on(async {
            tokio::spawn(Arc::clone(self).keep_node(Arc::clone(world)));
            let (sender, destage) = watch::channel(None);
            let work = async {
                // Who starts first finds what it had before.
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
                self.reached.lock()[0] += counted.rounds;
                self.reached.lock()[2] += counted.split_rounds;
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
            let checked = seen.and_then(|bytes| self.check_past_from(least, world, &bytes));
            if let Err(fault) = checked {
                return world.report(format!("read beside the gateway: {fault}"));
            }
        }
    }

    /// The gateway is lost, the node goes on.
    async fn check_seen(&self, world: &World) -> Result<(), String> {
        let Some((_, node)) = self.up.borrow().clone() else { return Ok(()) };
        let hardware = self.node.lock().twin();
        // What the gateway had sent is answered or aborted by now.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let seen = async {
            let mut beside = None;
            if self.trial.wrong != Wrong::NotRolledBack
                && self.trial.node.report == WriteMode::AtFlush
            {
                beside = Some(read_flushed(&self.trial.script, &node).await?);
                let rolled_back = node.roll_back().await;
                rolled_back.map_err(|error| format!("cannot be rolled back: {error}"))?;
            }
            self.reached.lock()[3] += node.statistics().rolled_back;
            let all = read_all(&self.trial.script, node.as_ref()).await?;
            if beside.is_some_and(|beside| beside != all) {
                return Err("a read beside the claim is not what a roll-back leaves".to_owned());
            }
            Ok(all)
        };
        tokio::select! {
            seen = seen => self.check_past(world, &seen?),
            () = power_off(&hardware) => Ok(()),
        }
    }

    fn check_past(&self, world: &World, bytes: &[u8]) -> Result<(), String> {
        self.check_past_from(world.drained.load(Ordering::Relaxed), world, bytes)
    }

    /// Checks that the image is a consistent prefix of a moment not before `least`.
    fn check_past_from(&self, least: u64, world: &World, bytes: &[u8]) -> Result<(), String> {
        let model = world.model.lock();
        let through = self.through.lock();
        match self.trial.promise {
            Promise::Past => model.check_past(bytes, least, &|_| false),
            // Discards are sent alike, through the log and past it.
            Promise::PastButThrough => model.check_past(bytes, least, &|write| {
                write.value == 0 || through.contains(&write.value)
            }),
            Promise::Drained => {
                drop(model);
                world.check_drained(bytes)
            }
        }
    }

    /// Ends both.
    pub fn end(&self, rng: &mut Rng) -> Left {
        let ends = [End::Power, End::Kill, End::NearPower, End::Power];
        Left {
            gateway: self.gateway.end(ends[rng.below(4) as usize], rng),
            node: self.node.lock().end(ends[rng.below(4) as usize], rng),
        }
    }

    /// The node alone has a past.
    pub fn check_node_alone(&self, node: Remains, world: &World) -> Result<Remains, String> {
        let (bytes, remains) = node_contents(&self.trial, node, self.seed + 11)?;
        self.check_past(world, &bytes).map_err(|fault| format!("the node alone: {fault}"))?;
        Ok(remains)
    }

    /// Gateway and node together have every acknowledged write.
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
    let read = node.read_flushed(Extent { lba: Lba(0), blocks }).await;
    let data = read.map_err(|error| format!("cannot be read as of the last flush: {error}"))?;
    Ok(data.into_bytes().to_vec())
}

/// Returns the content of a node that restarts with nothing but its disks.
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

/// How often another initiator reads the whole node while the gateway works.
const LOOKS: u32 = 4;

/// The node as the gateway sees it.
struct Link {
    site: Arc<Site>,
    rng: Mutex<Rng>,
    unflushed: Mutex<Unflushed>,
    followed: Followed,
}

/// Flushes behind which the gateway may send writes before the answer. The node performs such a write after the flush.
#[derive(Default)]
struct Followed {
    /// The number of flushes that were sent.
    sent: AtomicU64,
    /// The number of flushes that have ended, at the node or because they were lost on the way. They end in order.
    ended: watch::Sender<u64>,
    /// The number of the newest flush behind which a write was sent.
    by_a_write: AtomicU64,
}

/// One such flush. Dropping it counts it as ended.
struct OneFollowed<'a>(&'a Followed);

impl Drop for OneFollowed<'_> {
    fn drop(&mut self) {
        self.0.ended.send_modify(|ended| *ended += 1);
    }
}

/// The volatile writes that were answered and not flushed, as an initiator remembers them (decision
/// 0004): in the order of their answers, each with the incarnation of the node that has it.
#[derive(Default)]
struct Unflushed {
    answered: u64,
    writes: Vec<(u64, u64)>,
}

impl Unflushed {
    /// The incarnations of those that were answered before the flush `begun`.
    fn before(&self, begun: u64) -> impl Iterator<Item = u64> {
        let before = self.writes.iter().filter(move |(number, _)| *number <= begun);
        before.map(|&(_, incarnation)| incarnation)
    }

    /// They are stable, or it was told that they may not be.
    fn forget(&mut self, begun: u64) {
        self.writes.retain(|&(number, _)| number > begun);
    }
}

impl Link {
    /// One call at the node, if the link and the node are up for as long as it takes.
    async fn call<T, F>(&self, call: impl FnOnce(Arc<Cache>) -> F) -> Result<(u64, T), Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        self.call_if(|_| true, call).await
    }

    /// Makes a call, if `may` permits it for the present start of the node; otherwise the call fails.
    async fn call_if<T, F>(
        &self,
        may: impl FnOnce(u64) -> bool,
        call: impl FnOnce(Arc<Cache>) -> F,
    ) -> Result<(u64, T), Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let away = || Error::Unreachable("the link is down".into());
        self.travel().await?;
        let mut up = self.site.up.subscribe();
        let (incarnation, node) = {
            let waited = up.wait_for(Option::is_some);
            let waited = tokio::time::timeout(Duration::from_millis(300), waited).await;
            let node = waited.map_err(|_| away())?.map_err(|_| away())?;
            node.clone().expect("it was waited for")
        };
        if !may(incarnation) {
            return Err(away());
        }
        let lost = up.wait_for(|up| up.as_ref().is_none_or(|(number, _)| *number != incarnation));
        let mut lost = pin!(lost);
        let answer = tokio::select! {
            biased;
            _ = &mut lost => return Err(away()),
            answer = call(node) => answer?,
        };
        self.travel().await?;
        Ok((incarnation, answer))
    }

    async fn travel(&self) -> Result<(), Error> {
        let delay = self.site.trial.script.delay;
        let (delay, away) = {
            let mut rng = self.rng.lock();
            (delay * rng.below(5) as u32 / 2, !delay.is_zero() && rng.chance(3))
        };
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if self.site.cut.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if away { Err(Error::Unreachable("the link is down".into())) } else { Ok(()) }
    }

    fn note(&self, incarnation: u64) {
        let mut unflushed = self.unflushed.lock();
        unflushed.answered += 1;
        let number = unflushed.answered;
        unflushed.writes.push((number, incarnation));
    }

    /// Changes blocks of the node, after the flush that was sent before it has ended.
    async fn change<F>(&self, change: impl FnOnce(Arc<Cache>) -> F) -> Result<u64, Error>
    where
        F: Future<Output = Result<(), Error>>,
    {
        let before = self.followed.sent.load(Ordering::SeqCst);
        let mut ended = self.followed.ended.subscribe();
        if *ended.borrow() < before
            && self.followed.by_a_write.swap(before, Ordering::SeqCst) != before
        {
            self.site.reached.lock()[4] += 1;
        }
        let waits = self.site.trial.wrong != Wrong::FlushOvertaken;
        let changed = self.call(|node| async move {
            if waits {
                let ended = ended.wait_for(|ended| *ended >= before).await;
                assert!(ended.is_ok(), "the link lasts longer than its calls");
            }
            change(node).await
        });
        Ok(changed.await?.0)
    }

    /// Flushes the node. Calls `begun` as soon as every later call is performed after the flush.
    async fn flush_node(&self, begun: Option<FlushBegunCallback<'_>>) -> Result<(), Error> {
        let lost = || Error::Device("the node started anew".into());
        let number = {
            let mut unflushed = self.unflushed.lock();
            let number = unflushed.answered;
            let newest = unflushed.before(number).max();
            let half = unflushed.before(number).any(|incarnation| Some(incarnation) != newest);
            if half && self.site.trial.wrong != Wrong::HalfFlushed {
                // The node has lost a part of the epoch: a flush would make the rest of it stable.
                unflushed.forget(number);
                return Err(lost());
            }
            number
        };
        // The initiator sends such a flush only in the present session.
        let only_in = begun.as_ref().and_then(|_| self.site.up.borrow().as_ref().map(|up| up.0));
        let followed = begun.map(|begun| {
            self.followed.sent.fetch_add(1, Ordering::SeqCst);
            begun();
            OneFollowed(&self.followed)
        });
        let wrong = self.site.trial.wrong;
        let flush = |node: Arc<Cache>| async move {
            match wrong {
                Wrong::FlushNotSent => Ok(()),
                Wrong::FlushNotAwaited => {
                    tokio::spawn(async move { node.flush().await });
                    Ok(())
                }
                _ => node.flush().await,
            }
        };
        let has_followers = followed.is_some();
        let mut flushed = self
            .call_if(
                |incarnation| !has_followers || only_in == Some(incarnation),
                |node| async move {
                    let flushed = flush(node).await;
                    drop(followed);
                    flushed
                },
            )
            .await;
        if has_followers && flushed.is_err() {
            self.site.reached.lock()[5] += 1;
            if wrong == Wrong::FlushSentAgain {
                flushed = self.call(flush).await;
            }
        }
        let (incarnation, ()) = flushed?;
        let mut unflushed = self.unflushed.lock();
        let is_lost = unflushed.before(number).any(|write| write != incarnation);
        unflushed.forget(number);
        if is_lost { Err(lost()) } else { Ok(()) }
    }
}

impl Volume for Link {
    fn geometry(&self) -> Geometry {
        let geometry = self.site.trial.script.geometry;
        let known = self.site.epoch_blocks.load(Ordering::SeqCst);
        // Whatever the node is, the gateway believes in it.
        let epoch_blocks = if self.site.trial.wrong == Wrong::NoMarkers { 800 } else { known };
        Geometry { epoch_blocks, ..geometry }
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        Io::new(async move {
            let read = self.call(|node| async move { node.read(extent).await });
            Ok(read.await?.1)
        })
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        Io::new(async move {
            let mut copy = vec![0; data.len()];
            data.copy_to_slice(&mut copy);
            if durability == Durability::Stable {
                let first = lba.0 as usize * self.geometry().block_size as usize / SECTOR;
                let sectors = copy.chunks(SECTOR).enumerate();
                let values = sectors.filter_map(|(at, sector)| value_of(first + at, sector).ok());
                self.site.through.lock().extend(values);
            }
            let write =
                |node: Arc<Cache>| async move { node.write(lba, copy.into(), durability).await };
            let incarnation = self.change(write).await?;
            if durability == Durability::Volatile {
                self.note(incarnation);
            }
            Ok(())
        })
    }

    fn flush(&self) -> Io<'_, ()> {
        Io::new(self.flush_node(None))
    }

    fn flush_ahead<'a>(&'a self, begun: FlushBegunCallback<'a>) -> Io<'a, ()> {
        Io::new(self.flush_node(Some(begun)))
    }

    fn roll_back(&self) -> Io<'_, ()> {
        Io::new(async move {
            if self.site.trial.wrong == Wrong::NoMarkers {
                return Ok(());
            }
            self.call(|node| async move { node.roll_back().await }).await?;
            self.unflushed.lock().writes.clear();
            Ok(())
        })
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        Io::new(async move {
            let discard = |node: Arc<Cache>| async move { node.discard(extent).await };
            let incarnation = self.change(discard).await?;
            self.note(incarnation);
            Ok(())
        })
    }
}
