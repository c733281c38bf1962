//! The tests of every crate: cargo compiles them, and each test binary is a step of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use program::Said;
use serde_json::Value;

use crate::check::root;
use crate::side_steps::{KernelChange, SideStep, SideStepResult, StepNeed};
use crate::steps::StepTally;

/// Prefix in the names of the steps that run the unit tests.
pub const UNITS: &str = "units: ";

/// Time limit for compiling all tests, and for one test binary, even the one in which the crash
/// simulator takes a minute.
const LIMIT: Duration = Duration::from_secs(1500);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestBinary {
    /// The name of the crate. For a test file in the crate's folder `tests`, the name of the file follows: `cache
    /// simulated`.
    pub name: String,
    path: PathBuf,
    /// Folder of the crate, which is the working directory of its tests.
    folder: PathBuf,
}

/// The compiled test binaries, and the program `forebay`.
#[derive(Default)]
pub struct CompiledTests {
    pub binaries: Vec<TestBinary>,
    /// Path of the program `forebay`, compiled in the same profile as the tests.
    pub program: Option<PathBuf>,
}

/// Compiles the tests of every crate and the program `forebay`. If `all` is false, compiles only a small part of the
/// tests; the program has the same features in both cases.
pub fn compile(all: bool) -> Result<CompiledTests> {
    let mut command = Command::new("cargo");
    command.args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
    if !all {
        command.args(["--test", SMALL_TEST]);
    }
    let messages = Said::new()?;
    command.current_dir(root()).stdin(Stdio::null()).stdout(messages.output()?);
    let mut running = program::start(&mut command)?;
    let status = running.ended(LIMIT)?.context("the tests do not compile in time")?;
    ensure!(status.success(), "cargo test --no-run failed ({status})");
    CompiledTests::of_messages(&messages.text()?)
}

/// A test of crate `forebay`. Compiling any of them also compiles the program.
const SMALL_TEST: &str = "status";

impl CompiledTests {
    /// Reads the paths of the test binaries from the messages of cargo, which are one JSON object per line.
    fn of_messages(messages: &str) -> Result<CompiledTests> {
        let mut compiled = CompiledTests::default();
        for line in messages.lines().filter(|line| line.starts_with('{')) {
            let message: Value = serde_json::from_str(line)?;
            let (Some(path), Some(manifest), Some(target)) = (
                message["executable"].as_str(),
                message["manifest_path"].as_str(),
                message["target"]["name"].as_str(),
            ) else {
                continue;
            };
            let folder = Path::new(manifest).parent().context("a manifest is in a folder")?;
            let krate = folder.file_name().and_then(|name| name.to_str()).context("no crate")?;
            let name = match target == krate {
                true if message["target"]["kind"][0] != "test" => krate.to_owned(),
                _ => format!("{krate} {target}"),
            };
            match message["profile"]["test"].as_bool() {
                Some(true) => compiled.binaries.push(TestBinary {
                    name,
                    path: path.into(),
                    folder: folder.to_owned(),
                }),
                _ if name == "forebay" => compiled.program = Some(path.into()),
                _ => {}
            }
        }
        Ok(compiled)
    }
}

/// The options with which the test binaries are run.
#[derive(Clone, Copy)]
pub struct UnitOptions {
    /// Run the tests that need foreign tools, too.
    pub with_tools: bool,
    /// Number of crash points that the simulator tries; `None` for its default.
    pub crash_points: Option<u64>,
    /// Number of points of the crash simulator of object drives; None leaves it at the simulator's default.
    pub drive_crash_points: Option<u64>,
    /// Minutes of the coherence test; None leaves it at the default of the test.
    pub coherence_minutes: Option<u64>,
}

/// Returns a step for each test binary, and one for the examples in the documentation.
pub fn steps(binaries: &[TestBinary], options: UnitOptions) -> Vec<SideStep> {
    let of_binary = |binary: &TestBinary| {
        let mut command = binary.command();
        options.set(&mut command);
        let name = format!("{UNITS}{}", binary.name);
        SideStep::new(&name, move || run(command, options.limit())).needs(need(&binary.name))
    };
    let mut examples = Command::new("cargo");
    examples.args(["test", "--workspace", "--doc", "--no-fail-fast"]).current_dir(root());
    let examples = SideStep::new(EXAMPLES, move || run(examples, LIMIT));
    binaries.iter().map(of_binary).chain([examples]).collect()
}

/// Name of the step that runs the examples in the documentation.
pub const EXAMPLES: &str = "units: examples in the documentation";

