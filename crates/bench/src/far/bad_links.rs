//! `cargo xtask bench bad-links`: measures gateways over links that change or reorder packets, and with nodes that
//! answer late. Checks that the throughput stays near that of the link, that each gateway gets its share of the link,
//! and that memory stays bounded.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use rawclient::ClientLogin;
use rig::build;
use rig::machine::require_root;
use serde_json::Value;

use crate::far::LINK;
use crate::far::bulk::{self, BulkStreamDirection};
use crate::far::load::{self, FarAddressOrder, FarLoad, FarLoadResult};
use crate::far::site::{FarBenchGateway, FarBenchSite, FarNodeSpec, WRITTEN_RANGE};
use crate::far::wan::{BenchWan, LinkSpec};

/// Measure gateways where the link changes or reorders packets, where the node answers late, where
/// eight gateways share the link, and where a reader stops. Needs root, and 10 GiB of memory: the
/// volumes must be so large that a reader does not return to data that it has read before. Takes
/// eight minutes.
#[derive(Args, Debug)]
pub struct BadLinkOptions {
    /// Program to measure [default: the release build].
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Trial to run. May be repeated [default: all].
    #[arg(long, value_name = "TRIAL")]
    only: Vec<BadLinkTrial>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum BadLinkTrial {
    /// The link changes under load: its rate falls to a tenth and returns, then its delay grows tenfold and returns.
    Changing,
    /// The link delivers one in a hundred packets 2 ms late.
    Reordering,
    /// The node answers one in a hundred requests a second late.
    Late,
    /// Eight gateways use the link at the same time.
    Eight,
    /// A host reads sequentially and stops.
    Stopping,
}

/// Rate of the link in Mbit/s, which the trial `changing` reduces for a while.
const MEGABITS: f64 = 200.0;
/// The one-way delay of the link in milliseconds. Trial `changing` increases it for a while.
const DELAY_MS: f64 = 4.0;
const CONTROL: &str = "cubic";
/// The minimum throughput of a gateway, as a share of the throughput with which it is compared: that of a host that
/// uses the node directly, or that of a bulk TCP stream.
const PART: f64 = 0.8;
/// The maximum memory of a gateway in bytes, besides its page cache. It covers the NVRAM, the
/// buffers and the program itself.
const MEMORY: u64 = 192 << 20;
/// The size of each log in bytes. Such a small log is soon full; from then on, the rate of writes is that of destage.
const LOG_BYTES: u64 = 64 << 20;
const SHARING: u8 = 8;
/// The maximum ratio between the throughputs of two gateways that share a link.
const UNEVEN: f64 = 2.0;
/// When the host has stopped reading, a gateway must stop reading ahead within this time.
const STOPPED: Duration = Duration::from_secs(5);

/// Runs the trials and prints their figures. Returns true if all figures keep their limits.
pub fn bench(options: &BadLinkOptions) -> Result<bool> {
    require_root("bench bad-links")?;
    let program = match &options.program {
        Some(program) => program.canonicalize()?,
        None => build::build()?,
    };
    let trials =
        if options.only.is_empty() { BadLinkTrial::value_variants() } else { &options.only[..] };
    let mut report = BadLinkReport { holds: true };
    for trial in trials {
        let run = BadLinkRun { program: &program, spec: LinkSpec::new(MEGABITS, DELAY_MS) };
        let ended = match trial {
            BadLinkTrial::Changing => run.changing(&mut report),
            BadLinkTrial::Reordering => run.reordering(&mut report),
            BadLinkTrial::Late => run.late(&mut report),
            BadLinkTrial::Eight => run.eight(&mut report),
            BadLinkTrial::Stopping => run.stopping(&mut report),
        };
        ended.with_context(|| format!("{trial:?}"))?;
    }
    Ok(report.holds)
}

/// Prints the measured figures, and records whether all of them keep their limits (bars).
struct BadLinkReport {
    holds: bool,
}

impl BadLinkReport {
    fn title(&self, title: &str) {
        println!("\n{title}");
    }

    fn rate(&self, what: &str, outcome: &FarLoadResult) {
        println!("  {what:<58} {:>8.2} MB/s", megabytes(outcome));
    }

    /// Prints a ratio, and whether it keeps the limit of at least `least`.
    fn at_least(&mut self, what: &str, ratio: f64, least: f64) {
        self.bar(what, ratio, least, ratio >= least, "at least");
    }

    /// Prints a ratio, and whether it keeps the limit of at most `most`.
    fn at_most(&mut self, what: &str, ratio: f64, most: f64) {
        self.bar(what, ratio, most, ratio <= most, "at most");
    }

