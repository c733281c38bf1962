//! Loads: operations that a fixed number of tasks repeat.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use futures_util::future::try_join_all;
use hdrhistogram::Histogram;
use rawclient::stamp;
use rig::machine::BenchProcessUsage;

use super::client::ObjectBenchSession;
use crate::load::{BenchPoint, histogram};

/// Time at the start of a point that is not measured.
const WARM_UP: Duration = Duration::from_millis(100);

/// Repeats an operation in `tasks` tasks for `time`. The process `server` is the one whose CPU time is measured.
/// `operation` gets the number of the task.
pub async fn measure<F, O>(
    tasks: usize,
    server: u32,
    time: Duration,
    operation: F,
) -> Result<BenchPoint>
where
    F: Fn(usize) -> O,
    O: Future<Output = Result<()>>,
{
    repeat(tasks, WARM_UP.min(time), &operation).await?;
    let (before, start) = (BenchProcessUsage::of(server)?, Instant::now());
    let latency = repeat(tasks, time, &operation).await?;
    let (time, server) = (start.elapsed(), BenchProcessUsage::of(server)?.since(before));
    ensure!(!latency.is_empty(), "no operation ended");
    Ok(BenchPoint { operations: latency.len(), time, latency, server })
}

async fn repeat<F, O>(tasks: usize, time: Duration, operation: &F) -> Result<Histogram<u64>>
where
    F: Fn(usize) -> O,
    O: Future<Output = Result<()>>,
{
    let deadline = Instant::now() + time;
    let latency = RefCell::new(histogram());
    let task = |number| {
        let latency = &latency;
        async move {
            let mut begun = Instant::now();
            while begun < deadline {
                operation(number).await?;
                let ended = Instant::now();
                latency.borrow_mut().saturating_record((ended - begun).as_nanos() as u64);
                begun = ended;
            }
            anyhow::Ok(())
        }
    };
    try_join_all((0..tasks).map(task)).await?;
    Ok(latency.into_inner())
}

/// Reads or writes of one size within the first bytes of units.
#[derive(Clone, Copy, Debug)]
pub struct ObjectBenchLoad {
    pub write: bool,
    pub bytes: u64,
    /// Commands in flight of each session.
    pub depth: usize,
    /// True for random places, false for ascending ones.
    pub random: bool,
    /// The load uses only this many bytes at the start of the unit or object.
    pub region: u64,
}

impl ObjectBenchLoad {
    pub const fn small(write: bool, depth: usize, region: u64) -> Self {
        Self { write, bytes: 4096, depth, random: true, region }
    }

    pub const fn large(write: bool, depth: usize, region: u64) -> Self {
        Self { write, bytes: 128 << 10, depth, random: false, region }
    }

    /// Runs the load on these sessions together.
    pub async fn measure(
        &self,
        sessions: &[ObjectBenchSession],
        server: u32,
        time: Duration,
    ) -> Result<BenchPoint> {
        let data = Bytes::from(vec![0xa5; self.bytes as usize]);
        let (random, next) = (Cell::new(1), Cell::new(0));
        let places = self.region / self.bytes;
        let operation = |task: usize| {
            let place = if self.random {
                draw(&random, places)
            } else {
                next.set((next.get() + 1) % places);
                next.get()
            };
            let (session, data) = (&sessions[task % sessions.len()], data.clone());
            async move {
                let start = place * self.bytes;
                match self.write {
                    true => session.write(start, data).await,
                    false => session.read(start, self.bytes).await,
                }
            }
        };
        measure(self.depth * sessions.len(), server, time, operation).await
    }
}

/// Fills an object of `bytes`, and overwrites its blocks at random until as many bytes were written as the volume has.
/// All memory of a volume in memory was used then. Otherwise the kernel would clear pages while writes are measured.
pub async fn age(
    session: &ObjectBenchSession,
    bytes: u64,
    volume_bytes: u64,
    server: u32,
) -> Result<()> {
    session.fill(bytes).await?;
    let (load, mut written) = (ObjectBenchLoad::small(true, AGE_DEPTH, bytes), 0);
    while written < volume_bytes {
        let point = load.measure(std::slice::from_ref(session), server, AGE_TIME).await?;
        written += point.operations * load.bytes;
    }
    Ok(())
}

const AGE_DEPTH: usize = 32;
const AGE_TIME: Duration = Duration::from_millis(500);

/// Returns a pseudorandom number below `end`.
pub fn draw(state: &Cell<u64>, end: u64) -> u64 {
    let mut random = state.get();
    let drawn = stamp::next(&mut random);
    state.set(random);
    ((u128::from(drawn) * u128::from(end)) >> 64) as u64
}