/// The test binaries with special needs when they run concurrently with others: they measure times, change kernel state
/// that all processes share, or keep all processors busy.
const NEEDS: [(&str, StepNeed); 17] = [
    ("attach", MOUNTS),
    ("attach device", MOUNTS),
    ("cache simulated", StepNeed::BUSY),
    ("coherence model", StepNeed::BUSY),
    ("drive store", StepNeed::BUSY),
    ("fairtcp kernel", SEVERAL),
    ("forebay attach", SEVERAL),
    ("forebay command_line", NAMESPACES),
    ("forebay ensemble", SEVERAL),
    ("forebay gateway_command", NAMESPACES),
    ("forebay lab", NAMESPACES),
    ("forebay lab_run", SEVERAL),
    ("forebay login_access", StepNeed::MACHINE),
    ("forebay serve", StepNeed::MACHINE),
    ("forebay workload", SEVERAL),
    ("wan link", StepNeed::MACHINE),
    ("xtask", NAMESPACES),
];

const MOUNTS: StepNeed = StepNeed::PLACE.changing(KernelChange::Mounts);
const NAMESPACES: StepNeed = StepNeed::PLACE.changing(KernelChange::Namespaces);
const SEVERAL: StepNeed = StepNeed::PLACE.changing(KernelChange::Several);

fn need(name: &str) -> StepNeed {
    let found = NEEDS.iter().find(|(binary, _)| *binary == name);
    found.map_or(StepNeed::PLACE, |(_, need)| *need)
}

impl TestBinary {
    /// Returns a command that runs all tests, as cargo does.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        // Add the folders of daemons such as tgtd, which only root has in PATH.
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
        command
    }
}

/// Runs a test binary and counts its cases. The output keeps the lines that do not report a passed
/// case.
pub fn run(command: Command, limit: Duration) -> SideStepResult {
    match output_of(command, limit) {
        Ok((status, output)) => {
            let has_result = output.lines().any(|line| result(line).is_some());
            let mut tally = StepTally::default();
            let output = read(&output, &mut tally);
            let ended = || {
                let status = status.with_context(|| format!("not ended within {limit:?}"))?;
                ensure!(status.success() || tally.failed > 0, "the tests ended with {status}");
                ensure!(has_result, "the tests ended without a result");
                Ok(tally)
            };
            SideStepResult { tally: ended(), output }
        }
        Err(error) => SideStepResult { tally: Err(error), output: String::new() },
    }
}

/// Runs a program. Returns its exit status, or None if it was killed after `limit`, and its output,
/// standard error last.
fn output_of(mut command: Command, limit: Duration) -> Result<(Option<ExitStatus>, String)> {
    // Write standard error to a separate file; it could interrupt a line of the standard output
    // that is counted.
    let (output, errors) = (Said::new()?, Said::new()?);
    command.stdin(Stdio::null()).stdout(output.output()?).stderr(errors.output()?);
    // Start the program as the leader of a process group, so that the processes of a hanging test
    // can be killed with it.
    let mut running = program::start(&mut command)?;
    let status = running.ended(limit)?;
    drop(running);
    Ok((status, output.text()? + &errors.text()?))
}

impl UnitOptions {
    /// Sets the environment variables that the tests read.
    fn set(self, command: &mut Command) {
        if !self.with_tools {
            command.env("FOREBAY_NO_INTEROP", "1");
        }
        if let Some(points) = self.crash_points {
            command.env("FOREBAY_CRASH_POINTS", points.to_string());
        }
        if let Some(points) = self.drive_crash_points {
            command.env("FOREBAY_DRIVE_CRASH_POINTS", points.to_string());
        }
        if let Some(minutes) = self.coherence_minutes {
            command.env("FOREBAY_COHERENCE_SECONDS", (minutes * 60).to_string());
        }
    }

    /// Time limit of a test binary. It grows with the crash points and with the minutes of the coherence test.
    fn limit(self) -> Duration {
        let points =
            self.crash_points.unwrap_or_default().max(self.drive_crash_points.unwrap_or_default());
        let points = points * MILLISECONDS_PER_POINT;
        LIMIT + Duration::from_millis(points + 60_000 * self.coherence_minutes.unwrap_or_default())
    }
}

/// Time allowed for each crash point. The default of 20,000 points takes a minute on two idle CPUs,
/// which is 3 ms a point; other work on the machine can make it ten times as long.
const MILLISECONDS_PER_POINT: u64 = 40;

