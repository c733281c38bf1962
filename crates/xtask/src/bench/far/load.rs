//! What hosts do in this benchmark.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use hdrhistogram::Histogram;
use rustix::net::sockopt::set_tcp_congestion;

use crate::bench::far::LINK;
use crate::bench::far::line::{End, at};
use crate::bench::load::histogram;
use crate::client::crowd::Member;
use crate::client::session::Shape;
use crate::client::{Answer, Login, Next, Request, Session, Workload};

/// What came of a load.
#[derive(Debug)]
pub struct Outcome {
    /// Bytes of answered commands.
    pub bytes: u64,
    /// How long it took.
    pub time: Duration,
    /// From sending to answer, nanoseconds; empty for a stream.
    pub latency: Histogram<u64>,
}

/// The order of places.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Order {
    /// One after the other.
    Sequential,
    /// Each place once, in an order that no stream has.
    Scattered,
}

/// Commands of one kind in one range of the volume.
#[derive(Clone, Debug)]
pub struct Load {
    write: bool,
    order: Order,
    bytes: u32,
    depth: usize,
    /// The bytes of the volume that it uses, a power of two.
    range: Range<u64>,
}

impl Load {
    /// Reads of so many bytes.
    pub fn read(order: Order, bytes: u32, depth: usize, range: Range<u64>) -> Load {
        Load { write: false, order, bytes, depth, range }
    }

    /// Writes of so many bytes, one after the other.
    pub fn write(bytes: u32, depth: usize, range: Range<u64>) -> Load {
        Load { write: true, order: Order::Sequential, bytes, depth, range }
    }

    /// Puts the load on a unit at the near end.
    pub fn measure(
        &self,
        login: Login,
        control: &str,
        warm_up: Duration,
        time: Duration,
    ) -> Result<Outcome> {
        at(LINK, End::Near, || {
            let shape = Shape { depth: self.depth, bytes: self.bytes as usize, keep: false };
            let mut commands = Commands::new(self.clone());
            let mut session = Session::open(&login, shape)?;
            set_tcp_congestion(Member::<Commands>::socket(&session), control)?;
            commands.block_bytes = session.capacity()?.1;
            commands.until(warm_up);
            session.run(&mut commands)?;
            commands.until(time);
            let begun = Instant::now();
            session.run(&mut commands)?;
            let time = begun.elapsed();
            let (bytes, latency) = (commands.answered, commands.latency.clone());
            session.drain(&mut commands)?;
            commands.check()?;
            ensure!(bytes > 0, "nothing was answered in {time:?}");
            Ok(Outcome { bytes, time, latency })
        })
    }
}

/// Writes so many bytes at once.
pub fn write(login: Login, first: u64, bytes: u64) -> Result<()> {
    at(LINK, End::Near, || fill(&login, first, bytes))
}

/// The same from where the caller is.
pub fn fill(login: &Login, first: u64, bytes: u64) -> Result<()> {
    let load = Load::write(64 << 10, 8, first..first + bytes);
    let mut session = Session::open(login, Shape { depth: 8, bytes: 64 << 10, keep: false })?;
    let mut commands = Commands::new(load);
    commands.block_bytes = session.capacity()?.1;
    commands.is_once = true;
    commands.until(FILL_LIMIT);
    session.run(&mut commands)?;
    session.drain(&mut commands)?;
    commands.check()?;
    ensure!(commands.answered == bytes, "{bytes} bytes were not written within {FILL_LIMIT:?}");
    Ok(())
}

const FILL_LIMIT: Duration = Duration::from_secs(60);

struct Commands {
    load: Load,
    places: u64,
    block_bytes: u32,
    sent: u64,
    is_once: bool,
    deadline: Instant,
    answered: u64,
    latency: Histogram<u64>,
    failed: Option<(u8, [u8; 3])>,
}

impl Commands {
    fn new(load: Load) -> Commands {
        Commands {
            places: (load.range.end - load.range.start) / u64::from(load.bytes),
            load,
            block_bytes: 512,
            sent: 0,
            is_once: false,
            deadline: Instant::now(),
            answered: 0,
            latency: histogram(),
            failed: None,
        }
    }

    /// Goes on for a time and counts from the beginning.
    fn until(&mut self, time: Duration) {
        self.deadline = Instant::now() + time;
        self.answered = 0;
        self.latency.reset();
    }

    fn check(&self) -> Result<()> {
        match self.failed {
            None => Ok(()),
            Some((status, sense)) => {
                bail!("a command ended with status {status:#04x}, sense {sense:x?}")
            }
        }
    }
}

impl Workload for Commands {
    fn next(&mut self, now: Instant, _payload: &mut [u8]) -> Next {
        let is_done = self.is_once && self.sent == self.places;
        if now >= self.deadline || self.failed.is_some() || is_done {
            return Next::Stop;
        }
        let place = match self.load.order {
            Order::Sequential => self.sent % self.places,
            // The stride has no divisor in common with the places of a range, a power of two.
            Order::Scattered => self.sent.wrapping_mul(STRIDE) % self.places,
        };
        self.sent += 1;
        let at = self.load.range.start + place * u64::from(self.load.bytes);
        let lba = (at / u64::from(self.block_bytes)) as u32;
        let blocks = (self.load.bytes / self.block_bytes) as u16;
        let request = if self.load.write {
            Request::write(lba, blocks, self.block_bytes, false)
        } else {
            Request::read(lba, blocks, self.block_bytes)
        };
        Next::Send(request, 0)
    }

    fn answered(&mut self, now: Instant, answer: &Answer<'_>) {
        self.answered += u64::from(self.load.bytes);
        self.latency.saturating_record((now - answer.sent).as_nanos() as u64);
        if answer.status != 0 {
            self.failed = Some((answer.status, answer.sense));
        }
    }
}

/// Near the golden ratio of 2^15, so that neighbours come far apart in time.
const STRIDE: u64 = 20_249;
