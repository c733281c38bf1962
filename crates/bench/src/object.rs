//! `cargo xtask bench object`: measures object drives. Each figure is a ratio to a value that the same round
//! measures: a block unit of the same process, a less secure method, or a file on the same disk.

mod ratios;
mod client;
mod load;
mod place;
mod memory;
mod security;
mod durable;
mod many;
mod sparse;
mod turnovers;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use rig::{build, machine};

use place::ObjectBenchPlace;
use ratios::ObjectRatios;

/// Measure an object drive, and report the ratios of its figures to those of block units, of bare appends and of
/// files. Each ratio is computed for each round, from values that this round has measured.
#[derive(Args, Clone, Debug)]
pub struct ObjectBenchOptions {
    /// Measure only these parts, separated by commas [default: all].
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<ObjectBenchPart>,
    /// Number of rounds. Each round measures each point once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Length of one measurement in seconds, after a warm-up of 100 ms.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Use 1,000,000 objects in the part `many`, and ten turnovers of 1 GiB in the part `turnovers`, instead of
    /// 50,000 objects and 256 MiB.
    #[arg(long)]
    full: bool,
    /// Program to measure [default: the release build].
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Write the ratios of every round to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the table of ratios to this file, as Markdown.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

/// A group of figures that share their processes.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum ObjectBenchPart {
    /// A drive and a block unit in the memory of one process.
    Memory,
    /// The security methods, in memory and on a simulated disk of 500 MB/s.
    Security,
    /// Stable changes on the disk of the target folder.
    Durable,
    /// Many objects: memory, rate of READ, and start after a kill.
    Many,
    /// An object of 1 TiB with 64 blocks of data.
    Sparse,
    /// Streams after ten turnovers at 80 % full, on a simulated disk.
    Turnovers,
}

/// The scale of a run.
#[derive(Clone, Copy, Debug)]
struct ObjectBenchScale {
    rounds: usize,
    /// Length of one measurement, without the warm-up.
    time: Duration,
    /// Objects of the part `many`.
    objects: u64,
    /// Bytes of the drives in memory, and of the block unit beside them.
    memory_bytes: u64,
    /// Bytes of the volume of the part `turnovers`.
    turnover_bytes: u64,
    turnovers: u64,
}

impl ObjectBenchOptions {
    fn scale(&self) -> ObjectBenchScale {
        ObjectBenchScale {
            rounds: self.rounds.into(),
            time: Duration::from_secs_f64(self.seconds.clamp(0.05, 60.0)),
            objects: if self.full { 1_000_000 } else { 50_000 },
            memory_bytes: 256 << 20,
            turnover_bytes: if self.full { 1 << 30 } else { 256 << 20 },
            turnovers: 10,
        }
    }
}

/// Measures the selected parts, and reports their ratios. Returns true if every bar that was measured holds.
pub fn bench(options: &ObjectBenchOptions) -> Result<bool> {
    let program = match &options.program {
        Some(program) => program.canonicalize().with_context(|| program.display().to_string())?,
        None => build::build()?,
    };
    machine::confine(machine::CLIENT_CPU)
        .context("two CPUs are needed: one for servers, one for the load generator")?;
    machine::prefer();
    let place = ObjectBenchPlace::new(&program)?;
    let parts = match &*options.only {
        [] => ObjectBenchPart::value_variants(),
        only => only,
    };
    let mut ratios = ObjectRatios::default();
    let measured = measure(&place, parts, options.scale(), &mut ratios);
    if let Some(path) = &options.json {
        ratios.write_json(path, &command(options))?;
    }
    if let Some(path) = &options.markdown {
        ratios.write_markdown(path)?;
    }
    // After a failure, the figures so far are still of use.
    let held = ratios.print();
    measured.map(|()| held)
}

fn measure(
    place: &ObjectBenchPlace,
    parts: &[ObjectBenchPart],
    scale: ObjectBenchScale,
    ratios: &mut ObjectRatios,
) -> Result<()> {
    for part in parts {
        let name = part.to_possible_value().map_or_else(String::new, |it| it.get_name().to_owned());
        println!("{name}");
        let measured = match part {
            ObjectBenchPart::Memory => memory::measure(place, scale, ratios),
            ObjectBenchPart::Security => security::measure(place, scale, ratios),
            ObjectBenchPart::Durable => durable::measure(place, scale, ratios),
            ObjectBenchPart::Many => many::measure(place, scale, ratios),
            ObjectBenchPart::Sparse => sparse::measure(place, scale, ratios),
            ObjectBenchPart::Turnovers => turnovers::measure(place, scale, ratios),
        };
        measured.with_context(|| format!("the part {name}"))?;
    }
    Ok(())
}

/// Returns the command line that repeats this run.
fn command(options: &ObjectBenchOptions) -> String {
    let only: Vec<_> = options.only.iter().filter_map(ValueEnum::to_possible_value).collect();
    let only: Vec<_> = only.iter().map(|part| part.get_name()).collect();
    let only = if only.is_empty() { String::new() } else { format!(" --only {}", only.join(",")) };
    let full = if options.full { " --full" } else { "" };
    let (rounds, seconds) = (options.rounds, options.seconds);
    format!("cargo xtask bench object --rounds {rounds} --seconds {seconds}{full}{only}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "cargo xtask test runs it while no other step runs"]
    fn every_part_measures_its_ratios_at_a_small_scale() {
        let program = std::env::var_os("FOREBAY_PROGRAM").expect("the path of the program");
        let place = ObjectBenchPlace::new(program.as_ref()).unwrap();
        let scale = ObjectBenchScale {
            rounds: 1,
            time: Duration::from_millis(50),
            objects: 300,
            memory_bytes: 32 << 20,
            turnover_bytes: 64 << 20,
            turnovers: 1,
        };
        // The part `durable` starts the benchmark program as a bare TCP server, which a program of tests is not.
        let parts = ObjectBenchPart::value_variants();
        for part in parts.iter().filter(|part| **part != ObjectBenchPart::Durable) {
            let mut ratios = ObjectRatios::default();
            measure(&place, &[*part], scale, &mut ratios).unwrap();
            assert!(ratios.bars() > 0, "{part:?} has no bar");
            assert!(ratios.are_positive(), "{part:?} has a figure that was not measured");
        }
    }
}
