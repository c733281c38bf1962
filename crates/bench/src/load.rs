//! The loads of the benchmarks, and the measured values of a load in one round.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;
use rawclient::{
    ClientLogin, ClientResponse, ClientScsiCommand, ClientSession, ClientSlotAction,
    ClientWorkload, Crowd, session, stamp,
};
use rig::machine::BenchProcessUsage;

/// The load runs for this time before the measurement begins, so that connections, caches and the scheduler reach a
/// steady state.
const WARM_UP: Duration = Duration::from_millis(150);

/// A load of a benchmark: its commands, sessions and data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BenchLoad {
    /// True for writes, false for reads.
    pub write: bool,
    /// True if writes have FUA, so that each is stable when it is acknowledged.
    pub durable: bool,
    /// Number of data bytes in each command.
    pub bytes: u32,
    /// Commands in flight on each connection.
    pub depth: usize,
    /// True for random addresses, false for ascending addresses.
    pub random: bool,
    /// The kind of data that writes carry.
    pub content: BenchPayload,
    /// The load uses only this many bytes at the start of the unit. 0 means the whole unit.
    pub region: u64,
    /// True to use CRC32C header and data digests.
    pub digests: bool,
    pub sessions: usize,
    pub connections: u16,
    /// Error recovery level of the sessions, 0 to 2.
    pub level: u8,
}

/// The data that writes carry. It is the same for all writes of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BenchPayload {
    /// All bytes of the data are equal.
    Same,
    /// Words in random order, which LZ4 compresses by a factor of 2.4.
    Words,
    /// The data consists of pseudorandom bytes, which cannot be compressed.
    Noise,
}

impl BenchPayload {
    fn fill(self, payload: &mut [u8]) {
        let mut random = 1;
        match self {
            BenchPayload::Same => {}
            BenchPayload::Words => {
                let words: Vec<u8> = std::iter::repeat_with(|| {
                    WORDS[(stamp::next(&mut random) >> 32) as usize % WORDS.len()]
                })
                .take(payload.len())
                .flat_map(|word| word.bytes().chain([b' ']))
                .take(payload.len())
                .collect();
                payload.copy_from_slice(&words);
            }
            BenchPayload::Noise => {
                for word in payload.chunks_exact_mut(8) {
                    word.copy_from_slice(&stamp::next(&mut random).to_le_bytes());
                }
            }
        }
    }
}

#[rustfmt::skip]
const WORDS: [&str; 32] = [
    "storage", "gateway", "target", "initiator", "session", "connection", "command", "response",
    "the", "a", "of", "to", "and", "is", "in", "not", "write", "read", "flush", "discard", "block",
    "segment", "volume", "2026-11-22", "10.0.0.7", "0x5f3759df", "error", "info", "debug", "cache",
    "dirty", "destage",
];

impl BenchLoad {
    /// Returns random reads of 4 KiB with `depth` commands in flight.
    pub const fn read_4k(depth: usize) -> BenchLoad {
        BenchLoad {
            write: false,
            durable: false,
            bytes: 4096,
            depth,
            random: true,
            content: BenchPayload::Same,
            region: 0,
            digests: false,
            sessions: 1,
            connections: 1,
            level: 0,
        }
    }

    /// Returns random writes of 4 KiB with `depth` commands in flight.
    pub const fn write_4k(depth: usize) -> BenchLoad {
        BenchLoad { write: true, ..BenchLoad::read_4k(depth) }
    }

    /// Returns sequential reads or writes of 128 KiB with `depth` commands in flight.
    pub const fn stream(write: bool, depth: usize) -> BenchLoad {
        BenchLoad { write, bytes: 128 << 10, random: false, ..BenchLoad::read_4k(depth) }
    }

    /// Returns a load of sequential writes of 64 KiB at depth 8 with this data.
    pub const fn write_64k(content: BenchPayload) -> BenchLoad {
        BenchLoad { bytes: 64 << 10, content, ..BenchLoad::stream(true, 8) }
    }

    /// Returns the bytes on the wire of a request and of its response, with headers.
    pub fn wire_bytes(&self) -> (usize, usize) {
        let payload = self.bytes as usize;
        if self.write { (48 + payload, 48) } else { (48, 48 + payload) }
    }
}

/// The measured values of one load on one server in one round.
#[derive(Clone, Debug)]
pub struct BenchPoint {
    /// Number of commands that were answered in the measured time.
    pub operations: u64,
    pub time: Duration,
    /// Histogram of the times from sending a command to receiving its response, in nanoseconds.
    pub latency: Histogram<u64>,
    /// CPU time and context switches of the server during the measurement.
    pub server: BenchProcessUsage,
}

impl BenchPoint {
    pub fn per_second(&self) -> f64 {
        self.operations as f64 / self.time.as_secs_f64()
    }

    /// Returns the CPU time of the server per command, in microseconds.
    pub fn cpu_us(&self) -> f64 {
        self.server.cpu_ns as f64 / 1e3 / self.operations as f64
    }

    /// Returns the fraction of one CPU that the server has used.
    pub fn cpu_share(&self) -> f64 {
        self.server.cpu_ns as f64 / self.time.as_nanos() as f64
    }

    /// Returns the context switches of the server per command.
    pub fn switches(&self) -> f64 {
        self.server.switches as f64 / self.operations as f64
    }

    /// Returns the mean latency in microseconds.
    pub fn mean_us(&self) -> f64 {
        self.latency.mean() / 1e3
    }

