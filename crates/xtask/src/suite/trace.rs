//! Replays the EMC-tel-like trace, and measures each part of `cargo xtask bench object` once at a small scale, in a
//! step of its own. The step runs those tests of crate `bench` that are marked as ignored, because they need the
//! program `forebay`, and no other step may run at the same time.

use std::path::Path;
use std::time::Duration;

use crate::side_steps::{SideStep, SideStepResult, StepNeed};
use crate::suite::units::{self, TestBinary};

pub const NAME: &str = "EMC-tel-like trace, verified";

/// Time limit of these tests, which normally take some ten seconds.
const LIMIT: Duration = Duration::from_secs(300);

/// Replays a part of the trace on each kind of server. At the end each server must hold the data
/// that the trace has written.
pub fn step(program: &Path, tests_of_bench: &TestBinary) -> SideStep {
    let mut command = tests_of_bench.command();
    command.args(["--ignored", "--test-threads=1"]).env("FOREBAY_PROGRAM", program);
    let run = move || {
        let SideStepResult { tally, output } = units::run(command, LIMIT);
        let tally = tally.map(|tally| tally.with_note("2000 requests each, content verified"));
        SideStepResult { tally, output }
    };
    SideStep::new(NAME, run).needs(StepNeed::MACHINE)
}
