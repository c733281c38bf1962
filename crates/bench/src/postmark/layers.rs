//! Measures how much each layer of the system contributes to the time of PostMark on an attached volume. There are
//! three runs; each has one more layer than the one before.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use program::ProgramResult;
use rig::destage;
use rig::device::AttachedTestDevice;
use rig::machine::BenchProcessUsage;
use rig::node::ServeProcess;
use rig::table::table;

use super::{BenchPostmarkAckMode, DRAIN_LIMIT, NAME, SMALL, gateway, run_in};

/// The size of the volume in bytes: space for 100 files of at most 10 kB and for the journal of
/// ext4.
const BYTES: u64 = 256 << 20;

/// Time limit of losetup, mkfs.ext4 and mount, which normally take milliseconds.
const TOOL_LIMIT: Duration = Duration::from_secs(20);

/// The mount options of all three runs.
pub const MOUNT_OPTIONS: &str = "sync,dirsync,noinit_itable";

/// The number of rounds. Each round measures all three stacks once.
const ROUNDS: usize = 5;

/// The layers between ext4 and memory in one of the three runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Layers {
    /// A loop device on a file in memory; no program of Forebay.
    Loop,
    /// A loop device, FUSE, a session, and a node whose volume is in memory.
    Node,
    /// The layers of `Node` and, between host and node, a gateway with a second session.
    Gateway,
}

const ALL: [Layers; 3] = [Layers::Loop, Layers::Node, Layers::Gateway];

impl Layers {
    fn name(self) -> &'static str {
        match self {
            Self::Loop => "ext4, loop device, file in memory",
            Self::Node => "+ FUSE, session, node (volume in memory)",
            Self::Gateway => "+ gateway (immediate, stable NVRAM), second session",
        }
    }
}

/// The run time of PostMark in one run, and the CPU time of each process of Forebay.
#[derive(Clone, Copy, Debug, Default)]
struct PostmarkLayerTimes {
    wall: Duration,
    /// CPU time of `forebay attach`; the next two fields are those of gateway and node.
    attach: Duration,
    gateway: Duration,
    node: Duration,
}

/// Measures the three stacks once in each round. Returns a table of medians.
pub fn measure(program: &Path, folder: &Path) -> Result<String> {
    let mut taken = vec![Vec::new(); ALL.len()];
    for _ in 0..ROUNDS {
        for (layers, taken) in ALL.iter().zip(&mut taken) {
            let site = tempfile::Builder::new().prefix("layers").tempdir_in(folder)?;
            let result = one(program, site.path(), *layers);
            super::leave(site.path());
            taken.push(result.with_context(|| format!("{layers:?}"))?);
        }
    }
    let rows = ALL.iter().zip(&taken).map(|(layers, taken)| {
        let median = |part: fn(&PostmarkLayerTimes) -> Duration| {
            let mut times: Vec<Duration> = taken.iter().map(part).collect();
            times.sort_unstable();
            times[times.len() / 2].as_secs_f64()
        };
        let spread = |pick: fn(std::slice::Iter<'_, PostmarkLayerTimes>) -> Option<Duration>| {
            pick(taken.iter()).unwrap_or_default().as_secs_f64()
        };
        let least = spread(|taken| taken.map(|taken| taken.wall).min());
        let most = spread(|taken| taken.map(|taken| taken.wall).max());
        vec![
            layers.name().to_owned(),
            format!("{:.2} [{least:.2}..{most:.2}]", median(|taken| taken.wall)),
            format!("{:.2}", median(|taken| taken.attach)),
            format!("{:.2}", median(|taken| taken.gateway)),
            format!("{:.2}", median(|taken| taken.node)),
        ]
    });
    let heads = ["layers below PostMark", "s: median", "CPU of attach, s", "of gateway", "of node"];
    Ok(table(&heads, rows))
}

fn one(program: &Path, folder: &Path, layers: Layers) -> Result<PostmarkLayerTimes> {
    if layers == Layers::Loop {
        return on_loop(folder);
    }
    let settings = format!(
        "listen = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{NAME}\"\n[[target.unit]]\n\
         stack = [ {{ memory = {{ size = {BYTES} }} }} ]\n"
    );
    let node = ServeProcess::start(program, folder, "far", &settings)?;
    let memory = tempfile::Builder::new().prefix("layers").tempdir_in("/dev/shm")?;
    let near = match layers {
        Layers::Gateway => {
            let settings = gateway(&node.url(NAME, 0), BenchPostmarkAckMode::Stable, memory.path());
            Some(ServeProcess::start(program, folder, "near", &settings)?)
        }
        Layers::Loop | Layers::Node => None,
    };
    let url = near.as_ref().unwrap_or(&node).url(NAME, 0);
    let place = super::mount_point(folder)?;
    let mount = place.display().to_string();
    let arguments = [&*url, "--mkfs", "ext4", "--mount", &mount, "--mount-options", MOUNT_OPTIONS];
    let device = AttachedTestDevice::attach(program, folder, &arguments)?;
    if let Some(near) = &near {
        destage::drained(near, DRAIN_LIMIT)?;
    }
    let used = || -> Result<[BenchProcessUsage; 3]> {
        let gateway = near
            .as_ref()
            .map_or(Ok(BenchProcessUsage::default()), |near| BenchProcessUsage::of(near.id()))?;
        Ok([BenchProcessUsage::of(device.id())?, gateway, BenchProcessUsage::of(node.id())?])
    };
    let before = used()?;
    let wall = run_in(folder, &place, SMALL)?;
    let after = used()?;
    let cpu = |at: usize| Duration::from_nanos(after[at].since(before[at]).cpu_ns);
    let taken = PostmarkLayerTimes { wall, attach: cpu(0), gateway: cpu(1), node: cpu(2) };
    device.detach()?;
    if let Some(near) = near {
        near.stop()?;
    }
    node.stop()?;
    Ok(taken)
}

fn on_loop(folder: &Path) -> Result<PostmarkLayerTimes> {
    let memory = tempfile::Builder::new().prefix("layers").tempdir_in("/dev/shm")?;
    let file = memory.path().join("volume");
    std::fs::File::create(&file)?.set_len(BYTES)?;
    let place = super::mount_point(folder)?;
    let device =
        tool(Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(&file))?;
    let device = device.output.trim();
    let wall = on_device(device, folder, &place);
    super::leave(folder);
    tool(Command::new("losetup").args(["--detach", device]))?;
    Ok(PostmarkLayerTimes { wall: wall?, ..PostmarkLayerTimes::default() })
}

fn on_device(device: &str, folder: &Path, place: &Path) -> Result<Duration> {
    tool(Command::new("mkfs.ext4").args(["-q", device]))?;
    tool(Command::new("mount").args(["-o", MOUNT_OPTIONS, device]).arg(place))?;
    run_in(folder, place, SMALL)
}

fn tool(command: &mut Command) -> Result<ProgramResult> {
    let finished = program::run(command, TOOL_LIMIT)?;
    ensure!(finished.success(), "{command:?} {}: {}", finished.ending(), finished.tail(5));
    Ok(finished)
}
