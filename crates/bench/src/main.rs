//! Measures Forebay together with peers and limits. `cargo xtask bench` and `cargo xtask load`
//! build this program and execute it in their place.

mod load;
mod raw;
mod figures;
mod plan;
mod bars;
mod stage;
mod memory;
mod report;
mod visit;
mod emc;
mod options;
mod link;
mod postmark;
mod far;
mod pair;
mod groups;
mod object;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use workload::TraceEvents;

use crate::options::BenchOptions;

/// Measures Forebay and its peers.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct BenchCli {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Subcommand)]
enum BenchCommand {
    /// Measure the data path, with a bare TCP program and tgt as peers in the same run, and report
    /// which bars hold. Groups: target, stream, depth1, polling, digests, tls, sessions, gateway,
    /// pauses, options (the cost of compression and of an encrypted log), memory. Other benchmarks
    /// run alone. Those with options of their own need root: far measures gateways over long links;
    /// bad-links measures them over links that change or reorder packets; pair measures a pair of
    /// gateways. object measures object drives, without root. postmark runs PostMark on attached volumes (root); emc-tel replays a trace like
    /// that of the STICS paper, 12 minutes for each of seven servers.
    #[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
    Bench(BenchArgs),
    /// Put one load on a target that already runs. The default is 4 KiB random reads.
    Load(visit::ExternalTargetLoad),
    /// Run the server of the bare TCP program, the upper limit in the benchmarks.
    #[command(hide = true)]
    RawServer {
        /// Serve all connections in one thread.
        #[arg(long)]
        together: bool,
    },
}

#[derive(Args)]
struct BenchArgs {
    #[command(subcommand)]
    alone: Option<StandaloneBench>,
    /// Groups to measure [default: all].
    names: Vec<String>,
    /// Number of times that each point is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Length of one measurement in seconds.
    #[arg(long, default_value_t = 0.7)]
    seconds: f64,
    /// Run servers and load generators with real-time scheduling (root): for a machine that is busy
    /// with other work. tgt gains more from it than the others.
    #[arg(long)]
    realtime: bool,
    /// Total time in seconds for repeating points that other work disturbed.
    #[arg(long, default_value_t = 60)]
    patience: u32,
    /// Speed of the replay of emc-tel: seconds of the trace per second.
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    speed: f64,
    /// Number of requests of the trace emc-tel to replay.
    #[arg(long, value_name = "N", default_value_t = TraceEvents::REQUESTS, value_parser = clap::value_parser!(u64).range(1..))]
    requests: u64,
    /// Measure this program instead of building one, for example to compare two builds.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Write every round of every point to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with the medians to this file, as Markdown.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

impl BenchArgs {
    fn run(self) -> ExitCode {
        match self.alone {
            Some(StandaloneBench::Far(options)) => return report(far::bench(&options)),
            Some(StandaloneBench::BadLinks(options)) => {
                return report(far::bad_links::bench(&options));
            }
            Some(StandaloneBench::Pair(options)) => return report(pair::bench(&options)),
            Some(StandaloneBench::Object(options)) => return report(object::bench(&options)),
            None => {}
        }
        let speed = self.speed.clamp(0.01, 1000.0);
        report(groups::bench(&BenchOptions {
            groups: self.names,
            rounds: self.rounds.into(),
            time: Duration::from_secs_f64(self.seconds.clamp(0.05, 60.0)),
            realtime: self.realtime,
            patience: Duration::from_secs(self.patience.into()),
            pace: emc::replay::BenchTracePace { speed },
            requests: self.requests,
            program: self.program,
            json: self.json,
            markdown: self.markdown,
        }))
    }
}

#[derive(Subcommand)]
enum StandaloneBench {
    Far(far::FarBenchOptions),
    BadLinks(far::bad_links::BadLinkOptions),
    Pair(pair::PairBenchOptions),
    Object(object::ObjectBenchOptions),
}

fn main() -> ExitCode {
    match BenchCli::parse().command {
        BenchCommand::Bench(bench) => bench.run(),
        BenchCommand::Load(visit) => report(visit.measure().map(|()| true)),
        BenchCommand::RawServer { together } => report(raw::serve(together).map(|()| true)),
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
