//! `--background`: starts a second process of this program, which serves the device after this one has returned.

use std::{
    fs::OpenOptions,
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    process::{Command, Stdio},
};

use control::Failure;

use crate::{events, output::print};

/// Starts the background process, and waits until the device exists or the process has failed.
pub fn start() -> Result<(), Failure> {
    let cannot = |error: std::io::Error| {
        Failure::new(format!("cannot start in the background: {error}")).remedy(
            "raise the limit of processes (`ulimit -u`, TasksMax= of systemd), or free \
             memory",
        )
    };
    let mut command = Command::new("/proc/self/exe");
    command.args(std::env::args_os().skip(1)).arg("--in-background");
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    // SAFETY: between fork and exec only setsid is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            // Start a new session, so that closing the terminal does not end the process (SIGHUP).
            rustix::process::setsid()?;
            Ok(())
        });
    }
    let mut child = command.spawn().map_err(cannot)?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).map_err(cannot)?;
    }
    if line.is_empty() {
        // The background process has failed, and has printed the reason on the terminal itself: return only its exit
        // code.
        let status = child.wait().map_err(cannot)?;
        std::process::exit(status.code().unwrap_or(1));
    }
    print(line)
}

/// Redirects stdout and stderr to /dev/null. This frees the terminal, and a program that reads our output gets end of
/// file.
pub fn leave() -> Result<(), Failure> {
    // Events that are still queued belong to the terminal: write them before stderr is redirected.
    events::flush();
    let nowhere =
        OpenOptions::new().read(true).write(true).open("/dev/null").map_err(Failure::new)?;
    rustix::stdio::dup2_stdout(&nowhere).map_err(Failure::new)?;
    rustix::stdio::dup2_stderr(&nowhere).map_err(Failure::new)
}
