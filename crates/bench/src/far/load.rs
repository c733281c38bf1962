//! The load generator, which reads or writes blocks in one range of the far volume.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use hdrhistogram::Histogram;
use rawclient::session::ClientSessionOptions;
use rawclient::{
    ClientLogin, ClientResponse, ClientScsiCommand, ClientSession, ClientSlotAction, ClientWorkload,
};

use crate::far::LINK;
use crate::far::wan::{BenchWanEnd, at};
use crate::load::histogram;

#[derive(Debug)]
pub struct FarLoadResult {
    /// Bytes of data of all answered commands.
    pub bytes: u64,
    pub time: Duration,
    /// Latencies of the commands in nanoseconds. Empty for the bulk TCP stream.
    pub latency: Histogram<u64>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FarAddressOrder {
    /// The load uses ascending addresses without gaps.
    Sequential,
    /// Each address is used once. In this order, a gateway does not consider the reads sequential.
    Scattered,
}

/// A load on a far volume: commands of one kind and size, in one range of addresses.
#[derive(Clone, Debug)]
pub struct FarLoad {
    write: bool,
    order: FarAddressOrder,
    bytes: u32,
    depth: usize,
    /// True if writes have FUA, so that each is stable when it is acknowledged.
    fua: bool,
    /// The byte range of the volume that the load uses. Its length is a power of two.
    range: Range<u64>,
}

impl FarLoad {
    pub fn read(order: FarAddressOrder, bytes: u32, depth: usize, range: Range<u64>) -> FarLoad {
        FarLoad { write: false, order, bytes, depth, fua: false, range }
    }

    pub fn write(bytes: u32, depth: usize, range: Range<u64>) -> FarLoad {
        FarLoad { write: true, order: FarAddressOrder::Sequential, bytes, depth, fua: false, range }
    }

    /// Returns the same load with FUA writes, which are stable when they are acknowledged.
    pub fn with_fua(self) -> FarLoad {
        FarLoad { fua: true, ..self }
    }

    /// Logs in from the near end and runs the load: for `warm_up` without and then for `time` with
    /// measuring.
    pub fn measure(
        &self,
        login: ClientLogin,
        control: &str,
        warm_up: Duration,
        time: Duration,
    ) -> Result<FarLoadResult> {
        let mut outcomes = self.measure_phases(login, control, &[(warm_up, time)], |_| Ok(()))?;
        Ok(outcomes.remove(0))
    }

    /// Logs in from the near end and runs the load through several phases in one session. Each phase is a warm-up and a
    /// measurement. At the start of each, calls `begin` with the phase's number.
    pub fn measure_phases(
        &self,
        login: ClientLogin,
        control: &str,
        phases: &[(Duration, Duration)],
        mut begin: impl FnMut(usize) -> Result<()> + Send,
    ) -> Result<Vec<FarLoadResult>> {
        at(LINK, BenchWanEnd::Near, || {
            let shape =
                ClientSessionOptions { depth: self.depth, bytes: self.bytes as usize, keep: false };
            let mut commands = FarLoadCommands::new(self.clone());
            let login = ClientLogin { congestion: Some(control.to_owned()), ..login };
            let mut session = ClientSession::open(&login, shape)?;
            commands.block_bytes = session.capacity()?.1;
            let mut outcomes = Vec::new();
            for (number, &(warm_up, time)) in phases.iter().enumerate() {
                begin(number)?;
                commands.until(warm_up);
                session.run(&mut commands)?;
                commands.until(time);
                let begun = Instant::now();
                session.run(&mut commands)?;
                let time = begun.elapsed();
                let (bytes, latency) = (commands.answered, commands.latency.clone());
                commands.check()?;
                ensure!(bytes > 0, "nothing was answered in {time:?}");
                outcomes.push(FarLoadResult { bytes, time, latency });
            }
            session.drain(&mut commands)?;
            commands.check()?;
            Ok(outcomes)
        })
    }
}

/// Writes `bytes` bytes once, beginning at byte `first`, as a host at the near end.
pub fn write(login: ClientLogin, first: u64, bytes: u64) -> Result<()> {
    at(LINK, BenchWanEnd::Near, || fill(&login, first, bytes))
}

/// Writes `bytes` bytes once, beginning at byte `first`, in the network namespace of the caller.
pub fn fill(login: &ClientLogin, first: u64, bytes: u64) -> Result<()> {
    let load = FarLoad::write(64 << 10, 8, first..first + bytes);
    let mut session = ClientSession::open(
        login,
        ClientSessionOptions { depth: 8, bytes: 64 << 10, keep: false },
    )?;
    let mut commands = FarLoadCommands::new(load);
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

struct FarLoadCommands {
    load: FarLoad,
    places: u64,
    block_bytes: u32,
    sent: u64,
    is_once: bool,
    deadline: Instant,
    answered: u64,
    latency: Histogram<u64>,
    failed: Option<(u8, [u8; 3])>,
}

impl FarLoadCommands {
    fn new(load: FarLoad) -> FarLoadCommands {
        FarLoadCommands {
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

    /// Lets the load end after the time `time` from now, and resets its counters.
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

impl ClientWorkload for FarLoadCommands {
    fn next(&mut self, now: Instant, _payload: &mut [u8]) -> ClientSlotAction {
        let is_done = self.is_once && self.sent == self.places;
        if now >= self.deadline || self.failed.is_some() || is_done {
            return ClientSlotAction::Stop;
        }
        let place = match self.load.order {
            FarAddressOrder::Sequential => self.sent % self.places,
            // Each address occurs once, since the number of addresses is a power of two and the
            // stride is odd.
            FarAddressOrder::Scattered => self.sent.wrapping_mul(STRIDE) % self.places,
        };
        self.sent += 1;
        let at = self.load.range.start + place * u64::from(self.load.bytes);
        let lba = (at / u64::from(self.block_bytes)) as u32;
        let blocks = (self.load.bytes / self.block_bytes) as u16;
        let request = if self.load.write {
            ClientScsiCommand::write(lba, blocks, self.block_bytes, self.load.fua)
        } else {
            ClientScsiCommand::read(lba, blocks, self.block_bytes)
        };
        ClientSlotAction::Send(request, 0)
    }

    fn answered(&mut self, now: Instant, answer: &ClientResponse<'_>) {
        self.answered += u64::from(self.load.bytes);
        self.latency.saturating_record((now - answer.sent).as_nanos() as u64);
        if answer.status != 0 {
            self.failed = Some((answer.status, answer.sense));
        }
    }
}

/// The stride of [`FarAddressOrder::Scattered`]: each address is this number after the previous one. The number is
/// about 2^15 divided by the golden ratio, so that a long time passes between the reads of two neighbouring addresses.
const STRIDE: u64 = 20_249;
