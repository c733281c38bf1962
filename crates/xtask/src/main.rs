//! `cargo xtask <task>`: what a developer runs by hand and CI runs too.

mod process;
mod steps;
mod check;
mod client;
mod machine;
mod bench;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::steps::Steps;
use crate::bench::raw;

/// The house's own tasks.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Check structure and style: floors between crates, module order inside them, rustfmt, clippy
    /// with warnings denied, licences and advisories (cargo-deny).
    Check {
        /// Run only the steps whose name contains this word.
        #[arg(long, value_name = "WORD")]
        filter: Option<String>,
    },
    Bench,
    /// The bare TCP server of the benchmarks.
    #[command(hide = true)]
    RawServer,
}

fn main() -> ExitCode {
    match Cli::parse().task {
        Task::Check { filter } => {
            let mut steps = Steps::new(filter);
            check::check(&mut steps);
            exit(steps.finish())
        }
        Task::Bench => { bench::try_it(1).unwrap(); ExitCode::SUCCESS }
        Task::RawServer => { raw::serve().unwrap(); ExitCode::SUCCESS }
    }
}

fn exit(held: bool) -> ExitCode {
    if held { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
