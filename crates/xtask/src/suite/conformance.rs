//! Runs libiscsi's test suite, iscsi-test-cu. Each test runs in a process of its own, since one
//! test leaves a hook installed that breaks the following ones. The tool counts a skipped test as
//! passed; this module does not.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use program::ProgramResult;
use rig::table::table;

use crate::steps::StepTally;

/// Time limit of a test. Most take milliseconds; tests that wait for a time-out take some seconds.
const LIMIT: Duration = Duration::from_secs(20);

/// Time limit of tests that overwrite a whole unit; one of them then sleeps for 60 s.
const LONG_LIMIT: Duration = Duration::from_secs(150);

/// The result of a single test of iscsi-test-cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LibiscsiTestOutcome {
    Passed,
    /// The test was skipped, because it needs a feature that the unit does not report.
    Skipped,
    Failed,
    /// The test has not ended within its time limit.
    Hung,
    /// The tool was ended by a signal during the test.
    Crashed,
}

/// Tests that cannot pass on any set-up, each with the reason.
const CANNOT_PASS: &[(&str, &str)] = &[(
    "iSCSITMF.LUNResetSimpleAsync",
    "asserts a flag that only a later callback sets (libiscsi 1.19)",
)];

/// Tests that cannot pass on the default set-up, each with the reason.
const CANNOT_PASS_BY_DEFAULT: &[(&str, &str)] = &[(
    "GetLBAStatus.UnmapSingle",
    "asks for block i + 1 and expects the status of another where a physical block has several",
)];

/// A way to set up a unit: the properties that it reports and how it behaves. The tests need
/// different properties, some of them contradictory; together, these set-ups let all tests run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Setup {
    /// Removable medium, physical blocks of 512 bytes, less than 1 GiB, WRITE SAME to the end,
    /// SPC-3.
    Removable,
    /// `Removable` and encrypted, for the tests of a SANITIZE that discards the key.
    Encrypted,
    /// `Removable` with slow writes, for the test that looks at a SANITIZE in progress.
    Slow,
    /// Default settings, with physical blocks of 4 KiB, less than 1 GiB.
    Physical,
    /// A write-protected unit, otherwise with default settings.
    ReadOnly,
    /// Default settings, as most users have them. All tests run on this set-up. A test may skip itself if it needs a
    /// feature that the unit does not have.
    Default,
}

impl Setup {
    /// Returns the documented set-up on which a test must pass.
    fn of(test: &str) -> Self {
        match test {
            "Sanitize.Reset" => Self::Slow,
            "Sanitize.CryptoErase" | "Sanitize.Readonly" | "Sanitize.Reservations" => {
                Self::Encrypted
            }
            "CompareAndWrite.InvalidDataOutSize"
            | "WriteSame10.InvalidDataOutSize"
            | "WriteSame10.UnmapUnaligned"
            | "WriteSame10.UnmapUntilEnd"
            | "WriteSame16.InvalidDataOutSize"
            | "WriteSame16.UnmapUnaligned" => Self::Physical,
            _ if test.starts_with("ReadOnly.") => Self::ReadOnly,
            _ => Self::Removable,
        }
    }

    /// Returns true if the tests of this set-up must pass. On the default set-up they may skip
    /// themselves.
    fn is_documented(self) -> bool {
        self != Self::Default
    }
}

/// The set-up and the URL of each unit. One test at a time runs on each unit.
pub type Units = Vec<(Setup, String)>;

