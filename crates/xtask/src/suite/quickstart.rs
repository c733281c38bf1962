//! Runs the first command of the README as a new user would; it must succeed.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::steps::StepTally;

/// Time limit: four times as long as the command takes on an idle machine.
const LIMIT: Duration = Duration::from_secs(150);

/// Runs `forebay quickstart` in a folder of its own, and checks its results.
pub fn check(program: &Path) -> Result<StepTally> {
    let folder = tempfile::tempdir()?;
    let begun = Instant::now();
    let mut command = Command::new(program);
    command.arg("quickstart").current_dir(folder.path()).env("TMPDIR", folder.path());
    let finished = program::run(&mut command, LIMIT)?;
    ensure!(
        finished.success(),
        "after {:.0?} it {}:\n{}",
        begun.elapsed(),
        finished.ending(),
        finished.tail(20)
    );
    Ok(StepTally::one().with_note(format!("{:.0} s", begun.elapsed().as_secs_f64())))
}
