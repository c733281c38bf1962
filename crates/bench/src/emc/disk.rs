//! The same trace on a file where the log is: what the disk itself does with it. A write is a durable
//! append of 4 KiB, which is the least that a log can write; a read is a read of the file.

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

/// Appends go round in a file of this size.
const FILE_BYTES: u64 = 64 << 20;
/// What O_DIRECT asks of addresses, lengths and offsets.
const ALIGNMENT: usize = 4096;
/// Requests under way at once: as many as come in the mean before there is a pause.
const WORKERS: usize = 16;

/// Each request when it is due, if a worker is free; on the CPU of servers, where a gateway writes its log.
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
            latency.add(worker.join().expect("it returns its errors")?)?;
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

/// What the workers have in common.
struct BenchTraceDisk {
    file: File,
    pace: BenchTracePace,
    begun: Instant,
    /// The requests that are left, and where the last append went.
    left: Mutex<(TraceEvents, u64)>,
}

impl BenchTraceDisk {
    /// One request after the other, until there are none.
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

    /// The next request, and where in the file it goes.
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
