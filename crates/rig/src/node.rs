//! Our program under test, started from outside: its settings, its ready line, its status.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use program::{LoggedProgram, ProgramResult, WaitLimit};
use rustix::process::Signal;
use serde_json::Value;

use crate::certificates::Certificates;
use crate::machine;

/// From start to listening, with a log of some hundred megabytes to recover or to create.
pub const READY_LIMIT: Duration = Duration::from_secs(60);

/// Limit from SIGTERM to the end of the process, on a busy machine.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// One question over the control socket.
const STATUS_LIMIT: Duration = Duration::from_secs(10);

/// The pause between two looks at the status of a process.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How a program of ours runs beside others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestProcessPriority {
    /// Like any program.
    Usual,
    /// Before all others, on any CPU.
    Preferred,
    /// Before all others, on the CPU of servers.
    Pinned,
}

/// Returns the figures of the layer with this name of the first unit in the JSON of `forebay status`.
pub fn layer_figures<'a>(status: &'a Value, layer: &str) -> Result<&'a Value> {
    let layers = status.pointer("/targets/0/units/0/layers").and_then(Value::as_array);
    let wanted = layers.into_iter().flatten().find(|known| known["layer"] == layer);
    Ok(&wanted.with_context(|| format!("no layer {layer} in {status}"))?["figures"])
}

/// A `forebay serve` of ours.
pub struct ServeProcess {
    process: LoggedProgram,
    program: PathBuf,
    settings: PathBuf,
    events: PathBuf,
    portals: Vec<SocketAddr>,
}

impl ServeProcess {
    /// Starts it with these settings, kept in `folder` under `name`, and waits until it listens.
    pub fn start(
        program: &Path,
        folder: &Path,
        name: &str,
        settings: &str,
    ) -> Result<ServeProcess> {
        ServeProcess::start_as(TestProcessPriority::Usual, program, folder, name, settings)
    }

    /// Starts it as `start` does, with the given CPU priority or affinity.
    pub fn start_as(
        how: TestProcessPriority,
        program: &Path,
        folder: &Path,
        name: &str,
        settings: &str,
    ) -> Result<ServeProcess> {
        ServeProcess::start_heard(how, program, folder, name, settings, |_| ())
    }

    /// Starts it as `start_as` does, and calls `started` with the process id before it waits until the program listens.
    pub fn start_heard(
        how: TestProcessPriority,
        program: &Path,
        folder: &Path,
        name: &str,
        settings: &str,
        started: impl FnOnce(u32),
    ) -> Result<ServeProcess> {
        let path = folder.join(format!("{name}.toml"));
        let events = folder.join(format!("{name}.events"));
        fs::write(&path, format!("control = \"{name}.sock\"\n{settings}"))?;
        let mut command = Command::new(program);
        command.arg("serve").arg("--config").arg(&path).stdin(Stdio::null());
        match how {
            TestProcessPriority::Usual => {}
            TestProcessPriority::Preferred => _ = machine::preferred(&mut command),
            TestProcessPriority::Pinned => _ = machine::pinned(&mut command, machine::SERVER_CPU),
        }
        let mut process = LoggedProgram::start(name, &mut command, &events, Signal::KILL)?;
        started(process.id());
        let ready = process.line(WaitLimit::of(READY_LIMIT)).map_err(anyhow::Error::from);
        let portals = ready.and_then(|line| addresses(&line)).with_context(|| {
            let events = fs::read_to_string(&events).unwrap_or_default();
            format!("{name} does not get ready; its events:\n{}", events.trim_end())
        })?;
        Ok(ServeProcess { process, program: program.to_owned(), settings: path, events, portals })
    }

    /// Kills it (SIGKILL) and waits until it has ended.
    pub fn kill(&mut self) -> Result<()> {
        Ok(self.process.kill(STOP_LIMIT)?)
    }

