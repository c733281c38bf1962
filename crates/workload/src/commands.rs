//! SCSI commands over one iSCSI session, so many at a time: what the connections of a session make of a
//! link, without a file system and without the kernel's block layer ("Performance Evaluation of Multiple
//! TCP connections in iSCSI", 4.1: a sequential write in requests of 128 KB).

use std::{
    cell::{Cell, RefCell},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use futures_util::future::try_join_all;
use hdrhistogram::Histogram;
use initiator::{ConnectionStatistics, RemoteVolume, Session, Spread};
use serde::{Deserialize, Serialize};
use sim::Rng;
use transport::{CongestionChoice, SocketOptions};
use volume::{Data, Durability, Extent, Lba, Volume};

use crate::{
    Error, Outcome, Place, Run, Tool, Workload,
    remote::{self, failed},
};

/// Settings of a run. Sizes are in bytes.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, clap::Args)]
#[serde(default, deny_unknown_fields)]
pub struct Commands {
    /// Read; what is read is written first, before the measurement
    #[arg(long)]
    pub read: bool,
    /// Bytes of each command, a multiple of 4096, 1 MiB at most
    #[arg(long, default_value_t = 128 << 10)]
    pub block: u32,
    /// Commands at once, 1 to 1024
    #[arg(long, default_value_t = 32)]
    pub depth: u16,
    /// Connections of the session, 1 to 8
    #[arg(long, default_value_t = 4)]
    pub connections: u16,
    /// Give commands to the connections in turn, not to the one with the least to do
    #[arg(long)]
    pub in_turn: bool,
    /// The congestion control of our end, as `congestion` in the settings
    #[arg(long, value_name = "NAME", default_value = "kernel default")]
    pub congestion: CongestionChoice,
    /// Send and receive buffer of each socket of our end in bytes; if left out, the kernel tunes them
    #[arg(long, value_name = "BYTES")]
    pub socket_buffer: Option<u32>,
    /// Seconds before the measurement
    #[arg(long, default_value_t = 1.0)]
    pub warm: f64,
    /// Seconds of the measurement, at most
    #[arg(long, default_value_t = 10.0)]
    pub seconds: f64,
    /// Bytes after which it ends earlier, those of `warm` included; 0: it does not
    #[arg(long, default_value_t = 0)]
    pub total: u64,
    /// Bytes at the beginning of the volume that are used, one command after the other, then again
    #[arg(long, default_value_t = 64 << 20)]
    pub span: u64,
    /// How many blocks are read back and compared at the end of writes, spread over what was written
    #[arg(long, default_value_t = 32)]
    pub check: u32,
}

impl Default for Commands {
    fn default() -> Self {
        Self {
            read: false,
            block: 128 << 10,
            depth: 32,
            connections: 4,
            in_turn: false,
            congestion: CongestionChoice::KernelDefault,
            socket_buffer: None,
            warm: 1.0,
            seconds: 10.0,
            total: 0,
            span: 64 << 20,
            check: 32,
        }
    }
}

/// For further connections of the session to be there: as long as a login may take.
const JOIN_LIMIT: Duration = Duration::from_secs(15);
/// How often it is looked whether they are.
const JOIN_LOOK: Duration = Duration::from_millis(10);

impl Workload for Commands {
    fn needs(&self) -> Vec<Tool> {
        Vec::new()
    }

    fn check(&self) -> Result<(), Error> {
        let wrong = |what: &str| Err(Error::Settings(what.to_owned()));
        let times = [self.warm, self.seconds];
        match self {
            _ if self.block == 0 || !self.block.is_multiple_of(4096) || self.block > 1 << 20 => {
                wrong("a command moves a multiple of 4096 bytes, 1 MiB at most")
            }
            _ if !(1..=1024).contains(&self.depth) => wrong("1 to 1024 commands at once"),
            _ if !(1..=8).contains(&self.connections) => wrong("a session has 1 to 8 connections"),
            _ if times.iter().any(|time| !(0.0..=86_400.0).contains(time)) => {
                wrong("a measurement takes from nothing to a day")
            }
            // There is always a block that no command is on its way to.
            _ if self.slots() < 2 * u64::from(self.depth) => {
                wrong("the span is shorter than twice what is on its way at once")
            }
            _ => Ok(()),
        }
    }

    fn space(&self) -> u64 {
        self.span
    }

    fn run(&self, run: &Run<'_>) -> Result<Outcome, Error> {
        self.check()?;
        let Place::Url(url) = run.place else {
            let (workload, wanted) = ("commands", "an iSCSI unit (iscsi://HOST/TARGET/LUN)");
            return Err(Error::Place { workload, wanted, place: run.place.to_string() });
        };
        // The thread that fills the queue drives the session, too.
        remote::runtime()?.block_on(self.drive(url, run))
    }
}

impl Commands {
    fn slots(&self) -> u64 {
        self.span / u64::from(self.block)
    }

    async fn drive(&self, url: &str, run: &Run<'_>) -> Result<Outcome, Error> {
        let volume = self.log_in(url).await?;
        let content = Content::new(run.seed, self.block);
        let slots = Slots::new(&volume, self.block, self.slots(), content)?;
        if self.read {
            slots.fill(self.depth, run).await?;
        }
        let session = volume.session();
        let before = session.connections();
        let (measured, sent) = self.measure(&slots, run).await?;
        let after = session.connections();
        let lost = volume.statistics().connections_lost;
        let verified = if self.read {
            "every block that was read".to_owned()
        } else {
            volume.flush().await.map_err(failed("flush"))?;
            format!("{} of the blocks that were written", slots.read_back(self.check).await?)
        };
        volume.close().await;
        let is_all = sent >= self.most();
        let mut outcome = measured.outcome(self.block, is_all, verified)?.figure(
            "connections lost",
            "",
            lost as f64,
        );
        for (number, share) in shares(&before, &after, self.read).into_iter().enumerate() {
            outcome = outcome.figure(&format!("share of connection {}", number + 1), "", share);
        }
        Ok(outcome)
    }

    /// A session with all its connections and the congestion control that is wanted: another one would be
    /// measured under a false name.
    async fn log_in(&self, url: &str) -> Result<RemoteVolume, Error> {
        let settings = remote::settings(url)?;
        let congestion = self.congestion.load().map_err(|error| {
            let remedy = error.remedy().map(|it| format!(" ({it})")).unwrap_or_default();
            Error::Settings(format!("no {}: {error}{remedy}", self.congestion))
        })?;
        let settings = initiator::Settings {
            connections: self.connections,
            spread: if self.in_turn { Spread::InTurn } else { Spread::LeastToDo },
            queue_depth: self.depth.into(),
            socket: SocketOptions::buffers(self.socket_buffer.map(|bytes| bytes as usize)),
            congestion,
            ..settings
        };
        let volume = remote::log_in(settings).await?;
        let wanted = usize::from(self.connections);
        let all_there = async {
            while volume.session().connections().len() < wanted {
                tokio::time::sleep(JOIN_LOOK).await;
            }
        };
        if tokio::time::timeout(JOIN_LIMIT, all_there).await.is_err() {
            let there = volume.session().connections().len();
            let reason = format!("the target takes {there} connections, and {wanted} are wanted");
            return Err(Error::Session { act: "open the session".to_owned(), reason });
        }
        self.check_congestion(volume.session())?;
        Ok(volume)
    }

    fn check_congestion(&self, session: &Session) -> Result<(), Error> {
        let has = session.congestion().unwrap_or_default();
        let is_so = match &self.congestion {
            CongestionChoice::KernelDefault => true,
            CongestionChoice::Ensemble { .. } => has.ensemble.is_some_and(|it| it.members > 0),
            CongestionChoice::Named(name) => has.name == *name,
        };
        if is_so {
            return Ok(());
        }
        let reason = format!("its connections have {}, not {}", has.name, self.congestion);
        Err(Error::Session { act: "open the session".to_owned(), reason })
    }

    /// How many commands at most.
    fn most(&self) -> u64 {
        if self.total == 0 { u64::MAX } else { self.total.div_ceil(self.block.into()) }
    }

    /// Keeps `depth` commands on their way until the time is over or all is moved; also, how many were
    /// sent.
    async fn measure(&self, slots: &Slots<'_>, run: &Run<'_>) -> Result<(Measured, u64), Error> {
        let started = Instant::now();
        let begin = started + Duration::from_secs_f64(self.warm);
        let end = begin + Duration::from_secs_f64(self.seconds);
        let length = (end - started).as_secs_f64().max(f64::MIN_POSITIVE);
        let most = self.most();
        let next = Cell::new(0);
        let measured = RefCell::new(Measured::new(begin, end));
        let one_after_another = async || {
            while next.get() < most && Instant::now() < end {
                let number = next.replace(next.get() + 1);
                let sent = Instant::now();
                let slot = slots.take();
                if self.read {
                    slots.read(slot).await?;
                } else {
                    slots.write(slot).await?;
                }
                slots.give_back(slot);
                measured.borrow_mut().add(sent, Instant::now());
                let by_time = started.elapsed().as_secs_f64() / length;
                let by_total = (number + 1) as f64 / most as f64;
                (run.progress)(by_time.max(by_total).min(1.0));
            }
            Ok::<(), Error>(())
        };
        try_join_all((0..self.depth).map(|_| one_after_another())).await?;
        Ok((measured.into_inner(), next.get()))
    }
}

/// A command that takes longer counts as this: the session has ended it long before.
const LONGEST: Duration = Duration::from_secs(3600);

/// What was counted of the commands that were answered in the time of the measurement.
struct Measured {
    begin: Instant,
    end: Instant,
    /// When the last of them was answered.
    last: Instant,
    /// Turnaround in microseconds, to three digits: a few hundred KiB however many there are.
    turnaround: Histogram<u64>,
}

impl Measured {
    fn new(begin: Instant, end: Instant) -> Self {
        let longest_us = LONGEST.as_micros() as u64;
        let turnaround = Histogram::new_with_bounds(1, longest_us, 3).expect("bounds in order");
        Self { begin, end, last: begin, turnaround }
    }

    fn add(&mut self, sent: Instant, answered: Instant) {
        if answered < self.begin || answered >= self.end {
            return;
        }
        self.last = answered;
        let us = (answered - sent).as_micros().try_into().unwrap_or(u64::MAX);
        self.turnaround.saturating_record(us);
    }

    /// `is_all`: it ended before its time, with all that was to be moved.
    ///
    /// # Errors
    /// If nothing was answered in the time of the measurement: that is no measurement.
    fn outcome(&self, block: u32, is_all: bool, verified: String) -> Result<Outcome, Error> {
        let commands = self.turnaround.len();
        if commands == 0 && is_all {
            let what = "all of the total was moved before the measurement began: choose more, or warm for less long";
            return Err(Error::Settings(what.to_owned()));
        }
        if commands == 0 {
            let reason = "no command was answered in the time of the measurement".to_owned();
            return Err(Error::Session { act: "measure".to_owned(), reason });
        }
        let end = if is_all { self.last } else { self.end };
        let time = (end - self.begin).as_secs_f64().max(1e-6);
        let ms = |us: f64| us / 1000.0;
        let bits = commands as f64 * f64::from(block) * 8.0;
        Ok(Outcome { verified, ..Outcome::default() }
            .figure("throughput", "Mbit/s", bits / time / 1e6)
            .figure("commands", "", commands as f64)
            .figure("turnaround mean", "ms", ms(self.turnaround.mean()))
            .figure("turnaround deviation", "ms", ms(self.turnaround.stdev()))
            .figure("turnaround p99", "ms", ms(self.turnaround.value_at_quantile(0.99) as f64))
            .figure("turnaround longest", "ms", ms(self.turnaround.max() as f64)))
    }
}

/// The part of the volume that is used, in blocks of a command, and what was last written to each.
struct Slots<'a> {
    volume: &'a dyn Volume,
    block: u32,
    count: u64,
    /// The one after the last that was taken.
    next: Cell<u64>,
    /// Those that a command is on its way to.
    taken: RefCell<Vec<bool>>,
    content: Content,
    /// How often each was written; 0: never.
    written: RefCell<Vec<u32>>,
}

