//! `cargo xtask bench postmark`: runs Debian's PostMark on ext4 over attached volumes, directly on
//! a node and through a gateway, and counts the traffic of the link to the node.
//!
//! The node is in its own network namespace. The interface to the namespace counts packets as a
//! switch does.
//!
//! The file system is mounted `sync,dirsync`. Otherwise only the page cache would be measured:
//! PostMark deletes its files before the page cache writes them.

mod layers;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use rig::build;
use rig::destage;
use rig::device::{self, AttachedTestDevice};
use rig::node::{RelayProcess, ServeProcess};
use rig::packages;
use rig::table::table;
use workload::Postmark;

use crate::link::CountingLink;
use crate::options::BenchOptions;

const NAME: &str = "iqn.2026-11.forebay.bench:postmark";

/// Time limit of one run. A run over a link of 8 ms takes minutes.
const LIMIT: Duration = Duration::from_secs(900);

/// Time limit of a drain of some hundred megabytes over a link of 1 Gbit/s, to a disk that syncs.
const DRAIN_LIMIT: Duration = Duration::from_secs(120);

/// The numbers of files and of transactions of a run. The pools small and large are the paper's
/// (1000 files and 50,000 transactions; 20,000 and 100,000), reduced so that a run takes a minute
/// although each write is synchronous. Blocks have 4096 bytes, one of the paper's sizes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct BenchPostmarkPool {
    name: &'static str,
    files: u32,
    transactions: u32,
}

const SMALL: BenchPostmarkPool =
    BenchPostmarkPool { name: "small", files: 100, transactions: 1000 };
const LARGE: BenchPostmarkPool =
    BenchPostmarkPool { name: "large", files: 1000, transactions: 1000 };
/// The pool for a link of 8 ms without a cache, where a transaction takes a quarter of a second.
const SHORT: BenchPostmarkPool = BenchPostmarkPool { name: "short", files: 20, transactions: 60 };

/// The path over which ext4 accesses the far disk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum BenchPostmarkPath {
    /// The host attaches the node's volume over the link.
    Uncached,
    /// The host attaches a gateway's volume. The link is between gateway and node.
    Gateway(BenchPostmarkAckMode),
    /// The host attaches the volume of a gateway, which has no emulated link to its node.
    Local(BenchPostmarkAckMode),
}

/// The moment at which the gateway acknowledges a write.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum BenchPostmarkAckMode {
    /// The gateway acknowledges a write when the data is in an NVRAM that survives a power loss according to the
    /// settings. In fact the NVRAM is ordinary memory, as in the paper's prototype.
    Stable,
    /// The gateway acknowledges a write when the data is in an NVRAM that does not survive a power loss. A flush waits
    /// until the data is on the log disk.
    Immediate,
    /// When the data is on the log disk.
    Complete,
}

/// The disk under the node's volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum BenchPostmarkDisk {
    /// A file on the disk of this machine. The node answers a write when the data is in the page cache, and executes a
    /// flush as fdatasync(2).
    File,
    /// A file on the disk of this machine; each command is delayed by the service time of the
    /// paper's disk.
    Papers,
}

/// Service time of the paper's disk, as in `bench/emc.rs`: 3.0 ms of rotation and 4.9 ms of seek
/// (STICS, table 2).
const FAR_DISK: &str = "7900us";

/// A run of PostMark: path to the volume, disk, delay and pool of files.
#[derive(Clone, Copy, Debug)]
struct BenchPostmarkRun {
    way: BenchPostmarkPath,
    disk: BenchPostmarkDisk,
    delay_ms: u32,
    pool: BenchPostmarkPool,
}

const fn run(
    way: BenchPostmarkPath,
    disk: BenchPostmarkDisk,
    delay_ms: u32,
    pool: BenchPostmarkPool,
) -> BenchPostmarkRun {
    BenchPostmarkRun { way, disk, delay_ms, pool }
}

