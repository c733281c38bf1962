//! `cargo xtask test`: all tests of the project, as named steps.

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

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use rig::build;

use crate::check;
use crate::message_rules;
use crate::packages;
use crate::side_steps::{SideStep, StepNeed};
use crate::step_list::StepList;
use crate::steps::{StepTally, Steps};
use units::{CompiledTests, UnitOptions};

pub struct SuiteOptions {
    /// Run the steps that need foreign tools; missing tools are installed where that is possible.
    pub interop: bool,
    /// Run the steps with the release build of the program instead of the build in the profile of
    /// the tests.
    pub release: bool,
    /// Run only the steps whose name contains this text; `None` for all steps.
    pub filter: Option<String>,
    /// Number of points that the crash simulator tries; None leaves it at the simulator's default.
    pub crash_points: Option<u64>,
    /// Number of points that the crash simulator of object drives tries; None leaves it at the simulator's default.
    pub drive_crash_points: Option<u64>,
    /// Minutes for which the coherence test kills gateways that share a volume; None leaves it at
    /// the test's default.
    pub coherence_minutes: Option<u64>,
    /// Number of rounds in which data and then a counter are written, and gateway and node are
    /// killed.
    pub counter_rounds: u32,
    /// Number of rounds of `kill -9` under load in each mode; 0 leaves the step out.
    pub kill_rounds: u32,
    /// Number of power cuts in each mode; 0 leaves the step out.
    pub power_cuts: u32,
    /// Time for which the link between gateway and node is cut.
    pub cut: Duration,
    /// Number of times that a unit moves to the other gateway while fio writes to it.
    pub pair_rounds: u32,
}

/// The step that makes sure that the foreign tools are installed.
const PACKAGES: &str = "interop: packages";

/// Name of the step that compiles the tests, and the program in the same profile.
const BUILD: &str = "build: tests";

/// Environment variable with the seconds that compiling xtask has taken. `.ci/run` sets it.
const BUILD_SECONDS: &str = "XTASK_BUILD_SECONDS";

/// Number of places for concurrent steps per processor. It is more than one, since most steps wait
/// more than they compute.
const PLACES_PER_PROCESSOR: usize = 2;

/// Runs every step that `wanted` selects. Steps may run in processes of their own: this program, started with
/// `arguments`, the name of a step and a file for the result, runs only that step. Returns true if no case failed.
pub fn test(wanted: &SuiteOptions, arguments: &[OsString]) -> bool {
    let mut steps = Steps::new(wanted.filter.clone());
    if let Some(seconds) = std::env::var(BUILD_SECONDS).ok().and_then(|text| text.parse().ok()) {
        steps.add_earlier("build: xtask", Duration::from_secs(seconds));
    }
    let processors = std::thread::available_parallelism().map_or(2, |number| number.get());
    let places = PLACES_PER_PROCESSOR * processors;
    // Install the packages first, since the tests of some crates use the foreign tools, too.
    let tools = wanted.interop && steps.run_always(PACKAGES, provide_packages);
    let mut checks = StepList::default();
    check::steps(&mut checks);
    message_rules::steps(&mut checks);
    let checks = checks.beside(&mut steps, arguments);
    steps.run_side_by_side(places, longest_first(checks));
    let mut list = StepList::default();
    program_steps(&mut list, Path::new(""), wanted, tools);
    let names: Vec<String> = list.names().map(str::to_owned).collect();
    let with_units = steps.may_want(units::UNITS) || steps.wanted(trace::NAME);
    let is_single = !with_units && names.iter().filter(|name| steps.wanted(name)).count() == 1;
    if with_units || names.iter().any(|name| steps.wanted(name)) {
        match build(&mut steps, wanted, with_units) {
            Some((_, program)) if is_single => {
                // If only one step is wanted, run it in this process, so that a long step shows its
                // progress.
                let mut list = StepList::default();
                program_steps(&mut list, &program, wanted, tools);
                list.run_here(&mut steps);
            }
            Some((compiled, program)) => {
                let mut arguments = arguments.to_vec();
                arguments.extend(["--program".into(), program.clone().into()]);
                let mut all = list.beside(&mut steps, &arguments);
                all.extend(test_steps(&compiled, &program, wanted, tools));
                steps.run_side_by_side(places, longest_first(all));
            }
            None => steps.fail_all(BUILD, names.iter().map(String::as_str)),
        }
    }
    if !wanted.interop {
        steps.leave_out("interop with libiscsi, QEMU, tgt and fio (--no-interop)");
    }
    steps.finish()
}