    /// Returns the median latency in microseconds.
    pub fn median_us(&self) -> f64 {
        self.quantile_us(0.5)
    }

    /// Returns the longest latency in microseconds.
    pub fn longest_us(&self) -> f64 {
        self.latency.max() as f64 / 1e3
    }

    /// Returns the quantile `part` (0 to 1) of the latency, in microseconds.
    pub fn quantile_us(&self, part: f64) -> f64 {
        self.latency.value_at_quantile(part) as f64 / 1e3
    }
}

/// Runs a load on a target for `time`. The CPU times of the processes `servers` are added up and reported as that of
/// the server.
pub fn measure(
    login: &ClientLogin,
    load: &BenchLoad,
    servers: &[u32],
    time: Duration,
) -> Result<BenchPoint> {
    let BenchLoad { digests, level, connections, .. } = *load;
    let login = ClientLogin { digests, level, connections, ..login.clone() };
    let shape = session::ClientSessionOptions {
        depth: load.depth,
        bytes: load.bytes as usize,
        keep: false,
    };
    let mut crowd = open(&login, load.sessions, shape)?;
    let (blocks, block_bytes) = crowd.members_mut()[0].capacity()?;
    let mut generator = Generator::new(*load, blocks, block_bytes);
    generator.until(WARM_UP);
    run(&mut crowd, &mut generator)?;
    generator.until(time);
    let (before, start) = (BenchProcessUsage::of_all(servers)?, Instant::now());
    run(&mut crowd, &mut generator)?;
    let (server, time) = (BenchProcessUsage::of_all(servers)?.since(before), start.elapsed());
    let point = BenchPoint {
        operations: generator.latency.len(),
        time,
        latency: generator.latency.clone(),
        server,
    };
    crowd.members_mut().iter_mut().try_for_each(|session| session.drain(&mut generator))?;
    generator.held()?;
    ensure!(point.operations > 0, "no command was answered in {time:?}");
    Ok(point)
}

/// Opens `sessions` sessions, each with the number of connections that `login` asks for.
fn open(
    login: &ClientLogin,
    sessions: usize,
    shape: session::ClientSessionOptions,
) -> Result<Crowd<ClientSession>> {
    let mut members = vec![];
    for _ in 0..sessions {
        let leading = ClientSession::open(login, shape)?;
        for cid in 1..login.connections {
            members.push(leading.join(login, cid)?);
        }
        members.push(leading);
    }
    Crowd::new::<Generator>(members)
}

/// Runs the load. With a single connection, epoll is not needed and not used.
fn run(crowd: &mut Crowd<ClientSession>, generator: &mut Generator) -> Result<()> {
    match crowd.members_mut() {
        [only] => only.run(generator),
        _ => crowd.run(generator),
    }
}

/// Returns a histogram for latencies of up to a minute with three significant digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are in order")
}

/// The workload of a session: draws the commands of a load.
struct Generator {
    load: BenchLoad,
    commands: u64,
    blocks_each: u16,
    block_bytes: u32,
    next: u64,
    random: u64,
    deadline: Instant,
    latency: Histogram<u64>,
    failed: Option<(u8, [u8; 3])>,
    /// True once the payload contains the data to write, which all commands share.
    is_filled: bool,
}

impl Generator {
    fn new(load: BenchLoad, blocks: u64, block_bytes: u32) -> Generator {
        let blocks_each = (load.bytes / block_bytes) as u16;
        let region = if load.region == 0 { u64::MAX } else { load.region / u64::from(block_bytes) };
        Generator {
            load,
            commands: blocks.min(region) / u64::from(blocks_each),
            blocks_each,
            block_bytes,
            next: 0,
            random: 1,
            deadline: Instant::now(),
            latency: histogram(),
            failed: None,
            is_filled: false,
        }
    }

    /// Discards the latencies that were measured so far, and lets the load end after `time` from now.
    fn until(&mut self, time: Duration) {
        self.deadline = Instant::now() + time;
        self.latency.reset();
    }

    fn held(&self) -> Result<()> {
        match self.failed {
            None => Ok(()),
            Some((status, sense)) => {
                anyhow::bail!("a command ended with status {status:#04x}, sense {sense:x?}")
            }
        }
    }
}

impl ClientWorkload for Generator {
    fn next(&mut self, now: Instant, payload: &mut [u8]) -> ClientSlotAction {
        if !std::mem::replace(&mut self.is_filled, true) {
            self.load.content.fill(payload);
        }
        if now >= self.deadline || self.failed.is_some() {
            return ClientSlotAction::Stop;
        }
        let place = if self.load.random {
            // Map a random 64-bit word to the range by a multiplication, which is faster than a
            // division.
            ((u128::from(stamp::next(&mut self.random)) * u128::from(self.commands)) >> 64) as u64
        } else {
            self.next = (self.next + 1) % self.commands;
            self.next
        };
        let lba = (place * u64::from(self.blocks_each)) as u32;
        let request = if self.load.write {
            ClientScsiCommand::write(lba, self.blocks_each, self.block_bytes, self.load.durable)
        } else {
            ClientScsiCommand::read(lba, self.blocks_each, self.block_bytes)
        };
        ClientSlotAction::Send(request, 0)
    }

    fn answered(&mut self, now: Instant, answer: &ClientResponse<'_>) {
        self.latency.saturating_record((now - answer.sent).as_nanos() as u64);
        if answer.status != 0 {
            self.failed = Some((answer.status, answer.sense));
        }
    }
}