const STABLE: BenchPostmarkPath = BenchPostmarkPath::Gateway(BenchPostmarkAckMode::Stable);
const IMMEDIATE: BenchPostmarkPath = BenchPostmarkPath::Gateway(BenchPostmarkAckMode::Immediate);
const COMPLETE: BenchPostmarkPath = BenchPostmarkPath::Gateway(BenchPostmarkAckMode::Complete);
const LOCAL: BenchPostmarkPath = BenchPostmarkPath::Local(BenchPostmarkAckMode::Stable);

/// All runs. Runs that are compared with each other are adjacent, so that other work on the machine
/// affects both.
const RUNS: [BenchPostmarkRun; 16] = [
    run(BenchPostmarkPath::Uncached, BenchPostmarkDisk::Papers, 0, SMALL),
    run(STABLE, BenchPostmarkDisk::Papers, 0, SMALL),
    run(IMMEDIATE, BenchPostmarkDisk::Papers, 0, SMALL),
    run(COMPLETE, BenchPostmarkDisk::Papers, 0, SMALL),
    run(BenchPostmarkPath::Uncached, BenchPostmarkDisk::File, 0, SMALL),
    run(STABLE, BenchPostmarkDisk::File, 0, SMALL),
    run(IMMEDIATE, BenchPostmarkDisk::File, 0, SMALL),
    run(COMPLETE, BenchPostmarkDisk::File, 0, SMALL),
    run(LOCAL, BenchPostmarkDisk::File, 0, SMALL),
    run(STABLE, BenchPostmarkDisk::File, 8, SMALL),
    run(BenchPostmarkPath::Uncached, BenchPostmarkDisk::File, 0, LARGE),
    run(STABLE, BenchPostmarkDisk::File, 0, LARGE),
    run(LOCAL, BenchPostmarkDisk::File, 0, LARGE),
    run(STABLE, BenchPostmarkDisk::File, 8, LARGE),
    run(BenchPostmarkPath::Uncached, BenchPostmarkDisk::File, 8, SHORT),
    run(STABLE, BenchPostmarkDisk::File, 8, SHORT),
];

#[derive(Clone, Copy, Debug)]
struct BenchPostmarkResult {
    time: Duration,
    /// Traffic on the link in both directions, until the node has all data. `None` without a link.
    traffic: Option<BenchPostmarkTraffic>,
}

#[derive(Clone, Copy, Debug)]
struct BenchPostmarkTraffic {
    bytes: u64,
    packets: u64,
}

/// Executes all runs and prints the results. Returns true if all bars hold.
pub fn bench(options: &BenchOptions) -> Result<bool> {
    if let Some(why) = device::missing() {
        anyhow::bail!("volumes cannot be attached here: {why}");
    }
    packages::install(missing, "this benchmark needs them")?;
    let program = match &options.program {
        Some(program) => program.canonicalize().with_context(|| program.display().to_string())?,
        None => build::build()?,
    };
    // Use the program's folder: logs and volumes must be on the disk, not in memory.
    let folder = program.parent().context("the program has a folder")?;
    let layers = layers::measure(&program, folder)?;
    println!("{layers}");
    let mut taken = Vec::new();
    for run in RUNS {
        let site = tempfile::Builder::new().prefix("postmark").tempdir_in(folder)?;
        let result = measure(&program, site.path(), run);
        leave(site.path());
        let result = result.with_context(|| format!("{run:?}"))?;
        println!("{}: {:.1} s", describe(run), result.time.as_secs_f64());
        taken.push((run, result));
    }
    let (bars, held) = bars(&taken);
    let mut page = page(&taken, &bars);
    let _ = write!(page, "\n{layers}");
    print!("{page}");
    if let Some(path) = &options.markdown {
        fs::write(path, page)?;
    }
    Ok(held)
}

fn missing() -> Vec<&'static str> {
    packages::of_missing(&[("postmark", "postmark"), ("mkfs.ext4", "e2fsprogs")])
}

