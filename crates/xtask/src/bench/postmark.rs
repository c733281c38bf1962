//! `cargo xtask bench postmark`: Debian's PostMark on ext4 over attached volumes, straight to a node
//! and through a gateway, with what crossed the link between.
//!
//! The file system is mounted `sync,dirsync`: PostMark deletes its files before a page cache would
//! write them, and only the cache would be measured.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::bench::Options;
use crate::destage;
use crate::device::{self, Device};
use crate::node::{self, Line, Node};
use crate::packages;
use crate::process;
use crate::steps::table;

const NAME: &str = "iqn.2026-11.forebay.bench:postmark";

/// A run over 8 ms takes minutes.
const LIMIT: Duration = Duration::from_secs(900);

/// Some hundred megabytes over a line of 1 Gbit/s, with a disk that syncs.
const DRAIN_LIMIT: Duration = Duration::from_secs(120);

/// How many files there are, and how many transactions are made with them: the paper's two
/// (1000 and 50,000; 20,000 and 100,000), scaled to runs of a minute where each write is synchronous. Blocks
/// of 4096 bytes, one of the paper's sizes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Pool {
    name: &'static str,
    files: u32,
    transactions: u32,
}

const SMALL: Pool = Pool { name: "small", files: 100, transactions: 1000 };
const LARGE: Pool = Pool { name: "large", files: 1000, transactions: 1000 };
/// Over 8 ms without a cache, where a transaction takes a quarter of a second.
const SHORT: Pool = Pool { name: "short", files: 20, transactions: 60 };

/// What stands between ext4 and the far disk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Way {
    /// The attached volume is the node's.
    Uncached,
    /// It is a gateway's, with this report.
    Gateway(&'static str),
    /// The same without a link between gateway and node.
    Local(&'static str),
}

/// One run.
#[derive(Clone, Copy, Debug)]
struct Run {
    way: Way,
    delay_ms: u32,
    pool: Pool,
}

const fn run(way: Way, delay_ms: u32, pool: Pool) -> Run {
    Run { way, delay_ms, pool }
}

const IMMEDIATE: &str = "immediate";
const COMPLETE: &str = "after-complete";

/// Those that are compared stand together, so that other work on the machine meets both.
const RUNS: [Run; 12] = [
    run(Way::Uncached, 0, SMALL),
    run(Way::Gateway(IMMEDIATE), 0, SMALL),
    run(Way::Gateway(COMPLETE), 0, SMALL),
    run(Way::Uncached, 0, LARGE),
    run(Way::Gateway(IMMEDIATE), 0, LARGE),
    run(Way::Gateway(COMPLETE), 0, LARGE),
    run(Way::Local(IMMEDIATE), 0, SMALL),
    run(Way::Gateway(IMMEDIATE), 8, SMALL),
    run(Way::Local(IMMEDIATE), 0, LARGE),
    run(Way::Gateway(IMMEDIATE), 8, LARGE),
    run(Way::Uncached, 8, SHORT),
    run(Way::Gateway(IMMEDIATE), 8, SHORT),
];

/// What a run took.
#[derive(Clone, Copy, Debug)]
struct Taken {
    /// PostMark from its start to its end.
    time: Duration,
    /// Over the link, both ways, until everything was at the node. PDUs stand for packets: the link is
    /// a relay of TCP streams.
    traffic: Option<Traffic>,
}

#[derive(Clone, Copy, Debug)]
struct Traffic {
    bytes: u64,
    pdus: u64,
}

/// Runs all and prints; true if the bars hold.
pub fn bench(options: &Options) -> Result<bool> {
    if let Some(why) = device::missing() {
        anyhow::bail!("volumes cannot be attached here: {why}");
    }
    packages::install(missing, "this benchmark needs them")?;
    let program = match &options.program {
        Some(program) => program.canonicalize().with_context(|| program.display().to_string())?,
        None => node::build()?,
    };
    // Logs and volumes on the disk, not in memory.
    let folder = program.parent().context("the program has a folder")?;
    let mut taken = Vec::new();
    for run in RUNS {
        let site = tempfile::Builder::new().prefix("postmark").tempdir_in(folder)?;
        let result = measure(&program, site.path(), run);
        let mount = site.path().join("mnt");
        // What a run that failed has left mounted.
        let _ = rustix::mount::unmount(&mount, rustix::mount::UnmountFlags::DETACH);
        let result = result.with_context(|| format!("{run:?}"))?;
        println!("{}: {:.1} s", describe(run), result.time.as_secs_f64());
        taken.push((run, result));
    }
    let (bars, held) = bars(&taken);
    let page = page(&taken, &bars);
    print!("{page}");
    if let Some(path) = &options.markdown {
        fs::write(path, page)?;
    }
    Ok(held)
}

fn missing() -> Vec<&'static str> {
    let tools = [("postmark", "postmark"), ("mkfs.ext4", "e2fsprogs")];
    tools.iter().filter(|(tool, _)| process::find(tool).is_none()).map(|(_, name)| *name).collect()
}

