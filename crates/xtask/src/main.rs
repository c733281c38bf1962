//! `cargo xtask <task>`: the tasks of developers. CI runs them, too.

mod tally;
mod side_steps;
mod steps;
mod step_list;
mod check;
mod message_scan;
mod message_page;
mod message_rules;
mod doc_comment;
mod figure_tables;
mod format_tables;
mod protocol_tables;
mod reference;
mod packages;
mod powercut;
mod suite;
mod vm;
mod fuzz;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use rig::build;

use crate::step_list::StepList;
use crate::steps::Steps;
use crate::suite::power::{self, PowerRoundFailure};

/// Checks, tests and measures Forebay.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct XtaskCli {
    #[command(subcommand)]
    task: XtaskCommand,
}

#[derive(Subcommand)]
enum XtaskCommand {
    /// Check structure and style: floors between crates, module order inside them, bounds on sizes,
    /// names and circles of files, subjects of commits, rustfmt, clippy with warnings denied,
    /// licences and advisories (cargo-deny).
    Check {
        /// Instead of checking, lower the exceptions from the bounds to what is measured now.
        #[arg(long, conflicts_with = "filter")]
        shrink: bool,
        /// Run only the steps whose name contains this word.
        #[arg(long, value_name = "WORD")]
        filter: Option<String>,
    },
    /// Write `forebay.example.toml`, `docs/reference/messages.md` and the generated parts of other
    /// pages: tables of keys, of figures and of protocols. They come from the source and its doc comments; a test
    /// fails if they are out of date.
    Reference,
    /// Run everything: the checks, the tests of every crate, the program against foreign tools
    /// (libiscsi, QEMU, tgt; as root on Debian their packages are installed) and `kill -9` rounds.
    Test(TestArgs),
    /// Run one step of `test` and write its result to a file. `test` starts this command for steps
    /// that run concurrently.
    #[command(hide = true)]
    Step {
        #[command(flatten)]
        test: TestArgs,
        /// The program `forebay` to test.
        #[arg(long, value_name = "FILE")]
        program: Option<PathBuf>,
        name: String,
        result: PathBuf,
    },
    /// Measure the data path, with a bare TCP program and tgt as peers in the same run, and report
    /// which bars hold. Groups: target, stream, depth1, polling, digests, tls, sessions, gateway,
    /// pauses, options (the cost of compression and of an encrypted log), memory. Other benchmarks
    /// run alone. Those with options of their own need root: far measures gateways over long links;
    /// bad-links measures them over links that change or reorder packets; pair measures a pair of
    /// gateways. object measures object drives, without root. postmark runs PostMark on attached volumes (root); emc-tel replays a trace like
    /// that of the STICS paper, 12 minutes for each of seven servers.
    #[command(disable_help_flag = true)]
    Bench(BenchProgramArgs),
    /// Run scenarios with a real kernel: Debian's, in a virtual machine made from its packages. The
    /// kernel is the initiator of our target, or the target of our initiator. Needs QEMU on an
    /// amd64 Debian; root installs missing packages.
    VmTest {
        /// Scenario to run. May be repeated [default: all].
        #[arg(long, value_name = "NAME")]
        scenario: Vec<String>,
        /// Print the names of the scenarios and what they show.
        #[arg(long)]
        list: bool,
        /// Run every test of iscsi-test-cu in the machine, which takes many minutes.
        #[arg(long)]
        all: bool,
        /// Make the machine again, from the current packages.
        #[arg(long)]
        fresh: bool,
        /// Keep each scenario's files: settings, events, consoles, volumes.
        #[arg(long)]
        keep: bool,
        /// Test this program instead of building one.
        #[arg(long, value_name = "FILE")]
        program: Option<PathBuf>,
        /// Write a page with the results to this file.
        #[arg(long, value_name = "FILE")]
        markdown: Option<PathBuf>,
        /// Write the measurements of scenario `peers` to this file, as JSON for `forebay lab run
        /// --beside`.
        #[arg(long, value_name = "FILE")]
        figures: Option<PathBuf>,
    },
    /// Put one load on a target that already runs. The default is 4 KiB random reads.
    #[command(disable_help_flag = true)]
    Load(BenchProgramArgs),
    /// Run the fuzz targets of fuzz/ one after the other, each for a number of executions, and
    /// print their results. Uses the stable toolchain, and a C++ compiler for libFuzzer.
    Fuzz {
        /// Targets to run [default: all].
        names: Vec<String>,
        /// Number of executions of each target.
        #[arg(long, value_name = "N", default_value_t = 1_000_000)]
        executions: u64,
        /// Time limit of each target in seconds. A target is stopped then.
        #[arg(long, value_name = "S", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
        seconds: u64,
    },
    /// Kill (`kill -9`) the processes of the real program under load, start them again and check
    /// every sector against a model, in many rounds. Needs root and /dev/fuse.
    KillRounds {
        /// Mode to run [default: all].
        #[arg(long, value_parser = power::PowerRoundMode::named)]
        mode: Option<power::PowerRoundMode>,
        /// Number of rounds of each mode.
        #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        rounds: u32,
        /// Seed of the moments of the kills.
        #[arg(long, value_name = "N", default_value_t = power::SEED)]
        seed: u64,
        /// Program to test [default: the release build].
        #[arg(long, value_name = "FILE")]
        program: Option<PathBuf>,
    },
    /// Cut the power of the real program, which runs on a file system that forgets, reorders and
    /// tears unsynced writes, and check its volumes against a model. Needs root and /dev/fuse.
    PowerCuts {
        /// Mode to run [default: all].
        #[arg(long, value_parser = power::PowerRoundMode::named)]
        mode: Option<power::PowerRoundMode>,
        /// Number of cuts of each mode. With --ignore-site, the most cuts until a loss must be
        /// found.
        #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        cuts: u32,
        /// Seed of the moments of the cuts and of the images after them.
        #[arg(long, value_name = "N", default_value_t = power::SEED)]
        seed: u64,
        /// Ignore the syncs of one call in the program, by its number, or of each call in turn
        /// (all), until a loss is found.
        #[arg(long, value_name = "NUMBER|all")]
        ignore_site: Option<String>,
        /// Program to test [default: the release build].
        #[arg(long, value_name = "FILE")]
        program: Option<PathBuf>,
    },
}

