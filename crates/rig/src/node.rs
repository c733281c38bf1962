//! Runs `forebay serve` and its relays as processes: starts them, waits until they are ready, asks
//! for their status and ends them.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use program::{Error, LoggedProgram, ProgramResult, WaitLimit, ending, last_lines};
use rustix::process::Signal;
use serde_json::Value;

use crate::certificates::Certificates;
use crate::machine;

/// Time limit from the start of `forebay serve` to its line `ready`. It may have to recover or create a log of some
/// hundred megabytes.
pub const READY_LIMIT: Duration = Duration::from_secs(60);

/// Time limit between SIGTERM and the end of the process, on a busy machine.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// Time limit of a command over the control socket.
const STATUS_LIMIT: Duration = Duration::from_secs(10);

/// Maximum number of output lines of `forebay status` that an error message contains.
const STATUS_LINES: usize = 5;

/// The pause between two queries of the status.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// CPU priority and affinity of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestProcessPriority {
    /// Run the process with the priority and the CPUs of the calling process.
    Usual,
    /// Raised priority, and any CPU.
    Preferred,
    /// Raised priority, and only the CPU [`machine::SERVER_CPU`].
    Pinned,
}

/// Takes from the JSON of `forebay status` the figures of the layer `layer` in the stack of the
/// first unit.
pub fn layer_figures<'a>(status: &'a Value, layer: &str) -> Result<&'a Value> {
    let layers = status.pointer("/targets/0/units/0/layers").and_then(Value::as_array);
    let wanted = layers.into_iter().flatten().find(|known| known["layer"] == layer);
    Ok(&wanted.with_context(|| format!("no layer {layer} in {status}"))?["figures"])
}

/// A running `forebay serve`. Dropping this kills the process.
pub struct ServeProcess {
    name: String,
    process: LoggedProgram,
    program: PathBuf,
    settings: PathBuf,
    events: PathBuf,
    portals: Vec<SocketAddr>,
}

impl ServeProcess {
    /// Starts the process with these settings, which are written to `name`.toml in `folder`, and
    /// waits until it listens.
    pub fn start(
        program: &Path,
        folder: &Path,
        name: &str,
        settings: &str,
    ) -> Result<ServeProcess> {
        ServeProcess::start_as(TestProcessPriority::Usual, program, folder, name, settings)
    }

    /// Starts the process as `start` does, with the given CPU priority or affinity.
    pub fn start_as(
        how: TestProcessPriority,
        program: &Path,
        folder: &Path,
        name: &str,
        settings: &str,
    ) -> Result<ServeProcess> {
        ServeProcess::start_heard(how, program, folder, name, settings, |_| ())
    }

    /// Starts the process as `start_as` does, and calls `started` with the process id before
    /// waiting until it listens.
    pub fn start_heard(
        how: TestProcessPriority,
        program: &Path,
        folder: &Path,
        name: &str,
        settings: &str,
        started: impl FnOnce(u32),
    ) -> Result<ServeProcess> {
        let path = folder.join(format!("{name}.toml"));
        fs::write(&path, format!("control = \"{name}.sock\"\n{settings}"))?;
        let mut command = Command::new(program);
        match how {
            TestProcessPriority::Usual => {}
            TestProcessPriority::Preferred => _ = machine::preferred(&mut command),
            TestProcessPriority::Pinned => _ = machine::pinned(&mut command, machine::SERVER_CPU),
        }
        let wait = WaitLimit::of(READY_LIMIT);
        let launched = ServeProcess::launch(name, command, &path, Signal::KILL, wait, started);
        launched.with_context(|| {
            let events = fs::read_to_string(events_of(&path)).unwrap_or_default();
            format!("{name} does not get ready; its events:\n{}", events.trim_end())
        })
    }

