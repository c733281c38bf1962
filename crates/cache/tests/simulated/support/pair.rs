//! Two gateways with one log, a node, and the three links between them. A test can cut the power of each gateway and
//! each link; hosts use the gateway that serves.

mod far_volume;

use std::{
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use cache::{
    BootId, Cache, FoundBuffer, LogBuffer, LogLeg, LogVolumeIdentity, NvramPromise, NvramSurvival,
    PairMember, PairMemberAnswer, PairMemberHost, PairTiming, Role, Settings, StableMemory,
};
use parking_lot::Mutex;
use sim::{CrashVolume, Outage, Power, Rng, StableDiskImage};
use tokio::time::sleep;
use volume::{
    Data, DelayVolume, Durability, Error, Extensions, Extent, Geometry, Io, Latency, Lba,
    MemVolume, Mirror, MirrorLegStatus, Stack, Volume,
};

use far_volume::Far;

/// A deliberate fault, which the tests must notice.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wrong {
    Nothing,
    /// Fault to detect: a gateway that loses its partner continues alone without asking the node.
    NoWitness,
    /// Fault to detect: the node grants every claim, whichever log opening had the last one.
    EveryClaimGranted,
    /// Fault to detect: a write from an earlier session with the partner's leg is performed although a new session has
    /// begun.
    LateWrites,
    /// Fault to detect: the node's answer to one claim is accepted as the answer to a later claim.
    StrayAnswers,
    /// Fault to detect: the loss of the NVRAM is not recorded in the label of the leg.
    LossNotNoted,
    /// Fault to detect: a session with a leg stays valid although the gateway of the leg has opened it or was
    /// restarted.
    SessionGoesOn,
}

/// The kind of NVRAM in front of the two legs of the log.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Nvram {
    None,
    SurvivesPower,
    /// The NVRAM content survives the end of the process, but not a loss of power.
    SurvivesProcess,
}

/// One of the three links between the two gateways and the node.
#[derive(Clone, Copy, Debug)]
pub enum Wire {
    Gateways,
    ToNode(usize),
}

pub struct World {
    pub wrong: Wrong,
    pub nvram: Nvram,
    /// True: no packet between the two gateways is delayed for long.
    is_calm: AtomicBool,
    /// The additional delay of each packet between the two gateways, in microseconds.
    distance: AtomicU64,
    node: Arc<Node>,
    sides: [Arc<Side>; 2],
    between: AtomicBool,
    seed: u64,
    /// The next number for a process or a session.
    numbers: AtomicU64,
}

/// The disk, the NVRAM and the process of one gateway of the pair.
struct Side {
    index: usize,
    to_node: AtomicBool,
    running: Mutex<Option<Arc<Process>>>,
    disk: Mutex<Arc<CrashVolume>>,
    nvram: Arc<Mutex<Vec<u8>>>,
    /// Number of times that the gateway's machine has booted; serves as the boot id.
    boots: AtomicU64,
    /// Number of the only session that may use this gateway's leg of the log.
    session: AtomicU64,
}

struct Process {
    world: Weak<World>,
    side: Arc<Side>,
    power: Arc<Power>,
    half: OnceLock<Arc<LogLeg>>,
    /// Identifies the unit that exports the leg to the partner. A session is valid for one unit only.
    unit: AtomicU64,
    member: Mutex<Option<Arc<PairMember>>>,
    /// The cache and the number of its opening, while the gateway serves the unit.
    serving: Mutex<Option<(u64, Arc<Cache>)>>,
}

/// The node with its volume, and the last claim that it has granted.
struct Node {
    memory: MemVolume,
    last: Mutex<Option<Last>>,
}

#[derive(Clone, Copy)]
struct Last {
    opening: u64,
    generation: u64,
    session: u64,
}

impl World {
    pub fn new(seed: u64, wrong: Wrong) -> Arc<Self> {
        Self::with_nvram(seed, wrong, Nvram::None)
    }

