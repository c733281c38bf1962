//! Replays the EMC-tel-like trace on the configurations of the STICS paper: a far volume without a
//! cache, a gateway with each report mode, and the file of the log disk alone. Each configuration
//! is measured over a link without delay and over one of 4 ms.

pub mod replay;
pub mod disk;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rawclient::ClientLogin;
use rawclient::session::ClientSessionOptions;
use rig::destage;
use rig::machine::{BenchProcessUsage, Others};
use rig::node::{RelayProcess, ServeProcess, TestProcessPriority};
use workload::TraceEvents;

use crate::figures::BenchFigures;
use crate::load::BenchPoint;
use crate::plan::{loads, servers};
use replay::{BenchTracePace, BenchTraceReplay, check_all};

const NAME: &str = "iqn.2026-11.forebay.bench:emc-tel";

/// Service time of the far disk: IBM 07N3200, 3.0 ms of rotation and 4.9 ms of seek (STICS, table 2). The simulated
/// disk executes commands concurrently, so without a cache the far volume has shorter response times than with a real
/// disk.
const FAR_DISK: &str = "7900us";

/// Sizes of the cache in the paper's prototype (STICS, section 5.1): 4 MB of NVRAM, 16 MB of DRAM. In place of the
/// paper's log disk, a file on the disk of this machine is used.
const PAPERS_CACHE: &str = "nvram_size = \"4MiB\", dram = \"16MiB\"";

/// Time limit of a drain: several times as long as the far disk needs for the 900 MB of the trace.
const DRAIN_LIMIT: Duration = Duration::from_secs(300);

/// Maximum number of commands in flight. The number equals the size of a session's command window.
const DEPTH: usize = 128;

/// The measured configurations: the name in the table, the one-way delay of the link in ms, and the
/// report mode of the gateway. `None`: the far volume without a gateway.
const LINE_UP: [(&str, f64, Option<&str>); 6] = [
    (servers::EMC_FAR, 0.0, None),
    (servers::EMC_IMMEDIATE, 0.0, Some("immediate")),
    (servers::EMC_COMPLETE, 0.0, Some("after-complete")),
    (servers::EMC_FAR_4, 4.0, None),
    (servers::EMC_IMMEDIATE_4, 4.0, Some("immediate")),
    (servers::EMC_COMPLETE_4, 4.0, Some("after-complete")),
];

/// If other programs keep more CPUs busy than this on average, the measurement of a point is marked as disturbed.
const OTHERS: f64 = 0.1;

const SEED: u64 = 1;

fn trace(requests: u64) -> TraceEvents {
    TraceEvents::new(SEED, requests)
}

/// Replays the first `requests` requests of the trace on each configuration, one after the other.
pub fn measure(
    program: &Path,
    folder: &Path,
    requests: u64,
    pace: BenchTracePace,
) -> Result<BenchFigures> {
    let mut figures = BenchFigures::default();
    let mut add = |name, measured: BenchTracePoint| {
        println!("{name}: {}", measured.said);
        figures.add(loads::EMC_TEL, name, measured.point);
        if measured.disturbed {
            figures.add_disturbed();
        }
    };
    let folder = tempfile::Builder::new().prefix("emc").tempdir_in(folder)?;
    add(
        servers::EMC_DISK,
        watched(|| disk::replay(&folder.path().join("disk"), trace(requests), pace))?,
    );
    for (name, delay_ms, report) in LINE_UP {
        let scene = tempfile::Builder::new().prefix("scene").tempdir_in(folder.path())?;
        let one = || on_line_up(program, scene.path(), requests, pace, delay_ms, report);
        add(name, watched(one).with_context(|| format!("measuring {name}"))?);
    }
    Ok(figures)
}

struct BenchTracePoint {
    point: BenchPoint,
    said: String,
    disturbed: bool,
}

fn watched(measure: impl FnOnce() -> Result<(BenchPoint, String)>) -> Result<BenchTracePoint> {
    let (before, start) = (Others::now()?, Instant::now());
    let (point, said) = measure()?;
    let disturbed = Others::now()?.cpus_since(before, start.elapsed()) > OTHERS;
    Ok(BenchTracePoint { point, said, disturbed })
}

fn on_line_up(
    program: &Path,
    folder: &Path,
    requests: u64,
    pace: BenchTracePace,
    delay_ms: f64,
    report: Option<&str>,
) -> Result<(BenchPoint, String)> {
    let how = TestProcessPriority::Preferred;
    let far = ServeProcess::start_as(how, program, folder, "far", &far_settings())?;
    let line = RelayProcess::start_as(how, program, far.portal(), delay_ms)?;
    let there = ClientLogin { portal: line.address(), ..ClientLogin::new(far.portal(), NAME, 0) };
    // In both cases a write must be stable when it is acknowledged. Without a cache, FUA in the write ensures that;
    // with a cache, the cache's report mode does.
    let Some(report) = report else {
        let (point, replay) = put(&there, far.id(), requests, pace, true)?;
        check_all(&ClientLogin::new(far.portal(), NAME, 0), replay.versions())?;
        return Ok((point, replay.said()));
    };
    let near = gateway_settings(&line, report);
    let near = ServeProcess::start_as(TestProcessPriority::Pinned, program, folder, "near", &near)?;
    let (point, replay) =
        put(&ClientLogin::new(near.portal(), NAME, 0), near.id(), requests, pace, false)?;
    let hits = hits(&near)?;
    destage::drained(&near, DRAIN_LIMIT)?;
    check_all(&ClientLogin::new(far.portal(), NAME, 0), replay.versions())?;
    near.stop()?;
    Ok((point, format!("{}, {hits}", replay.said())))
}

