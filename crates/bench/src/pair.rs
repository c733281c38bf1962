//! `cargo xtask bench pair`: measures the latency of a 4 KiB write to a pair of gateways. In the same round, measures
//! the steps of such a write separately.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use rawclient::ClientLogin;
use rig::build;
use rig::machine::{Others, require_root};
use rig::node::{ServeProcess, TestProcessPriority};

use crate::far::load::FarLoad;
use crate::far::wan::{BenchWan, BenchWanEnd, LinkSpec};
use crate::far::{LINK, site::script};

/// Measure the latency of 4 KiB writes at depth 1 to a pair of gateways with 1 ms one way between
/// them: durable, and with an NVRAM at each gateway. The parts of such a write are measured
/// separately in the same round. The logs are in memory (/dev/shm). Needs root.
#[derive(Args, Debug)]
pub struct PairBenchOptions {
    /// Program to measure [default: the release build].
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Number of rounds. Each point is measured once per round.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Length of each measurement in seconds, after a warm-up of half a second.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
}

/// The measurements of each round, in this order.
const POINTS: [&str; 6] = [
    "host round trip (memory at the first gateway)",
    "one gateway, after-complete (host and own append)",
    "partner round trip (memory at the second gateway)",
    "partner round trip and append (file, FUA)",
    "pair, after-complete",
    "pair, immediate",
];

/// Measures all rounds. Prints the median latency of each point, and how much longer a write to the pair takes than its
/// parts.
pub fn bench(options: &PairBenchOptions) -> Result<bool> {
    require_root("bench pair")?;
    let program = match &options.program {
        Some(program) => program.canonicalize()?,
        None => build::build()?,
    };
    let time = Duration::from_secs_f64(options.seconds.clamp(0.2, 60.0));
    let mut rounds: Vec<Vec<f64>> = Vec::new();
    let mut spare = options.rounds / 2 + 2;
    while rounds.len() < usize::from(options.rounds) {
        let (before, begun) = (Others::now()?, Instant::now());
        let (medians, tainted) = measure(&program, time)?;
        let others = Others::now()?.cpus_since(before, begun.elapsed());
        let busy = (others > OTHERS).then(|| format!("other work kept {others:.2} CPUs busy"));
        match busy.or(tainted) {
            Some(reason) if spare > 0 => {
                spare -= 1;
                println!("a round is not counted: {reason}");
            }
            _ => {
                rounds.push(medians);
                println!("round {} of {}", rounds.len(), options.rounds);
            }
        }
    }
    print(&rounds);
    Ok(true)
}

fn print(rounds: &[Vec<f64>]) {
    println!("\n{:52} {:>10} {:>17}", "4 KiB writes, depth 1, p50", "median", "range");
    let row = |name: &str, unit: &str, values: Vec<f64>| {
        let mut sorted = values;
        sorted.sort_by(f64::total_cmp);
        let (least, most) = (sorted[0], sorted[sorted.len() - 1]);
        let median = sorted[sorted.len() / 2];
        println!("{name:52} {median:>7.2}{unit:3} {least:>8.2}-{most:.2}");
    };
    for (at, name) in POINTS.iter().enumerate() {
        row(name, " ms", rounds.iter().map(|round| round[at]).collect());
    }
    let durable = |round: &Vec<f64>| round[4] / round[1].max(round[0] + round[3]);
    let immediate = |round: &Vec<f64>| round[5] / (round[0] + round[2]);
    row("after-complete / (host + slower side)", "", rounds.iter().map(durable).collect());
    row("immediate / (host + partner round trip)", "", rounds.iter().map(immediate).collect());
}

/// Measures each point once, in milliseconds. Also returns the reason why the emulated link
/// considers the round tainted, if it does.
fn measure(program: &Path, time: Duration) -> Result<(Vec<f64>, Option<String>)> {
    let wan = BenchWan::start(program, LINK, &LinkSpec::new(1000.0, 1.0))?;
    // Keep the logs in memory (tmpfs): on a disk, both gateways would compete for the single disk of this machine.
    let folder = tempfile::Builder::new().prefix("bench-pair").tempdir_in("/dev/shm")?;
    let programs =
        [BenchWanEnd::Near, BenchWanEnd::Far].map(|end| script(folder.path(), &wan, end, program));
    let [near, far] = programs;
    let (near, far) = (near?, far?);
    let start = |program: &Path, name: &str, settings: &str| {
        ServeProcess::start_as(
            TestProcessPriority::Preferred,
            program,
            folder.path(),
            name,
            settings,
        )
    };
    let node = start(&near, "node", &node_settings(&wan))?;
    let second = start(&far, "second", &gateway_settings(&wan, &node, BenchWanEnd::Far))?;
    let first = start(&near, "first", &gateway_settings(&wan, &node, BenchWanEnd::Near))?;
    for pair in PAIRS {
        first.wait_for_role(&format!("{NAME}:{pair}"), "active", PAIR_LIMIT)?;
        let paused = first.ask(&["gateway", "pause", &format!("{NAME}:{pair}")])?;
        ensure!(paused.success(), "forebay gateway pause: {}", paused.tail(3));
    }
    let write = FarLoad::write(4096, 1, 0..RANGE_BYTES);
    let fua = write.clone().with_fua();
    let points = [
        (&first, "memory", &write),
        (&first, "alone", &write),
        (&second, "memory", &write),
        (&second, "file", &fua),
        (&first, PAIRS[0], &write),
        (&first, PAIRS[1], &write),
    ];
    let mut medians = Vec::new();
    for (gateway, target, load) in points {
        let login = ClientLogin::new(gateway.portal(), &format!("{NAME}:{target}"), 0);
        let outcome = load.measure(login, "cubic", WARM_UP, time).context(target)?;
        medians.push(outcome.latency.value_at_quantile(0.5) as f64 / 1e6);
    }
    Ok((medians, wan.tainted()?))
}

