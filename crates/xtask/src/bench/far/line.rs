//! The emulated link, and the network namespaces at its ends.

use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

use crate::node;
use crate::process::{self, Running};

/// What a link is like, the same in both directions.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    megabits: f64,
    /// Milliseconds one way.
    delay: f64,
    /// The queue as a part of bandwidth × round trip.
    queue: f64,
    /// Percent.
    loss: f64,
}

impl Path {
    /// The links that are measured if none is named.
    pub fn usual() -> Vec<Path> {
        let path = |delay, queue| Path { megabits: 200.0, delay, queue, loss: 0.0 };
        [4.0, 20.0, 40.0]
            .into_iter()
            .flat_map(|delay| [0.25, 1.0].map(|queue| path(delay, queue)))
            .collect()
    }

    /// How long so many bytes are on the wire.
    pub fn time_for(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 * 8.0 / 1e6 / self.megabits)
    }

    /// The round trip on an empty link.
    pub fn round_trip(&self) -> Duration {
        Duration::from_secs_f64(2.0 * self.delay / 1e3)
    }

    /// How many bytes are on the wire in so long a time.
    pub fn bytes_in(&self, time: Duration) -> u64 {
        (self.megabits * 1e6 / 8.0 * time.as_secs_f64()) as u64
    }

    /// Bytes of the queue, at least ten packets.
    fn queue_bytes(&self) -> u64 {
        let held = self.megabits * 1e6 / 8.0 * 2.0 * self.delay / 1e3;
        (held * self.queue).max(15_000.0) as u64
    }
}

impl FromStr for Path {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Path> {
        let numbers: Result<Vec<f64>, _> = text.split(',').map(str::parse).collect();
        let numbers = numbers.with_context(|| format!("'{text}'"))?;
        ensure!(
            numbers.iter().all(|number| (0.0..=100_000.0).contains(number)),
            "'{text}' is out of range"
        );
        match numbers[..] {
            [megabits, delay, queue] => Ok(Path { megabits, delay, queue, loss: 0.0 }),
            [megabits, delay, queue, loss] => Ok(Path { megabits, delay, queue, loss }),
            _ => Err(anyhow!("a link is MBIT,MS,QUEUE or MBIT,MS,QUEUE,LOSS, not '{text}'")),
        }
    }
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Path { megabits, delay, queue, loss } = self;
        write!(f, "{megabits} Mbit/s, {delay} ms one way, queue {queue}")?;
        if *loss > 0.0 { write!(f, ", {loss} % loss") } else { Ok(()) }
    }
}

/// One end of the link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum End {
    /// Where hosts and gateways are.
    Near,
    /// Where the node is.
    Far,
}

/// What has passed so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    /// Bytes of packets that came through, in both directions.
    pub bytes: u64,
    /// Packets that found the queue full.
    pub dropped: u64,
}

/// The running link. It goes when this is dropped.
pub struct Line {
    running: Running,
    program: PathBuf,
    name: String,
    addresses: [String; 2],
}

impl Line {
    /// Makes the link and its namespaces.
    pub fn start(program: &std::path::Path, name: &str, path: &Path) -> Result<Line> {
        let mut command = Command::new(program);
        command.args(["lab", "wan", "run", "--name", name]);
        command.args(["--rate", &format!("{}Mbit", path.megabits)]);
        command.args(["--delay", &format!("{}us", path.delay * 1e3)]);
        command.args(["--queue", &format!("{}B", path.queue_bytes())]);
        command.args(["--loss", &format!("{}%", path.loss)]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut running = Running::start(&mut command)?;
        let ready = node::line(&mut running, node::READY_LIMIT).context("forebay lab wan run")?;
        let words: Vec<&str> = ready.split_whitespace().collect();
        let ["ready", _, near, _, far] = words[..] else {
            return Err(anyhow!("'{ready}' is no ready line"));
        };
        let addresses = [near.to_owned(), far.to_owned()];
        let line = Line { running, program: program.to_owned(), name: name.to_owned(), addresses };
        for end in [End::Near, End::Far] {
            line.at(end, || {
                // What one connection has learned of the path must not help the next one.
                fs::write("/proc/sys/net/ipv4/tcp_no_metrics_save", "1")
                    .context("tcp_no_metrics_save")
            })?;
        }
        Ok(line)
    }

    /// The address of an end.
    pub fn address(&self, end: End) -> &str {
        &self.addresses[usize::from(end == End::Far)]
    }

    /// The namespace of an end.
    pub fn namespace(&self, end: End) -> String {
        namespace(&self.name, end)
    }

    /// Does something at an end, in a thread of its own.
    fn at<T: Send>(&self, end: End, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        at(&self.name, end, work)
    }

    /// What has passed from both ends.
    pub fn traffic(&self) -> Result<Traffic> {
        let status = self.status()?;
        let mut traffic = Traffic::default();
        for direction in ["near_to_far", "far_to_near"] {
            let counted = &status["report"][direction];
            let number = |name: &str| counted[name].as_u64().with_context(|| format!("no {name}"));
            traffic.bytes += number("passed_bytes")?;
            traffic.dropped += number("queue_full")?;
        }
        Ok(traffic)
    }

    /// Why what was measured so far does not count, if so.
    pub fn tainted(&self) -> Result<Option<String>> {
        let status = self.status()?;
        let reasons = status["report"]["tainted"].as_array().context("no tainted")?;
        Ok((!reasons.is_empty()).then(|| format!("the emulator: {}", Value::from(reasons.clone()))))
    }

    fn status(&self) -> Result<Value> {
        let mut command = Command::new(&self.program);
        command.args(["lab", "wan", "status", "--json", "--name", &self.name]);
        let finished = process::run(&mut command, Duration::from_secs(10))?;
        ensure!(finished.success(), "forebay lab wan status: {}", finished.tail(3));
        Ok(serde_json::from_str(&finished.output)?)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // It removes its namespaces.
        let _ = self.running.signal(rustix::process::Signal::TERM);
        let _ = self.running.wait(Duration::from_secs(10));
    }
}

fn namespace(link: &str, end: End) -> String {
    format!("{link}-{}", if end == End::Near { "near" } else { "far" })
}

/// Does something at an end of a link, in a thread of its own: the sockets that it makes belong there.
pub fn at<T: Send>(link: &str, end: End, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let enter = || {
        let path = format!("/run/netns/{}", namespace(link, end));
        let handle = fs::File::open(&path).context(path)?;
        move_into_link_name_space(handle.as_fd(), Some(LinkNameSpaceType::Network))?;
        work()
    };
    std::thread::scope(|scope| match scope.spawn(enter).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
