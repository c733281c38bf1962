//! `cargo xtask bench`: measures the cost of the data path. For comparison, the same run measures
//! peers and theoretical limits.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rig::machine::Others;
use rig::{build, machine};
use workload::TraceEvents;

use crate::figures::BenchFigures;
use crate::load::{BenchLoad, BenchPoint};
use crate::options::BenchOptions;
use crate::plan::{self, BenchGroup, GROUPS, servers};
use crate::stage::BenchServers;
use crate::{emc, memory, postmark, report};

/// Measures the selected groups and reports their figures. Returns true if every bar that was
/// measured holds.
pub fn bench(options: &BenchOptions) -> Result<bool> {
    if options.groups == ["postmark"] {
        return postmark::bench(options);
    }
    let wants_trace = options.groups.iter().any(|name| name == TRACE);
    ensure!(!wants_trace || options.groups.len() == 1, "{TRACE} is measured without other groups");
    let groups = if wants_trace { Vec::new() } else { chosen(&options.groups)? };
    let program = match &options.program {
        Some(program) => program.canonicalize().with_context(|| program.display().to_string())?,
        None => build::build()?,
    };
    let folder = program.parent().context("the program has a folder")?.to_owned();
    machine::confine(machine::CLIENT_CPU)
        .context("two CPUs are needed: one for servers, one for the load generator")?;
    if options.realtime {
        machine::realtime();
    }
    machine::prefer();
    if wants_trace {
        let requests = options.requests.min(TraceEvents::REQUESTS);
        return reported(emc::measure(&program, &folder, requests, options.pace)?, options);
    }
    let stage = BenchServers::new(&program, &folder)?;
    let mut figures = BenchFigures::default();
    let points = plan::points(&groups);
    for (_, _, server) in &points {
        stage.prepare(server).with_context(|| format!("starting {server}"))?;
    }
    let mut measurer = Measurer { stage: &stage, options, spent: Duration::ZERO };
    for round in 1..=options.rounds {
        println!("round {round} of {}", options.rounds);
        for (name, load, server) in &points {
            let (point, disturbed) = measurer.measure(server, load)?;
            figures.add(name, server, point);
            if disturbed {
                figures.add_disturbed();
            }
        }
        if points.iter().any(|(_, _, server)| *server == servers::POLLING) {
            figures.add_single(servers::IDLE, stage.idle_share()?);
        }
    }
    drop(stage);
    if groups.iter().any(|group| group.memory) {
        println!("memory at 64 sessions");
        let target = servers::TARGET_MEMORY.into_iter().zip(memory::target(&program)?);
        let gateway = servers::GATEWAY_MEMORY.into_iter().zip(memory::gateway(&program, &folder)?);
        target.chain(gateway).for_each(|(name, mib)| figures.add_single(name, mib));
    }
    reported(figures, options)
}

/// The group that replays a trace. It takes twelve minutes for each server, so it runs only if the
/// user names it.
const TRACE: &str = "emc-tel";

/// Prints the figures, and writes them to the files that the user named. Returns true if all bars
/// hold.
fn reported(figures: BenchFigures, options: &BenchOptions) -> Result<bool> {
    let command = command(options);
    if let Some(path) = &options.json {
        report::write_json(path, &figures, &command)?;
    }
    if let Some(path) = &options.markdown {
        report::write_markdown(path, &figures, &command)?;
    }
    Ok(report::print(&figures))
}

/// The measurement of a point counts as disturbed if other programs keep more CPUs busy than this on average.
const OTHERS: f64 = 0.1;

/// Measures points. Repeats the measurement of a point during which other programs used the CPU. All repetitions
/// together may take the time `patience`.
struct Measurer<'a> {
    stage: &'a BenchServers,
    options: &'a BenchOptions,
    spent: Duration,
}

impl Measurer<'_> {
    /// Measures one load on one server. Also returns true if other work has disturbed all attempts.
    fn measure(&mut self, server: &str, load: &BenchLoad) -> Result<(BenchPoint, bool)> {
        loop {
            let (before, start) = (Others::now()?, Instant::now());
            let point = self.stage.measure(server, load, self.options.time)?;
            let took = start.elapsed();
            let disturbed = Others::now()?.cpus_since(before, took) > OTHERS;
            if !disturbed || self.spent >= self.options.patience {
                return Ok((point, disturbed));
            }
            self.spent += took;
        }
    }
}

fn chosen(names: &[String]) -> Result<Vec<&'static BenchGroup>> {
    let all = || GROUPS.iter().map(|group| group.name).collect::<Vec<_>>().join(", ");
    let find = |name: &String| match GROUPS.iter().find(|group| group.name == name) {
        Some(group) => Ok(group),
        None => bail!("no benchmark is called {name}; there are {}, {TRACE}", all()),
    };
    if names.is_empty() { Ok(GROUPS.iter().collect()) } else { names.iter().map(find).collect() }
}

/// Returns the command line with which this run can be repeated.
fn command(options: &BenchOptions) -> String {
    let names: String = options.groups.iter().map(|name| format!(" {name}")).collect();
    let realtime = if options.realtime { " --realtime" } else { "" };
    if options.groups.iter().any(|name| name == TRACE) {
        let (speed, requests) = (options.pace.speed, options.requests);
        return format!(
            "cargo xtask bench {TRACE} --speed {speed} --requests {requests}{realtime}"
        );
    }
    format!(
        "cargo xtask bench{names} --rounds {} --seconds {}{realtime}",
        options.rounds,
        options.time.as_secs_f64()
    )
}