fn measure(program: &Path, folder: &Path, run: BenchPostmarkRun) -> Result<BenchPostmarkResult> {
    let link = CountingLink::new(program, folder)?;
    let slow = match run.disk {
        BenchPostmarkDisk::File => String::new(),
        BenchPostmarkDisk::Papers => {
            format!(", {{ delay = {{ read = \"{FAR_DISK}\", write = \"{FAR_DISK}\" }} }}")
        }
    };
    let settings = format!(
        "listen = [\"{}:0\"]\n[[target]]\nname = \"{NAME}\"\n[[target.unit]]\n\
         stack = [ {{ file = {{ path = \"far.img\", size = \"1GiB\", preallocate = true }} }}{slow} ]\n",
        CountingLink::FAR
    );
    let far = ServeProcess::start(link.program(), folder, "far", &settings)?;
    let line = RelayProcess::start(program, far.portal(), f64::from(run.delay_ms))?;
    let over_line = format!("iscsi://{}/{NAME}/0", line.address());
    let memory = tempfile::Builder::new().prefix("postmark").tempdir_in("/dev/shm")?;
    let mut before = link.passed()?;
    let (near, time) = match run.way {
        BenchPostmarkPath::Uncached => {
            let settled = || -> Result<()> {
                before = link.passed()?;
                Ok(())
            };
            (None, postmark(program, folder, &over_line, run.pool, settled)?)
        }
        BenchPostmarkPath::Gateway(report) | BenchPostmarkPath::Local(report) => {
            let is_local = matches!(run.way, BenchPostmarkPath::Local(_));
            let url = if is_local { far.url(NAME, 0) } else { over_line };
            let settings = gateway(&url, report, memory.path());
            let near = ServeProcess::start(program, folder, "near", &settings)?;
            let settled = || -> Result<()> {
                destage::drained(&near, DRAIN_LIMIT)?;
                before = link.passed()?;
                Ok(())
            };
            let time = postmark(program, folder, &near.url(NAME, 0), run.pool, settled)?;
            destage::drained(&near, DRAIN_LIMIT)?;
            (Some(near), time)
        }
    };
    let after = link.passed()?;
    if let Some(near) = near {
        near.stop()?;
    }
    line.end()?;
    far.stop()?;
    let traffic = BenchPostmarkTraffic { bytes: after.0 - before.0, packets: after.1 - before.1 };
    Ok(BenchPostmarkResult {
        time,
        traffic: (!matches!(run.way, BenchPostmarkPath::Local(_))).then_some(traffic),
    })
}

/// Two settings of destage: dirty data of this age must be destaged, and after this idle time it is destaged earlier.
/// As in the paper (section 5.1), destage waits for a threshold or an idle system. With the defaults (5 s and 20 ms)
/// less data would be overwritten before it is destaged.
const DIRTY_AGE: &str = "60s";
const IDLE: &str = "1s";

/// Returns the settings of a gateway. Its log is on the disk, its NVRAM in the folder `memory`.
fn gateway(url: &str, report: BenchPostmarkAckMode, memory: &Path) -> String {
    let (report, survives) = match report {
        BenchPostmarkAckMode::Stable => ("immediate", "power-loss"),
        BenchPostmarkAckMode::Immediate => ("immediate", "restart"),
        BenchPostmarkAckMode::Complete => ("after-complete", "restart"),
    };
    format!(
        "listen = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{NAME}\"\n[[target.unit]]\nstack = [\n\
         {{ remote = {{ url = \"{url}\" }} }},\n\
         {{ cache = {{ log = \"near.log\", log_size = \"1GiB\", nvram = \"{}\", \
         nvram_survives = \"{survives}\", dram = \"128MiB\", dirty_age = \"{DIRTY_AGE}\", destage_idle = \"{IDLE}\", \
         report = \"{report}\" }} }},\n]\n",
        memory.join("nvram").display()
    )
}

