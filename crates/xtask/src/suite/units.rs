//! `cargo test --workspace`, its output thinned to what does not pass, its cases counted.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use program::RunningProgram;

use crate::check::root;
use crate::steps::StepTally;

/// Compiling and running, with the crash simulator's minute in it.
const LIMIT: Duration = Duration::from_secs(1500);

/// The tests while they are compiled.
pub struct Compiling(RunningProgram);

impl Compiling {
    /// Begins to compile what [`run`] runs, behind all else: steps that mostly wait leave it the CPUs, and
    /// linking the release build one of them.
    pub fn begin() -> Result<Compiling> {
        let mut command = Command::new("nice");
        command.args(["cargo", "test", "--workspace", "--no-run", "--quiet"]).current_dir(root());
        // What it has to say is said again by who runs the tests.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Compiling(program::start(&mut command)?))
    }

    /// Waits for the compiler. Whether it succeeds does not matter here: the step that runs the tests reports its errors.
    pub fn end(mut self) -> Result<()> {
        self.0.ended(LIMIT)?.context("the tests do not compile in time")?;
        Ok(())
    }
}

/// Runs the tests of every crate; those that need foreign tools only `with_tools`.
pub fn run(
    with_tools: bool,
    crash_points: Option<u64>,
    coherence_minutes: Option<u64>,
) -> Result<StepTally> {
    let mut command = Command::new("cargo");
    // Daemons such as tgtd stand where only root's path looks.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    if !with_tools {
        command.env("FOREBAY_NO_INTEROP", "1");
    }
    if let Some(points) = crash_points {
        command.env("FOREBAY_CRASH_POINTS", points.to_string());
    }
    if let Some(minutes) = coherence_minutes {
        command.env("FOREBAY_COHERENCE_SECONDS", (minutes * 60).to_string());
    }
    command.args(["test", "--workspace", "--no-fail-fast"]).current_dir(root());
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut running = program::start(&mut command)?;
    let stdout = running.stdout().context("no pipe")?;
    let (lines, received) = mpsc::channel();
    // The channel is as long as the output of one test run.
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                return;
            }
        }
    });
    let limit = limit(crash_points, coherence_minutes);
    let deadline = Instant::now() + limit;
    let mut tally = StepTally::default();
    loop {
        match received.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => read(&line, &mut tally),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                // cargo leads a group of its own: the test that hangs ends with it.
                running.kill();
                bail!("the tests did not end within {limit:?}");
            }
        }
    }
    let status = running.ended(Duration::from_secs(60))?.context("cargo does not end")?;
    ensure!(status.success() || tally.failed > 0, "cargo test failed ({status})");
    Ok(tally)
}

/// Time limit of the tests. It grows with the crash points and with the minutes of the coherence test.
fn limit(crash_points: Option<u64>, coherence_minutes: Option<u64>) -> Duration {
    let points = crash_points.unwrap_or_default() * MILLISECONDS_PER_POINT;
    LIMIT + Duration::from_millis(points + 60_000 * coherence_minutes.unwrap_or_default())
}

/// Time allowed for each crash point. The default of 20,000 points takes a minute on two idle CPUs, which is 3 ms a
/// point; other work on the machine can make it ten times as long.
const MILLISECONDS_PER_POINT: u64 = 40;

/// Counts a line of output and prints it, unless it says that a case passed.
fn read(line: &str, tally: &mut StepTally) {
    if line.contains(" crash points in ") {
        line.clone_into(&mut tally.note);
    }
    if count(line, tally) {
        if let Some(time) = seconds(line).filter(|time| *time >= TELLING) {
            println!("  {time:.0} s");
        }
    } else if !line.ends_with("... ok") && !line.is_empty() && line != "running 0 tests" {
        println!("{line}");
    }
}

/// Adds the counts of a line that ends the output of a test binary. Returns false for any other line.
pub fn count(line: &str, tally: &mut StepTally) -> bool {
    let Some((passed, failed)) = result(line) else { return false };
    tally.passed += passed;
    tally.failed += failed;
    true
}

/// Passed and failed of a line such as `test result: ok. 28 passed; 0 failed; ...`.
fn result(line: &str) -> Option<(u64, u64)> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let count = |word: &str| {
        let part = counts.split(';').find(|part| part.trim_end().ends_with(word))?;
        part.split_whitespace().next()?.parse().ok()
    };
    Some((count("passed")?, count("failed")?))
}

/// How long it took, which ends such a line.
fn seconds(line: &str) -> Option<f64> {
    line.rsplit_once("finished in ")?.1.strip_suffix('s')?.parse().ok()
}

/// Seconds from which on the time of a test binary is worth a line: the run has to stay below half an hour.
const TELLING: f64 = 10.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_crash_points_and_more_minutes_have_more_time() {
        assert_eq!(limit(None, None), LIMIT);
        assert_eq!(limit(None, Some(10)), LIMIT + Duration::from_secs(600));
        let measured = Duration::from_millis(100_000 * MILLISECONDS_PER_POINT);
        assert_eq!(limit(Some(100_000), None), LIMIT + measured);
    }

    #[test]
    fn results_are_counted() {
        let line =
            "test result: FAILED. 27 passed; 1 failed; 0 ignored; 0 measured; 3 filtered out";
        assert_eq!(result(line), Some((27, 1)));
        assert_eq!(result("test result of mine"), None);
        assert_eq!(seconds("test result: ok. 3 passed; finished in 31.07s"), Some(31.07));
        assert_eq!(seconds(line), None);
        let mut tally = StepTally::default();
        read(line, &mut tally);
        read("test result: ok. 3 passed; 0 failed; 0 ignored", &mut tally);
        assert_eq!((tally.passed, tally.failed), (30, 1));
        read("20011 crash points in 90 scripts, 31.0 s", &mut tally);
        assert!(tally.note.starts_with("20011 crash points"));
    }
}
