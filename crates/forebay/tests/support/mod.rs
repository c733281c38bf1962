//! Starts the program with its own settings, sends requests to it, and kills it at the end of a test.

// Each test file uses its own part of this module.
#![allow(dead_code)]

#[path = "../../../transport/tests/certificates/mod.rs"]
pub mod certificates;
pub mod nodes;
pub mod raw;

use std::{
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{ChildStderr, Command, ExitStatus, Output, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use certificates::{Authority, Issued};
use initiator::RemoteVolume;
use program::RunningProgram;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use volume::{Data, Durability, Extent, Lba, Volume};

/// Returns the program under test with default signal dispositions: the tests send it signals, even if they run under
/// nohup.
pub fn forebay() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    program::reset_signals(&mut command);
    command
}

pub fn run(arguments: &[&str]) -> Output {
    forebay().args(arguments).output().expect("the binary runs")
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A temporary folder with settings files and volumes.
pub struct Place {
    pub folder: TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self { folder: TempDir::new().expect("a folder for the test") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Creates a certificate authority, and writes its certificate to `NAME.pem`.
    pub fn authority(&self, name: &str) -> Authority {
        let authority = Authority::new();
        std::fs::write(self.path(&format!("{name}.pem")), &authority.certificate).expect("written");
        authority
    }

    /// Creates `NAME.pem` and `NAME.key` with a certificate for `host`.
    pub fn certificate(&self, authority: &Authority, name: &str, host: &str) {
        let Issued { certificate, key } = authority.issue(host);
        std::fs::write(self.path(&format!("{name}.pem")), certificate).expect("written");
        let path = self.path(&format!("{name}.key"));
        std::fs::write(&path, key).expect("written");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("chmod");
    }

    /// Writes `NAME.toml` with a control socket `NAME.sock`.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(&format!("{name}.toml"));
        let text = format!("control = \"{name}.sock\"\n{text}");
        std::fs::write(&path, text).expect("settings are written");
        path
    }

    /// Runs `forebay serve` with the settings `text`, and waits until it listens.
    pub fn serve(&self, name: &str, text: &str) -> Serving {
        self.try_serve(name, text).unwrap_or_else(|error| panic!("{name} does not start: {error}"))
    }

    /// Runs `forebay serve`. If the process ends before it listens, returns its error message.
    pub fn try_serve(&self, name: &str, text: &str) -> Result<Serving, String> {
        self.try_serve_by(forebay(), name, text)
    }

    /// Runs `forebay serve` with the given stderr, and waits until it listens.
    pub fn serve_with(&self, name: &str, text: &str, stderr: impl Into<Stdio>) -> Serving {
        let config = self.write(name, text);
        let started = start_with(forebay().args(["serve", "--config"]).arg(config), stderr.into());
        let running = started.unwrap_or_else(|error| panic!("{name} does not start: {error}"));
        let address = running.ready.parse().expect("an address");
        Serving { running, address, control: self.path(&format!("{name}.sock")) }
    }

    /// Starts `serve` through the caller's command, to which the arguments of the program are appended.
    pub fn try_serve_by(
        &self,
        mut command: Command,
        name: &str,
        text: &str,
    ) -> Result<Serving, String> {
        let config = self.write(name, text);
        self.serve_settings(command.args(["serve", "--config"]).arg(config), name)
    }

    /// Runs `forebay serve --config NAME.toml` with this folder as the working directory.
    pub fn try_serve_by_relative_path(&self, name: &str, text: &str) -> Result<Serving, String> {
        self.write(name, text);
        let mut command = forebay();
        command.current_dir(self.folder.path());
        self.serve_settings(command.args(["serve", "--config"]).arg(format!("{name}.toml")), name)
    }

    fn serve_settings(&self, command: &mut Command, name: &str) -> Result<Serving, String> {
        let mut running = start(command)?;
        let stderr = running.stderr();
        // Take the last of several portals: a gateway's portals are printed after those of its node.
        let last = running.ready.split_whitespace().last().expect("an address");
        let address = last.parse().expect("an address");
        // Read the events of the process, so that it never blocks on a full pipe. They are printed if the test fails.
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                println!("{line}");
            }
        });
        Ok(Serving { running, address, control: self.path(&format!("{name}.sock")) })
    }
}

/// Starts a program and waits until it is ready. If it ends first, returns its exit status and its message.
pub fn start(command: &mut Command) -> Result<Running, String> {
    start_with(command, Stdio::piped())
}

/// Starts a program with the given stderr, and waits until the program is ready.
pub fn start_with(command: &mut Command, stderr: Stdio) -> Result<Running, String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
    let mut program = RunningProgram::start(command, Signal::KILL).expect("the binary runs");
    let mut line = String::new();
    let mut stdout = BufReader::new(program.stdout().expect("piped"));
    let mut running = Running { program, ready: String::new() };
    stdout.read_line(&mut line).expect("a line or the end");
    let Some(ready) = line.trim().strip_prefix("ready ") else {
        let mut text = String::new();
        if let Some(mut stderr) = running.program.stderr() {
            stderr.read_to_string(&mut text).expect("text");
        }
        let status = running.wait();
        return Err(format!("{status}: {text}"));
    };
    running.ready = ready.to_owned();
    Ok(running)
}

/// Maximum time that a program takes to end after it was asked to, also on a busy machine.
const END_LIMIT: Duration = Duration::from_secs(60);

