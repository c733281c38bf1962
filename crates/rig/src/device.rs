//! Runs `forebay attach`, which attaches a volume to this machine as a loop device.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use program::{LoggedProgram, WaitLimit};

use crate::node::READY_LIMIT;
use rustix::process::Signal;

/// Time limit of a detach, which first writes back the dirty data. The last writes of a test take seconds.
const DETACH_LIMIT: Duration = Duration::from_secs(120);

/// Returns the reason why volumes cannot be attached on this machine, or `None` if they can.
pub fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root may attach volumes".to_owned());
    }
    let opens = |path: &&&str| OpenOptions::new().read(true).write(true).open(path).is_err();
    let path = ["/dev/fuse", "/dev/loop-control"].iter().find(opens)?;
    Some(format!("cannot open {path}"))
}

/// A volume that is attached as a block device. Dropping this kills the process of `forebay attach`.
pub struct AttachedTestDevice {
    process: LoggedProgram,
    program: PathBuf,
    path: String,
}

impl AttachedTestDevice {
    /// Runs `forebay attach` with these arguments. Log events are written to a file in `folder`.
    pub fn attach(program: &Path, folder: &Path, arguments: &[&str]) -> Result<AttachedTestDevice> {
        let events = folder.join("attach.events");
        let mut command = Command::new(program);
        command.arg("attach").args(arguments).stdin(Stdio::null());
        let name = "forebay attach";
        let mut process = LoggedProgram::start(name, &mut command, &events, Signal::KILL)?;
        let ready = process.line(WaitLimit::of(READY_LIMIT)).with_context(|| {
            let events = fs::read_to_string(&events).unwrap_or_default();
            format!(
                "the volume was not attached; the events of forebay attach:\n{}",
                events.trim_end()
            )
        })?;
        let path = ready.strip_prefix("ready ").with_context(|| format!("'{ready}'"))?.to_owned();
        Ok(AttachedTestDevice { process, program: program.to_owned(), path })
    }

    /// The path of the loop device: `/dev/loopN`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The process id of `forebay attach`.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Kills the process of `forebay attach` (SIGKILL), and waits until it has ended.
    pub fn kill(&mut self) -> Result<()> {
        Ok(self.process.kill(DETACH_LIMIT)?)
    }

    /// Detaches the volume after all data is written.
    pub fn detach(mut self) -> Result<()> {
        let mut command = Command::new(&self.program);
        let finished = program::run(command.args(["detach", &self.path]), DETACH_LIMIT)?;
        ensure!(finished.success(), "forebay detach {}: {}", finished.ending(), finished.tail(5));
        let ended = self.process.ended(DETACH_LIMIT)?;
        ensure!(
            ended.is_some_and(|status| status.success()),
            "forebay attach ended with {ended:?}"
        );
        Ok(())
    }
}
