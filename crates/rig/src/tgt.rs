//! A peer: Debian's tgt with a backing file in memory, its settings untouched.

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use program::RunningProgram;

use crate::machine;

/// The daemon answers its control tool within this time, or it is broken.
const LIMIT: Duration = Duration::from_secs(10);

/// The name of the target.
pub const NAME: &str = "iqn.2026-11.forebay.peer:tgt";

/// The number of its unit: tgt keeps LUN 0 for itself.
pub const LUN: u8 = 1;

/// A running tgtd with one unit. It ignores SIGTERM while it has targets, so dropping it kills it.
pub struct ReferenceTgtd {
    running: RunningProgram,
    portal: SocketAddr,
    /// Removed with us.
    _folder: tempfile::TempDir,
}

impl ReferenceTgtd {
    /// Starts it with a unit of so many bytes, LUN 1 (tgt keeps 0 for itself), on the CPU of servers.
    pub fn start(bytes: u64) -> Result<ReferenceTgtd> {
        let daemon = program::find("tgtd").context("tgtd is not installed (Debian package tgt)")?;
        let portal = free_port()?;
        // Its control channel is numbered; ours must not meet that of a tgtd somebody else runs.
        let control = (1000 + std::process::id() % 30_000).to_string();
        let folder = tempfile::Builder::new().prefix("forebay-tgt").tempdir_in(memory_folder())?;
        let backing = folder.path().join("unit");
        File::create(&backing)?.set_len(bytes)?;
        let portal_option = format!("portal={portal}");
        let mut command = Command::new(daemon);
        command.args(["-f", "-C", &control, "--iscsi", &portal_option]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let running = program::start(machine::pinned(&mut command, machine::SERVER_CPU))?;
        let tgt = ReferenceTgtd { running, portal, _folder: folder };
        let deadline = Instant::now() + LIMIT;
        while admin(&control, &["--mode", "system", "--op", "show"]).is_err() {
            ensure!(Instant::now() < deadline, "tgtd does not answer");
        }
        admin(&control, &["--mode", "target", "--op", "new", "--tid", "1", "-T", NAME])?;
        let backing = backing.display().to_string();
        let unit =
            ["--mode", "logicalunit", "--op", "new", "--tid", "1", "--lun", "1", "-b", &backing];
        admin(&control, &unit)?;
        admin(&control, &["--mode", "target", "--op", "bind", "--tid", "1", "-I", "ALL"])?;
        Ok(tgt)
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.running.id()
    }

    /// The portal of its target.
    pub fn portal(&self) -> SocketAddr {
        self.portal
    }
}

fn admin(control: &str, arguments: &[&str]) -> Result<()> {
    let tool = program::find("tgtadm").context("tgtadm is not installed (Debian package tgt)")?;
    let mut command = Command::new(tool);
    command.args(["-C", control, "--lld", "iscsi"]).args(arguments);
    let finished = program::run(&mut command, LIMIT)?;
    if !finished.success() {
        bail!("tgtadm {}: {}", arguments.join(" "), finished.tail(3));
    }
    Ok(())
}

/// A folder whose files are in memory.
pub fn memory_folder() -> PathBuf {
    let shared = PathBuf::from("/dev/shm");
    if shared.is_dir() { shared } else { std::env::temp_dir() }
}

/// A port of the loopback interface that nobody uses now, for programs that cannot choose one themselves.
pub fn free_port() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