/// A running program. Dropping this kills the program with its process group.
pub struct Running {
    pub program: RunningProgram,
    /// The line with which the program reports that it is ready, without the word `ready`.
    pub ready: String,
}

impl Running {
    /// Takes the stderr of the program, which is possible once.
    pub fn stderr(&mut self) -> ChildStderr {
        self.program.stderr().expect("piped, and not taken")
    }

    /// Waits for the program to end. Fails the test after [`END_LIMIT`].
    pub fn wait(&mut self) -> ExitStatus {
        self.program.ended(END_LIMIT).expect("a child").expect("it ends")
    }

    /// Sends a signal. After SIGSTOP, waits until all threads of the program are stopped.
    pub fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.program.id()).ok().and_then(Pid::from_raw).expect("an id");
        kill_process(id, signal).expect("it runs");
        let begun = Instant::now();
        // The threads of the process continue for a moment after SIGSTOP was sent.
        while signal == Signal::STOP && !self.is_stopped() {
            assert!(begun.elapsed() < Duration::from_secs(30), "it does not stop");
            std::thread::yield_now();
        }
    }

    /// Returns true if all threads of the program are stopped (proc(5): the state follows the name).
    fn is_stopped(&self) -> bool {
        let tasks =
            std::fs::read_dir(format!("/proc/{}/task", self.program.id())).expect("it runs");
        tasks.flatten().all(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
        })
    }
}

/// A running `forebay serve`. Dropping this kills the process.
pub struct Serving {
    running: Running,
    pub address: SocketAddr,
    pub control: PathBuf,
}

impl Serving {
    pub fn url(&self, target: &str) -> String {
        format!("iscsi://{}/{target}/0", self.address)
    }

    pub fn kill(&mut self) {
        self.running.program.kill();
        self.running.wait();
    }

    pub fn id(&self) -> u32 {
        self.running.program.id()
    }

    /// Sends SIGTERM. Returns the exit status, and the time that the process took to end.
    pub fn terminate(mut self) -> (ExitStatus, Duration) {
        let begun = Instant::now();
        self.signal(Signal::TERM);
        (self.running.wait(), begun.elapsed())
    }

    pub fn signal(&self, signal: Signal) {
        self.running.signal(signal);
    }

    /// Returns the status of this process, as printed by `forebay status --json`.
    pub fn status(&self) -> serde_json::Value {
        let output = forebay()
            .args(["status", "--json", "--control"])
            .arg(&self.control)
            .output()
            .expect("the binary runs");
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Returns a figure of the only unit of this process, from the layer with that name.
    pub fn figure(&self, layer: &str, name: &str) -> u64 {
        let status = self.status();
        let layers = status["targets"][0]["units"][0]["layers"].as_array().expect("layers").clone();
        let layer = layers.iter().find(|found| found["layer"] == layer).expect("the layer");
        layer["figures"][name].as_u64().unwrap_or_else(|| panic!("{name} in {layer}"))
    }
}

/// Polls a condition until it is true; the time limit is much longer than necessary.
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what} does not come");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Logs in to LUN 0 of the target.
pub async fn connect(address: SocketAddr, target: &str) -> Arc<RemoteVolume> {
    let mut settings = initiator::Settings::new(address.to_string(), target, 0);
    settings.give_up_after = Duration::from_secs(2);
    Arc::new(RemoteVolume::connect(settings).await.expect("a login"))
}

/// Returns 4 KiB of content that depends on block and version; version 0 is zeros.
pub fn content(block: u64, version: u64) -> Vec<u8> {
    let word =
        (block << 32 | version).wrapping_mul(if version == 0 { 0 } else { 0x9e37_79b9_7f4a_7c15 });
    word.to_le_bytes().repeat(512)
}

pub async fn write(volume: &dyn Volume, block: u64, version: u64) -> Result<(), volume::Error> {
    let data = Data::from(content(block, version));
    volume.write(Lba(block * 8), data, Durability::Volatile).await
}

pub async fn read(volume: &dyn Volume, block: u64) -> Result<Vec<u8>, volume::Error> {
    let extent = Extent { lba: Lba(block * 8), blocks: 8 };
    Ok(volume.read(extent).await?.into_bytes().to_vec())
}

/// Returns settings of a node that serves one file of 64 MiB.
pub fn node(folder: &Path, port: u16) -> String {
    format!(
        r#"
listen = ["127.0.0.1:{port}"]
[[target]]
name = "iqn.2026-11.test:node"
[[target.unit]]
stack = [ {{ file = {{ path = "{}", size = "64MiB" }} }} ]
"#,
        folder.join("node.img").display()
    )
}

/// Returns settings of a gateway over the node of `node`; `more` is added to its cache.
pub fn gateway(folder: &Path, node: SocketAddr, more: &str) -> String {
    format!(
        r#"
listen = ["127.0.0.1:0"]
[[target]]
name = "iqn.2026-11.test:gateway"
[[target.unit]]
[[target.unit.stack]]
remote = {{ url = "iscsi://{node}/iqn.2026-11.test:node/0", give_up_after = "2s" }}
[[target.unit.stack]]
[target.unit.stack.cache]
log = "{}"
log_size = "32MiB"
dram = "8MiB"
nvram_size = "1MiB"
{more}
"#,
        folder.join("gateway.log").display()
    )
}