/// Makes a file system on the volume `url`, runs PostMark on it and returns PostMark's time. Calls `settled` between
/// mounting the file system and starting PostMark.
fn postmark(
    program: &Path,
    folder: &Path,
    url: &str,
    pool: BenchPostmarkPool,
    settled: impl FnOnce() -> Result<()>,
) -> Result<Duration> {
    let place = mount_point(folder)?;
    let mount = place.display().to_string();
    // The option `noinit_itable` prevents the kernel from zeroing inode tables in the background
    // during the measurement.
    let options = layers::MOUNT_OPTIONS;
    let arguments = [url, "--mkfs", "ext4", "--mount", &mount, "--mount-options", options];
    let device = AttachedTestDevice::attach(program, folder, &arguments)?;
    // `settled` waits for the destage of mkfs's data and starts the counters, so that mkfs is not
    // part of the result.
    settled()?;
    let time = run_in(folder, &place, pool)?;
    device.detach()?;
    Ok(time)
}

/// Creates the folder on which a run mounts the file system of its volume.
fn mount_point(folder: &Path) -> Result<PathBuf> {
    let place = folder.join("mnt");
    fs::create_dir_all(&place)?;
    Ok(place)
}

/// Unmounts the file system of a run if it is still mounted, for example after an error.
fn leave(folder: &Path) {
    let _ = rustix::mount::unmount(folder.join("mnt"), rustix::mount::UnmountFlags::DETACH);
}

/// Runs PostMark in a mounted file system. Returns PostMark's run time.
fn run_in(folder: &Path, place: &Path, pool: BenchPostmarkPool) -> Result<Duration> {
    let BenchPostmarkPool { files, transactions, .. } = pool;
    let postmark = Postmark { files, transactions, most: MOST, ..Postmark::default() };
    Ok(postmark.run_once(place, &folder.join("postmark.in"), SEED, LIMIT)?.took)
}

/// Size of the largest file in bytes, and the seed. These are PostMark's own defaults, with which
/// the published results were measured. The laboratory uses another size.
const MOST: u32 = 10_000;
const SEED: u64 = 42;

/// Returns a table of the limits, and true if all figures keep them.
fn bars(taken: &[(BenchPostmarkRun, BenchPostmarkResult)]) -> (Vec<Vec<String>>, bool) {
    let find = |way: BenchPostmarkPath,
                disk: BenchPostmarkDisk,
                delay_ms: u32,
                pool: BenchPostmarkPool| {
        let wanted = (way, disk, delay_ms, pool);
        let is_meant =
            |run: &BenchPostmarkRun| (run.way, run.disk, run.delay_ms, run.pool) == wanted;
        taken.iter().find(|(run, _)| is_meant(run)).map(|(_, taken)| *taken)
    };
    let mut rows = Vec::new();
    let mut held = true;
    let mut bar = |what: String, value: f64, bound: Bound| {
        let (holds, bar) = match bound {
            Bound::Least(bound) => (value >= bound, format!("at least {bound:.2}")),
            Bound::Most(bound) => (value <= bound, format!("at most {bound:.2}")),
        };
        held &= holds;
        let verdict = if holds { "holds" } else { "MISSED" };
        rows.push(vec![what, format!("{value:.2}"), bar, verdict.to_owned()]);
    };
    let times = |slow: BenchPostmarkResult, fast: BenchPostmarkResult| {
        slow.time.as_secs_f64() / fast.time.as_secs_f64()
    };
    for (disk, pool) in [
        (BenchPostmarkDisk::Papers, SMALL),
        (BenchPostmarkDisk::File, SMALL),
        (BenchPostmarkDisk::File, LARGE),
    ] {
        let about = format!("{}, {} pool", disk.name(), pool.name);
        let uncached = find(BenchPostmarkPath::Uncached, disk, 0, pool);
        if let (Some(uncached), Some(gateway)) = (uncached, find(STABLE, disk, 0, pool)) {
            let speed = times(uncached, gateway);
            bar(format!("{about}: times as fast as uncached, 0 ms"), speed, Bound::Least(4.2));
            if let (Some(all), Some(ours)) = (uncached.traffic, gateway.traffic) {
                let share = |part: u64, whole: u64| part as f64 / whole as f64;
                let bytes = share(ours.bytes, all.bytes);
                bar(format!("{about}: bytes over the link, of uncached"), bytes, Bound::Most(0.5));
                let packets = share(ours.packets, all.packets);
                let what = format!("{about}: packets over the link, of uncached");
                bar(what, packets, Bound::Most(1.0 / 3.0));
            }
        }
        let (local, far) = (find(LOCAL, disk, 0, pool), find(STABLE, disk, 8, pool));
        if let (Some(local), Some(far)) = (local, far) {
            let what = format!("{about}: 8 ms against a local far volume");
            bar(what, times(local, far), Bound::Least(0.8));
        }
    }
    (rows, held)
}