    pub fn with_nvram(seed: u64, wrong: Wrong, nvram: Nvram) -> Arc<Self> {
        let node = Arc::new(Node {
            memory: MemVolume::new(Geometry::with_blocks(BLOCKS)),
            last: Mutex::default(),
        });
        let geometry = Geometry { block_size: 4096, ..Geometry::with_blocks(LOG_BLOCKS) };
        let side = |index| {
            Arc::new(Side {
                index,
                to_node: true.into(),
                running: Mutex::default(),
                disk: Mutex::new(Arc::new(CrashVolume::new(geometry, seed + index as u64))),
                nvram: Arc::new(Mutex::new(vec![0; NVRAM_BYTES])),
                boots: AtomicU64::new(1),
                session: AtomicU64::new(0),
            })
        };
        Arc::new(Self {
            wrong,
            nvram,
            is_calm: false.into(),
            distance: 0.into(),
            node,
            sides: [side(0), side(1)],
            between: true.into(),
            seed,
            numbers: AtomicU64::new(1),
        })
    }

    /// Returns a world in which no packet between the two gateways is delayed for long.
    pub fn calm(seed: u64) -> Arc<Self> {
        Self::new(seed, Wrong::Nothing).calmed()
    }

    /// Ends long delays of packets between the two gateways.
    pub fn calmed(self: Arc<Self>) -> Arc<Self> {
        self.is_calm.store(true, Ordering::SeqCst);
        self
    }

    /// From now on, delays each packet between the two gateways by `one_way`.
    pub fn set_distance(&self, one_way: Duration) {
        self.distance.store(one_way.as_micros() as u64, Ordering::SeqCst);
    }

    /// Returns the first byte of a slot in the node's volume.
    pub async fn at_node(&self, slot: u64) -> u8 {
        let extent = Extent { lba: Lba(slot * 8), blocks: 1 };
        let data = self.node.memory.read(extent).await.expect("it is memory");
        data.into_bytes()[0]
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::SeqCst)
    }

    /// Starts gateway `index` if it is not running.
    pub fn start(self: &Arc<Self>, index: usize) {
        let side = &self.sides[index];
        let mut running = side.running.lock();
        if running.is_some() {
            return;
        }
        let power = Power::new();
        let disk = {
            let mut disk = side.disk.lock();
            let number = self.number();
            let image = disk.crash(&mut Rng::new(self.seed ^ number));
            let reopened = CrashVolume::reopen(image, self.seed ^ number)
                .with_outage(Outage::Hangs)
                .with_yields(20)
                .powered_by(&power);
            *disk = Arc::new(reopened);
            Arc::clone(&disk)
        };
        let process = Arc::new(Process {
            world: Arc::downgrade(self),
            side: Arc::clone(side),
            power,
            half: OnceLock::new(),
            unit: self.number().into(),
            member: Mutex::default(),
            serving: Mutex::default(),
        });
        *running = Some(Arc::clone(&process));
        tokio::spawn(process.run(disk, self.nvram, self.wrong));
    }

    /// Cuts the power of a gateway's machine: the NVRAM is lost unless it survives that.
    pub fn kill(&self, index: usize) {
        self.end_process(index);
        self.sides[index].boots.fetch_add(1, Ordering::SeqCst);
    }

    /// Kills the process of a gateway. Its disk and its NVRAM keep what was written.
    pub fn end_process(&self, index: usize) {
        if let Some(process) = self.sides[index].running.lock().take() {
            process.power.fail();
            // The process and its member refer to each other: break the cycle, or neither is freed.
            process.member.lock().take();
        }
    }

    /// Returns the content of a gateway's disk.
    pub fn backup(&self, index: usize) -> StableDiskImage {
        self.sides[index].disk.lock().contents()
    }

    /// Replaces the content of the disk of a gateway that is off.
    pub fn put_back(&self, index: usize, image: StableDiskImage) {
        *self.sides[index].disk.lock() = Arc::new(CrashVolume::reopen(image, self.seed));
    }

    /// Returns the reason that gateway `index` reports for its present state.
    pub fn reason(&self, index: usize) -> Option<Arc<str>> {
        let process = self.sides[index].running.lock().clone()?;
        let member = process.member.lock().clone()?;
        member.standing().reason
    }

    pub fn set(&self, wire: Wire, is_up: bool) {
        let wire = match wire {
            Wire::Gateways => &self.between,
            Wire::ToNode(index) => &self.sides[index].to_node,
        };
        wire.store(is_up, Ordering::SeqCst);
    }

    /// Requests a handover of the unit by gateway `index`.
    pub fn change_places(&self, index: usize) -> Result<(), Arc<str>> {
        let member =
            self.sides[index].running.lock().as_ref().and_then(|p| p.member.lock().clone());
        member.map_or_else(|| Err("it is off".into()), |member| member.change_places())
    }

    /// If gateway `index` serves the unit, returns its cache and the number of the opening.
    pub fn served(&self, index: usize) -> Option<(u64, Arc<Cache>)> {
        let process = self.sides[index].running.lock().clone()?;
        let serving = process.serving.lock().clone();
        serving.filter(|_| !process.power.is_off())
    }

    /// Returns true if one gateway serves, the other is on standby, and both legs hold everything.
    pub fn is_whole(&self) -> bool {
        let looks = [0, 1].map(|index: usize| {
            let process = self.sides[index].running.lock().clone();
            let member = process.and_then(|process| process.member.lock().clone());
            member.map(|member| member.standing())
        });
        let [Some(a), Some(b)] = looks else { return false };
        let in_sync = Some([MirrorLegStatus::InSync, MirrorLegStatus::InSync]);
        let whole = |active: &cache::PairMemberStatus, other: &cache::PairMemberStatus| {
            active.role == Role::Active && active.halves == in_sync && other.role == Role::Standby
        };
        whole(&a, &b) || whole(&b, &a)
    }

    pub fn describe(&self) -> String {
        let looks = [0, 1].map(|index: usize| {
            let process = self.sides[index].running.lock().clone();
            let member = process.and_then(|process| process.member.lock().clone());
            member.map(|member| member.standing())
        });
        format!("{looks:?}")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for side in &self.sides {
            if let Some(process) = side.running.lock().take() {
                process.power.fail();
                // The process and its member refer to each other: break the cycle, or neither is freed.
                process.member.lock().take();
            }
        }
    }
}

