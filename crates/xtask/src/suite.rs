//! `cargo xtask test`: everything that shows whether the house holds, as named steps.

pub mod units;
pub mod pages;
pub mod conformance;
pub mod tools;
pub mod pass;
pub mod transfers;
pub mod site;
pub mod kill;
pub mod counter;
pub mod cut;
pub mod trace;
pub mod power;
pub mod quickstart;
pub mod under_load;
pub mod interop;
pub mod fio;
pub mod attach;
pub mod pair;

use std::time::Duration;

use rig::build;

use crate::check;
use crate::packages;
use crate::steps::{StepTally, Steps};

/// What a run is asked for.
pub struct SuiteOptions {
    /// Foreign tools are used, and installed where that is possible.
    pub interop: bool,
    /// Only steps whose name contains this word.
    pub filter: Option<String>,
    /// How many points the crash simulator tries; its own number if not said.
    pub crash_points: Option<u64>,
    /// How long gateways that share a volume are killed and watched; their test's own time if not said.
    pub coherence_minutes: Option<u64>,
    /// Rounds of "write data, write a counter elsewhere, kill -9".
    pub counter_rounds: u32,
    /// Rounds of `kill -9` under load in each mode; 0 leaves them out.
    pub kill_rounds: u32,
    /// Power cuts of each mode; 0 leaves them out.
    pub power_cuts: u32,
    /// How long the link is cut.
    pub cut: Duration,
    /// How often a unit changes hands while fio writes to it.
    pub pair_rounds: u32,
}

/// Runs every step that is wanted; true if all held.
pub fn test(wanted: SuiteOptions) -> bool {
    let with_interop = wanted.interop;
    let mut steps = Steps::new(wanted.filter.clone());
    // First, since the tests of some crates use these tools too.
    let mut tools = with_interop;
    if with_interop {
        steps.run_always("interop: packages", || {
            tools = false;
            let note = packages::provide()?;
            tools = true;
            Ok(StepTally::one().with_note(note))
        });
    }
    check::check(&mut steps);
    let SuiteOptions { crash_points, coherence_minutes, counter_rounds, kill_rounds, .. } = wanted;
    let SuiteOptions { power_cuts, cut, pair_rounds, .. } = wanted;
    let mut compiling = steps.wanted(UNITS).then(units::Compiling::begin);
    // Build also for a filter that names only a later step: it would test an out-of-date binary unnoticed.
    steps.run_before_next("build: release", || build::build().map(|_| StepTally::one()));
    match build::binary() {
        Ok(program) => {
            steps.run("pages: commands they show", || pages::check(&program));
            steps.run("transfers: every way, every size", || transfers::check(&program));
            // The steps after this one wait for destage within a minute. Beside the compiler, which keeps all processors
            // busy, they waited in vain.
            if let Some(compiling) = compiling.take() {
                steps.run_always("build: tests", || compiling?.end().map(|()| StepTally::one()));
            }
            for report in ["after-complete", "immediate"] {
                let name = format!("kill -9 behind a line, report {report}");
                steps.run(&name, || kill::rounds(&program, report));
            }
            steps.run("kill -9 rounds, data first and then a counter", || {
                counter::rounds(&program, counter_rounds)
            });
            power::steps(&mut steps, &program, kill_rounds, power_cuts);
            steps.run("the link is cut", || cut::check(&program, cut));
            steps.run("EMC-tel-like trace, verified", || trace::check(&program));
            steps.run("quickstart", || quickstart::check(&program));
            if tools {
                interop::steps(&mut steps, &program);
                attach::steps(&mut steps, &program);
                pair::steps(&mut steps, &program, pair_rounds);
            } else if with_interop {
                steps
                    .leave_out("interop with libiscsi, QEMU, tgt and fio: their tools are missing");
            }
        }
        Err(error) => steps.run("program", || Err(error)),
    }
    steps.forget_before_next();
    drop(compiling);
    steps.run(UNITS, || units::run(tools, crash_points, coherence_minutes));
    if !with_interop {
        steps.leave_out("interop with libiscsi, QEMU, tgt and fio (--no-interop)");
    }
    steps.finish()
}

/// The tests of every crate.
const UNITS: &str = "units, machines, properties, crash simulator";