    fn bar(&mut self, what: &str, value: f64, bar: f64, is_held: bool, relation: &str) {
        let verdict = if is_held { "holds" } else { "MISSED" };
        println!("  {what:<58} {value:>8.2} ({relation} {bar}: {verdict})");
        self.holds &= is_held;
    }

    /// Prints the throughput of each gateway, their sum, and the ratio of the largest to the smallest.
    fn shares(&mut self, what: &str, rates: &[f64], bulk: f64) {
        let sum: f64 = rates.iter().sum();
        let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let most = rates.iter().copied().fold(0.0, f64::max);
        let list: Vec<String> = rates.iter().map(|rate| format!("{rate:.2}")).collect();
        println!("  {what}: {} MB/s", list.join(", "));
        self.at_least("  … together, of bulk", sum / bulk, PART);
        self.at_most("  … the largest share by the smallest", most / least, UNEVEN);
    }

    /// Prints the peak memory of a gateway in MiB, and the figures about the link in the gateway's status.
    fn gateway(&mut self, gateway: &FarBenchGateway, dram: u64) -> Result<()> {
        let most = (dram + MEMORY) >> 20;
        self.at_most("memory of the gateway, MiB", peak_memory(gateway)? as f64, most as f64);
        let figures = gateway.figures()?;
        let number = |name: &str| {
            figures[name].as_u64().with_context(|| format!("forebay status shows no {name}"))
        };
        for (way, name) in [("reads", "read"), ("writes", "write")] {
            println!(
                "  status, {way}: {:.2} MB/s, trip {:.1} ms, window {} KiB, under way {} KiB",
                number(&format!("far_{name}_rate"))? as f64 / 1e6,
                number(&format!("far_{name}_trip_us"))? as f64 / 1e3,
                number(&format!("far_{name}_window_bytes"))? >> 10,
                number(&format!("far_{name}_under_way_bytes"))? >> 10,
            );
        }
        Ok(())
    }
}

fn megabytes(outcome: &FarLoadResult) -> f64 {
    outcome.bytes as f64 / outcome.time.as_secs_f64() / 1e6
}

/// Returns the peak of the gateway's resident memory in MiB.
fn peak_memory(gateway: &FarBenchGateway) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", gateway.id()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().context("VmHWM")?;
    Ok(kib >> 10)
}

/// Returns a load of sequential reads of 64 KiB in the range with this number.
fn reads(site: &FarBenchSite, range: u64, depth: usize) -> FarLoad {
    FarLoad::read(FarAddressOrder::Sequential, 64 << 10, depth, site.range(range))
}

/// Returns a load of sequential writes of 64 KiB.
fn writes(site: &FarBenchSite) -> FarLoad {
    FarLoad::write(64 << 10, 32, site.range(WRITTEN_RANGE))
}

/// The program and the link of all trials.
struct BadLinkRun<'a> {
    program: &'a Path,
    spec: LinkSpec,
}

