//! The EMC-tel-like trace on the release build. The tests of the crate `bench` replay it; they are ignored in other runs,
//! since they need the release build and nothing beside them.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::check::root;
use crate::steps::StepTally;
use crate::suite::units;

/// Compiling, if nothing has compiled the tests before, and the tests themselves, which take some ten seconds.
const LIMIT: Duration = Duration::from_secs(1500);

/// Replays a piece of the trace on each server of the line-up and counts those that hold its content.
pub fn check(program: &Path) -> Result<StepTally> {
    let mut command = Command::new("cargo");
    // The whole workspace is named so that cargo uses the tests that it has compiled for the step of the unit tests.
    command.args(["test", "--quiet", "--workspace", "--bin", "bench"]);
    command.args(["--", "--ignored", "--test-threads=1"]);
    let finished =
        program::run(command.current_dir(root()).env("FOREBAY_PROGRAM", program), LIMIT)?;
    let mut tally = StepTally::default();
    for line in finished.output.lines() {
        units::count(line, &mut tally);
    }
    if !finished.success() {
        println!("{}", finished.tail(60));
    }
    ensure!(finished.success() || tally.failed > 0, "cargo test: {}", finished.ending());
    Ok(tally.with_note("2000 requests each, content verified"))
}