impl<'a> Slots<'a> {
    fn new(
        volume: &'a dyn Volume,
        block: u32,
        count: u64,
        content: Content,
    ) -> Result<Self, Error> {
        let geometry = volume.geometry();
        let (needed, free) = (
            count * u64::from(block),
            geometry.blocks.saturating_mul(u64::from(geometry.block_size)),
        );
        if needed > free {
            return Err(Error::Space { needed, free });
        }
        if !block.is_multiple_of(geometry.block_size) {
            let size = geometry.block_size;
            return Err(Error::Settings(format!("the unit has blocks of {size} bytes")));
        }
        let written = RefCell::new(vec![0; count as usize]);
        let taken = RefCell::new(vec![false; count as usize]);
        Ok(Self { volume, block, count, next: Cell::new(0), taken, content, written })
    }

    /// The next in order that no command is on its way to: one that is held up on a connection would meet
    /// another for the same block, and which of two writes is the last nobody could say.
    fn take(&self) -> u64 {
        let mut taken = self.taken.borrow_mut();
        loop {
            let slot = self.next.replace((self.next.get() + 1) % self.count);
            if !std::mem::replace(&mut taken[slot as usize], true) {
                return slot;
            }
        }
    }

    fn give_back(&self, slot: u64) {
        self.taken.borrow_mut()[slot as usize] = false;
    }

