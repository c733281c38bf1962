//! Runs fio. fio writes a checksum and the block's offset into every block, and checks both when it
//! reads the block.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// Time limit of a run: some hundred megabytes, one request at a time, without direct I/O.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs fio with random writes and with these further options, which also determine when fio verifies the written
/// blocks.
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

pub fn command(arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(tool("fio")?);
    // An option `--name` begins a job. Options of this job must follow its name; options before it
    // would belong to the previous job.
    let is_name = |argument: &&&str| argument.starts_with("--name");
    command.arg(arguments.iter().find(is_name).unwrap_or(&"--name=verify"));
    command.args(["--rw=randwrite", "--verify=crc32c", "--verify_fatal=1"]);
    command.args(["--verify_state_save=0", "--randrepeat=1", "--thread"]);
    command.args(arguments.iter().filter(|argument| !is_name(argument)));
    Ok(command)
}

/// Returns the path of a foreign program in PATH. Fails if it is not installed.
pub fn tool(name: &str) -> Result<PathBuf> {
    program::find(name).with_context(|| format!("there is no {name}"))
}