/// The limit of a performance bar: the measured ratio must be at least or at most this.
enum Bound {
    Least(f64),
    Most(f64),
}

impl BenchPostmarkDisk {
    fn name(self) -> &'static str {
        match self {
            Self::File => "bare file",
            Self::Papers => "disk of 7.9 ms",
        }
    }
}

impl BenchPostmarkAckMode {
    fn name(self) -> &'static str {
        match self {
            Self::Stable => "immediate, stable NVRAM",
            Self::Immediate => "immediate",
            Self::Complete => "after-complete",
        }
    }
}

fn describe(run: BenchPostmarkRun) -> String {
    let way = match run.way {
        BenchPostmarkPath::Uncached => "uncached".to_owned(),
        BenchPostmarkPath::Gateway(report) => format!("gateway, {}", report.name()),
        BenchPostmarkPath::Local(report) => format!("gateway, {}, local far volume", report.name()),
    };
    format!("{way}, {}, {} ms, {} pool", run.disk.name(), run.delay_ms, run.pool.name)
}

fn page(taken: &[(BenchPostmarkRun, BenchPostmarkResult)], bars: &[Vec<String>]) -> String {
    let mut page = String::from("\n");
    let rows = taken.iter().map(|(run, taken)| {
        let mut row = vec![
            describe(*run),
            format!("{} / {}", run.pool.files, run.pool.transactions),
            format!("{:.1}", taken.time.as_secs_f64()),
            format!("{:.0}", f64::from(run.pool.transactions) / taken.time.as_secs_f64()),
        ];
        row.extend(match taken.traffic {
            Some(traffic) => {
                [format!("{:.1}", traffic.bytes as f64 / 1e6), traffic.packets.to_string()]
            }
            None => ["-".to_owned(), "-".to_owned()],
        });
        row
    });
    let heads =
        ["run", "files / transactions", "s", "transactions/s", "MB over the link", "packets"];
    let _ = writeln!(page, "{}", table(&heads, rows));
    let _ = write!(page, "{}", table(&["figure", "measured", "bar", ""], bars.iter().cloned()));
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_compare_runs_of_one_pool() {
        let taken = |seconds, bytes| BenchPostmarkResult {
            time: Duration::from_secs(seconds),
            traffic: Some(BenchPostmarkTraffic { bytes, packets: bytes }),
        };
        let all = [
            (run(BenchPostmarkPath::Uncached, BenchPostmarkDisk::File, 0, SMALL), taken(42, 100)),
            (run(STABLE, BenchPostmarkDisk::File, 0, SMALL), taken(10, 30)),
            (run(LOCAL, BenchPostmarkDisk::File, 0, SMALL), taken(8, 0)),
            (run(STABLE, BenchPostmarkDisk::File, 8, SMALL), taken(10, 30)),
        ];
        let (rows, held) = bars(&all);
        assert_eq!((rows.len(), held), (4, true));
        let (_, held) = bars(&[all[0], (all[1].0, taken(11, 30)), all[2], all[3]]);
        assert!(!held);
        assert!(page(&all, &rows).contains("small pool: times as fast as uncached, 0 ms"));
    }
}