    fn extent(&self, slot: u64) -> Extent {
        let blocks = self.block / self.volume.geometry().block_size;
        Extent { lba: Lba(slot * u64::from(blocks)), blocks }
    }

    async fn write(&self, slot: u64) -> Result<(), Error> {
        let round = self.written.borrow()[slot as usize].wrapping_add(1);
        let data = Data::from(self.content.make(slot, round));
        let lba = self.extent(slot).lba;
        let written = self.volume.write(lba, data, Durability::Volatile).await;
        written.map_err(failed("write"))?;
        self.written.borrow_mut()[slot as usize] = round;
        Ok(())
    }

    async fn read(&self, slot: u64) -> Result<(), Error> {
        let data = self.volume.read(self.extent(slot)).await.map_err(failed("read"))?;
        let round = self.written.borrow()[slot as usize];
        if self.content.is(slot, round, &data) {
            return Ok(());
        }
        let at = slot * u64::from(self.block);
        Err(Error::Wrong(format!("the {} bytes at byte {at} are not what was written", self.block)))
    }

    /// Writes all of them once.
    async fn fill(&self, depth: u16, run: &Run<'_>) -> Result<(), Error> {
        let next = Cell::new(0);
        let one_after_another = async || {
            while next.get() < self.count {
                self.write(next.replace(next.get() + 1)).await?;
                (run.progress)(0.0);
            }
            Ok::<(), Error>(())
        };
        try_join_all((0..depth).map(|_| one_after_another())).await?;
        self.volume.flush().await.map_err(failed("flush"))
    }