#[derive(Args)]
struct TestArgs {
    /// Leave out the steps that need foreign tools.
    #[arg(long)]
    no_interop: bool,
    /// Also build the release build, and run the steps with it instead of the build in the profile
    /// of the tests.
    #[arg(long)]
    release: bool,
    /// Run only the steps whose name contains this word.
    #[arg(long, value_name = "WORD")]
    filter: Option<String>,
    /// Number of points that the crash simulator tries [default: 20000].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    crash_points: Option<u64>,
    /// Number of points that the crash simulator of object drives tries [default: 20000].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    drive_crash_points: Option<u64>,
    /// Minutes in which gateways that share a volume are killed while hosts write to the same
    /// blocks [default: 0.25].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1440))]
    coherence_minutes: Option<u64>,
    /// Number of rounds of "write data, write a counter elsewhere, kill -9".
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    counter_rounds: u32,
    /// Rounds of `kill -9` under load in each mode of `kill-rounds`; 0 leaves them out. They need
    /// root and /dev/fuse.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    kill_rounds: u32,
    /// Power cuts of the real program in each mode; 0 leaves them out. They need root and /dev/fuse.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    power_cuts: u32,
    /// Seconds for which the link between gateway and node is cut under load.
    #[arg(long, value_name = "S", default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..=600))]
    cut: u64,
    /// Number of takeovers and handovers of a unit while fio writes to it: by killing gateways of a
    /// pair, and by handing over logs.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pair_rounds: u32,
}

impl TestArgs {
    fn options(self) -> suite::SuiteOptions {
        suite::SuiteOptions {
            interop: !self.no_interop,
            release: self.release,
            filter: self.filter,
            crash_points: self.crash_points,
            drive_crash_points: self.drive_crash_points,
            coherence_minutes: self.coherence_minutes,
            counter_rounds: self.counter_rounds,
            kill_rounds: self.kill_rounds,
            power_cuts: self.power_cuts,
            cut: Duration::from_secs(self.cut),
            pair_rounds: self.pair_rounds,
        }
    }

    fn run(self) -> ExitCode {
        // Each step's process gets the arguments of this process, without the program's name and
        // `test`.
        let given = std::env::args_os().skip(2);
        let arguments: Vec<OsString> = std::iter::once("step".into()).chain(given).collect();
        exit(suite::test(&self.options(), &arguments))
    }
}

/// The arguments of a subcommand of the program `bench`, which parses them itself.
#[derive(Args)]
struct BenchProgramArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl BenchProgramArgs {
    /// Builds `bench` and replaces this process by it. Returns only if that fails.
    fn run(self, command: &str) -> Result<bool> {
        let bench = build::build_bench()?;
        let error = Command::new(&bench).arg(command).args(self.arguments).exec();
        Err(error).with_context(|| format!("cannot run {}", bench.display()))
    }
}

fn main() -> ExitCode {
    match XtaskCli::parse().task {
        XtaskCommand::Check { shrink: true, .. } => {
            report(check::bounds::shrink(&check::root()).map(|()| true))
        }
        XtaskCommand::Check { filter, .. } => {
            let mut steps = Steps::new(filter);
            let mut list = StepList::default();
            check::steps(&mut list);
            message_rules::steps(&mut list);
            list.run_here(&mut steps);
            exit(steps.finish())
        }
        XtaskCommand::Reference => report(reference::write().map(|()| true)),
        XtaskCommand::Test(test) => test.run(),
        XtaskCommand::Step { test, program, name, result } => {
            let step = suite::run_step(&test.options(), program.as_deref(), &name, &result);
            report(step.map(|()| true))
        }
        XtaskCommand::Bench(arguments) => report(arguments.run("bench")),
        XtaskCommand::VmTest { list: true, .. } => {
            vm::list();
            ExitCode::SUCCESS
        }
        XtaskCommand::VmTest {
            scenario,
            list: false,
            all,
            fresh,
            keep,
            program,
            markdown,
            figures,
        } => {
            let scenarios = scenario;
            let wanted =
                vm::VmTestOptions { scenarios, all, fresh, keep, program, markdown, figures };
            report(vm::test(&wanted))
        }
        XtaskCommand::Load(arguments) => report(arguments.run("load")),
        XtaskCommand::Fuzz { names, executions, seconds } => {
            report(fuzz::run(&names, executions, Duration::from_secs(seconds)))
        }
        XtaskCommand::PowerCuts { mode, cuts, seed, ignore_site, program } => {
            let failure = PowerRoundFailure::Power;
            let wanted =
                power::PowerSuiteOptions { mode, failure, rounds: cuts, seed, ignored: None };
            report(power::command(program, ignore_site.as_deref(), &wanted))
        }
        XtaskCommand::KillRounds { mode, rounds, seed, program } => {
            let failure = PowerRoundFailure::Kill;
            let wanted = power::PowerSuiteOptions { mode, failure, rounds, seed, ignored: None };
            report(power::command(program, None, &wanted))
        }
    }
}

fn report(result: Result<bool>) -> ExitCode {
    match result {
        Ok(held) => exit(held),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn exit(held: bool) -> ExitCode {
    if held { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
