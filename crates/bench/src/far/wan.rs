//! The emulated link between gateway and node, and the network namespaces at its ends.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use program::{LoggedProgram, WaitLimit};
use rig::node;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

use rustix::process::Signal;

/// The properties of an emulated link, equal in both directions.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkSpec {
    megabits: f64,
    /// One-way delay of the link in milliseconds.
    delay: f64,
    /// The length of the queue as a fraction of bandwidth times round trip time.
    queue: f64,
    /// The random packet loss in percent.
    loss: f64,
}

impl LinkSpec {
    /// Returns the links that are measured if the user names none.
    pub fn usual() -> Vec<LinkSpec> {
        let spec = |delay, queue| LinkSpec { megabits: 200.0, delay, queue, loss: 0.0 };
        [4.0, 20.0, 40.0]
            .into_iter()
            .flat_map(|delay| [0.25, 1.0].map(|queue| spec(delay, queue)))
            .collect()
    }

    /// Returns a link with this rate in Mbit/s and one-way delay in milliseconds. The queue has space for as many bytes
    /// as the link carries in a round trip time.
    pub fn new(megabits: f64, delay: f64) -> LinkSpec {
        LinkSpec { megabits, delay, queue: 1.0, loss: 0.0 }
    }

    /// Returns how long the link takes to transmit `bytes`.
    pub fn time_for(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 * 8.0 / 1e6 / self.megabits)
    }

    /// Returns the round trip time of the empty link.
    pub fn round_trip(&self) -> Duration {
        Duration::from_secs_f64(2.0 * self.delay / 1e3)
    }

    /// Returns how many bytes the link transmits in `time`.
    pub fn bytes_in(&self, time: Duration) -> u64 {
        (self.megabits * 1e6 / 8.0 * time.as_secs_f64()) as u64
    }

    /// Returns the length of the link's queue in bytes; at least ten packets.
    fn queue_bytes(&self) -> u64 {
        let held = self.megabits * 1e6 / 8.0 * 2.0 * self.delay / 1e3;
        (held * self.queue).max(15_000.0) as u64
    }
}

impl FromStr for LinkSpec {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<LinkSpec> {
        let numbers: Result<Vec<f64>, _> = text.split(',').map(str::parse).collect();
        let numbers = numbers.with_context(|| format!("'{text}'"))?;
        ensure!(
            numbers.iter().all(|number| (0.0..=100_000.0).contains(number)),
            "'{text}' is out of range"
        );
        match numbers[..] {
            [megabits, delay, queue] => Ok(LinkSpec { megabits, delay, queue, loss: 0.0 }),
            [megabits, delay, queue, loss] => Ok(LinkSpec { megabits, delay, queue, loss }),
            _ => Err(anyhow!("a link is MBIT,MS,QUEUE or MBIT,MS,QUEUE,LOSS, not '{text}'")),
        }
    }
}

impl std::fmt::Display for LinkSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let LinkSpec { megabits, delay, queue, loss } = self;
        write!(f, "{megabits} Mbit/s, {delay} ms one way, queue {queue}")?;
        if *loss > 0.0 { write!(f, ", {loss} % loss") } else { Ok(()) }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BenchWanEnd {
    /// The end of the link at which hosts and gateways run.
    Near,
    /// The end of the link at which the node runs.
    Far,
}

/// Counters of the link emulator since the link was made.
#[derive(Clone, Copy, Debug, Default)]
pub struct BenchWanTraffic {
    /// Number of bytes in the delivered packets, in both directions together.
    pub bytes: u64,
    /// Number of packets that were dropped because the queue was full, in both directions together.
    pub dropped: u64,
}

/// A running emulated link. Dropping this removes the link and its network namespaces.
pub struct BenchWan {
    process: LoggedProgram,
    program: PathBuf,
    name: String,
    addresses: [String; 2],
}

impl BenchWan {
    /// Starts `forebay lab wan run`. It makes the link and a network namespace at each end.
    pub fn start(program: &Path, name: &str, spec: &LinkSpec) -> Result<BenchWan> {
        BenchWan::start_with(program, name, spec, &[])
    }