fn measure(program: &Path, folder: &Path, run: Run) -> Result<Taken> {
    let settings = format!(
        "listen = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{NAME}\"\n[[target.unit]]\n\
         stack = [{{ file = {{ path = \"far.img\", size = \"1GiB\", preallocate = true }} }}]\n"
    );
    let far = Node::start(program, folder, "far", &settings)?;
    let line = Line::start(program, far.portal(), f64::from(run.delay_ms))?;
    let over_line = format!("iscsi://{}/{NAME}/0", line.address());
    let (near, time) = match run.way {
        Way::Uncached => (None, postmark(program, folder, &over_line, run.pool, || Ok(()))?),
        Way::Gateway(report) | Way::Local(report) => {
            let is_local = matches!(run.way, Way::Local(_));
            let url = if is_local { far.url(NAME, 0) } else { over_line };
            let near = Node::start(program, folder, "near", &gateway(&url, report))?;
            let drained = || destage::drained(&near, DRAIN_LIMIT);
            let time = postmark(program, folder, &near.url(NAME, 0), run.pool, drained)?;
            drained()?;
            (Some(near), time)
        }
    };
    if let Some(near) = near {
        near.stop()?;
    }
    let traffic = line.end()?;
    far.stop()?;
    let is_used = !matches!(run.way, Way::Local(_));
    let number = |name: &str| traffic[name].as_u64().with_context(|| format!("no {name}"));
    let traffic = Traffic { bytes: number("bytes")?, pdus: number("pdus")? };
    Ok(Taken { time, traffic: is_used.then_some(traffic) })
}

fn gateway(url: &str, report: &str) -> String {
    format!(
        "listen = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{NAME}\"\n[[target.unit]]\nstack = [\n\
         {{ remote = {{ url = \"{url}\" }} }},\n\
         {{ cache = {{ log = \"near.log\", log_size = \"1GiB\", nvram = \"near.nvram\", \
         dram = \"128MiB\", report = \"{report}\" }} }},\n]\n"
    )
}

/// How long PostMark takes on a new file system on that volume, begun when everything is `settled`.
fn postmark(
    program: &Path,
    folder: &Path,
    url: &str,
    pool: Pool,
    settled: impl Fn() -> Result<()>,
) -> Result<Duration> {
    let mount: PathBuf = folder.join("mnt");
    fs::create_dir_all(&mount)?;
    let place = mount.display().to_string();
    let options = "sync,dirsync";
    let arguments = [url, "--mkfs", "ext4", "--mount", &place, "--mount-options", options];
    let device = Device::attach(program, folder, &arguments)?;
    let script = folder.join("postmark.in");
    let Pool { files, transactions, .. } = pool;
    fs::write(
        &script,
        format!(
            "set location {place}\nset number {files}\nset transactions {transactions}\n\
             set read 4096\nset write 4096\nrun\nquit\n"
        ),
    )?;
    // The making of the file system is not what is measured.
    settled()?;
    let tool = process::find("postmark").context("no postmark")?;
    let begun = Instant::now();
    let finished = process::run(Command::new(tool).arg(&script), LIMIT)?;
    let time = begun.elapsed();
    let is_done = finished.success() && finished.output.contains("per second");
    ensure!(is_done, "postmark {}: {}", finished.ending(), finished.tail(8));
    ensure!(!finished.output.contains("Error"), "postmark: {}", finished.tail(8));
    device.detach()?;
    Ok(time)
}