impl BadLinkRun<'_> {
    fn site(&self, wan: &BenchWan, far: FarNodeSpec<'_>) -> Result<FarBenchSite> {
        FarBenchSite::start(wan, self.program, far)
    }

    /// Runs one load through five phases: normal link, a tenth of the rate, normal link, ten times
    /// the delay, normal link.
    fn changing(&self, report: &mut BadLinkReport) -> Result<()> {
        let seconds = Duration::from_secs;
        let phases = [
            ("as usual", ["--rate", "200Mbit", "--delay", "4ms"], (seconds(3), seconds(3))),
            (
                "a tenth of the rate",
                ["--rate", "20Mbit", "--delay", "4ms"],
                (seconds(5), seconds(4)),
            ),
            ("as usual again", ["--rate", "200Mbit", "--delay", "4ms"], (seconds(4), seconds(3))),
            (
                "ten times the delay",
                ["--rate", "200Mbit", "--delay", "40ms"],
                (seconds(15), seconds(5)),
            ),
            ("as usual again", ["--rate", "200Mbit", "--delay", "4ms"], (seconds(12), seconds(3))),
        ];
        let times = phases.map(|(.., times)| times);
        let all = times.iter().map(|(warm_up, time)| *warm_up + *time).sum();
        let wan = BenchWan::start(self.program, LINK, &self.spec)?;
        let begin = |phase: usize| wan.change(&phases[phase].1);
        let site = self.site(&wan, FarNodeSpec::new(CONTROL, self.spec.bytes_in(all)))?;
        let loads = [
            ("reads of depth 8", reads(&site, 0, 8), reads(&site, 1, 32)),
            ("sustained writes", writes(&site), writes(&site)),
        ];
        for (name, load, at_node) in loads {
            report.title(&format!("A link that changes under load: {name}"));
            let direct = at_node.measure_phases(site.direct(), CONTROL, &times, begin)?;
            let gateway = site.gateway(LOG_BYTES)?;
            let through = load.measure_phases(gateway.login(), CONTROL, &times, begin)?;
            for ((name, ..), (direct, through)) in phases.iter().zip(direct.iter().zip(&through)) {
                report.rate(&format!("{name}: directly, depth 32"), direct);
                report.rate(&format!("{name}: gateway"), through);
                report.at_least("  … of direct", megabytes(through) / megabytes(direct), PART);
            }
            report.gateway(&gateway, site.dram_bytes())?;
            gateway.stop()?;
        }
        Ok(())
    }

    fn reordering(&self, report: &mut BadLinkReport) -> Result<()> {
        let settings = ["--reorder", "1%", "--reorder-by", "2ms"];
        let wan = BenchWan::start_with(self.program, LINK, &self.spec, &settings)?;
        let time = Duration::from_secs(4);
        let warm_up = Duration::from_secs(2);
        let site =
            self.site(&wan, FarNodeSpec::new(CONTROL, self.spec.bytes_in(warm_up + time)))?;
        let [back, forth] = [BulkStreamDirection::Back, BulkStreamDirection::Forth]
            .map(|direction| bulk::measure(&wan, direction, CONTROL, time));
        let (back, forth) = (back?, forth?);
        report.title("A link that delivers one packet of a hundred 2 ms late");
        report.rate("bulk TCP, from the far end", &back);
        report.rate("bulk TCP, to the far end", &forth);
        let gateway = site.gateway(LOG_BYTES)?;
        for (number, depth) in [1, 8, 32].into_iter().enumerate() {
            let load = reads(&site, number as u64, depth);
            let outcome = load.measure(gateway.login(), CONTROL, warm_up, time)?;
            report.rate(&format!("reads of depth {depth}"), &outcome);
            report.at_least("  … of bulk", megabytes(&outcome) / megabytes(&back), PART);
        }
        let outcome = drained(&site, &gateway)?;
        report.rate("drain", &outcome);
        report.at_least("  … of bulk", megabytes(&outcome) / megabytes(&forth), PART);
        report.gateway(&gateway, site.dram_bytes())?;
        gateway.stop()
    }

    fn late(&self, report: &mut BadLinkReport) -> Result<()> {
        let wan = BenchWan::start(self.program, LINK, &self.spec)?;
        let time = Duration::from_secs(6);
        let warm_up = Duration::from_secs(2);
        let far = FarNodeSpec::new(CONTROL, self.spec.bytes_in(warm_up + time));
        let site = self.site(&wan, FarNodeSpec { is_late: true, ..far })?;
        report.title("A node that answers one request of a hundred a second late");
        // Measure the direct writes before a gateway starts: while a gateway has the exclusive right to write the
        // volume (claim), the node refuses writes of other hosts.
        let direct_writes = writes(&site).measure(site.direct(), CONTROL, warm_up, time)?;
        let gateway = site.gateway(LOG_BYTES)?;
        let loads = [
            ("sequential reads of 64 KiB, depth 8", reads(&site, 0, 8)),
            ("sequential reads of 64 KiB, depth 32", reads(&site, 1, 32)),
            (
                "random reads of 4 KiB, depth 8",
                FarLoad::read(FarAddressOrder::Scattered, 4096, 8, site.range(2)),
            ),
        ];
        for (name, load) in loads {
            let direct = load.measure(site.direct(), CONTROL, warm_up, time)?;
            let through = load.measure(gateway.login(), CONTROL, warm_up, time)?;
            report.rate(&format!("{name}, direct"), &direct);
            report.rate(&format!("{name}, gateway"), &through);
            report.at_least("  … of direct", megabytes(&through) / megabytes(&direct), PART);
        }
        let outcome = drained(&site, &gateway)?;
        report.rate("writes of 64 KiB, depth 32, direct", &direct_writes);
        // Report the rate of the drain without a limit: a flush must wait for all writes of its round, and writes that
        // the node answers late add a second to each round.
        report.rate("drain", &outcome);
        report.gateway(&gateway, site.dram_bytes())?;
        gateway.stop()
    }

    fn eight(&self, report: &mut BadLinkReport) -> Result<()> {
        let wan = BenchWan::start(self.program, LINK, &self.spec)?;
        let (warm_up, time) = (Duration::from_secs(4), Duration::from_secs(8));
        let bulk = bulk::measure(&wan, BulkStreamDirection::Back, CONTROL, Duration::from_secs(4))?;
        let most = self.spec.bytes_in(warm_up + time) / 4;
        let site =
            self.site(&wan, FarNodeSpec { units: SHARING, ..FarNodeSpec::new(CONTROL, most) })?;
        let gateways = (0..SHARING)
            .map(|lun| site.gateway_to(lun, LOG_BYTES / 4))
            .collect::<Result<Vec<_>>>()?;
        report.title("Eight gateways on one link");
        report.rate("bulk TCP, from the far end", &bulk);
        let shared = |load: &FarLoad, measured: &dyn Fn(usize, FarLoadResult) -> Result<f64>| {
            let logins = gateways.iter().map(FarBenchGateway::login).collect();
            let outcomes = together(load, logins, warm_up, time)?;
            let rates = outcomes.into_iter().enumerate();
            rates.map(|(at, outcome)| measured(at, outcome)).collect::<Result<Vec<f64>>>()
        };
        let rates = shared(&reads(&site, 0, 8), &|_, outcome| Ok(megabytes(&outcome)))?;
        report.shares("sequential reads of depth 8", &rates, megabytes(&bulk));
        let bulk =
            bulk::measure(&wan, BulkStreamDirection::Forth, CONTROL, Duration::from_secs(4))?;
        report.rate("bulk TCP, to the far end", &bulk);
        let sent = || gateways.iter().map(|gateway| gateway.destaged()).collect::<Result<Vec<_>>>();
        let (before, begun) = (sent()?, Instant::now());
        shared(&writes(&site), &|_, outcome| Ok(megabytes(&outcome)))?;
        let (after, seconds) = (sent()?, begun.elapsed().as_secs_f64());
        let rates: Vec<f64> = before
            .iter()
            .zip(&after)
            .map(|(before, after)| (after - before) as f64 / seconds / 1e6)
            .collect();
        report.shares("destage under sustained writes", &rates, megabytes(&bulk));
        gateways.into_iter().try_for_each(FarBenchGateway::stop)
    }

    fn stopping(&self, report: &mut BadLinkReport) -> Result<()> {
        let wan = BenchWan::start(self.program, LINK, &self.spec)?;
        let time = Duration::from_secs(4);
        let site = self.site(&wan, FarNodeSpec::new(CONTROL, self.spec.bytes_in(2 * time)))?;
        let gateway = site.gateway(LOG_BYTES)?;
        report.title("A host that reads sequentially and stops");
        let outcome = reads(&site, 0, 32).measure(gateway.login(), CONTROL, time, time)?;
        report.rate("reads of depth 32", &outcome);
        let stopped = Instant::now();
        let waiting = |figures: &Value| {
            let names =
                ["far_read_under_way_bytes", "far_read_waiting_bytes", "far_ahead_waiting_bytes"];
            names.iter().filter_map(|name| figures[name].as_u64()).sum::<u64>()
        };
        while waiting(&gateway.figures()?) > 0 {
            ensure!(
                stopped.elapsed() < 2 * STOPPED,
                "the gateway still reads {:?} after the host has stopped",
                2 * STOPPED
            );
        }
        let seconds = stopped.elapsed().as_secs_f64();
        report.at_most("seconds until nothing is read any more", seconds, STOPPED.as_secs_f64());
        report.gateway(&gateway, site.dram_bytes())?;
        gateway.stop()
    }
}

/// Runs the same load at several gateways at the same time.
fn together(
    load: &FarLoad,
    logins: Vec<ClientLogin>,
    warm_up: Duration,
    time: Duration,
) -> Result<Vec<FarLoadResult>> {
    std::thread::scope(|scope| {
        let running: Vec<_> = logins
            .into_iter()
            .map(|login| scope.spawn(move || load.measure(login, CONTROL, warm_up, time)))
            .collect();
        let ended = running.into_iter().map(|thread| match thread.join() {
            Ok(outcome) => outcome,
            Err(_) => bail!("a load panicked"),
        });
        ended.collect()
    })
}

/// Pauses destage, writes three quarters of the log, and then measures the drain of the log.
fn drained(site: &FarBenchSite, gateway: &FarBenchGateway) -> Result<FarLoadResult> {
    gateway.hold(true)?;
    load::write(gateway.login(), site.range(WRITTEN_RANGE).start, LOG_BYTES * 3 / 4)?;
    gateway.hold(false)?;
    gateway.drain()
}
