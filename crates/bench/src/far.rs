//! `cargo xtask bench far`: measures a gateway over a long link, and for comparison a bulk TCP stream and a host that
//! uses the node directly over the same link.

pub mod wan;
pub mod bad_links;
mod bulk;
pub mod load;
pub mod site;
mod report;

use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use rig::build;
use rig::machine::{Others, require_root};

use crate::far::bulk::BulkStreamDirection;
use crate::far::load::{FarAddressOrder, FarLoad};
use crate::far::report::{FarFigures, FarPoint};
use crate::far::site::{FarBenchSite, FarNodeSpec, WRITTEN_RANGE};
use crate::far::wan::{BenchWan, LinkSpec};

/// Measure gateways over an emulated long link: cold reads, drain, sustained writes, and the
/// latency of random reads on a full link. A bulk TCP stream and a host that uses the node directly
/// are measured in the same round. Needs root. Each round starts a new link, node and gateways.
#[derive(Args, Debug)]
pub struct FarBenchOptions {
    /// Link to measure: Mbit/s, one-way delay in ms, queue as a fraction of bandwidth × round trip and, optionally,
    /// packet loss in percent, such as 200,4,0.25,0.1. May be repeated [default: six links of 200 Mbit/s].
    #[arg(long = "link", value_name = "MBIT,MS,QUEUE[,LOSS]")]
    links: Vec<LinkSpec>,
    /// TCP congestion control of both ends, as in the setting `congestion`. May be repeated. With
    /// an ensemble, the hosts and the bulk stream use BBR [default: cubic and bbr].
    #[arg(long, value_name = "NAME")]
    congestion: Vec<String>,
    /// Program to measure, and its name in the report. May be repeated, to compare two builds in one run [default: the
    /// release build].
    #[arg(long = "program", value_name = "NAME=FILE", value_parser = named)]
    programs: Vec<(String, PathBuf)>,
    /// Group of points to measure. May be repeated [default: all].
    #[arg(long, value_name = "GROUP")]
    only: Vec<FarBenchGroup>,
    /// Give the node a cache whose writes are stable with the next flush (`report = "at-flush"`),
    /// so that the epochs of a gateway are atomic on the node. Its log is in memory. [default: no
    /// cache on the node, volume in memory]
    #[arg(long)]
    epochs: bool,
    /// Number of CPUs that other work on the machine may use on average. If it uses more, the round
    /// is repeated. Raise this to run two benchmarks concurrently, each in its own mount and
    /// network namespace.
    #[arg(long, value_name = "CPUS", default_value_t = 0.1)]
    others: f64,
    /// Number of rounds. Each point is measured once per round.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Length of each measurement in seconds, after a warm-up of one second.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Write the points of all rounds to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A group of points that are measured over the long link.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum FarBenchGroup {
    /// Cold sequential reads of 64 KiB.
    Reads,
    /// Cold random reads of 4 KiB.
    Random,
    /// Draining a log that holds as much as the link carries in the time of a point.
    Drain,
    /// Writes to a gateway whose log is full.
    Sustained,
    /// Random reads on the idle link, and while a sequential reader and destage fill it.
    Latency,
}

fn named(text: &str) -> Result<(String, PathBuf), String> {
    let (name, file) = text.split_once('=').ok_or("a program is NAME=FILE")?;
    let file = PathBuf::from(file);
    let file = file.canonicalize().map_err(|error| format!("{}: {error}", file.display()))?;
    Ok((name.to_owned(), file))
}