/// What was promised, and whether it holds.
fn bars(taken: &[(Run, Taken)]) -> (Vec<Vec<String>>, bool) {
    let find = |way: Way, delay_ms: u32, pool: Pool| {
        let is_meant = |run: &Run| (run.way, run.delay_ms, run.pool) == (way, delay_ms, pool);
        taken.iter().find(|(run, _)| is_meant(run)).map(|(_, taken)| *taken)
    };
    let mut rows = Vec::new();
    let mut held = true;
    for pool in [SMALL, LARGE] {
        let of = |way, delay| find(way, delay, pool);
        let (Some(uncached), Some(gateway), Some(local), Some(far)) = (
            of(Way::Uncached, 0),
            of(Way::Gateway(IMMEDIATE), 0),
            of(Way::Local(IMMEDIATE), 0),
            of(Way::Gateway(IMMEDIATE), 8),
        ) else {
            continue;
        };
        let times = |slow: Taken, fast: Taken| slow.time.as_secs_f64() / fast.time.as_secs_f64();
        let mut bar = |what: &str, value: f64, bound: f64, is_least: bool| {
            let holds = if is_least { value >= bound } else { value <= bound };
            held &= holds;
            let word = if is_least { "at least" } else { "at most" };
            let verdict = if holds { "holds" } else { "MISSED" };
            rows.push(
                [
                    format!("{} pool: {what}", pool.name),
                    format!("{value:.2}"),
                    format!("{word} {bound:.2}"),
                    verdict.to_owned(),
                ]
                .to_vec(),
            );
        };
        bar("times as fast as uncached, 0 ms", times(uncached, gateway), 4.2, true);
        bar("8 ms against a local far side", times(local, far), 0.8, true);
        if let (Some(all), Some(ours)) = (uncached.traffic, gateway.traffic) {
            let share = |part: u64, whole: u64| part as f64 / whole as f64;
            bar("bytes over the link, of uncached", share(ours.bytes, all.bytes), 0.5, false);
            bar("PDUs over the link, of uncached", share(ours.pdus, all.pdus), 0.34, false);
        }
    }
    (rows, held)
}

fn describe(run: Run) -> String {
    let way = match run.way {
        Way::Uncached => "uncached".to_owned(),
        Way::Gateway(report) => format!("gateway, {report}"),
        Way::Local(report) => format!("gateway, {report}, local far side"),
    };
    format!("{way}, {} ms, {} pool", run.delay_ms, run.pool.name)
}

fn page(taken: &[(Run, Taken)], bars: &[Vec<String>]) -> String {
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
                [format!("{:.1}", traffic.bytes as f64 / 1e6), traffic.pdus.to_string()]
            }
            None => ["-".to_owned(), "-".to_owned()],
        });
        row
    });
    let heads = ["run", "files / transactions", "s", "transactions/s", "MB over the link", "PDUs"];
    let _ = writeln!(page, "{}", table(&heads, rows));
    let _ = write!(page, "{}", table(&["promise", "is", "bar", ""], bars.iter().cloned()));
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_compare_runs_of_one_pool() {
        let taken = |seconds, bytes| Taken {
            time: Duration::from_secs(seconds),
            traffic: Some(Traffic { bytes, pdus: bytes }),
        };
        let all = [
            (run(Way::Uncached, 0, SMALL), taken(42, 100)),
            (run(Way::Gateway(IMMEDIATE), 0, SMALL), taken(10, 30)),
            (run(Way::Local(IMMEDIATE), 0, SMALL), taken(8, 0)),
            (run(Way::Gateway(IMMEDIATE), 8, SMALL), taken(10, 30)),
        ];
        let (rows, held) = bars(&all);
        assert_eq!((rows.len(), held), (4, true));
        let (_, held) = bars(&[all[0], (all[1].0, taken(11, 30)), all[2], all[3]]);
        assert!(!held);
        assert!(page(&all, &rows).contains("small pool: times as fast as uncached, 0 ms"));
    }
}