impl PairMemberHost for Process {
    fn partner(&self) -> PairMemberAnswer<'_, Stack> {
        Box::pin(async move {
            let world = self.world.upgrade().ok_or("the end")?;
            let number = world.number();
            let theirs = Theirs {
                world: Weak::clone(&self.world),
                power: Arc::clone(&self.power),
                other: Arc::clone(&world.sides[1 - self.side.index]),
                number,
                rng: Arc::new(Mutex::new(Rng::new(world.seed ^ number))),
                geometry: self.half().geometry(),
                unit: 0,
            };
            let there = theirs.there().await.map_err(|error| error.to_string())?;
            let theirs = Theirs { unit: there.unit.load(Ordering::SeqCst), ..theirs };
            // A login ends the previous session.
            there.side.session.store(number, Ordering::SeqCst);
            Ok(Arc::new(theirs) as Stack)
        })
    }

    fn turn_partner_away(&self) -> PairMemberAnswer<'_, ()> {
        Box::pin(async move {
            let world = self.world.upgrade().ok_or("the end")?;
            self.unit.store(world.number(), Ordering::SeqCst);
            Ok(())
        })
    }

    fn far(&self) -> PairMemberAnswer<'_, ()> {
        Box::pin(async move {
            let world = self.world.upgrade().ok_or("the end")?;
            let far = self.far_volume(&world, world.number());
            far.travel().await.map_err(|error| error.to_string().into())
        })
    }

    fn serve(&self, log: Arc<Mirror>) -> PairMemberAnswer<'_, Arc<Cache>> {
        Box::pin(async move {
            let world = self.world.upgrade().ok_or("the end")?;
            let number = world.number();
            let lower = Arc::new(self.far_volume(&world, number));
            // Check the link before the opening: the superblock has to list each opening whose claim gets no answer.
            if log.alone().is_some() {
                lower.travel().await.map_err(|error| error.to_string())?;
            }
            let identity = LogVolumeIdentity { name: "far".into(), geometry: lower.geometry() };
            let settings = Settings {
                dram_bytes: 1 << 20,
                nvram_bytes: 256 << 10,
                read_ahead_bytes: 0,
                segment_slots: 8,
                owner: format!("gateway {}", self.side.index),
                log_buffer: world.nvram.survives(),
                ..Settings::default()
            };
            let cache = Cache::open_pair(settings, lower, log, identity).await;
            let cache = cache.map_err(|error| error.to_string())?;
            tokio::spawn(cache.run());
            *self.serving.lock() = Some((number, Arc::clone(&cache)));
            Ok(cache)
        })
    }

    fn withdraw(&self, at_rest: bool) -> PairMemberAnswer<'_, ()> {
        Box::pin(async move {
            let serving = self.serving.lock().take();
            match serving {
                Some((_, cache)) if at_rest => {
                    cache.stop().await.map_err(|error| error.to_string().into())
                }
                _ => Ok(()),
            }
        })
    }
}