/// Runs every test on its documented set-up, and nearly all tests also on the default set-up.
/// Prints a table of the test families for both.
pub fn run(units: &Units) -> Result<StepTally> {
    let mut tests = list()?;
    // MultipathIO.CompareAndWrite wrongly expects that a block after those that it has zeroed is
    // zero, too. Run it first, while the units are new.
    tests.sort_by_key(|test| test != "MultipathIO.CompareAndWrite");
    let outcomes = Mutex::new(BTreeMap::new());
    let mut queues: BTreeMap<Setup, (Vec<(Setup, String)>, AtomicUsize)> = BTreeMap::new();
    for test in &tests {
        let setup = Setup::of(test);
        let mut add = |unit: Setup, judged: Setup| {
            queues.entry(unit).or_default().0.push((judged, test.clone()));
        };
        add(setup, setup);
        match setup {
            // Skip `Sanitize.Reset`: the test needs a SANITIZE that takes long, and with the default settings SANITIZE
            // is fast.
            Setup::Slow => {}
            Setup::ReadOnly => add(setup, Setup::Default),
            _ => add(Setup::Default, Setup::Default),
        }
    }
    std::thread::scope(|scope| {
        let workers: Vec<_> = units
            .iter()
            .map(|(setup, url)| {
                let queue = &queues[setup];
                scope.spawn(|| work(&queue.0, &queue.1, url, &outcomes))
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })?;
    let outcomes = outcomes.into_inner().expect("no worker panicked");
    let count = |documented: bool| {
        let counted = outcomes.iter().filter(|((setup, _), _)| setup.is_documented() == documented);
        counted.map(|((_, test), outcome)| (test.clone(), *outcome)).collect::<BTreeMap<_, _>>()
    };
    let (documented, default) = (count(true), count(false));
    println!("documented set-ups:\n{}", families(&documented));
    println!("default set-up:\n{}", families(&default));
    Ok(judge(tests.len(), &documented, &default))
}

/// The outcome of each test, with the set-up that decides which outcome is expected.
type Outcomes = BTreeMap<(Setup, String), LibiscsiTestOutcome>;

/// Runs tests from a list that all workers share on one unit, until the list is empty.
fn work(
    tests: &[(Setup, String)],
    next: &AtomicUsize,
    url: &str,
    outcomes: &Mutex<Outcomes>,
) -> Result<()> {
    while let Some((setup, test)) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
        let mut command = Command::new("iscsi-test-cu");
        // -d: also tests that write; -S: also SANITIZE; -V: print when a test skips itself. The URL
        // is given twice for the multipath family.
        command.args(["-d", "-S", "-V", "-t", &format!("ALL.{test}"), url, url]);
        let limit = if test.starts_with("Sanitize.") { LONG_LIMIT } else { LIMIT };
        let finished = program::run(&mut command, limit)?;
        let outcome = outcome(&finished);
        if !is_as_it_should_be(*setup, test, outcome) {
            println!("{setup:?} {test}: {outcome:?}\n{}", complaint(&finished.output));
        }
        outcomes.lock().expect("no worker panics").insert((*setup, test.clone()), outcome);
    }
    Ok(())
}

/// Returns true if the outcome is as expected. A test that is listed as unable to pass must not
/// pass: otherwise the list is out of date.
fn is_as_it_should_be(setup: Setup, test: &str, outcome: LibiscsiTestOutcome) -> bool {
    let documented = setup.is_documented();
    let excused = if documented { among(CANNOT_PASS, test) } else { cannot_pass(test) };
    match outcome {
        LibiscsiTestOutcome::Passed => excused.is_none(),
        LibiscsiTestOutcome::Skipped => excused.is_some() || !documented,
        // A test that cannot pass (excused) may fail, or crash the tool: the mistake is in the test.
        LibiscsiTestOutcome::Failed | LibiscsiTestOutcome::Crashed => excused.is_some(),
        LibiscsiTestOutcome::Hung => false,
    }
}

/// Returns the names of all tests of the tool.
fn list() -> Result<Vec<String>> {
    let finished = program::run(Command::new("iscsi-test-cu").arg("--list"), LIMIT)?;
    let tests = listed(&finished.output);
    ensure!(!tests.is_empty(), "iscsi-test-cu lists no tests: {}", finished.tail(3));
    Ok(tests)
}

/// Parses the output of `iscsi-test-cu --list`: the tests, without the prefix `ALL.` and without
/// names of families.
pub fn listed(output: &str) -> Vec<String> {
    let lines = output.lines().filter_map(|line| line.trim().strip_prefix("ALL."));
    lines.filter(|test| test.contains('.')).map(str::to_owned).collect()
}

/// Interprets the tool's exit status and output.
pub fn outcome(finished: &ProgramResult) -> LibiscsiTestOutcome {
    match finished.code() {
        None if finished.status.is_none() => LibiscsiTestOutcome::Hung,
        None => LibiscsiTestOutcome::Crashed,
        Some(0) if skips(&finished.output) => LibiscsiTestOutcome::Skipped,
        Some(0) if ran(&finished.output) => LibiscsiTestOutcome::Passed,
        Some(_) => LibiscsiTestOutcome::Failed,
    }
}

/// Returns true if a test skipped itself, completely or in part.
fn skips(output: &str) -> bool {
    const WORDS: [&str; 4] = ["[SKIPPED]", "[SKIPPING]", "is not implemented", "Skipping test"];
    // The tool prints this text around each test when it looks for leftover reservations and the
    // unit has no reservations at all. It does not mean that the test was skipped.
    const TOOL: &str = "PERSISTENT RESERVE IN is not implemented";
    let test = output.split_once("  Test: ").map_or("", |(_, test)| test);
    let about_reservations = output.contains("Suite: Prin") || output.contains("Suite: Prout");
    test.lines()
        .filter(|line| about_reservations || !line.contains(TOOL))
        .any(|line| WORDS.iter().any(|word| line.contains(word)))
}

/// Returns true if the summary counts a passed test. The tool counts none if it could not log in.
fn ran(output: &str) -> bool {
    let tests = output.lines().find_map(|line| line.trim_start().strip_prefix("tests "));
    let passed = tests.and_then(|counts| counts.split_whitespace().nth(2));
    passed.is_some_and(|count| count != "0")
}

/// Returns the first six lines of an output that contain an error.
pub fn complaint(output: &str) -> String {
    let telling = |line: &&str| {
        line.contains("[FAILED]") || line.contains("CU_") || line.to_lowercase().contains("error")
    };
    let lines: Vec<&str> = output.lines().filter(telling).take(6).collect();
    lines.join("\n")
}

/// Counts each test as a case, once on its documented set-up and once on the default one. A case with an unexpected
/// outcome has failed. The note names these tests, since a reader may have only the end of a run's output.
fn judge(
    tests: usize,
    documented: &BTreeMap<String, LibiscsiTestOutcome>,
    default: &BTreeMap<String, LibiscsiTestOutcome>,
) -> StepTally {
    let mut tally = StepTally::default();
    let mut wrong = String::new();
    for (setup, outcomes) in [(Setup::Removable, documented), (Setup::Default, default)] {
        for (test, outcome) in outcomes {
            if !is_as_it_should_be(setup, test, *outcome) {
                tally.failed += 1;
                wrong += &format!("; {test}: {outcome:?}");
            } else if *outcome == LibiscsiTestOutcome::Passed {
                tally.passed += 1;
            }
        }
    }
    let passed = |outcomes: &BTreeMap<String, LibiscsiTestOutcome>| {
        outcomes.values().filter(|outcome| **outcome == LibiscsiTestOutcome::Passed).count()
    };
    let note = format!(
        "of {tests} tests {} pass on documented set-ups, {} on the default one{wrong}",
        passed(documented),
        passed(default)
    );
    tally.with_note(note)
}

/// Returns the reason why a test cannot pass on the default set-up; None if it can.
pub fn cannot_pass(test: &str) -> Option<&'static str> {
    among(CANNOT_PASS, test).or_else(|| among(CANNOT_PASS_BY_DEFAULT, test))
}