    /// Starts `forebay serve` with a file of settings, and waits until it listens.
    ///
    /// `command` is the program, with the namespace or the CPU in which it is to run. `name` is the role of the
    /// process, for errors. The process writes its log of events to a file next to the settings, whose name ends with
    /// `events`. `started` is called with the process id before the wait. When the calling thread ends, the process
    /// gets the signal `when_we_die`.
    ///
    /// # Errors
    /// [`Error::NotReady`] if the process ends before it listens, [`Error::Failed`] if it prints
    /// something unexpected, [`Error::Late`], [`Error::Stopped`] or [`Error::System`].
    pub fn launch(
        name: &str,
        mut command: Command,
        settings: &Path,
        when_we_die: Signal,
        wait: WaitLimit<'_>,
        started: impl FnOnce(u32),
    ) -> Result<ServeProcess, Error> {
        let program = PathBuf::from(command.get_program());
        let events = events_of(settings);
        command.arg("serve").arg("--config").arg(settings).stdin(Stdio::null());
        let mut process = LoggedProgram::start(name, &mut command, &events, when_we_die)?;
        started(process.id());
        let ready = process.line(wait)?;
        let Some(portals) = addresses(&ready) else {
            let what = "printed no address in its ready line".to_owned();
            return Err(Error::Failed { name: name.to_owned(), what, said: ready });
        };
        let (name, settings) = (name.to_owned(), settings.to_owned());
        Ok(ServeProcess { name, process, program, settings, events, portals })
    }

    /// Kills the process (SIGKILL), and waits until it has ended.
    pub fn kill(&mut self) -> Result<()> {
        Ok(self.process.kill(STOP_LIMIT)?)
    }

