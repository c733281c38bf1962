//! Replays the EMC-tel-like trace in a step of its own. The tests of crate `bench` do it. They are
//! ignored in other runs, since they need the program, and no other step may run at the same time.

use std::path::Path;
use std::time::Duration;

use crate::side_steps::{SideStep, SideStepResult, StepNeed};
use crate::suite::units::{self, TestBinary};

pub const NAME: &str = "EMC-tel-like trace, verified";

/// Time limit. The tests take some ten seconds.
const LIMIT: Duration = Duration::from_secs(300);

/// Replays a part of the trace on each server of the line-up. Each server must hold the right
/// content at the end.
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