impl Process {
    fn far_volume(&self, world: &World, number: u64) -> Far {
        Far {
            node: Arc::clone(&world.node),
            side: Arc::clone(&self.side),
            power: Arc::clone(&self.power),
            session: number,
            wrong: world.wrong,
            asked: Arc::default(),
            rng: Mutex::new(Rng::new(world.seed ^ number)),
        }
    }

    fn half(&self) -> Stack {
        self.half.get().expect("it is open before the member runs").for_partner()
    }

    /// Opens the leg and runs the member. Returns only when the process ends.
    async fn run(self: Arc<Self>, disk: Arc<CrashVolume>, nvram: Nvram, wrong: Wrong) {
        let mut half: Stack = disk;
        if let Some(survives) = nvram.survives() {
            let latency = Latency { write: DISK_WRITE, ..Latency::default() };
            let slow: Stack = Arc::new(DelayVolume::new(half, latency));
            let buffer = self.open_buffer(slow, survives, wrong).await;
            half = Arc::new(buffer);
        }
        let half = self.half.get_or_init(|| LogLeg::new(half));
        let timing = PairTiming { dead_after: DEAD_AFTER, is_first: self.side.index == 0 };
        let surroundings: Arc<dyn PairMemberHost> = self.clone();
        let member = PairMember::new(Arc::clone(half), surroundings, timing);
        *self.member.lock() = Some(Arc::clone(&member));
        member.run().await;
    }

    async fn open_buffer(&self, disk: Stack, survives: NvramSurvival, wrong: Wrong) -> LogBuffer {
        let (power, bytes) = (Arc::clone(&self.power), Arc::clone(&self.side.nvram));
        let memory = Box::new(SideMemory { power, bytes });
        let boot = u128::from(self.side.boots.load(Ordering::SeqCst)).to_le_bytes();
        let promise = NvramPromise { survives, boot: Some(BootId(boot)) };
        let found = FoundBuffer::open(disk, memory, promise).await.expect("it is the same NVRAM");
        found.note_loss(wrong == Wrong::LossNotNoted).await.expect("a half");
        found.begin().await.expect("the disk works")
    }
}

impl Nvram {
    fn survives(self) -> Option<NvramSurvival> {
        match self {
            Self::None => None,
            Self::SurvivesPower => Some(NvramSurvival::PowerLoss),
            Self::SurvivesProcess => Some(NvramSurvival::Restart),
        }
    }
}

