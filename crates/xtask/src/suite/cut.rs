//! Cuts the link between gateway and node while a host reads and writes. The host must see no
//! error, no write may take much longer than others, and after the cut the node must catch up.

use std::collections::HashMap;
use std::fmt::{Display, Formatter};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rawclient::session::ClientSessionOptions;
use rawclient::stamp::{self, BlockStampState};
use rawclient::{
    ClientLogin, ClientResponse, ClientScsiCommand, ClientSession, ClientSlotAction, ClientWorkload,
};
use rig::destage::Destage;

use crate::steps::StepTally;
use crate::suite::site::{SuiteSite, SuiteSitePlan};

const SECTORS: u16 = 8;
const SECTOR: u32 = 512;

/// Size of the area that the load uses, in blocks of 4 KiB: 16 MiB. All of it fits in DRAM, so that
/// reads do not need the link.
const BLOCKS: u64 = 4096;

/// The load keeps few commands in flight, like a file server.
const SHAPE: ClientSessionOptions = ClientSessionOptions { depth: 4, bytes: 4096, keep: true };

/// Pause between two writes. At this rate the log has space for ten minutes of writes.
const PACE: Duration = Duration::from_millis(2);
const CACHE: &str = "log_size = \"2GiB\", dram = \"32MiB\", dirty_age = \"50ms\"";

/// The time that every write must stay below while the link is cut. On a slow machine the limit is longer: three times
/// the longest write before the cut, or twice the longest write directly to the disk. The prototype of the STICS paper
/// paused for 300 ms.
const LONGEST: Duration = Duration::from_millis(250);

/// Wait this long after cutting the link: all data in flight has arrived by then, and so have the
/// answers. The link has a delay of 4 ms.
const IN_FLIGHT: Duration = Duration::from_millis(500);

/// Duration of the load before the link is cut, and again after that.
const AROUND: Duration = Duration::from_secs(3);

/// Runs the load, with the link cut for the time `cut` in the middle. The note in the result has the times of the
/// median and of the longest write before, during and after the cut.
pub fn check(program: &Path, cut: Duration) -> Result<StepTally> {
    let folder = tempfile::tempdir()?;
    let mut site =
        SuiteSite::start(program, folder.path(), SuiteSitePlan { cache: CACHE, epochs: true })?;
    let near = site.near()?;
    let mut load = LinkCutBlocks::new();
    load.fill(&near)?;
    let before = load.run(&near, AROUND)?;
    site.line().cut()?;
    let probe = Probe::begin(&folder.path().join("probe"))?;
    let during = load.run_without_link(&site, cut);
    let disk = probe.end()?;
    site.line().mend()?;
    let (during, behind) = during?;
    ensure!(
        during.longest < LONGEST.as_micros().max(3 * before.longest).max(2 * disk.longest),
        "median and longest write, us: {before} before the cut, {during} during it ({disk} of the disk itself)"
    );
    let mended = Instant::now();
    let after = load.run(&near, AROUND)?;
    site.drain()?;
    let caught_up = mended.elapsed();
    load.verify(&near)?;
    load.verify(&site.far()?)?;
    site.stop()?;
    Ok(StepTally::one().with_note(format!(
        "cut for {} s; median and longest write, us: {before} before, {during} during \
         ({disk} of the disk itself), {after} after; {} MiB behind, caught up {:.1} s after the cut",
        cut.as_secs(),
        behind >> 20,
        caught_up.as_secs_f64()
    )))
}

/// Writes blocks of 4 KiB to a file on the disk of the log, one every [`PACE`], and syncs each.
/// This measures how long the disk and the machine themselves take.
struct Probe {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<Waits>>,
}

impl Probe {
    fn begin(path: &Path) -> Result<Probe> {
        let file = File::create(path)?;
        file.write_all_at(&vec![0; 1 << 20], 0)?;
        file.sync_all()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let mut waits = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let begun = Instant::now();
                file.write_all_at(&[1; 4096], waits.len() as u64 % 256 * 4096)?;
                file.sync_data()?;
                waits.push(begun.elapsed());
                std::thread::sleep(PACE);
            }
            Waits::of(waits)
        });
        Ok(Probe { is_over, thread })
    }

    fn end(self) -> Result<Waits> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the probe of the disk panicked"))?
    }
}

/// The version that each block must hold.
struct LinkCutBlocks {
    held: Vec<u64>,
    random: u64,
    version: u64,
}

/// Median and longest time of some writes, in microseconds.
struct Waits {
    median: u128,
    longest: u128,
}

impl Waits {
    fn of(mut waits: Vec<Duration>) -> Result<Waits> {
        waits.sort_unstable();
        let longest = waits.last().context("nothing was written")?.as_micros();
        Ok(Waits { median: waits[waits.len() / 2].as_micros(), longest })
    }
}

impl Display for Waits {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}/{}", self.median, self.longest)
    }
}

impl LinkCutBlocks {
    fn new() -> LinkCutBlocks {
        LinkCutBlocks { held: vec![0; BLOCKS as usize], random: 60, version: 0 }
    }

    /// Writes each block once.
    fn fill(&mut self, login: &ClientLogin) -> Result<()> {
        let mut work = LinkCutWorkload::new(self, LinkCutLoadKind::Fill(0));
        work.on(login)
    }

