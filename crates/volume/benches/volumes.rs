//! Measures the time of a call on a bottom volume: `cargo bench -p volume [-- DIRECTORY]`.
//!
//! Durable direct writes of 4 KiB are compared with the same system call made without our code. The
//! two alternate, because the speed of a virtual machine's disk changes with time. The test file is
//! created in DIRECTORY, by default in the current directory.

use std::{
    hint::black_box,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use volume::{
    Data, Durability, EngineKind, Extent, FileVolume, FileVolumeOptions, Geometry, Io, Lba,
    MemVolume, Stack, Volume,
};

fn main() {
    let directory = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let path = directory.map_or_else(PathBuf::new, PathBuf::from).join("volume-bench.tmp");
    memory();
    for runtime in [Runtime::OneThread, Runtime::TwoWorkers] {
        file(&path, runtime);
    }
    std::fs::remove_file(&path).expect("it was made here");
}

fn memory() {
    let volume = MemVolume::new(Geometry::with_blocks(BYTES / 512));
    let data = Data::from(vec![7; 4096]);
    let mut at = Places::new();
    let write = nanoseconds(|| now(volume.write(at.next(), data.clone(), Durability::Volatile)));
    let read = nanoseconds(|| now(volume.read(Extent { lba: at.next(), blocks: 8 })));
    println!("memory, random 4 KiB: read {read:.0} ns, write {write:.0} ns");
    let data = Data::from(vec![7; 4096]);
    let hot = nanoseconds(|| now(volume.write(Lba(8), data.clone(), Durability::Volatile)));
    println!("memory, the same 4 KiB: write {hot:.0} ns");
}

#[derive(Clone, Copy, Debug)]
enum Runtime {
    OneThread,
    TwoWorkers,
}

impl Runtime {
    fn build(self) -> tokio::runtime::Runtime {
        let mut builder = match self {
            Self::OneThread => tokio::runtime::Builder::new_current_thread(),
            Self::TwoWorkers => tokio::runtime::Builder::new_multi_thread(),
        };
        builder.worker_threads(2).enable_all().build().expect("a runtime")
    }
}

fn file(path: &Path, kind: Runtime) {
    let runtime = kind.build();
    println!(
        "\n{kind:?}: durable direct writes of 4 KiB, microseconds p50/p99, thousands a second"
    );
    let mut rows: Vec<(String, Vec<Sample>)> = Vec::new();
    for _ in 0..ROUNDS {
        let mut row = |name: String, sample: Sample| match rows.iter_mut().find(|r| r.0 == name) {
            Some((_, samples)) => samples.push(sample),
            None => rows.push((name, vec![sample])),
        };
        row("system call, depth 1".into(), blocking(path));
        for engine in [EngineKind::Uring, EngineKind::Psync] {
            let volume = open(path, engine, true);
            for depth in [1, 4, 16] {
                let sample = runtime.block_on(durable(&volume, depth));
                row(format!("{engine:?}, depth {depth}"), sample);
            }
        }
    }
    for (name, mut samples) in rows {
        samples.sort_by_key(|sample| sample.p50);
        let Sample { p50, p99, calls } = samples[samples.len() / 2];
        let rate = calls as f64 / ROUND.as_secs_f64() / 1000.0;
        println!("{name:22} {:4}/{:5} {rate:6.1}", p50.as_micros(), p99.as_micros());
    }

    let cached = open(path, EngineKind::Uring, false);
    let mut at = Places::new();
    let read = nanoseconds(|| now(cached.read(Extent { lba: at.next(), blocks: 8 })));
    println!("page cache, random 4 KiB: read {read:.0} ns, at the first poll");
    drop(cached);
    for engine in [EngineKind::Uring, EngineKind::Psync] {
        let cached = open(path, engine, false);
        let data = Data::from(vec![7; 4096]);
        let start = Instant::now();
        let calls = 20_000;
        runtime.block_on(async {
            for _ in 0..calls {
                let write = cached.write(at.next(), data.clone(), Durability::Volatile);
                write.await.expect("written");
            }
        });
        let each = start.elapsed().as_nanos() / calls;
        println!("page cache, random 4 KiB: write {each} ns by {engine:?}");
    }
}

#[derive(Clone, Copy)]
struct Sample {
    p50: Duration,
    p99: Duration,
    calls: usize,
}

impl Sample {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |percent: usize| times[times.len() * percent / 100];
        Self { p50: at(50), p99: at(99), calls: times.len() }
    }
}

/// Measures writes by `pwritev2` with `O_DIRECT | O_DSYNC` on the calling thread, without an engine.
fn blocking(path: &Path) -> Sample {
    drop(open(path, EngineKind::Psync, false));
    let mut options = std::fs::File::options();
    let file = options.write(true).custom_flags(libc::O_DIRECT | libc::O_DSYNC).open(path);
    let file = file.expect("opened");
    let memory = vec![7; 8192];
    let aligned = memory.as_ptr().align_offset(4096);
    let mut at = Places::new();
    let mut times = Vec::new();
    let start = Instant::now();
    while start.elapsed() < ROUND {
        let call = Instant::now();
        file.write_all_at(&memory[aligned..aligned + 4096], at.next().0 * 512).expect("written");
        times.push(call.elapsed());
    }
    Sample::of(times)
}

async fn durable(volume: &Stack, depth: usize) -> Sample {
    let drivers: Vec<_> = (0..depth)
        .map(|n| {
            let volume = Arc::clone(volume);
            tokio::spawn(async move {
                let data = Data::from(vec![7; 4096]);
                let mut at = Places(n as u64);
                let mut times = Vec::new();
                let start = Instant::now();
                while start.elapsed() < ROUND {
                    let call = Instant::now();
                    let write = volume.write(at.next(), data.clone(), Durability::Stable);
                    write.await.expect("written");
                    times.push(call.elapsed());
                }
                times
            })
        })
        .collect();
    let mut times = Vec::new();
    for driver in drivers {
        times.extend(driver.await.expect("finished"));
    }
    Sample::of(times)
}

fn open(path: &Path, engine: EngineKind, direct: bool) -> Stack {
    let options = FileVolumeOptions {
        create: Some(BYTES),
        preallocate: true,
        direct,
        engine,
        ..FileVolumeOptions::new(path)
    };
    let volume = FileVolume::open(&options).expect("opened");
    assert_eq!(volume.is_direct(), direct, "the file system cannot do direct I/O");
    Arc::new(volume)
}

fn nanoseconds<T>(mut call: impl FnMut() -> T) -> f64 {
    for _ in 0..CALLS {
        black_box(call());
    }
    let start = Instant::now();
    for _ in 0..CALLS {
        black_box(call());
    }
    start.elapsed().as_nanos() as f64 / f64::from(CALLS)
}

fn now<T>(mut io: Io<'_, T>) -> T {
    match Pin::new(&mut io).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result.expect("done"),
        Poll::Pending => panic!("not in memory"),
    }
}

/// A generator of random addresses of 4 KiB blocks.
struct Places(u64);

impl Places {
    fn new() -> Self {
        Self(1)
    }

    fn next(&mut self) -> Lba {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888);
        Lba((self.0 >> 33) % (BYTES / 4096) * 8)
    }
}

const BYTES: u64 = 64 << 20;
const CALLS: u32 = 200_000;
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(300);