/// Adds the counts in the output of tests to `tally`, and returns the lines that do not report a
/// passed case.
fn read(output: &str, tally: &mut StepTally) -> String {
    let mut kept = String::new();
    for line in output.lines() {
        if line.contains(" crash points in ") {
            line.clone_into(&mut tally.note);
        }
        let is_passed = line.ends_with("... ok") || line.is_empty();
        if !count(line, tally) && !is_passed && line != "running 0 tests" {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// Adds the counts of a line with a result of a test binary. Returns false for any other line.
pub fn count(line: &str, tally: &mut StepTally) -> bool {
    let Some((passed, failed)) = result(line) else { return false };
    tally.passed += passed;
    tally.failed += failed;
    true
}

/// Returns the numbers of passed and failed cases in a line such as `test result: ok. 28 passed; 0
/// failed; ...`.
fn result(line: &str) -> Option<(u64, u64)> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let count = |word: &str| {
        let part = counts.split(';').find(|part| part.trim_end().ends_with(word))?;
        part.split_whitespace().next()?.parse().ok()
    };
    Some((count("passed")?, count("failed")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_crash_points_and_more_minutes_have_more_time() {
        let limit = |crash_points, coherence_minutes| {
            let drive_crash_points = None;
            UnitOptions { with_tools: true, crash_points, drive_crash_points, coherence_minutes }
                .limit()
        };
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
        let mut tally = StepTally::default();
        read(line, &mut tally);
        let more =
            "test a ... ok\ntest b ... FAILED\ntest result: ok. 3 passed; 0 failed; 0 ignored";
        assert_eq!(read(more, &mut tally), "test b ... FAILED\n");
        assert_eq!((tally.passed, tally.failed), (30, 1));
        read("20011 crash points in 90 scripts, 31.0 s", &mut tally);
        assert!(tally.note.starts_with("20011 crash points"));
    }

    #[test]
    fn test_binaries_and_the_program_are_found_in_the_messages_of_cargo() {
        let message = |krate: &str, kind: &str, target: &str, test: bool| {
            format!(
                "{{\"reason\":\"compiler-artifact\",\"manifest_path\":\"/w/crates/{krate}/Cargo.toml\",\
                 \"target\":{{\"kind\":[\"{kind}\"],\"name\":\"{target}\"}},\"profile\":{{\"test\":{test}}},\
                 \"executable\":\"/t/{target}-1\"}}\n"
            )
        };
        let messages = [
            message("cache", "lib", "cache", true),
            message("cache", "test", "simulated", true),
            message("attach", "test", "attach", true),
            message("forebay", "bin", "forebay", false),
            message("forebay", "bin", "forebay", true),
            "{\"reason\":\"build-finished\",\"success\":true}\n".to_owned(),
        ];
        let compiled = CompiledTests::of_messages(&messages.concat()).unwrap();
        let names: Vec<&str> = compiled.binaries.iter().map(|binary| &*binary.name).collect();
        assert_eq!(names, ["cache", "cache simulated", "attach attach", "forebay"]);
        assert_eq!(compiled.binaries[1].folder, Path::new("/w/crates/cache"));
        assert_eq!(compiled.program, Some(PathBuf::from("/t/forebay-1")));
    }

    #[test]
    fn a_test_binary_that_fails_or_hangs_without_a_result_is_an_error() {
        let script = |text: &str, limit: u64| {
            let mut command = Command::new("sh");
            command.args(["-c", text]);
            run(command, Duration::from_millis(limit))
        };
        let aborted = script("echo running 2 tests; echo lost >&2; exit 101", 10_000);
        assert!(aborted.tally.is_err());
        assert_eq!(aborted.output, "running 2 tests\nlost\n");
        assert!(script("sleep 60", 20).tally.is_err());
        assert!(script("exit 0", 10_000).tally.is_err());
        let failed = script("echo 'test result: FAILED. 1 passed; 1 failed;'; exit 101", 10_000);
        assert_eq!(failed.tally.unwrap().failed, 1);
    }

    #[test]
    fn the_test_binaries_with_other_needs_exist() {
        for (name, _) in NEEDS {
            let exists = match name.split_once(' ') {
                Some((krate, target)) => {
                    let tests = root().join("crates").join(krate).join("tests");
                    tests.join(format!("{target}.rs")).is_file()
                        || tests.join(target).join("main.rs").is_file()
                }
                None => root().join("crates").join(name).join("src").is_dir(),
            };
            assert!(exists, "{name}");
        }
    }
}
