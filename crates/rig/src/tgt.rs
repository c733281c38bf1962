//! The iSCSI target tgt of Debian with its default settings, to compare Forebay with.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use program::{Error, LoggedProgram, WaitLimit, find};
use rustix::process::Signal;

use crate::machine;

/// Time limit of a tgtadm command, which a working daemon answers much earlier.
const LIMIT: Duration = Duration::from_secs(10);
/// The pause between two attempts to connect to a daemon that starts.
const LOOK: Duration = Duration::from_millis(20);

/// The name of the target of a [`ReferenceTgtd`].
pub const NAME: &str = "iqn.2026-11.forebay.peer:tgt";

/// The LUN of the unit. tgt reserves LUN 0 for a controller.
pub const LUN: u8 = 1;

/// The settings of a tgtd with one target and one unit.
#[derive(Clone, Copy, Debug)]
pub struct TgtPlan<'a> {
    pub portal: &'a str,
    /// Distinguishes the daemons of one process, 0 to 15. The control channel of a daemon is derived from this number.
    pub number: u8,
    pub target: &'a str,
    /// The file with the data of the unit. A file that exists keeps its data and gets the size of
    /// the unit.
    pub backing: &'a Path,
    /// The size of the unit in bytes.
    pub bytes: u64,
    /// File for the output of the daemon and of tgtadm.
    pub events: &'a Path,
}

/// A running tgtd with one unit. It ignores SIGTERM while it has targets, therefore dropping it
/// kills it.
pub struct TgtServer {
    process: LoggedProgram,
    url: String,
    tool: PathBuf,
    /// Number of the control channel by which tgtadm reaches this daemon.
    control: String,
}

impl TgtServer {
    /// Starts the daemon and waits until it serves the unit. `prepare` is called for each program
    /// before its start, to set its namespace or its CPU.
    ///
    /// # Errors
    /// [`Error::Failed`] if tgt is not installed or refuses a command, [`Error::Late`],
    /// [`Error::Stopped`] or [`Error::System`].
    pub fn start(
        plan: &TgtPlan<'_>,
        prepare: &dyn Fn(&mut Command) -> io::Result<()>,
        wait: WaitLimit<'_>,
    ) -> Result<TgtServer, Error> {
        let [daemon, tool] = [tool("tgtd")?, tool("tgtadm")?];
        let backing = plan.backing.display().to_string();
        let file = || File::options().write(true).create(true).truncate(false).open(plan.backing);
        let make = || file()?.set_len(plan.bytes);
        make().map_err(Error::system(format!("make {backing}")))?;
        // The number of the control channel is at most 32767, and must differ from that of any
        // other tgtd on the machine. The process id distinguishes programs, `plan.number` the
        // daemons of one program.
        let control = 1 + (std::process::id() * 16 + u32::from(plan.number)) % 32_000;
        let control = control.to_string();
        let start = |name: &str, command: &mut Command| {
            prepare(command).map_err(Error::system(format!("start {name}")))?;
            LoggedProgram::start(name, command.stdin(Stdio::null()), plan.events, Signal::KILL)
        };
        let portal = plan.portal;
        let mut command = Command::new(daemon);
        command.args(["-f", "-C", &control, "--iscsi", &format!("portal={portal}")]);
        let process = start("tgtd", &mut command)?;
        let admin = |arguments: &[&str]| {
            let mut command = admin_command(&tool, &control);
            start("tgtadm", command.arg("--mode").args(arguments))?.finish(wait)
        };
        let deadline = Instant::now() + wait.limit;
        while let Err(error) = admin(&["system", "--op", "show"]) {
            if matches!(error, Error::Stopped) || Instant::now() > deadline {
                return Err(error);
            }
            std::thread::sleep(LOOK);
        }
        // Bind the target to initiators last, so that none finds it without its unit.
        let lun = LUN.to_string();
        admin(&["target", "--op", "new", "--tid", "1", "-T", plan.target])?;
        admin(&["logicalunit", "--op", "new", "--tid", "1", "--lun", &lun, "-b", &backing])?;
        admin(&["target", "--op", "bind", "--tid", "1", "-I", "ALL"])?;
        let url = format!("iscsi://{portal}/{}/{lun}", plan.target);
        Ok(TgtServer { process, url, tool, control })
    }

    /// Returns a command that runs tgtadm, the control tool, for this daemon. The caller adds its arguments.
    pub fn admin(&self) -> Command {
        admin_command(&self.tool, &self.control)
    }

    /// Kills the daemon (SIGKILL) and waits until it has ended.
    ///
    /// # Errors
    /// [`Error::Late`] or [`Error::System`].
    pub fn kill(&mut self) -> Result<(), Error> {
        self.process.kill(LIMIT)
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    pub fn url(&self) -> &str {
        &self.url
    }
}

fn admin_command(tool: &Path, control: &str) -> Command {
    let mut command = Command::new(tool);
    command.args(["-C", control, "--lld", "iscsi"]);
    command
}

fn tool(name: &str) -> Result<PathBuf, Error> {
    find(name).ok_or_else(|| {
        let what = "is not installed (Debian's package tgt)".to_owned();
        Error::Failed { name: name.to_owned(), what, said: String::new() }
    })
}

/// A tgtd that runs on the CPU [`machine::SERVER_CPU`] and keeps its unit in memory.
pub struct ReferenceTgtd {
    server: TgtServer,
    portal: SocketAddr,
    /// The folder for the unit's file. Dropping this deletes it.
    _folder: tempfile::TempDir,
}

impl ReferenceTgtd {
    /// Starts the daemon with a unit of `bytes` bytes, on a free port of the loopback interface.
    pub fn start(bytes: u64) -> anyhow::Result<ReferenceTgtd> {
        let portal = free_port()?;
        let folder = tempfile::Builder::new().prefix("forebay-tgt").tempdir_in(memory_folder())?;
        let plan = TgtPlan {
            portal: &portal.to_string(),
            number: 0,
            target: NAME,
            backing: &folder.path().join("unit"),
            bytes,
            events: &folder.path().join("events"),
        };
        let pinned = |command: &mut Command| {
            machine::pinned(command, machine::SERVER_CPU);
            Ok(())
        };
        let server = TgtServer::start(&plan, &pinned, WaitLimit::of(LIMIT))?;
        Ok(ReferenceTgtd { server, portal, _folder: folder })
    }

    pub fn id(&self) -> u32 {
        self.server.id()
    }

    pub fn portal(&self) -> SocketAddr {
        self.portal
    }
}

/// Returns a folder whose files are in memory, or the folder for temporary files if there is none.
pub fn memory_folder() -> PathBuf {
    let shared = PathBuf::from("/dev/shm");
    if shared.is_dir() { shared } else { std::env::temp_dir() }
}

/// Returns a port of the loopback interface that is unused now, for programs that cannot choose one
/// themselves.
pub fn free_port() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}
