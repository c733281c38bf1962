//! Programs we start: with a time limit, with their output kept, and ended by their own id only.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

/// What a program left behind.
pub struct XtaskProgramResult {
    /// Its exit status, or nothing if it ran past its time and was killed.
    pub status: Option<ExitStatus>,
    /// What it wrote to both streams, in the order it wrote it.
    pub output: String,
}

impl XtaskProgramResult {
    /// It ended by itself, in time, with exit code 0.
    pub fn success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// Its exit code, if it ended by itself.
    pub fn code(&self) -> Option<i32> {
        self.status.and_then(|status| status.code())
    }

    /// How it ended, in words.
    pub fn ending(&self) -> String {
        match self.status {
            None => "ran past its time".to_owned(),
            Some(status) => status.to_string(),
        }
    }

    /// The last lines of its output, for a report.
    pub fn tail(&self, lines: usize) -> String {
        let all: Vec<&str> = self.output.trim_end().lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

/// Runs a program to its end, at most `limit` long.
pub fn run(command: &mut Command, limit: Duration) -> Result<XtaskProgramResult> {
    let mut output = tempfile::tempfile()?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
    let mut running = KillOnDropChild::start(command)?;
    let status = running.wait(limit)?;
    drop(running);
    Ok(XtaskProgramResult { status, output: contents(&mut output)? })
}

/// A program that runs. It is killed when this is dropped.
pub struct KillOnDropChild {
    child: Child,
}

impl KillOnDropChild {
    /// Starts a program that does not outlive us, even when we are killed.
    pub fn start(command: &mut Command) -> Result<KillOnDropChild> {
        // SAFETY: between fork and exec only one system call is made, which is async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                Ok(())
            });
        }
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        Ok(KillOnDropChild { child })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The child itself, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Waits for its end, at most `limit` long; nothing if it still runs then.
    pub fn wait(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(Some(status));
        }
        let deadline = Instant::now() + limit;
        let pid = self.pid();
        let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left)?;
            let mut polled = [PollFd::new(&handle, PollFlags::IN)];
            match rustix::event::poll(&mut polled, Some(&timeout)) {
                Ok(0) => return Ok(None),
                Ok(_) => return Ok(self.child.try_wait()?),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(rustix::process::kill_process(self.pid(), signal)?)
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    pub fn kill(&mut self) -> Result<()> {
        // A child that has been waited for has no id any more; std knows that.
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for KillOnDropChild {
    fn drop(&mut self) {
        // It may have ended by itself: then there is nothing to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All that was written to a file so far.
pub fn contents(file: &mut File) -> Result<String> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Where a program of this name is, looked up in PATH and in the folders of system programs.
pub fn find(program: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].into_iter().map(std::path::PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|dir| dir.join(program)).find(|p| p.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_past_its_time_is_killed() {
        let finished = run(Command::new("sleep").arg("60"), Duration::from_millis(20)).unwrap();
        assert!(finished.status.is_none() && !finished.success());
        assert_eq!(finished.ending(), "ran past its time");
    }

    #[test]
    fn output_and_exit_code_are_kept() {
        let script = "echo one; echo two >&2; exit 3";
        let finished =
            run(Command::new("sh").args(["-c", script]), Duration::from_secs(10)).unwrap();
        assert_eq!((finished.code(), finished.output.as_str()), (Some(3), "one\ntwo\n"));
        assert_eq!(finished.tail(1), "two");
    }

    #[test]
    fn a_dropped_program_is_gone() {
        let running = KillOnDropChild::start(Command::new("sleep").arg("60")).unwrap();
        let pid = running.pid();
        drop(running);
        assert!(rustix::process::test_kill_process(pid).is_err());
    }
}
