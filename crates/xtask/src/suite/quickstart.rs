//! The README's first command, as a reader runs it: it must end well.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::steps::StepTally;

/// Four times what it takes on a quiet machine.
const LIMIT: Duration = Duration::from_secs(150);

/// Runs it to its end, in a folder of its own.
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