    /// Waits at most `limit` for the end of the process. Returns false if it still runs then.
    pub fn has_ended(&mut self, limit: Duration) -> Result<bool> {
        Ok(self.process.ended(limit)?.is_some())
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The address of the first portal.
    pub fn portal(&self) -> SocketAddr {
        self.portals[0]
    }

    /// The port of every portal, in the order of the settings.
    pub fn ports(&self) -> Vec<u16> {
        self.portals.iter().map(SocketAddr::port).collect()
    }

    /// The URL of a unit, in the form that libiscsi and QEMU accept.
    pub fn url(&self, target: &str, lun: u8) -> String {
        format!("iscsi://{}/{target}/{lun}", self.portal())
    }

    /// Returns what `forebay status --json` prints.
    pub fn status(&self) -> Result<Value> {
        Ok(self.status_within(WaitLimit::of(STATUS_LIMIT))?)
    }

    /// Returns what `forebay status --json` prints.
    ///
    /// # Errors
    /// [`Error::Failed`] if the command fails or its output is not JSON, [`Error::Late`], [`Error::Stopped`] or
    /// [`Error::System`].
    pub fn status_within(&self, wait: WaitLimit<'_>) -> Result<Value, Error> {
        let name = format!("the status of {}", self.name);
        let asked =
            program::run_unless(&mut self.command(&["status", "--json"]), wait.limit, wait.stop);
        let asked = asked.map_err(Error::system(format!("run {}", self.program.display())))?;
        let said = last_lines(&asked.output, STATUS_LINES);
        match asked.status {
            Some(status) if status.success() => {
                let what = "cannot be read".to_owned();
                serde_json::from_str(&asked.output).map_err(|_| Error::Failed { name, what, said })
            }
            Some(status) => Err(Error::Failed { name, what: ending(status), said }),
            None if wait.stop.load(Ordering::Relaxed) => Err(Error::Stopped),
            None => Err(Error::Late { name, what: "done", limit: wait.limit }),
        }
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

    /// Runs a command of `forebay` that uses the control socket of this process.
    pub fn ask(&self, arguments: &[&str]) -> Result<ProgramResult> {
        self.ask_for(arguments, STATUS_LIMIT)
    }

    /// Runs a command like [`Self::ask`], but with another time limit.
    pub fn ask_for(&self, arguments: &[&str], limit: Duration) -> Result<ProgramResult> {
        Ok(program::run(&mut self.command(arguments), limit)?)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).arg("--config").arg(&self.settings);
        command
    }

    /// Writes new settings to the settings file, and makes the process reload them.
    pub fn change(&self, settings: &str) -> Result<()> {
        let socket = self.settings.with_extension("sock");
        let socket = socket.file_name().context("a path without a name")?.display();
        fs::write(&self.settings, format!("control = \"{socket}\"\n{settings}"))?;
        let finished = self.ask(&["reload"])?;
        ensure!(finished.success(), "forebay reload {}: {}", finished.ending(), finished.tail(5));
        Ok(())
    }

    /// Returns the last 20 lines of the events.
    pub fn events(&self) -> String {
        let events = fs::read_to_string(&self.events).unwrap_or_default();
        let lines: Vec<&str> = events.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Asks the process to stop (SIGTERM) and waits for exit code 0. Returns the time this took. `forebay serve`
    /// promises to end within five seconds. The time limit of this function is longer, since other processes may occupy
    /// the CPUs.
    pub fn stop(mut self) -> Result<Duration> {
        let start = Instant::now();
        let stopped = self.process.ask_to_end(STOP_LIMIT);
        stopped.with_context(|| {
            format!("the process did not stop with exit code 0; its events:\n{}", self.events())
        })?;
        Ok(start.elapsed())
    }

    /// Asks the process to stop (SIGTERM) and waits for exit code 0. Kills it after `limit`.
    ///
    /// # Errors
    /// [`Error::Failed`] for another exit code, [`Error::Late`] or [`Error::System`].
    pub fn end(self, limit: Duration) -> Result<(), Error> {
        self.process.end(limit)
    }
}

/// A running relay: `forebay link` (an emulated link of 1 Gbit/s with a delay) or `forebay tunnel`.
pub struct RelayProcess {
    process: LoggedProgram,
    address: SocketAddr,
}

impl RelayProcess {
    /// Starts `forebay link`, which relays connections with this one-way delay.
    pub fn start(program: &Path, to: SocketAddr, delay_ms: f64) -> Result<RelayProcess> {
        RelayProcess::start_as(TestProcessPriority::Usual, program, to, delay_ms)
    }

    /// Starts `forebay link` as `start` does, with the given CPU priority. The priority `Pinned` is ignored.
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

    /// Starts `forebay tunnel connect`, the initiator's end of a tunnel to a portal with TLS. The tunnel uses
    /// the authority and the certificate in `certificates`, and runs with the CPU priority and affinity of this
    /// process.
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
        let addresses = addresses(&ready);
        let address = addresses
            .with_context(|| format!("{name} printed '{ready}' instead of its ready line"))?[0];
        Ok(RelayProcess { process, address })
    }

    /// Ends the relay by SIGTERM. Returns the traffic counters that it prints at its end.
    pub fn end(mut self) -> Result<Value> {
        self.process.signal(Signal::TERM)?;
        self.process.ended(STATUS_LIMIT)?;
        let said = self.process.said()?;
        let traffic = said.lines().nth(1).context("the relay did not print its traffic")?;
        serde_json::from_str(traffic).with_context(|| format!("'{traffic}'"))
    }

    /// Pauses the relay by SIGSTOP: no bytes pass, but no connection is closed.
    pub fn cut(&mut self) -> Result<()> {
        Ok(self.process.signal(Signal::STOP)?)
    }

    /// Continues a paused relay by SIGCONT. The bytes that have waited are forwarded first.
    pub fn mend(&mut self) -> Result<()> {
        Ok(self.process.signal(Signal::CONT)?)
    }

    /// The address at which the relay listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Returns the addresses of a line such as `ready 127.0.0.1:3260 [::1]:3260`, or `None` for another
/// line and for one without a valid address.
fn addresses(line: &str) -> Option<Vec<SocketAddr>> {
    let list = line.strip_prefix("ready ")?.split_whitespace();
    let addresses: Vec<SocketAddr> = list.map(str::parse).collect::<Result<_, _>>().ok()?;
    (!addresses.is_empty()).then_some(addresses)
}

/// Returns the path of the events file of the process whose settings file is `settings`.
fn events_of(settings: &Path) -> PathBuf {
    settings.with_extension("events")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_a_ready_line() {
        let addresses = addresses("ready 127.0.0.1:3260 [::1]:3261").unwrap();
        assert_eq!(addresses, ["127.0.0.1:3260".parse().unwrap(), "[::1]:3261".parse().unwrap()]);
        assert!(super::addresses("ready").is_none());
        assert!(super::addresses("panic").is_none());
    }
}