    /// Starts a link with further options of `forebay lab wan run`, such as `--reorder 1%`.
    pub fn start_with(
        program: &Path,
        name: &str,
        spec: &LinkSpec,
        settings: &[&str],
    ) -> Result<BenchWan> {
        let mut command = Command::new(program);
        command.args(["lab", "wan", "run", "--name", name]);
        command.args(["--rate", &format!("{}Mbit", spec.megabits)]);
        command.args(["--delay", &format!("{}us", spec.delay * 1e3)]);
        command.args(["--queue", &format!("{}B", spec.queue_bytes())]);
        command.args(["--loss", &format!("{}%", spec.loss)]).args(settings);
        command.stdin(Stdio::null());
        let (role, events) = ("forebay lab wan run", Path::new("/dev/null"));
        // If this process is interrupted, the emulator gets SIGTERM and removes the namespaces.
        let mut process = LoggedProgram::start(role, &mut command, events, Signal::TERM)?;
        let ready = process.line(WaitLimit::of(node::READY_LIMIT))?;
        let words: Vec<&str> = ready.split_whitespace().collect();
        let ["ready", _, near, _, far] = words[..] else {
            return Err(anyhow!("forebay lab wan run printed '{ready}' instead of its ready line"));
        };
        let addresses = [near.to_owned(), far.to_owned()];
        let wan =
            BenchWan { process, program: program.to_owned(), name: name.to_owned(), addresses };
        for end in [BenchWanEnd::Near, BenchWanEnd::Far] {
            wan.at(end, || {
                // Each connection must measure the link by itself. With this setting the kernel
                // does not store the metrics of earlier connections.
                fs::write("/proc/sys/net/ipv4/tcp_no_metrics_save", "1")
                    .context("tcp_no_metrics_save")
            })?;
        }
        Ok(wan)
    }

    /// Returns the IPv4 address of this end of the link.
    pub fn address(&self, end: BenchWanEnd) -> &str {
        &self.addresses[usize::from(end == BenchWanEnd::Far)]
    }

    pub fn namespace(&self, end: BenchWanEnd) -> String {
        namespace(&self.name, end)
    }

    /// Runs `work` in the network namespace of an end of this link; see the function [`at`].
    fn at<T: Send>(&self, end: BenchWanEnd, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        at(&self.name, end, work)
    }

    /// Reads the counters of the link emulator.
    pub fn traffic(&self) -> Result<BenchWanTraffic> {
        let status = self.status()?;
        let mut traffic = BenchWanTraffic::default();
        for direction in ["near_to_far", "far_to_near"] {
            let counted = &status["report"][direction];
            let number = |name: &str| counted[name].as_u64().with_context(|| format!("no {name}"));
            traffic.bytes += number("passed_bytes")?;
            traffic.dropped += number("queue_full")?;
        }
        Ok(traffic)
    }

    /// Returns the reason why the emulator's measurements may be wrong, for example that it woke up
    /// late; `None` if there is none.
    pub fn tainted(&self) -> Result<Option<String>> {
        let status = self.status()?;
        let reasons = status["report"]["tainted"].as_array().context("no tainted")?;
        Ok((!reasons.is_empty()).then(|| format!("the emulator: {}", Value::from(reasons.clone()))))
    }

    /// Changes settings of the running link with the options of `forebay lab wan`, such as `--delay
    /// 40ms`.
    pub fn change(&self, settings: &[&str]) -> Result<()> {
        self.ask(&[&["change"], settings].concat()).map(|_| ())
    }

    fn status(&self) -> Result<Value> {
        Ok(serde_json::from_str(&self.ask(&["status", "--json"])?)?)
    }

    /// Runs a command of `forebay lab wan` for this link, and returns its output.
    fn ask(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.program);
        command.args(["lab", "wan"]).args(arguments).args(["--name", &self.name]);
        let finished = program::run(&mut command, Duration::from_secs(10))?;
        let asked = arguments.join(" ");
        ensure!(finished.success(), "forebay lab wan {asked}: {}", finished.tail(3));
        Ok(finished.output)
    }
}

impl Drop for BenchWan {
    fn drop(&mut self) {
        // Stop the emulator by SIGTERM, so that it removes its network namespaces.
        let _ = self.process.signal(Signal::TERM);
        let _ = self.process.ended(Duration::from_secs(10));
    }
}

fn namespace(link: &str, end: BenchWanEnd) -> String {
    format!("{link}-{}", if end == BenchWanEnd::Near { "near" } else { "far" })
}

/// Runs `work` in the network namespace of an end of the link. It runs in another thread, so that
/// the caller's namespace does not change. Sockets that `work` opens stay in the namespace of the
/// end.
pub fn at<T: Send>(
    link: &str,
    end: BenchWanEnd,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    let enter = || {
        let path = format!("/run/netns/{}", namespace(link, end));
        let handle = fs::File::open(&path)
            .with_context(|| format!("cannot open the network namespace {path}"))?;
        move_into_link_name_space(handle.as_fd(), Some(LinkNameSpaceType::Network))?;
        work()
    };
    std::thread::scope(|scope| match scope.spawn(enter).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
