//! A `forebay serve` process of quickstart: starts it, waits until it is ready, and kills or stops it.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use control::Failure;
use program::RunningProgram;
use rustix::process::Signal;
use tokio::sync::oneshot;

/// A running `forebay serve` process. Dropping this kills the process.
#[derive(Debug)]
pub struct QuickstartProcess {
    name: &'static str,
    running: RunningProgram,
    /// The file to which the process writes its events (log messages).
    events: PathBuf,
    /// First address on which the process listens.
    pub address: SocketAddr,
    /// Time between the start of the process and the moment at which it listened.
    pub ready_after: Duration,
}

/// Time limit until the process listens. Opening a log of some hundred megabytes on a slow disk takes seconds.
const READY_WITHIN: Duration = Duration::from_secs(40);

/// Time limit for the end of a killed process. It ends at once, unless its disk does not answer.
const KILL_WITHIN: Duration = Duration::from_secs(10);

impl QuickstartProcess {
    /// Starts `program serve --config FILE` and waits until it listens.
    ///
    /// Call this on the main thread: the kernel kills the child when the thread that has started it ends.
    pub async fn start(
        name: &'static str,
        program: &Path,
        config: &Path,
        folder: &Path,
    ) -> Result<Self, Failure> {
        let cannot = |error: io::Error| {
            Failure::new(format!("cannot start the {name} process: {error}")).remedy(
                "raise the limit of processes (`ulimit -u`), and set TMPDIR to a folder \
                 with 1 GiB of free space",
            )
        };
        let events = folder.join(format!("{name}.events"));
        let stderr = File::options().append(true).create(true).open(&events).map_err(cannot)?;
        let mut command = Command::new(program);
        command.args(["--log-level", "info", "serve", "--config"]).arg(config);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let begun = Instant::now();
        // The process gets a group of its own, so that Ctrl-C reaches only quickstart, which then stops the process in
        // order.
        let mut running = RunningProgram::start(&mut command, Signal::KILL).map_err(cannot)?;
        let stdout = running.stdout().expect("its stdout is a pipe");
        let address = LOOPBACK_UNKNOWN;
        let mut process = Self { name, running, events, address, ready_after: Duration::ZERO };
        process.address = process.ready(stdout).await?;
        process.ready_after = begun.elapsed();
        Ok(process)
    }

    /// Waits for the line `ready ADDRESS`.
    async fn ready(&mut self, stdout: impl Read + Send + 'static) -> Result<SocketAddr, Failure> {
        let (sender, received) = oneshot::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            // If the pipe ends without a line, the sender is dropped, and the receiver gets an error.
            if BufReader::new(stdout.take(4096)).read_line(&mut line).is_ok() {
                let _ = sender.send(line);
            }
        });
        let line = match tokio::time::timeout(READY_WITHIN, received).await {
            Ok(line) => line.unwrap_or_default(),
            Err(_) => return Err(self.failed("is not ready in time")),
        };
        let address = line.strip_prefix("ready ").and_then(|rest| rest.split_whitespace().next());
        address.and_then(|text| text.parse().ok()).ok_or_else(|| self.failed("ended at its start"))
    }

    fn failed(&self, how: &str) -> Failure {
        let events = std::fs::read_to_string(&self.events).unwrap_or_default();
        let last: Vec<_> = events.lines().rev().take(6).collect();
        let last: Vec<_> = last.into_iter().rev().collect();
        Failure::new(format!("the {} process {how}; it said:\n{}", self.name, last.join("\n")))
            .remedy(
            "remove the cause that it names, and start `forebay quickstart` again; for lack of space, set \
             TMPDIR to a folder with 1 GiB of free space first",
        )
    }

    pub fn kill(&mut self) -> io::Result<()> {
        self.running.kill();
        match self.running.ended(KILL_WITHIN)? {
            Some(_) => Ok(()),
            None => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Stops the process with SIGTERM and waits for its end. Kills it if that takes longer than a stop may take.
    pub async fn stop(mut self) -> Result<(), Failure> {
        self.running.signal(Signal::TERM).map_err(Failure::new)?;
        tracing::debug!(process = self.name, "asked to stop");
        let deadline = Instant::now() + Duration::from_secs(6);
        while Instant::now() < deadline {
            match self.running.ended(Duration::ZERO) {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(_)) => return Err(self.failed("did not stop cleanly")),
                Ok(None) => tokio::time::sleep(Duration::from_millis(10)).await,
                Err(error) => return Err(Failure::new(error)),
            }
        }
        Err(self.failed("did not stop in time"))
    }
}

/// Placeholder address for a process that has not printed its address yet.
const LOOPBACK_UNKNOWN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);
