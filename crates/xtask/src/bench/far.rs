//! `cargo xtask bench far`: a gateway over a long link, beside a bulk TCP stream and a host that uses the far volume
//! directly over the same link.

mod line;
mod bulk;
mod load;
mod site;
mod report;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::bench::far::bulk::Direction;
use crate::bench::far::line::{Line, Path};
use crate::bench::far::load::{Load, Order};
use crate::bench::far::report::{Figures, Point};
use crate::bench::far::site::{Site, WRITTEN_RANGE};
use crate::machine::Others;
use crate::node;

/// Measure gateways over an emulated long link (root): cold reads, what destage sends and sustained writes, beside a
/// bulk TCP stream and a host that uses the far volume directly. Each round has a link, a node and gateways of its
/// own.
#[derive(Args, Debug)]
pub struct Options {
    /// A link: megabits per second, milliseconds one way, the queue as a part of bandwidth × delay, and if wanted
    /// the loss in percent, such as 200,4,0.25,0.1. May be given several times; six links of 200 Mbit/s if not said.
    #[arg(long = "link", value_name = "MBIT,MS,QUEUE[,LOSS]")]
    links: Vec<Path>,
    /// A congestion control of the kernel, for both ends; may be given several times; cubic and bbr if not said.
    #[arg(long, value_name = "NAME")]
    congestion: Vec<String>,
    /// Measure this program under this name; may be given several times. Built if not said.
    #[arg(long = "program", value_name = "NAME=FILE", value_parser = named)]
    programs: Vec<(String, PathBuf)>,
    /// Only these: reads, random, drain, sustained, latency; all if not said.
    #[arg(long, value_name = "GROUP")]
    only: Vec<Group>,
    /// How often each point is measured.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Seconds that one point takes, after one second that does not count.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Write every round of every point to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What is measured together.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
enum Group {
    /// Cold sequential reads of 64 KiB.
    Reads,
    /// Cold random reads of 4 KiB.
    Random,
    /// The time in which a gateway sends what its log holds.
    Drain,
    /// Writes of several times the size of the log.
    Sustained,
    /// Random reads while a stream is read and destage sends.
    Latency,
}

const GROUPS: [Group; 5] =
    [Group::Reads, Group::Random, Group::Drain, Group::Sustained, Group::Latency];

fn named(text: &str) -> Result<(String, PathBuf), String> {
    let (name, file) = text.split_once('=').ok_or("a program is NAME=FILE")?;
    let file = PathBuf::from(file);
    let file = file.canonicalize().map_err(|error| format!("{}: {error}", file.display()))?;
    Ok((name.to_owned(), file))
}

/// Measures and prints tables.
pub fn bench(options: &Options) -> Result<bool> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "bench far makes network namespaces: run it as root"
    );
    let programs = match &options.programs[..] {
        [] => vec![("forebay".to_owned(), node::build()?)],
        some => some.to_vec(),
    };
    let links = if options.links.is_empty() { Path::usual() } else { options.links.clone() };
    let congestion = match &options.congestion[..] {
        [] => vec!["cubic".to_owned(), "bbr".to_owned()],
        some => some.to_vec(),
    };
    let groups = if options.only.is_empty() { GROUPS.to_vec() } else { options.only.clone() };
    let time = Duration::from_secs_f64(options.seconds.clamp(0.5, 60.0));
    let mut all = Vec::new();
    for path in &links {
        for control in &congestion {
            let mut figures = Figures::new(path, control, &programs);
            let mut spare = SPARE_ROUNDS;
            let mut round = 0;
            while round < options.rounds {
                let mut is_tainted = None;
                for (name, program) in &programs {
                    let run = Round { path, control, name, program, groups: &groups, time };
                    let (points, tainted) = run.measure().with_context(|| {
                        format!("{name}, {path}, {control}, round {}", round + 1)
                    })?;
                    is_tainted = is_tainted.or(tainted);
                    figures.take(name, points);
                }
                match is_tainted {
                    Some(reason) if spare > 0 => {
                        spare -= 1;
                        println!("{path} {control}: a round does not count: {reason}");
                        figures.forget();
                    }
                    tainted => {
                        round += 1;
                        figures.keep(tainted);
                        println!("{path} {control}: round {round} of {}", options.rounds);
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

/// Rounds of a link that other work disturbed and that are measured again.
const SPARE_ROUNDS: u16 = 5;
/// Other work may keep this many CPUs busy during a round.
const OTHERS: f64 = 0.1;
/// The name of the link.
const LINK: &str = "bench-far";
/// What is not counted at the beginning of a point: TCP and windows have to grow first.
const WARM_UP: Duration = Duration::from_secs(1);
/// The log of gateways that are read from.
const LOG_BYTES: u64 = 16 << 20;

/// The log whose size sustained writes exceed holds what the link carries in so many round trips: then the two round
/// trips and more in which nothing is sent between two epochs cost a twentieth.
const LOG_TRIPS: u32 = 180;
const LEAST_LOG_BYTES: u64 = 64 << 20;
/// Bytes per second at which the log of a gateway is filled here, at least.
const NEAR_DISK_RATE: f64 = 150e6;

/// One program on one link, once.
struct Round<'a> {
    path: &'a Path,
    control: &'a str,
    name: &'a str,
    program: &'a std::path::Path,
    groups: &'a [Group],
    time: Duration,
}

impl Round<'_> {
    /// Returns the points, and why they do not count, if so.
    fn measure(&self) -> Result<(Vec<Point>, Option<String>)> {
        let (before, start) = (Others::now()?, Instant::now());
        let line = Line::start(self.program, LINK, self.path)?;
        // A stream must not come to the end of its range, where what it reads may be in memory.
        let most = self.path.bytes_in(WARM_UP + self.time);
        let site = Site::start(&line, self.program, self.control, most)?;
        let mut points = Vec::new();
        for direction in [Direction::Back, Direction::Forth] {
            points.push(self.point(&line, direction.name(), &[], || {
                bulk::measure(direction, self.control, self.time)
            })?);
        }
        for group in self.groups {
            match group {
                Group::Reads => self.reads(&line, &site, &mut points)?,
                Group::Random => self.random(&line, &site, &mut points)?,
                Group::Drain => points.push(self.drain(&line, &site)?),
                Group::Sustained => self.sustained(&line, &site, &mut points)?,
                Group::Latency => self.latency(&line, &site, &mut points)?,
            }
        }
        let tainted = line.tainted()?;
        drop(site);
        let others = Others::now()?.cpus_since(before, start.elapsed());
        let busy = (others > OTHERS).then(|| format!("other work kept {others:.2} CPUs busy"));
        Ok((points, busy.or(tainted)))
    }

    /// Measures one point: what passes on the link, what is dropped, and what these processes use.
    fn point(
        &self,
        line: &Line,
        name: &str,
        processes: &[(&'static str, u32)],
        measure: impl FnOnce() -> Result<load::Outcome>,
    ) -> Result<Point> {
        report::measure(line, name, processes, measure)
            .with_context(|| format!("{name} of {}", self.name))
    }

    fn reads(&self, line: &Line, site: &Site, points: &mut Vec<Point>) -> Result<()> {
        let gateway = site.gateway(LOG_BYTES)?;
        for (range, depth) in [1, 8, 32].into_iter().enumerate() {
            let load = Load::read(Order::Sequential, 64 << 10, depth, site.range(range as u64));
            let (direct, through) = (site.direct(), gateway.login());
            let name = format!("sequential reads, depth {depth}, direct");
            points.push(self.point(line, &name, &[("node", site.node())], || {
                load.measure(direct, self.control, WARM_UP, self.time)
            })?);
            let name = format!("sequential reads, depth {depth}, gateway");
            points.push(self.point(line, &name, &gateway.processes(site), || {
                load.measure(through, self.control, WARM_UP, self.time)
            })?);
        }
        gateway.stop()
    }

    fn random(&self, line: &Line, site: &Site, points: &mut Vec<Point>) -> Result<()> {
        let gateway = site.gateway(LOG_BYTES)?;
        for (range, depth) in [(0, 1), (1, 32)] {
            let load = Load::read(Order::Scattered, 4096, depth, site.range(range));
            let (direct, through) = (site.direct(), gateway.login());
            let name = format!("random reads, depth {depth}, direct");
            points.push(self.point(line, &name, &[("node", site.node())], || {
                load.measure(direct, self.control, WARM_UP, self.time)
            })?);
            let name = format!("random reads, depth {depth}, gateway");
            points.push(self.point(line, &name, &gateway.processes(site), || {
                load.measure(through, self.control, WARM_UP, self.time)
            })?);
        }
        gateway.stop()
    }

    fn drain(&self, line: &Line, site: &Site) -> Result<Point> {
        // As much as the bulk stream carries in its time, so that the losses of the first second weigh as much.
        let bytes = self.path.bytes_in(WARM_UP + self.time) >> 20 << 20;
        let gateway = site.gateway(bytes * 3 / 2)?;
        gateway.hold(true)?;
        load::write(gateway.login(), site.range(WRITTEN_RANGE).start, bytes)?;
        let point = self.point(line, "drain", &gateway.processes(site), || {
            gateway.hold(false)?;
            gateway.drain()
        })?;
        gateway.stop()?;
        Ok(point)
    }

    fn sustained(&self, line: &Line, site: &Site, points: &mut Vec<Point>) -> Result<()> {
        let load = Load::write(64 << 10, 32, site.range(WRITTEN_RANGE));
        let direct = site.direct();
        points.push(self.point(
            line,
            "writes, depth 32, direct",
            &[("node", site.node())],
            || load.measure(direct, self.control, WARM_UP, self.time),
        )?);
        let held = self.path.bytes_in(self.path.round_trip() * LOG_TRIPS);
        let log_bytes = held.max(LEAST_LOG_BYTES) >> 20 << 20;
        let gateway = site.gateway(log_bytes)?;
        // The log is full before anything counts. An epoch is a quarter of it at most: at least two of them are sent.
        let warm_up = WARM_UP + Duration::from_secs_f64(log_bytes as f64 / NEAR_DISK_RATE);
        let time = self.time.max(self.path.time_for(log_bytes / 2));
        let through = gateway.login();
        points.push(self.point(
            line,
            "sustained writes, depth 32, gateway",
            &gateway.processes(site),
            || load.measure(through, self.control, warm_up, time),
        )?);
        gateway.stop()
    }

    /// Random reads through a gateway: alone, and while another host reads a stream and a third one writes.
    fn latency(&self, line: &Line, site: &Site, points: &mut Vec<Point>) -> Result<()> {
        let gateway = site.gateway(LOG_BYTES)?;
        let random = |range: u64| Load::read(Order::Scattered, 4096, 1, site.range(range));
        let login = gateway.login();
        points.push(self.point(
            line,
            "random reads, idle link",
            &gateway.processes(site),
            || random(0).measure(login.clone(), self.control, WARM_UP, self.time),
        )?);
        let all = WARM_UP + self.time;
        let stream = Load::read(Order::Sequential, 64 << 10, 8, site.range(2));
        let writes = Load::write(64 << 10, 8, site.range(WRITTEN_RANGE));
        let name = "random reads, full link";
        let mut beside = Vec::new();
        let point = self.point(line, name, &gateway.processes(site), || {
            std::thread::scope(|scope| {
                let others = [stream, writes].map(|load| {
                    let login = gateway.login();
                    scope.spawn(move || load.measure(login, self.control, Duration::ZERO, all))
                });
                let measured = random(1).measure(login.clone(), self.control, WARM_UP, self.time);
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
            points.push(Point::beside(name, outcome));
        }
        gateway.stop()
    }
}