/// The NVRAM of one gateway. Writes of a process that has ended are ignored.
struct SideMemory {
    power: Arc<Power>,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl StableMemory for SideMemory {
    fn len(&self) -> usize {
        NVRAM_BYTES
    }

    fn read(&self, offset: usize, to: &mut [u8]) {
        to.copy_from_slice(&self.bytes.lock()[offset..offset + to.len()]);
    }

    fn write(&mut self, offset: usize, from: &[u8]) {
        if !self.power.is_off() {
            self.bytes.lock()[offset..offset + from.len()].copy_from_slice(from);
        }
    }
}

/// The leg of the partner, as a session of the other gateway accesses it.
#[derive(Clone)]
struct Theirs {
    world: Weak<World>,
    /// The power supply of the calling gateway.
    power: Arc<Power>,
    other: Arc<Side>,
    number: u64,
    rng: Arc<Mutex<Rng>>,
    geometry: Geometry,
    /// The unit with which the session began.
    unit: u64,
}

impl Theirs {
    /// Crosses the link. Returns the partner's process if the link is up and the partner is on.
    async fn there(&self) -> Result<Arc<Process>, Error> {
        let jitter = self.rng.lock().below(400);
        let distance =
            self.world.upgrade().map_or(0, |world| world.distance.load(Ordering::SeqCst));
        sleep(Duration::from_micros(100 + jitter + distance)).await;
        if self.power.is_off() {
            std::future::pending::<()>().await;
        }
        let world = self.world.upgrade().ok_or(Error::Unreachable("the end".into()))?;
        let is_up = world.between.load(Ordering::SeqCst);
        let process = self.other.running.lock().clone();
        drop(world);
        match process {
            Some(process) if is_up && !process.power.is_off() && process.half.get().is_some() => {
                Ok(process)
            }
            // Half of the failed calls get an error at once, and the others are never answered.
            _ if self.rng.lock().chance(50) => Err(Error::Unreachable("no route".into())),
            _ => std::future::pending().await,
        }
    }

    /// Makes a call to the partner and waits for the answer. A request that is on its way when the caller drops the
    /// call may still arrive.
    fn call<T, F>(&self, call: impl FnOnce(Stack) -> F + Send + 'static) -> Io<'_, T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let this = self.clone();
        let work = tokio::spawn(async move {
            let process = this.there().await?;
            // Delay the packet for long, sometimes.
            let world = this.world.upgrade();
            let is_calm = world.as_ref().is_some_and(|world| world.is_calm.load(Ordering::SeqCst));
            let wrong = world.map(|world| world.wrong);
            let often = match wrong {
                Some(Wrong::LateWrites) => 4,
                _ if is_calm => 0,
                _ => 2,
            };
            if this.rng.lock().chance(often) {
                sleep(DEAD_AFTER * 2).await;
            }
            let is_late = process.side.session.load(Ordering::SeqCst) != this.number;
            if is_late && wrong != Some(Wrong::LateWrites) {
                return Err(Error::Unreachable("the session was ended".into()));
            }
            let is_other = process.unit.load(Ordering::SeqCst) != this.unit;
            if is_other && wrong != Some(Wrong::SessionGoesOn) && wrong != Some(Wrong::LateWrites) {
                return Err(Error::Device("the unit has become another one".into()));
            }
            let done = call(process.half()).await;
            this.there().await?;
            done
        });
        Io::new(
            async move { work.await.unwrap_or_else(|_| Err(Error::Unreachable("the end".into()))) },
        )
    }
}

impl Volume for Theirs {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        self.call(move |half| async move { half.read(extent).await })
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        self.call(move |half| async move { half.write(lba, data, durability).await })
    }

    fn flush(&self) -> Io<'_, ()> {
        self.call(move |half| async move { half.flush().await })
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        self.call(move |half| async move { half.discard(extent).await })
    }

    fn admit(&self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions::default()
    }
}

/// Number of blocks of the far volume.
pub const BLOCKS: u64 = 2048;
/// Number of blocks of 4096 bytes of a leg of the log.
const LOG_BLOCKS: u64 = 402;
/// Bytes of the NVRAM in front of a leg, which holds about forty blocks.
const NVRAM_BYTES: usize = 4096 + 40 * 4160;
/// The latency of a write to a disk behind an NVRAM. It is so long that the NVRAM is seldom empty.
pub const DISK_WRITE: Duration = Duration::from_millis(60);
pub const DEAD_AFTER: Duration = Duration::from_secs(3);