/// Returns the settings of a node with three volumes: one for each of the two pairs, and one for
/// the gateway without a partner.
fn node_settings(wan: &BenchWan) -> String {
    let targets = [PAIRS[0], PAIRS[1], "alone"].map(|name| {
        format!(
            "[[target]]\nname = \"{NAME}:node-{name}\"\n[[target.unit]]\n\
             stack = [{{ memory = {{ size = {RANGE_BYTES} }} }}]\n"
        )
    });
    let address = wan.address(BenchWanEnd::Near);
    format!("listen = [\"{address}:0\"]\nstate = \"node.state\"\n{}", targets.concat())
}

fn gateway_settings(wan: &BenchWan, node: &ServeProcess, end: BenchWanEnd) -> String {
    let (own, other) = match end {
        BenchWanEnd::Near => ("first", "second"),
        BenchWanEnd::Far => ("second", "first"),
    };
    let partner =
        wan.address(if end == BenchWanEnd::Near { BenchWanEnd::Far } else { BenchWanEnd::Near });
    let remote = |name: &str| {
        format!("{{ remote = {{ url = \"iscsi://{}/{NAME}:node-{name}/0\" }} }}", node.portal())
    };
    let mut text = format!(
        "initiator_name = \"{NAME}:{own}\"\nlisten = [\"{}:{PORT}\"]\nstate = \"{own}.state\"\n",
        wan.address(end)
    );
    let mut target = |name: &str, stack: &str| {
        text +=
            &format!("[[target]]\nname = \"{NAME}:{name}\"\n[[target.unit]]\nstack = [{stack}]\n");
    };
    let size = format!("size = {RANGE_BYTES}");
    target("memory", &format!("{{ memory = {{ {size} }} }}"));
    target("file", &format!("{{ file = {{ path = \"{own}.file\", direct = false, {size} }} }}"));
    let cache = |name: &str, more: &str| {
        format!(
            "{{ cache = {{ log = \"{own}-{name}.log\", log_size = {LOG_BYTES}, log_direct = false, \
             dram = \"256MiB\"{more} }} }}"
        )
    };
    if end == BenchWanEnd::Near {
        target("alone", &format!("{}, {}", remote("alone"), cache("alone", "")));
    }
    for name in PAIRS {
        let immediate = match name {
            "immediate" => format!(", report = \"immediate\", nvram = \"{own}.nvram\""),
            _ => String::new(),
        };
        let pair = format!(
            "{immediate}, pair = {{ partner = {{ url = \"iscsi://{partner}:{PORT}/{NAME}:{name}-{other}/0\" }}, \
             first = {} }}",
            end == BenchWanEnd::Near
        );
        target(name, &format!("{}, {}", remote(name), cache(name, &pair)));
        target(&format!("{name}-{own}"), &format!("{{ half = {{ of = \"{NAME}:{name}\" }} }}"));
    }
    text
}

const NAME: &str = "iqn.2026-11.forebay.bench";
/// The names of the targets of the two pairs. The gateways of the second pair have NVRAMs.
const PAIRS: [&str; 2] = ["durable", "immediate"];
const PORT: u16 = 3260;
const RANGE_BYTES: u64 = 64 << 20;
/// The size of each log in bytes. A load of a few seconds does not fill it, although each write of 4 KiB takes 8 KiB of
/// the log.
const LOG_BYTES: u64 = 256 << 20;
const WARM_UP: Duration = Duration::from_millis(500);
const PAIR_LIMIT: Duration = Duration::from_secs(60);
/// A round is in doubt (tainted) if other processes kept more CPUs busy than this on average.
const OTHERS: f64 = 0.1;
