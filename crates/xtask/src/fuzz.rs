//! `cargo xtask fuzz`: runs each fuzz target for a number of executions, with the stable toolchain.
//!
//! `cargo fuzz` uses options of the nightly compiler. The stable compiler also has the coverage passes that libFuzzer
//! needs, so this command uses those.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rig::build;
use rig::table::table;

use crate::check::root;

/// libFuzzer ends by itself at its time limit. A process that still runs this long after the limit
/// has hung.
const GRACE: Duration = Duration::from_secs(120);
/// An input for which the fuzz target takes longer than this number of seconds is reported as an error.
const INPUT_SECONDS: u32 = 20;
/// A target that uses more memory than this, in MiB, is a finding. No target needs 100.
const MEMORY_MIB: u32 = 1024;
/// Longest input in bytes: several PDUs of the longest kind that the targets make.
const LONGEST_INPUT: u32 = 8192;
/// The only supported target triple. The build command names it explicitly, because cargo then compiles build scripts
/// and procedural macros without the options for coverage.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";
/// Compiler options for the coverage that libFuzzer needs: counters, a table of code locations,
/// operands of comparisons.
const COVERAGE: &str = "--cfg fuzzing -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Runs the named targets, or all. Returns true if none had a finding and each reached its number
/// of executions.
pub fn run(names: &[String], executions: u64, time: Duration) -> Result<bool> {
    let targets = targets(names)?;
    let folder = build()?;
    let mut rows = Vec::new();
    let mut held = true;
    for name in &targets {
        println!("==> {name}");
        let found = fuzz(&folder, name, executions, time)?;
        held &= found.is_sound() && found.executions >= executions;
        rows.push(found.row(name));
        println!("{}", rows.last().expect("just pushed").join("  "));
    }
    print!("\n{}", table(&HEADINGS, rows));
    Ok(held)
}

const HEADINGS: [&str; 6] = ["target", "executions", "per second", "places", "inputs", ""];

/// Returns the named targets, or the names of all files in fuzz/fuzz_targets.
fn targets(names: &[String]) -> Result<BTreeSet<String>> {
    let folder = root().join("fuzz/fuzz_targets");
    let mut all = BTreeSet::new();
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        all.extend(path.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned));
    }
    if names.is_empty() {
        return Ok(all);
    }
    for name in names {
        ensure!(all.contains(name), "there is no target {name}; there are {all:?}");
    }
    Ok(names.iter().cloned().collect())
}

/// Builds all targets with coverage. Returns the folder in which the build and the runs keep their
/// files.
fn build() -> Result<PathBuf> {
    ensure!(
        cfg!(all(target_arch = "x86_64", target_os = "linux")),
        "fuzzing is set up for {TRIPLE} only"
    );
    let release = build::binary()?;
    let folder = release.ancestors().nth(2).context("a target directory")?.join("fuzz");
    let mut command = Command::new("cargo");
    command.args(["build", "--release", "--target", TRIPLE]).current_dir(root().join("fuzz"));
    command.env("RUSTFLAGS", COVERAGE).env("CARGO_TARGET_DIR", &folder);
    let status = command.status()?;
    if !status.success() {
        bail!("the fuzz targets do not build ({status}); libFuzzer needs a C++ compiler");
    }
    Ok(folder)
}

fn fuzz(folder: &Path, name: &str, executions: u64, time: Duration) -> Result<FuzzOutcome> {
    let corpus = folder.join("corpus").join(name);
    let artifacts = folder.join("artifacts").join(name);
    fs::create_dir_all(&corpus)?;
    fs::create_dir_all(&artifacts)?;
    let seeds = root().join("fuzz/seeds").join(name);
    let mut command = Command::new(folder.join(TRIPLE).join("release").join(name));
    command.args([
        format!("-runs={executions}"),
        format!("-max_total_time={}", time.as_secs()),
        format!("-timeout={INPUT_SECONDS}"),
        format!("-rss_limit_mb={MEMORY_MIB}"),
        format!("-max_len={LONGEST_INPUT}"),
        format!("-artifact_prefix={}/", artifacts.display()),
        "-print_final_stats=1".to_owned(),
    ]);
    // libFuzzer writes new inputs to the first folder, and only reads the second.
    command.arg(&corpus);
    if seeds.is_dir() {
        command.arg(&seeds);
    }
    let started = Instant::now();
    let finished = program::run(&mut command, time + GRACE)?;
    let mut outcome = FuzzOutcome::read(&finished.output);
    outcome.seconds = started.elapsed().as_secs_f64();
    if !finished.success() {
        println!("{}", finished.tail(40));
        outcome.finding = Some(format!("{}; see {}", finished.ending(), artifacts.display()));
    }
    Ok(outcome)
}

/// The result of running a fuzz target.
#[derive(Debug, Default, PartialEq)]
struct FuzzOutcome {
    executions: u64,
    /// Number of code locations that were reached, as counted by libFuzzer.
    places: u64,
    inputs: u64,
    seconds: f64,
    finding: Option<String>,
}

impl FuzzOutcome {
    /// Reads the results of a run from the output of libFuzzer.
    fn read(output: &str) -> Self {
        let number = |text: &str| text.trim().parse().unwrap_or(0);
        let mut outcome = Self::default();
        for line in output.lines() {
            if let Some(count) = line.strip_prefix("stat::number_of_executed_units:") {
                outcome.executions = number(count);
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            for pair in words.windows(2) {
                match pair[0] {
                    "cov:" => outcome.places = number(pair[1]),
                    "corp:" => outcome.inputs = number(pair[1].split('/').next().unwrap_or("")),
                    _ => {}
                }
            }
        }
        outcome
    }

    fn is_sound(&self) -> bool {
        self.finding.is_none()
    }

    fn row(&self, name: &str) -> Vec<String> {
        vec![
            name.to_owned(),
            self.executions.to_string(),
            format!("{:.0}", self.executions as f64 / self.seconds.max(0.001)),
            self.places.to_string(),
            self.inputs.to_string(),
            self.finding.clone().unwrap_or_else(|| "no finding".to_owned()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_libfuzzer_is_parsed() {
        let output = "#2\tINITED cov: 71 ft: 72 corp: 1/1b exec/s: 0 rss: 30Mb\n\
            #4096\tpulse  cov: 312 ft: 812 corp: 55/3212b lim: 43 exec/s: 2048 rss: 31Mb\n\
            Done 5000 runs in 2 second(s)\n\
            stat::number_of_executed_units: 5000\n";
        let expected =
            FuzzOutcome { executions: 5000, places: 312, inputs: 55, ..FuzzOutcome::default() };
        assert_eq!(FuzzOutcome::read(output), expected);
    }

    #[test]
    fn a_missing_fuzz_target_is_named() {
        let error = targets(&["nothing".to_owned()]).expect_err("there is none");
        assert!(error.to_string().contains("no target nothing"), "{error}");
        assert!(targets(&[]).expect("the folder is there").contains("session_target"));
    }
}
