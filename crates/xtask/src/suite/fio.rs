//! fio: every block that it writes has a checksum and its place in it, and it reads them back.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// Some hundred megabytes, one request at a time without direct I/O.
const LIMIT: Duration = Duration::from_secs(300);

/// Random writes, checked as the arguments say.
pub fn run(arguments: &[&str]) -> Result<()> {
    let finished = program::run(command(arguments)?.arg("--output-format=terse"), LIMIT)?;
    ensure!(
        finished.success(),
        "fio {} {}:\n{}",
        arguments.join(" "),
        finished.ending(),
        finished.tail(12)
    );
    Ok(())
}

/// The same, to be started.
pub fn command(arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(tool("fio")?);
    // fio begins a job with its name: what stands before that is of another job.
    let is_name = |argument: &&&str| argument.starts_with("--name");
    command.arg(arguments.iter().find(is_name).unwrap_or(&"--name=verify"));
    command.args(["--rw=randwrite", "--verify=crc32c", "--verify_fatal=1"]);
    command.args(["--verify_state_save=0", "--randrepeat=1", "--thread"]);
    command.args(arguments.iter().filter(|argument| !is_name(argument)));
    Ok(command)
}

/// Where a foreign program is.
pub fn tool(name: &str) -> Result<PathBuf> {
    program::find(name).with_context(|| format!("there is no {name}"))
}
