//! Restarts a server and changes its units while QEMU writes to it over libiscsi. QEMU must see no
//! error and read what it wrote. (The tests of the program do the same with our own initiator.)

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use program::{RunningProgram, Said};
use rig::node::ServeProcess;

use crate::steps::StepTally;

const TARGET: &str = "iqn.2026-11.forebay.test:load";

/// Rounds of a write, a read of the same data and a pause of 10 ms: at least four seconds, so that
/// the load lasts longer than the changes.
const ROUNDS: u32 = 400;
/// Size in KiB of each round's write. Also the number of different offsets that the rounds use in
/// turn.
const LENGTH_KIB: u32 = 64;
const PLACES: u32 = 64;
/// The load flushes each time that it has made this number of rounds.
const FLUSH_EVERY: u32 = 16;

/// Number of rounds before the first restart of the server, and between the first and the second.
/// At least as many rounds remain for the last process.
const ROUNDS_BEFORE: [u64; 2] = [50, 150];
/// Time limit of the whole load: thirty times as long as it takes on an idle machine.
const LIMIT: Duration = Duration::from_secs(120);
/// Time limit of a command of an external tool.
const TOOL_LIMIT: Duration = Duration::from_secs(20);
/// RFC 7143's DefaultTime2Retain: within this time after a restart an initiator must log in again.
const TIME2RETAIN: Duration = Duration::from_secs(20);

/// Restarts the server twice under load; each restart takes less than Time2Retain.
pub fn restart(program: &Path) -> Result<StepTally> {
    let folder = tempfile::tempdir()?;
    let mut node = ServeProcess::start(program, folder.path(), "target", &settings(0, ""))?;
    let port = node.portal().port();
    let mut load = QemuIoLoad::start(&node.url(TARGET, 0))?;
    for rounds in ROUNDS_BEFORE {
        load.wait_for_rounds(&node, rounds)?;
        let stopped = Instant::now();
        node.stop()?;
        node = ServeProcess::start(program, folder.path(), "target", &settings(port, ""))?;
        let away = stopped.elapsed();
        ensure!(away < TIME2RETAIN, "the restart took {away:?}, longer than Time2Retain");
    }
    load.finish()?;
    node.stop()?;
    Ok(StepTally::one().with_note(format!("{ROUNDS} rounds, {} restarts", ROUNDS_BEFORE.len())))
}

/// Adds and removes another unit of the same target. The session must continue, and the host must
/// see the change.
pub fn units(program: &Path) -> Result<StepTally> {
    const ANOTHER: &str = "[[target.unit]]\nlun = 7\nstack = [{ memory = { size = \"16MiB\" } }]\n";
    let folder = tempfile::tempdir()?;
    let node = ServeProcess::start(program, folder.path(), "target", &settings(0, ""))?;
    let mut load = QemuIoLoad::start(&node.url(TARGET, 0))?;
    let mut tally = StepTally::default();
    for (rounds, another) in [(50, ANOTHER), (100, ""), (150, ANOTHER)] {
        load.wait_for_rounds(&node, rounds)?;
        let before = qemus_session(&node)?;
        node.change(&settings(0, another))?;
        let after = qemus_session(&node)?;
        ensure!(after == before, "QEMU's session changed: from {before} to {after}");
        let mut inquiry = Command::new("iscsi-inq");
        inquiry.arg(node.url(TARGET, 7));
        let asked = program::run(&mut inquiry, TOOL_LIMIT)?;
        let is_there = asked.success() && asked.output.contains("CONNECTED");
        if is_there == another.is_empty() {
            println!("iscsi-inq of the other unit, after {rounds} rounds:\n{}", asked.tail(8));
        }
        tally.count(is_there != another.is_empty());
    }
    load.finish()?;
    node.stop()?;
    Ok(tally)
}

/// Returns the address of the initiator with the oldest session, which is QEMU.
fn qemus_session(node: &ServeProcess) -> Result<String> {
    let status = node.status()?;
    Ok(status["sessions"][0]["address"].as_str().context("no session")?.to_owned())
}

fn settings(port: u16, more: &str) -> String {
    format!(
        "listen = [\"127.0.0.1:{port}\"]\nstate = \"state\"\n[[target]]\nname = \"{TARGET}\"\n\
         [[target.unit]]\nstack = [{{ file = {{ path = \"unit.img\", size = \"64MiB\" }} }}]\n{more}"
    )
}

/// A running qemu-io. Each write has a pattern of its own and is read back at once. At the end, the
/// last write to each offset is read once more.
struct QemuIoLoad {
    running: RunningProgram,
    output: Said,
    /// Messages go to a separate file: a message about a restart could interrupt a line of
    /// `output`, and [`wait_for_rounds`](Self::wait_for_rounds) counts these lines.
    messages: Said,
}

impl QemuIoLoad {
    fn start(url: &str) -> Result<QemuIoLoad> {
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
        let (output, messages) = (Said::new()?, Said::new()?);
        command.arg(url).stdin(Stdio::null());
        command.stdout(output.output()?).stderr(messages.output()?);
        Ok(QemuIoLoad { running: program::start(&mut command)?, output, messages })
    }

    /// Waits until the server process has received the data of `rounds` writes.
    fn wait_for_rounds(&mut self, node: &ServeProcess, rounds: u64) -> Result<()> {
        let begun = Instant::now();
        let wanted = rounds * u64::from(LENGTH_KIB) * 1024;
        loop {
            let status = node.status()?;
            let written = status["counters"]["data_out_bytes"].as_u64().context("no counter")?;
            if written >= wanted {
                return Ok(());
            }
            if let Some(ended) = self.running.ended(Duration::from_millis(20))? {
                bail!("qemu-io ended too early: {ended}");
            }
            ensure!(begun.elapsed() < LIMIT, "{written} bytes were written, not {wanted}");
        }
    }

    /// Waits until qemu-io ends, and checks that it wrote and read everything without an error.
    fn finish(mut self) -> Result<()> {
        let status = self.running.ended(LIMIT)?;
        let text = self.output.text()?;
        let messages = self.messages.text()?;
        let lines: Vec<&str> = text.lines().chain(messages.lines()).collect();
        let tail = lines[lines.len().saturating_sub(8)..].join("\n");
        ensure!(status.is_some_and(|status| status.success()), "qemu-io: {status:?}\n{tail}");
        for wrong in ["Pattern verification failed", "failed:", "error"] {
            let is_said = text.contains(wrong) || messages.contains(wrong);
            ensure!(!is_said, "qemu-io prints '{wrong}'\n{tail}");
        }
        let (wrote, read) = (text.matches("wrote ").count(), text.matches("read ").count());
        ensure!(
            (wrote, read) == (ROUNDS as usize, (ROUNDS + PLACES) as usize),
            "qemu-io wrote {wrote} and read {read} times\n{tail}"
        );
        Ok(())
    }
}