    /// Compares this many of those that were written, spread evenly; how many it were.
    async fn read_back(&self, most: u32) -> Result<usize, Error> {
        let written = self.written.borrow().clone();
        let all: Vec<u64> = (0..self.count).filter(|&slot| written[slot as usize] > 0).collect();
        let step = all.len().div_ceil((most as usize).max(1)).max(1);
        let sample: Vec<u64> = all.into_iter().step_by(step).take(most as usize).collect();
        for slot in &sample {
            self.read(*slot).await?;
        }
        Ok(sample.len())
    }
}

/// What a block holds: noise, the same in all, and in every 4 KiB of it which it is and how often it was
/// written, so that a block in the wrong place, an old one and one of two halves are noticed.
struct Content {
    noise: Bytes,
    seed: u64,
}

const PAGE: usize = 4096;
/// Slot, round and seed.
const STAMP: usize = 24;

impl Content {
    fn new(seed: u64, block: u32) -> Self {
        let mut rng = Rng::new(seed);
        let mut noise = BytesMut::with_capacity(block as usize);
        while noise.len() < block as usize {
            noise.extend_from_slice(&rng.next_u64().to_le_bytes());
        }
        Self { noise: noise.freeze(), seed }
    }

    fn stamp(&self, slot: u64, round: u32) -> [u8; STAMP] {
        let mut stamp = [0; STAMP];
        for (at, word) in [slot, round.into(), self.seed].into_iter().enumerate() {
            stamp[8 * at..][..8].copy_from_slice(&word.to_le_bytes());
        }
        stamp
    }