fn among(list: &[(&str, &'static str)], test: &str) -> Option<&'static str> {
    list.iter().find(|(name, _)| *name == test).map(|(_, reason)| *reason)
}

fn families(outcomes: &BTreeMap<String, LibiscsiTestOutcome>) -> String {
    let mut counts: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    for (test, outcome) in outcomes {
        let family = test.split('.').next().unwrap_or(test);
        let column = match outcome {
            LibiscsiTestOutcome::Passed => 0,
            LibiscsiTestOutcome::Skipped => 2,
            _ => 1,
        };
        counts.entry(family).or_default()[column] += 1;
    }
    let rows = counts.iter().map(|(family, counts)| {
        [
            vec![(*family).to_owned()],
            counts.map(|count| count.to_string()).to_vec(),
            vec![String::new()],
        ]
        .concat()
    });
    table(&["family", "pass", "fail", "skip", ""], rows)
}

/// Returns a line for each test that is not expected to pass, with the reason.
pub fn exceptions() -> Vec<String> {
    let tell = |(test, reason): &(&str, &str)| format!("iscsi-test-cu {test}: {reason}");
    let by_default = |told: &(&str, &str)| tell(told) + " (on the default set-up only)";
    let always = CANNOT_PASS.iter().map(tell);
    always.chain(CANNOT_PASS_BY_DEFAULT.iter().map(by_default)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn finished(code: Option<i32>, output: &str) -> ProgramResult {
        let status = code.map(|code| ExitStatus::from_raw(code << 8));
        ProgramResult { status, output: output.to_owned(), took: Duration::ZERO }
    }

    const PASSED: &str =
        "Run Summary: Type Total Ran Passed\n  tests      1      1      1      0        0\n";
    const TOOL: &str = "    [SKIPPED] PERSISTENT RESERVE IN is not implemented.\n";

    #[test]
    fn a_skipped_test_is_not_passed() {
        let run = |family: &str, said: &str| {
            let output = format!("{TOOL}Suite: {family}\n  Test: Simple ...{said}{TOOL}{PASSED}");
            outcome(&finished(Some(0), &output))
        };
        assert_eq!(run("Read10", "\n"), LibiscsiTestOutcome::Passed);
        assert_eq!(
            run("Sanitize", "\n    [SKIPPED] SANITIZE is not implemented.\n"),
            LibiscsiTestOutcome::Skipped
        );
        assert_eq!(run("ProutClear", "\n"), LibiscsiTestOutcome::Skipped);
    }

    #[test]
    fn a_tool_that_ran_nothing_failed() {
        assert_eq!(outcome(&finished(Some(0), "could not connect")), LibiscsiTestOutcome::Failed);
        assert_eq!(outcome(&finished(Some(1), PASSED)), LibiscsiTestOutcome::Failed);
        assert_eq!(outcome(&finished(None, PASSED)), LibiscsiTestOutcome::Hung);
    }

    #[test]
    fn a_test_in_the_list_of_impossible_tests_must_not_pass() {
        let (name, _) = CANNOT_PASS[0];
        for setup in [Setup::Removable, Setup::Default] {
            assert!(is_as_it_should_be(setup, name, LibiscsiTestOutcome::Failed));
            assert!(is_as_it_should_be(setup, name, LibiscsiTestOutcome::Skipped));
            assert!(!is_as_it_should_be(setup, name, LibiscsiTestOutcome::Passed));
            assert!(!is_as_it_should_be(setup, name, LibiscsiTestOutcome::Hung));
        }
    }

    #[test]
    fn a_test_may_skip_itself_on_the_default_set_up_only() {
        let one = |outcome| BTreeMap::from([("Read10.Simple".to_owned(), outcome)]);
        let judged = |documented, default| judge(1, &one(documented), &one(default));
        let skipped = judged(LibiscsiTestOutcome::Skipped, LibiscsiTestOutcome::Passed);
        assert_eq!((skipped.passed, skipped.failed), (1, 1));
        assert!(skipped.note.ends_with("; Read10.Simple: Skipped"));
        let fine = judged(LibiscsiTestOutcome::Passed, LibiscsiTestOutcome::Skipped);
        assert_eq!((fine.passed, fine.failed), (1, 0));
        assert_eq!(judged(LibiscsiTestOutcome::Passed, LibiscsiTestOutcome::Crashed).failed, 1);
        let (by_default, _) = CANNOT_PASS_BY_DEFAULT[0];
        assert!(is_as_it_should_be(Setup::Default, by_default, LibiscsiTestOutcome::Failed));
        assert!(!is_as_it_should_be(Setup::Removable, by_default, LibiscsiTestOutcome::Failed));
    }

    #[test]
    fn families_are_counted() {
        let outcomes = BTreeMap::from([
            ("Read10.Simple".to_owned(), LibiscsiTestOutcome::Passed),
            ("Read10.Async".to_owned(), LibiscsiTestOutcome::Crashed),
        ]);
        assert!(families(&outcomes).contains("Read10     1     1     0"));
    }
}