    /// Sends reads and writes for the given time. Every status must be GOOD, and every block that
    /// is read must hold its last version.
    fn run(&mut self, login: &ClientLogin, time: Duration) -> Result<Waits> {
        let mut work = LinkCutWorkload::new(self, LinkCutLoadKind::Mixed(Instant::now() + time));
        work.on(login)?;
        Waits::of(work.waits)
    }

    /// Runs the load for the given time while the link is cut, and fails if anything was destaged.
    /// Returns the times of the writes, and the number of dirty bytes at the end.
    fn run_without_link(&mut self, site: &SuiteSite<'_>, time: Duration) -> Result<(Waits, u64)> {
        let near = site.near()?;
        // Answers of the node may still be in flight when the link is cut. Let them arrive before
        // looking at the destage counter.
        self.run(&near, IN_FLIGHT)?;
        let first = Destage::of(site.gateway()?)?;
        let waits = self.run(&near, time.saturating_sub(IN_FLIGHT))?;
        let last = Destage::of(site.gateway()?)?;
        ensure!(last.destaged == first.destaged, "something was destaged: the link was not cut");
        Ok((waits, last.dirty))
    }

    /// Reads each block, and checks that it holds an allowed version.
    fn verify(&mut self, login: &ClientLogin) -> Result<()> {
        let mut work = LinkCutWorkload::new(self, LinkCutLoadKind::Read(0));
        work.on(login)
    }
}

enum LinkCutLoadKind {
    /// Writes all blocks in ascending order, from this block on.
    Fill(u64),
    /// Reads all blocks in ascending order, from this block on.
    Read(u64),
    /// Reads and writes random blocks until this time.
    Mixed(Instant),
}

struct LinkCutWorkload<'a> {
    load: &'a mut LinkCutBlocks,
    kind: LinkCutLoadKind,
    last_write: Instant,
    /// Blocks with a command in flight: the version that a write sends, or None for a read.
    in_flight: HashMap<u64, Option<u64>>,
    waits: Vec<Duration>,
    wrong: Option<String>,
}

impl<'a> LinkCutWorkload<'a> {
    fn new(load: &'a mut LinkCutBlocks, kind: LinkCutLoadKind) -> LinkCutWorkload<'a> {
        let last_write = Instant::now();
        LinkCutWorkload {
            load,
            kind,
            last_write,
            in_flight: HashMap::new(),
            waits: vec![],
            wrong: None,
        }
    }

    fn on(&mut self, login: &ClientLogin) -> Result<()> {
        let mut session = ClientSession::open(login, SHAPE)?;
        session.run(self)?;
        session.drain(self)?;
        match self.wrong.take() {
            Some(wrong) => bail!("{wrong}"),
            None => Ok(()),
        }
    }

    /// Returns the block of the next command, and true if it is a write; None if no command is due now.
    fn draw(&mut self, now: Instant) -> Option<(u64, bool)> {
        let (next, writes) = match &mut self.kind {
            LinkCutLoadKind::Fill(next) => (next, true),
            LinkCutLoadKind::Read(next) => (next, false),
            LinkCutLoadKind::Mixed(until) => {
                let writes = now.duration_since(self.last_write) >= PACE;
                let block = std::iter::repeat_with(|| stamp::next(&mut self.load.random) % BLOCKS)
                    .find(|block| !self.in_flight.contains_key(block))?;
                return (now < *until).then_some((block, writes));
            }
        };
        let block = *next;
        *next += 1;
        (block < BLOCKS).then_some((block, writes))
    }
}

impl ClientWorkload for LinkCutWorkload<'_> {
    fn next(&mut self, now: Instant, payload: &mut [u8]) -> ClientSlotAction {
        let Some((block, writes)) = self.draw(now).filter(|_| self.wrong.is_none()) else {
            return ClientSlotAction::Stop;
        };
        let lba = block as u32 * u32::from(SECTORS);
        if !writes {
            self.in_flight.insert(block, None);
            return ClientSlotAction::Send(ClientScsiCommand::read(lba, SECTORS, SECTOR), block);
        }
        self.last_write = now;
        self.load.version += 1;
        self.in_flight.insert(block, Some(self.load.version));
        stamp::fill(payload, block, self.load.version);
        ClientSlotAction::Send(ClientScsiCommand::write(lba, SECTORS, SECTOR, false), block)
    }

    fn answered(&mut self, now: Instant, answer: &ClientResponse<'_>) {
        let block = answer.number;
        let written = self.in_flight.remove(&block).flatten();
        if answer.status != 0 {
            let (status, sense) = (answer.status, answer.sense);
            self.wrong = Some(format!("block {block}: status {status:#04x}, sense {sense:x?}"));
        } else if let Some(version) = written {
            self.load.held[block as usize] = version;
            self.waits.push(now.duration_since(answer.sent));
        } else {
            let found = stamp::read(answer.data, block);
            let held = self.load.held[block as usize];
            if found != BlockStampState::Version(held) {
                self.wrong = Some(format!("block {block}: {found:?} instead of version {held}"));
            }
        }
    }
}