/// Measures all links, congestion controls and programs, and prints a table for each.
pub fn bench(options: &FarBenchOptions) -> Result<bool> {
    require_root("bench far")?;
    let programs = match &options.programs[..] {
        [] => vec![("forebay".to_owned(), build::build()?)],
        some => some.to_vec(),
    };
    let links = if options.links.is_empty() { LinkSpec::usual() } else { options.links.clone() };
    let congestion = match &options.congestion[..] {
        [] => vec!["cubic".to_owned(), "bbr".to_owned()],
        some => some.to_vec(),
    };
    let groups =
        if options.only.is_empty() { FarBenchGroup::value_variants() } else { &options.only[..] };
    let time = Duration::from_secs_f64(options.seconds.clamp(0.5, 60.0));
    let mut all = Vec::new();
    for spec in &links {
        for control in &congestion {
            let mut figures = FarFigures::new(spec, control, &programs);
            let mut spare = SPARE_ROUNDS;
            let mut round = 0;
            while round < options.rounds {
                let mut is_tainted = None;
                for (name, program) in &programs {
                    let run = FarBenchRound {
                        spec,
                        control,
                        name,
                        program,
                        groups,
                        time,
                        has_epochs: options.epochs,
                        most_others: options.others,
                    };
                    let (points, tainted) = run.measure().with_context(|| {
                        format!("{name}, {spec}, {control}, round {}", round + 1)
                    })?;
                    is_tainted = is_tainted.or(tainted);
                    figures.take(name, points);
                }
                match is_tainted {
                    Some(reason) if spare > 0 => {
                        spare -= 1;
                        println!("{spec} {control}: a round is not counted: {reason}");
                        figures.forget();
                    }
                    tainted => {
                        round += 1;
                        figures.keep(tainted);
                        println!("{spec} {control}: round {round} of {}", options.rounds);
                    }
                }
            }
            figures.print();
            all.push(figures);
            if let Some(file) = &options.json {
                report::write_json(file, &all)?;
            }
        }
    }
    Ok(true)
}

/// Maximum number of rounds per link that are repeated because there was a reason to doubt them (tainted).
const SPARE_ROUNDS: u16 = 5;
/// Name of the emulated link, with which the names of its network namespaces begin.
pub const LINK: &str = "bench-far";
/// The load runs for this time before the measurement begins. Meanwhile the congestion window of TCP and the command
/// window of the gateway grow.
const WARM_UP: Duration = Duration::from_secs(1);
/// The size of the log in bytes, for gateways that are only read from.
const LOG_BYTES: u64 = 16 << 20;
/// The size of the log for sustained writes: as many bytes as the full link carries in this number of round trips. With
/// this size, the gateway sends one epoch (the data up to the next flush of the node) in 80 round trips. Between two
/// epochs it sends nothing for two round trips, which costs a fortieth of the throughput.
const LOG_TRIPS: u32 = 360;
/// The minimum length of a drain in round trips. In a drain of this length, TCP's slow start is only a small part: over
/// a link of 200 Mbit/s and 80 ms slow start takes seven round trips.
const DRAIN_TRIPS: u32 = 100;
const LEAST_LOG_BYTES: u64 = 64 << 20;
/// The minimum rate, in bytes per second, at which hosts can fill a log on the disk of this machine.
const NEAR_DISK_RATE: f64 = 150e6;

/// A round of measurements with one program over one emulated link.
struct FarBenchRound<'a> {
    spec: &'a LinkSpec,
    control: &'a str,
    name: &'a str,
    program: &'a std::path::Path,
    groups: &'a [FarBenchGroup],
    time: Duration,
    has_epochs: bool,
    most_others: f64,
}

