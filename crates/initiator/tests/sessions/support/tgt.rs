//! A tgtd of our own, with one target and one unit on a file.

use std::{
    fs::File,
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// Size of the unit in blocks of 512 bytes: 16 MiB.
pub const BLOCKS: u64 = 32768;

/// A running tgtd; killed when dropped (it ignores SIGTERM while it has targets).
pub struct Tgt {
    directory: TempDir,
    /// tgt's number for its control socket, unique on this machine while it runs.
    control: u32,
    port: u16,
    process: Child,
}

impl Tgt {
    /// `None` if interoperation is to be left out.
    pub fn start() -> Option<Self> {
        if std::env::var_os("FOREBAY_NO_INTEROP").is_some_and(|value| value == "1") {
            eprintln!("left out: FOREBAY_NO_INTEROP=1");
            return None;
        }
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = File::create(directory.path().join("unit")).expect("a file for the unit");
        file.set_len(BLOCKS * 512).expect("its size");
        let port = free_port();
        let control = free_control();
        let process = spawn(control, port);
        let mut tgt = Self { directory, control, port, process };
        tgt.configure();
        Some(tgt)
    }

    /// From now on tgt uses digests if asked to; as it starts it does not.
    pub fn allow_digests(&self) {
        for name in ["HeaderDigest", "DataDigest"] {
            let update = ["--mode", "target", "--op", "update", "--tid", "1"];
            self.admin(&[&update[..], &["--name", name, "--value", "CRC32C,None"]].concat());
        }
    }

    pub fn portal(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn name(&self) -> &'static str {
        "iqn.2026-11.io.forebay.test:tgt"
    }

    /// As a power failure of the process: nothing is said to anybody.
    pub fn kill(&mut self) {
        self.process.kill().expect("kill");
        self.process.wait().expect("wait");
    }

    /// The same unit on the same port.
    pub fn start_again(&mut self) {
        self.process = spawn(self.control, self.port);
        self.configure();
    }

    fn configure(&mut self) {
        let unit = self.unit().display().to_string();
        // The unit comes last but for who may see it, so that nobody meets a target without it.
        let target = ["--mode", "target", "--op", "new", "--tid", "1", "-T", self.name()];
        self.admin_until_it_listens(&target);
        let logical_unit = ["--mode", "logicalunit", "--op", "new", "--tid", "1", "--lun", "1"];
        self.admin(&[&logical_unit[..], &["--backing-store", unit.as_str()]].concat());
        self.admin(&["--mode", "target", "--op", "bind", "--tid", "1", "-I", "ALL"]);
    }

    fn unit(&self) -> PathBuf {
        self.directory.path().join("unit")
    }

    /// tgtd opens its control socket a moment after it starts, and says so nowhere.
    fn admin_until_it_listens(&mut self, arguments: &[&str]) {
        let begun = Instant::now();
        while !self.try_admin(arguments) {
            assert!(begun.elapsed() < Duration::from_secs(10), "tgtd does not answer tgtadm");
            assert!(self.process.try_wait().expect("wait").is_none(), "tgtd ended");
            std::thread::yield_now();
        }
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(10), "tgtd does not listen");
            std::thread::yield_now();
        }
    }

    fn admin(&self, arguments: &[&str]) {
        assert!(self.try_admin(arguments), "tgtadm {arguments:?} failed");
    }

    fn try_admin(&self, arguments: &[&str]) -> bool {
        Command::new("tgtadm")
            .args(["-C", &self.control.to_string(), "--lld", "iscsi"])
            .args(arguments)
            .stderr(Stdio::null())
            .status()
            .expect("tgtadm runs (Debian package tgt; FOREBAY_NO_INTEROP=1 leaves this out)")
            .success()
    }
}

impl Drop for Tgt {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn spawn(control: u32, port: u16) -> Child {
    Command::new("tgtd")
        .args(["-f", "-C", &control.to_string()])
        .args(["--iscsi", &format!("portal=127.0.0.1:{port}")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("tgtd runs (Debian package tgt; FOREBAY_NO_INTEROP=1 leaves this out)")
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    listener.local_addr().expect("bound").port()
}

/// tgt's numbers end at 32767; the process id keeps test programs apart, the counter tests.
fn free_control() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    1 + (std::process::id() * 16 + next) % 32000
}