    /// Waits for its end at most `limit` long. Returns false if it still runs then.
    pub fn has_ended(&mut self, limit: Duration) -> Result<bool> {
        Ok(self.process.ended(limit)?.is_some())
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Where it listens first.
    pub fn portal(&self) -> SocketAddr {
        self.portals[0]
    }

    /// The port of every portal, in the order of the settings.
    pub fn ports(&self) -> Vec<u16> {
        self.portals.iter().map(SocketAddr::port).collect()
    }

    /// The URL of a unit, as libiscsi and QEMU take it.
    pub fn url(&self, target: &str, lun: u8) -> String {
        format!("iscsi://{}/{target}/{lun}", self.portal())
    }

    /// What `forebay status --json` says.
    pub fn status(&self) -> Result<Value> {
        let finished = self.ask(&["status", "--json"])?;
        ensure!(finished.success(), "forebay status {}: {}", finished.ending(), finished.tail(5));
        Ok(serde_json::from_str(&finished.output)?)
    }

    /// Waits until this process has a role in the pair of a target: `active`, `alone` or `standby`.
    pub fn wait_for_role(&self, target: &str, role: &str, limit: Duration) -> Result<()> {
        let begun = Instant::now();
        loop {
            let status = self.status()?;
            let targets = status["targets"].as_array().context("no targets")?;
            let found = targets.iter().find(|found| found["name"] == target);
            let pair = &found.with_context(|| format!("no target {target}"))?["pair"];
            if pair["role"] == role {
                return Ok(());
            }
            ensure!(begun.elapsed() < limit, "{target} is not {role}: {pair}");
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Runs a command of the program that speaks with this process over its control socket.
    pub fn ask(&self, arguments: &[&str]) -> Result<ProgramResult> {
        self.ask_for(arguments, STATUS_LIMIT)
    }

    /// Runs a command of the program as `ask` does, with this time limit.
    pub fn ask_for(&self, arguments: &[&str], limit: Duration) -> Result<ProgramResult> {
        let mut command = Command::new(&self.program);
        command.args(arguments).arg("--config").arg(&self.settings);
        Ok(program::run(&mut command, limit)?)
    }

    /// Writes other settings, and has it read them again.
    pub fn change(&self, settings: &str) -> Result<()> {
        let socket = self.settings.with_extension("sock");
        let socket = socket.file_name().context("a path without a name")?.display();
        fs::write(&self.settings, format!("control = \"{socket}\"\n{settings}"))?;
        let finished = self.ask(&["reload"])?;
        ensure!(finished.success(), "forebay reload {}: {}", finished.ending(), finished.tail(5));
        Ok(())
    }

    /// Its events so far, the last lines.
    pub fn events(&self) -> String {
        let events = fs::read_to_string(&self.events).unwrap_or_default();
        let lines: Vec<&str> = events.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Asks it to stop (SIGTERM) and waits for exit code 0. The program promises to end within five seconds; the limit
    /// is longer, since other processes may occupy the CPUs.
    pub fn stop(mut self) -> Result<Duration> {
        let start = Instant::now();
        self.process.signal(Signal::TERM)?;
        match self.process.ended(STOP_LIMIT)? {
            Some(status) if status.success() => Ok(start.elapsed()),
            Some(status) => bail!("stopped with {status}:\n{}", self.events()),
            None => bail!("does not stop within {STOP_LIMIT:?}:\n{}", self.events()),
        }
    }
}

/// A relay to an address: `forebay link`, a line of 1 Gbit/s with a delay, or `forebay tunnel`.
pub struct RelayProcess {
    process: LoggedProgram,
    address: SocketAddr,
}

impl RelayProcess {
    /// Starts it.
    pub fn start(program: &Path, to: SocketAddr, delay_ms: f64) -> Result<RelayProcess> {
        RelayProcess::start_as(TestProcessPriority::Usual, program, to, delay_ms)
    }

    /// The same, with a place among the other processes of the machine.
    pub fn start_as(
        how: TestProcessPriority,
        program: &Path,
        to: SocketAddr,
        delay_ms: f64,
    ) -> Result<RelayProcess> {
        let mut command = Command::new(program);
        command.args([
            "link",
            "--to",
            &to.to_string(),
            "--delay",
            &format!("{}us", delay_ms * 1e3),
        ]);
        if how == TestProcessPriority::Preferred {
            machine::preferred(&mut command);
        }
        RelayProcess::of("forebay link", command)
    }

    /// The initiator's end of a `forebay tunnel` to a portal with TLS, with the certificate of
    /// `certificates`. It runs where we do.
    pub fn tunnel(
        program: &Path,
        to: SocketAddr,
        certificates: &Certificates,
    ) -> Result<RelayProcess> {
        let mut command = Command::new(program);
        command.args(["tunnel", "connect", "--listen", "127.0.0.1:0", "--to", &to.to_string()]);
        command.arg("--ca").arg(&certificates.authority);
        command.arg("--certificate").arg(&certificates.certificate);
        command.arg("--key").arg(&certificates.key);
        RelayProcess::of("forebay tunnel", command)
    }

    fn of(name: &str, mut command: Command) -> Result<RelayProcess> {
        command.stdin(Stdio::null());
        let events = Path::new("/dev/null");
        let mut process = LoggedProgram::start(name, &mut command, events, Signal::KILL)?;
        let ready = process.line(WaitLimit::of(READY_LIMIT))?;
        let address = addresses(&ready).context(name.to_owned())?[0];
        Ok(RelayProcess { process, address })
    }

    /// Ends a link (SIGTERM). Returns the traffic that the link prints at its end.
    pub fn end(mut self) -> Result<Value> {
        self.process.signal(Signal::TERM)?;
        self.process.ended(STATUS_LIMIT)?;
        let said = self.process.said()?;
        let traffic = said.lines().nth(1).context("the link does not print its traffic")?;
        serde_json::from_str(traffic).with_context(|| format!("'{traffic}'"))
    }

    /// Stops the relay (SIGSTOP): nothing passes, and neither end is told.
    pub fn cut(&mut self) -> Result<()> {
        Ok(self.process.signal(Signal::STOP)?)
    }

    /// Lets the relay go on (SIGCONT): first with the bytes that have waited.
    pub fn mend(&mut self) -> Result<()> {
        Ok(self.process.signal(Signal::CONT)?)
    }

    /// Where its near end listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// The addresses of a line such as `ready 127.0.0.1:3260 [::1]:3260`.
fn addresses(line: &str) -> Result<Vec<SocketAddr>> {
    let list = line.strip_prefix("ready ").with_context(|| format!("'{line}' is no ready line"))?;
    let addresses: Result<Vec<SocketAddr>, _> = list.split_whitespace().map(str::parse).collect();
    let addresses = addresses.with_context(|| format!("'{line}'"))?;
    ensure!(!addresses.is_empty(), "'{line}' names no address");
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_a_ready_line() {
        let addresses = addresses("ready 127.0.0.1:3260 [::1]:3261").unwrap();
        assert_eq!(addresses, ["127.0.0.1:3260".parse().unwrap(), "[::1]:3261".parse().unwrap()]);
        assert!(super::addresses("ready").is_err());
        assert!(super::addresses("panic").is_err());
    }
}
