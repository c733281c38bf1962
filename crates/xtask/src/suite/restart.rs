//! A server that is stopped and started again while QEMU writes to it over libiscsi: QEMU hears of no
//! error, and reads what it wrote. (Our own initiator does the same in the tests of the binary.)

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::node::Node;
use crate::process::{self, Running};
use crate::steps::Tally;

const TARGET: &str = "iqn.2026-11.forebay.test:restart";

/// Rounds of a write, a read of it and a pause of 10 ms: four seconds at least, so that the load
/// lasts longer than two restarts.
const ROUNDS: u32 = 400;
/// What a round writes, in KiB, and how many places there are.
const LENGTH_KIB: u32 = 64;
const PLACES: u32 = 64;
/// A flush after so many rounds.
const FLUSH_EVERY: u32 = 16;

/// Rounds that each process serves before it is stopped; as many are left for the last.
const ROUNDS_BEFORE: [u64; 2] = [50, 150];
/// The whole load: a hundred times what it takes on a quiet machine, but for the restarts.
const LIMIT: Duration = Duration::from_secs(120);
/// DefaultTime2Retain, which is what an initiator gives a restart.
const TIME2RETAIN: Duration = Duration::from_secs(20);

/// Two restarts under load, each within Time2Retain.
pub fn qemu(program: &Path) -> Result<Tally> {
    let folder = tempfile::tempdir()?;
    let mut node = Node::start(program, folder.path(), "target", &settings(0))?;
    let port = node.portal().port();
    let mut output = tempfile::tempfile()?;
    let mut load = load(&node.url(TARGET, 0));
    load.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
    let mut load = Running::start(&mut load)?;
    for rounds in ROUNDS_BEFORE {
        wait_for_rounds(&node, &mut load, rounds)?;
        let stopped = Instant::now();
        node.stop()?;
        node = Node::start(program, folder.path(), "target", &settings(port))?;
        let away = stopped.elapsed();
        ensure!(away < TIME2RETAIN, "the restart took {away:?}: nobody waits so long");
    }
    let status = load.wait(LIMIT)?;
    let text = process::contents(&mut output)?;
    let tail = || text.lines().rev().take(8).collect::<Vec<_>>().join("\n");
    ensure!(status.is_some_and(|status| status.success()), "qemu-io: {status:?}\n{}", tail());
    for wrong in ["Pattern verification failed", "failed:", "error"] {
        ensure!(!text.contains(wrong), "qemu-io says '{wrong}'\n{}", tail());
    }
    let (wrote, read) = (text.matches("wrote ").count(), text.matches("read ").count());
    ensure!(
        (wrote, read) == (ROUNDS as usize, (ROUNDS + PLACES) as usize),
        "qemu-io wrote {wrote} and read {read} times\n{}",
        tail()
    );
    node.stop()?;
    Ok(Tally::one().with_note(format!("{ROUNDS} rounds, {} restarts", ROUNDS_BEFORE.len())))
}

fn settings(port: u16) -> String {
    format!(
        "listen = [\"127.0.0.1:{port}\"]\nstate = \"state\"\n[[target]]\nname = \"{TARGET}\"\n\
         [[target.unit]]\nstack = [{{ file = {{ path = \"unit.img\", size = \"64MiB\" }} }}]\n"
    )
}

/// Each write has a pattern of its own and is read at once, and once more at the end.
fn load(url: &str) -> Command {
    let mut command = Command::new("qemu-io");
    command.args(["-f", "raw", "-t", "none"]);
    let range = |round: u32| {
        let place = round % PLACES * LENGTH_KIB;
        format!("-P {} {place}k {LENGTH_KIB}k", round % 251 + 1)
    };
    for round in 0..ROUNDS {
        command.args(["-c", &format!("write {}", range(round))]);
        if round % FLUSH_EVERY == 0 {
            command.args(["-c", "flush"]);
        }
        command.args(["-c", &format!("read {}", range(round)), "-c", "sleep 10"]);
    }
    for round in ROUNDS - PLACES..ROUNDS {
        command.args(["-c", &format!("read {}", range(round))]);
    }
    command.arg(url);
    command
}

/// Until this server process has written as much as so many rounds do.
fn wait_for_rounds(node: &Node, load: &mut Running, rounds: u64) -> Result<()> {
    let begun = Instant::now();
    let wanted = rounds * u64::from(LENGTH_KIB) * 1024;
    loop {
        let status = node.status()?;
        let written = status["counters"]["data_out_bytes"].as_u64().context("data_out_bytes")?;
        if written >= wanted {
            return Ok(());
        }
        if let Some(ended) = load.wait(Duration::from_millis(20))? {
            bail!("qemu-io has ended before the restart: {ended}");
        }
        ensure!(begun.elapsed() < LIMIT, "{written} bytes were written, not {wanted}");
    }
}