/// Runs one step of [`test`] in this process and writes its result to a file.
pub fn run_step(
    wanted: &SuiteOptions,
    program: Option<&Path>,
    name: &str,
    result: &Path,
) -> Result<()> {
    let mut list = StepList::default();
    check::steps(&mut list);
    message_rules::steps(&mut list);
    // The caller requests a step only if the tools for it are installed.
    program_steps(&mut list, program.unwrap_or(Path::new("")), wanted, true);
    list.run_for_another(name, result)
}

fn provide_packages() -> Result<StepTally> {
    Ok(StepTally::one().with_note(packages::provide()?))
}

/// Compiles the tests and the program that the steps run. Returns None if that failed.
fn build(
    steps: &mut Steps,
    wanted: &SuiteOptions,
    with_units: bool,
) -> Option<(CompiledTests, PathBuf)> {
    let mut built = None;
    steps.run_always(BUILD, || {
        let compiled = units::compile(with_units)?;
        let program = compiled.program.clone().context("cargo names no program forebay")?;
        built = Some((compiled, program));
        Ok(StepTally::one())
    });
    if wanted.release {
        let (_, program) = built.as_mut()?;
        let is_built = steps.run_always("build: release", || {
            *program = build::build()?;
            Ok(StepTally::one())
        });
        return built.filter(|_| is_built);
    }
    built
}

/// Adds the steps that start the program `forebay` and test it from outside.
fn program_steps<'a>(
    list: &mut StepList<'a>,
    program: &'a Path,
    wanted: &'a SuiteOptions,
    tools: bool,
) {
    list.add("pages: commands they show", move || pages::check(program));
    list.add("transfers: every way, every size", move || transfers::check(program));
    for report in ["after-complete", "immediate"] {
        let name = format!("kill -9 behind a line, report {report}");
        list.add(&name, move || kill::rounds(program, report));
    }
    list.add("kill -9 rounds, data first and then a counter", move || {
        counter::rounds(program, wanted.counter_rounds)
    });
    power::steps(list, program, wanted.kill_rounds, wanted.power_cuts);
    list.add_with(StepNeed::MACHINE, "the link is cut", move || cut::check(program, wanted.cut));
    list.add("quickstart", move || quickstart::check(program));
    if tools {
        interop::steps(list, program);
        attach::steps(list, program);
        pair::steps(list, program, wanted.pair_rounds);
    } else if wanted.interop {
        list.leave_out("interop with libiscsi, QEMU, tgt and fio: their tools are missing");
    }
}

/// Returns the steps that run test binaries.
fn test_steps(
    compiled: &CompiledTests,
    program: &Path,
    wanted: &SuiteOptions,
    with_tools: bool,
) -> Vec<SideStep> {
    let SuiteOptions { crash_points, drive_crash_points, coherence_minutes, .. } = *wanted;
    let options = UnitOptions { with_tools, crash_points, drive_crash_points, coherence_minutes };
    let bench = compiled.binaries.iter().find(|binary| binary.name == "bench");
    let mut steps: Vec<SideStep> =
        bench.map(|tests| trace::step(program, tests)).into_iter().collect();
    steps.extend(units::steps(&compiled.binaries, options));
    steps
}

/// The steps that start first: those that take longest, and those that change kernel state. The latter may have to run
/// one after the other; if they started late, some would still have to run when all other steps have ended.
const FIRST: [&str; 22] = [
    "check: clippy",
    "check: fuzz targets compile",
    "power cuts of the real program, every mode",
    "units: cache simulated",
    "units: forebay pair",
    "interop: iscsi-test-cu",
    "kill -9 rounds of the real program, every mode",
    "units: forebay attach",
    "units: forebay serving",
    "units: forebay gateway",
    "units: forebay lab_run",
    "units: forebay workload",
    "quickstart",
    "units: initiator sessions",
    "units: forebay coherence",
    "pair with NVRAMs: fio while the gateway that serves is killed",
    "pair: fio while the gateway that serves is killed",
    "units: forebay quickstart",
    "attach: fio on ext4, no direct I/O",
    "attach: kill -9 under load",
    "units: coherence model",
    "units: workload",
];

fn longest_first(mut steps: Vec<SideStep>) -> Vec<SideStep> {
    let rank = |step: &SideStep| {
        let place = FIRST.iter().position(|name| *name == step.name);
        place.unwrap_or(if step.changes_kernel() { FIRST.len() } else { FIRST.len() + 1 })
    };
    steps.sort_by_key(rank);
    steps
}
