//! Replays the trace on a file in the folder of the log, to measure the disk without a gateway. A
//! write is a durable append of 4 KiB, the smallest write of a log; a read is a read of the file.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use rig::machine::{self, BenchProcessUsage};
use workload::{TraceEvent, TraceEvents};

use crate::emc::replay::BenchTracePace;
use crate::load::{BenchPoint, histogram};

/// Size of the file in bytes; appends continue at its start when they reach its end.
const FILE_BYTES: u64 = 64 << 20;
/// Alignment that O_DIRECT needs for addresses, lengths and offsets.
const ALIGNMENT: usize = 4096;
/// Maximum number of requests in flight. The number equals the mean number of requests in a burst of the trace.
const WORKERS: usize = 16;

/// Replays the trace. A request starts when it is due, or later when a worker is free. The workers run on the CPU that
/// is reserved for servers, where a gateway's log would be written, too.
pub fn replay(
    path: &Path,
    trace: TraceEvents,
    pace: BenchTracePace,
) -> Result<(BenchPoint, String)> {
    std::fs::write(path, vec![0x5a; FILE_BYTES as usize])?;
    let flags = libc::O_DIRECT | libc::O_DSYNC;
    let file = File::options().read(true).write(true).custom_flags(flags).open(path);
    let file = file.context("the folder of the logs must be on a disk (O_DIRECT)")?;
    let own = std::process::id();
    let before = BenchProcessUsage::of(own)?;
    let shared = BenchTraceDisk { file, pace, begun: Instant::now(), left: Mutex::new((trace, 0)) };
    let mut latency = histogram();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(|| shared.work())).collect();
        workers.into_iter().try_for_each(|worker| {
            latency.add(worker.join().expect("the worker does not panic")?)?;
            anyhow::Ok(())
        })
    })?;
    let server = BenchProcessUsage::of(own)?.since(before);
    let point =
        BenchPoint { operations: latency.len(), time: shared.begun.elapsed(), latency, server };
    let ms = |part| point.quantile_us(part) / 1e3;
    let (mean, median, p99, p9999) = (point.mean_us() / 1e3, ms(0.5), ms(0.99), ms(0.9999));
    let said = format!("mean {mean:.2} ms, p50 {median:.2}, p99 {p99:.2}, p99.99 {p9999:.2} ms");
    Ok((point, said))
}

/// The file, the trace and the start time, which all workers share.
struct BenchTraceDisk {
    file: File,
    pace: BenchTracePace,
    begun: Instant,
    /// The remaining requests of the trace, and the offset of the last append.
    left: Mutex<(TraceEvents, u64)>,
}

impl BenchTraceDisk {
    /// Executes queued requests until none remain. Returns their latencies in nanoseconds.
    fn work(&self) -> Result<Histogram<u64>> {
        machine::confine(machine::SERVER_CPU)?;
        let mut buffer = vec![0xa5; 2 * ALIGNMENT];
        let skip = buffer.as_ptr().align_offset(ALIGNMENT);
        let block = &mut buffer[skip..skip + ALIGNMENT];
        let mut latency = histogram();
        while let Some((event, place)) = self.next() {
            let due = self.pace.due(self.begun, event.at);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let moved = if event.write {
                rustix::io::pwrite(&self.file, block, place)?
            } else {
                rustix::io::pread(&self.file, &mut *block, place)?
            };
            ensure!(moved == ALIGNMENT, "a short read or write");
            latency.saturating_record(due.elapsed().as_nanos() as u64);
        }
        Ok(latency)
    }

    /// Returns the next request of the trace, and the offset in the data file at which it reads or writes.
    fn next(&self) -> Option<(TraceEvent, u64)> {
        let mut left = self.left.lock().expect("no worker panics");
        let event = left.0.next()?;
        let place = if event.write {
            left.1 = (left.1 + ALIGNMENT as u64) % FILE_BYTES;
            left.1
        } else {
            u64::from(event.block) % (FILE_BYTES / ALIGNMENT as u64) * ALIGNMENT as u64
        };
        Some((event, place))
    }
}