impl FarBenchRound<'_> {
    /// Measures all points. Also returns the reason to doubt the round (taint), if there is one.
    fn measure(&self) -> Result<(Vec<FarPoint>, Option<String>)> {
        let (before, start) = (Others::now()?, Instant::now());
        let wan = BenchWan::start(self.program, LINK, self.spec)?;
        // Choose ranges that are larger than the data that a sequential load reads. A load that reached the end of its
        // range would begin again at its start, and read blocks that the gateway has in memory.
        let most = self.drained_bytes().max(self.spec.bytes_in(WARM_UP + self.time));
        let far =
            FarNodeSpec { has_epochs: self.has_epochs, ..FarNodeSpec::new(self.control, most) };
        let site = FarBenchSite::start(&wan, self.program, far)?;
        let mut points = Vec::new();
        for direction in [BulkStreamDirection::Back, BulkStreamDirection::Forth] {
            points.push(self.point(&wan, direction.name(), &[], || {
                bulk::measure(&wan, direction, self.host_control(), self.time)
            })?);
        }
        for group in self.groups {
            match group {
                FarBenchGroup::Reads => self.reads(&wan, &site, &mut points)?,
                FarBenchGroup::Random => self.random(&wan, &site, &mut points)?,
                FarBenchGroup::Drain => self.drain(&wan, &site, &mut points)?,
                FarBenchGroup::Sustained => self.sustained(&wan, &site, &mut points)?,
                FarBenchGroup::Latency => self.latency(&wan, &site, &mut points)?,
            }
        }
        let tainted = wan.tainted()?;
        drop(site);
        let others = Others::now()?.cpus_since(before, start.elapsed());
        let busy =
            (others > self.most_others).then(|| format!("other work kept {others:.2} CPUs busy"));
        Ok((points, busy.or(tainted)))
    }

    /// Returns the congestion control of the hosts and of the bulk stream. They use BBR if the gateways use an ensemble
    /// (connections with one congestion window), because only Forebay's own programs can do that.
    fn host_control(&self) -> &str {
        if self.control.starts_with("ensemble") { "bbr" } else { self.control }
    }

    /// Runs `measure` for one point, and adds names to its error: the point and its series.
    fn point(
        &self,
        wan: &BenchWan,
        name: &str,
        processes: &[(&'static str, u32)],
        measure: impl FnOnce() -> Result<load::FarLoadResult>,
    ) -> Result<FarPoint> {
        report::measure(wan, name, processes, measure)
            .with_context(|| format!("{name} of {}", self.name))
    }

    fn reads(&self, wan: &BenchWan, site: &FarBenchSite, points: &mut Vec<FarPoint>) -> Result<()> {
        self.cold(wan, site, points, "sequential reads", &[1, 8, 32], |depth, range| {
            FarLoad::read(FarAddressOrder::Sequential, 64 << 10, depth, range)
        })
    }

    fn random(
        &self,
        wan: &BenchWan,
        site: &FarBenchSite,
        points: &mut Vec<FarPoint>,
    ) -> Result<()> {
        self.cold(wan, site, points, "random reads", &[1, 32], |depth, range| {
            FarLoad::read(FarAddressOrder::Scattered, 4096, depth, range)
        })
    }

    /// Measures cold reads at several depths, at the node and through a new gateway.
    fn cold(
        &self,
        wan: &BenchWan,
        site: &FarBenchSite,
        points: &mut Vec<FarPoint>,
        title: &str,
        depths: &[usize],
        load: impl Fn(usize, Range<u64>) -> FarLoad,
    ) -> Result<()> {
        let gateway = site.gateway(LOG_BYTES)?;
        for (number, &depth) in depths.iter().enumerate() {
            let load = load(depth, site.range(number as u64));
            let name = format!("{title}, depth {depth}, direct");
            points.push(self.point(wan, &name, &[("node", site.node())], || {
                load.measure(site.direct(), self.host_control(), WARM_UP, self.time)
            })?);
            let name = format!("{title}, depth {depth}, gateway");
            points.push(self.point(wan, &name, &gateway.processes(site), || {
                load.measure(gateway.login(), self.host_control(), WARM_UP, self.time)
            })?);
        }
        gateway.stop()
    }

    /// Returns the number of bytes that the measured drain sends: as many as the full link carries in the warm-up and
    /// measured time of the bulk stream, so that the drain and the stream lose the same share of their packets in TCP's
    /// slow start. On a long link, returns the larger number of bytes that the link carries in [`DRAIN_TRIPS`] round
    /// trips, because the time of the drain includes a slow start, and the measured time of the stream does not.
    fn drained_bytes(&self) -> u64 {
        let time = (WARM_UP + self.time).max(self.spec.round_trip() * DRAIN_TRIPS);
        self.spec.bytes_in(time) >> 20 << 20
    }

    /// Measures how fast a gateway drains its log. Before that, measures how fast a bulk TCP stream carries as many
    /// bytes over a new connection; like the drain's, this time includes TCP's slow start.
    fn drain(&self, wan: &BenchWan, site: &FarBenchSite, points: &mut Vec<FarPoint>) -> Result<()> {
        let bytes = self.drained_bytes();
        let name = "bulk TCP, the bytes of the drain";
        points.push(self.point(wan, name, &[], || {
            bulk::measure_from_start(wan, BulkStreamDirection::Forth, self.host_control(), bytes)
        })?);
        let gateway = site.gateway(bytes * 3)?;
        gateway.hold(true)?;
        load::write(gateway.login(), site.range(WRITTEN_RANGE).start, bytes)?;
        points.push(self.point(wan, "drain", &gateway.processes(site), || {
            gateway.hold(false)?;
            gateway.drain()
        })?);
        gateway.stop()
    }

    fn sustained(
        &self,
        wan: &BenchWan,
        site: &FarBenchSite,
        points: &mut Vec<FarPoint>,
    ) -> Result<()> {
        let load = FarLoad::write(64 << 10, 32, site.range(WRITTEN_RANGE));
        let direct = site.direct();
        points.push(self.point(
            wan,
            "writes, depth 32, direct",
            &[("node", site.node())],
            || load.measure(direct, self.host_control(), WARM_UP, self.time),
        )?);
        let held = self.spec.bytes_in(self.spec.round_trip() * LOG_TRIPS);
        let log_bytes = held.max(LEAST_LOG_BYTES) >> 20 << 20;
        let gateway = site.gateway(log_bytes)?;
        // The log is full after this warm-up. The measurement then lasts for at least two epochs.
        let warm_up = WARM_UP + Duration::from_secs_f64(log_bytes as f64 / NEAR_DISK_RATE);
        let time = self.time.max(self.spec.time_for(log_bytes / 2));
        let through = gateway.login();
        points.push(self.point(
            wan,
            "sustained writes, depth 32, gateway",
            &gateway.processes(site),
            || load.measure(through, self.host_control(), warm_up, time),
        )?);
        gateway.stop()
    }

    /// Measures random reads through a gateway twice: without other load, and while a second host
    /// reads sequentially and a third one writes.
    fn latency(
        &self,
        wan: &BenchWan,
        site: &FarBenchSite,
        points: &mut Vec<FarPoint>,
    ) -> Result<()> {
        let gateway = site.gateway(LOG_BYTES)?;
        let random =
            |range: u64| FarLoad::read(FarAddressOrder::Scattered, 4096, 1, site.range(range));
        let (login, control) = (gateway.login(), self.host_control());
        points.push(self.point(
            wan,
            "random reads, idle link",
            &gateway.processes(site),
            || random(0).measure(login.clone(), control, WARM_UP, self.time),
        )?);
        let all = WARM_UP + self.time;
        let stream = FarLoad::read(FarAddressOrder::Sequential, 64 << 10, 8, site.range(2));
        let writes = FarLoad::write(64 << 10, 8, site.range(WRITTEN_RANGE));
        let name = "random reads, full link";
        let mut beside = Vec::new();
        let point = self.point(wan, name, &gateway.processes(site), || {
            std::thread::scope(|scope| {
                let others = [stream, writes].map(|load| {
                    let login = gateway.login();
                    scope.spawn(move || load.measure(login, control, Duration::ZERO, all))
                });
                let measured = random(1).measure(login.clone(), control, WARM_UP, self.time);
                for other in others {
                    match other.join() {
                        Ok(outcome) => beside.push(outcome?),
                        Err(_) => bail!("a load panicked"),
                    }
                }
                measured
            })
        })?;
        points.push(point);
        for (name, outcome) in
            ["  the stream beside them", "  the writes beside them"].iter().zip(&beside)
        {
            points.push(FarPoint::beside(name, outcome));
        }
        gateway.stop()
    }
}