fn far_settings() -> String {
    let bytes = TraceEvents::SET_BLOCKS * u64::from(TraceEvents::BLOCK_BYTES);
    format!(
        "listen = [\"127.0.0.1:0\"]\nstate = \"far.state\"\n[[target]]\nname = \"{NAME}\"\n[[target.unit]]\n\
         stack = [\n{{ file = {{ path = \"far.img\", size = {bytes} }} }},\n\
         {{ delay = {{ read = \"{FAR_DISK}\", write = \"{FAR_DISK}\" }} }},\n]\n"
    )
}

fn gateway_settings(line: &RelayProcess, report: &str) -> String {
    format!(
        "listen = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{NAME}\"\n[[target.unit]]\nstack = [\n\
         {{ remote = {{ url = \"iscsi://{}/{NAME}/0\" }} }},\n\
         {{ cache = {{ log = \"near.log\", log_size = \"1GiB\", nvram = \"near.nvram\", {PAPERS_CACHE}, \
         report = \"{report}\" }} }},\n]\n",
        line.address()
    )
}

/// Replays the trace on a target. `server` is the target's process id.
fn put(
    login: &ClientLogin,
    server: u32,
    requests: u64,
    pace: BenchTracePace,
    durable: bool,
) -> Result<(BenchPoint, BenchTraceReplay)> {
    let shape =
        ClientSessionOptions { depth: DEPTH, bytes: TraceEvents::BLOCK_BYTES as usize, keep: true };
    let mut replay = BenchTraceReplay::new(trace(requests), pace, durable);
    let before = BenchProcessUsage::of(server)?;
    let time = replay.run(login, shape)?;
    let server = BenchProcessUsage::of(server)?.since(before);
    let latency = replay.latency().clone();
    ensure!(latency.len() == requests, "{} requests were answered", latency.len());
    Ok((BenchPoint { operations: latency.len(), time, latency, server }, replay))
}

/// Returns as text how many reads the far volume had to answer, and how many writes it never received because their
/// data was overwritten in the log before.
fn hits(near: &ServeProcess) -> Result<String> {
    let status = near.status()?;
    let layers = status.pointer("/targets/0/units/0/layers").and_then(|list| list.as_array());
    let cache = layers.into_iter().flatten().find(|layer| layer["layer"] == "cache");
    let figures = &cache.context("a gateway has a cache")?["figures"];
    let figure =
        |name: &str| figures[name].as_u64().with_context(|| format!("no {name} in {figures}"));
    let (far, absorbed) = (figure("reads_lower")?, figure("absorbed_slots")?);
    Ok(format!(
        "{far} reads from the far volume, {absorbed} slots overwritten before they were sent"
    ))
}

/// Each test replays the beginning of the trace, faster than its original times. It compares the data of reads, and at
/// the end the whole far volume, with the data that was written. `cargo xtask test` runs the tests one after the other.
#[cfg(test)]
mod tests {
    use super::*;

    fn replay_on(name: &str) {
        let program = std::env::var_os("FOREBAY_PROGRAM").expect("FOREBAY_PROGRAM is set");
        let folder = tempfile::tempdir().unwrap();
        let (requests, pace) = (2000, BenchTracePace { speed: 4.0 });
        let line_up = LINE_UP.iter().find(|(known, ..)| *known == name);
        let (_, delay_ms, report) = line_up.expect("it is in the line-up");
        on_line_up(Path::new(&program), folder.path(), requests, pace, *delay_ms, *report)
            .map_err(|error| format!("{error:#}"))
            .unwrap();
    }

    #[test]
    #[ignore = "cargo xtask test runs it while no other step runs"]
    fn the_far_volume_holds_the_trace() {
        replay_on(servers::EMC_FAR);
    }

    #[test]
    #[ignore = "cargo xtask test runs it while no other step runs"]
    fn a_gateway_that_acknowledges_from_nvram_holds_the_trace() {
        replay_on(servers::EMC_IMMEDIATE);
    }

    #[test]
    #[ignore = "cargo xtask test runs it while no other step runs"]
    fn a_gateway_that_acknowledges_from_its_log_holds_the_trace() {
        replay_on(servers::EMC_COMPLETE);
    }

    #[test]
    #[ignore = "cargo xtask test runs it while no other step runs"]
    fn the_far_volume_behind_4_ms_holds_the_trace() {
        replay_on(servers::EMC_FAR_4);
    }

    #[test]
    #[ignore = "cargo xtask test runs it while no other step runs"]
    fn a_gateway_that_acknowledges_from_nvram_before_4_ms_holds_the_trace() {
        replay_on(servers::EMC_IMMEDIATE_4);
    }

    #[test]
    #[ignore = "cargo xtask test runs it while no other step runs"]
    fn a_gateway_that_acknowledges_from_its_log_before_4_ms_holds_the_trace() {
        replay_on(servers::EMC_COMPLETE_4);
    }
}