    fn make(&self, slot: u64, round: u32) -> Bytes {
        let stamp = self.stamp(slot, round);
        let mut block = BytesMut::from(&self.noise[..]);
        block.chunks_mut(PAGE).for_each(|page| page[..STAMP].copy_from_slice(&stamp));
        block.freeze()
    }

    fn is(&self, slot: u64, round: u32, data: &Data) -> bool {
        data.len() == self.noise.len() && data.clone().into_bytes() == self.make(slot, round)
    }
}

/// What part of the bytes each connection carried; those that were not there all the time carry none.
fn shares(before: &[ConnectionStatistics], after: &[ConnectionStatistics], read: bool) -> Vec<f64> {
    let bytes = |it: &ConnectionStatistics| if read { it.bytes_in } else { it.bytes_out };
    let moved: Vec<f64> = before
        .iter()
        .map(|then| {
            let now = after.iter().find(|now| now.cid == then.cid).map_or(0, bytes);
            now.saturating_sub(bytes(then)) as f64
        })
        .collect();
    let all: f64 = moved.iter().sum();
    moved.iter().map(|bytes| if all > 0.0 { bytes / all } else { 0.0 }).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    };

    use volume::{Geometry, Io, MemVolume};

    use super::*;

    #[test]
    fn content_tells_where_and_when_it_was_written() {
        let content = Content::new(7, 8192);
        let block = Data::from(content.make(3, 2));
        assert!(content.is(3, 2, &block));
        assert!(!content.is(4, 2, &block) && !content.is(3, 1, &block));
        assert!(!Content::new(8, 8192).is(3, 2, &block));
        // Its second half is from another round.
        let mut torn = content.make(3, 2)[..PAGE].to_vec();
        torn.extend_from_slice(&content.make(3, 1)[PAGE..]);
        assert!(!content.is(3, 2, &Data::from(torn)));
    }

    #[test]
    fn only_what_was_answered_in_time_counts() {
        let zero = Instant::now();
        let at = |ms: u64| zero + Duration::from_millis(ms);
        let mut measured = Measured::new(at(1000), at(2000));
        for (sent, answered) in [(0, 900), (900, 1100), (1900, 1999), (1500, 2000)] {
            measured.add(at(sent), at(answered));
        }
        let outcome = measured.outcome(1 << 20, false, String::new()).unwrap();
        assert_eq!(outcome.get("commands"), Some(2.0));
        let throughput = outcome.get("throughput").unwrap();
        assert!((throughput - 2.0 * 8.0 * 1.048_576).abs() < 1e-6, "{throughput}");
        let mean = outcome.get("turnaround mean").unwrap();
        assert!((mean - 149.5).abs() < 0.5, "{mean}");
    }

    #[test]
    fn a_measurement_of_nothing_is_no_success() {
        let zero = Instant::now();
        let at = |ms: u64| zero + Duration::from_millis(ms);
        let mut measured = Measured::new(at(1000), at(2000));
        measured.add(at(0), at(900));
        let error = measured.outcome(4096, true, String::new()).unwrap_err().to_string();
        assert!(error.contains("before the measurement began"), "{error}");
        let error = measured.outcome(4096, false, String::new()).unwrap_err().to_string();
        assert!(error.contains("no command was answered"), "{error}");
    }

    /// Memory whose first write is held up until so many others were done. It counts the writes that came
    /// to a block while another was on its way there.
    struct HoldingUp {
        memory: MemVolume,
        writes: AtomicU32,
        released: tokio::sync::Notify,
        on_their_way: Mutex<Vec<Lba>>,
        met: AtomicU32,
    }

    const OTHERS: u32 = 20;

    impl Volume for HoldingUp {
        fn geometry(&self) -> Geometry {
            self.memory.geometry()
        }

        fn read(&self, extent: Extent) -> Io<'_, Data> {
            self.memory.read(extent)
        }

        fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
            Box::pin(async move {
                let here = |it: &&Lba| **it == lba;
                let met = self.on_their_way.lock().unwrap().iter().filter(here).count();
                self.met.fetch_add(met as u32, Ordering::Relaxed);
                self.on_their_way.lock().unwrap().push(lba);
                match self.writes.fetch_add(1, Ordering::Relaxed) {
                    0 => self.released.notified().await,
                    OTHERS => self.released.notify_one(),
                    _ => tokio::task::yield_now().await,
                }
                self.on_their_way.lock().unwrap().retain(|it| *it != lba);
                self.memory.write(lba, data, durability).await
            })
        }

        fn flush(&self) -> Io<'_, ()> {
            self.memory.flush()
        }

        fn discard(&self, extent: Extent) -> Io<'_, ()> {
            self.memory.discard(extent)
        }
    }

    #[test]
    fn a_command_that_is_held_up_meets_no_other_for_its_block() {
        let held = HoldingUp {
            memory: MemVolume::new(Geometry::with_blocks(32)),
            writes: AtomicU32::new(0),
            released: tokio::sync::Notify::new(),
            on_their_way: Mutex::default(),
            met: AtomicU32::new(0),
        };
        let task = Commands { block: 4096, depth: 2, span: 16 << 10, ..Commands::default() };
        let task = Commands { total: 40 * 4096, warm: 0.0, seconds: 60.0, ..task };
        let (place, scratch) = (Place::Url(String::new()), std::path::Path::new("/"));
        let run = Run { place: &place, scratch, seed: 3, progress: &|_| () };
        let slots = Slots::new(&held, 4096, task.slots(), Content::new(3, 4096)).unwrap();
        let runtime = remote::runtime().unwrap();
        let (_, sent) = runtime.block_on(task.measure(&slots, &run)).unwrap();
        assert_eq!(runtime.block_on(slots.read_back(4)).unwrap(), 4);
        assert_eq!((sent, held.writes.into_inner(), held.met.into_inner()), (40, 40, 0));
    }

    #[test]
    fn settings_that_cannot_be_are_refused() {
        let wrong = |change: fn(&mut Commands)| {
            let mut commands = Commands::default();
            change(&mut commands);
            assert!(matches!(commands.check(), Err(Error::Settings(_))), "{commands:?}");
        };
        assert!(Commands::default().check().is_ok());
        wrong(|it| it.block = 1000);
        wrong(|it| it.depth = 0);
        wrong(|it| it.connections = 9);
        wrong(|it| it.seconds = f64::NAN);
        wrong(|it| it.span = 4 << 20);
    }
}
