//! libiscsi's test suite, one process per test: one of them leaves a hook behind that spoils those
//! after it. The tool counts a skipped test as passed; we do not.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::process::{self, Finished};
use crate::steps::{Tally, table};

/// A test takes milliseconds, one that waits for a time-out some seconds.
const LIMIT: Duration = Duration::from_secs(20);

/// How a test went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Every assertion held.
    Passed,
    /// It asked for something the unit says it has not.
    Skipped,
    /// An assertion did not hold.
    Failed,
    /// It ran past its time.
    Hung,
    /// The tool died.
    Crashed,
}

/// Tests that cannot pass, each with the reason.
const CANNOT_PASS: &[(&str, &str)] = &[
    (
        "iSCSITMF.LUNResetSimpleAsync",
        "asserts a flag that only a later callback sets (libiscsi 1.19)",
    ),
    (
        "WriteSame10.UnmapUntilEnd",
        "sends FFh with UNMAP and expects zeros; a block is given back only if it then reads as sent (SBC-3)",
    ),
    (
        "MultipathIO.CompareAndWriteAsync",
        "needs COMPARE AND WRITE, which is not served, and does not skip itself",
    ),
    ("Sanitize.Readonly", "needs a write protection that MODE SELECT can set, which is not served"),
];

/// A unit for the suite, and one that refuses writes for the tests of that.
pub struct Units {
    /// URLs of units of the same kind; as many tests run at a time.
    pub writable: Vec<String>,
    /// URL of a write-protected unit.
    pub read_only: String,
}

/// Runs every test and prints a table of families.
pub fn run(units: &Units) -> Result<Tally> {
    let tests = list()?;
    let outcomes = Mutex::new(BTreeMap::new());
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let workers: Vec<_> = units
            .writable
            .iter()
            .map(|url| scope.spawn(|| work(&tests, &next, url, &units.read_only, &outcomes)))
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })?;
    let outcomes = outcomes.into_inner().expect("no worker panicked");
    print!("{}", families(&outcomes));
    Ok(judge(&outcomes))
}

/// Takes tests from the list until it is empty.
fn work(
    tests: &[String],
    next: &AtomicUsize,
    url: &str,
    read_only: &str,
    outcomes: &Mutex<BTreeMap<String, Outcome>>,
) -> Result<()> {
    while let Some(test) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
        let url = if test.starts_with("ReadOnly.") { read_only } else { url };
        let mut command = Command::new("iscsi-test-cu");
        // -d: tests that write; -S: SANITIZE; -V: say when a test skips itself; twice the URL: the
        // multipath family.
        command.args(["-d", "-S", "-V", "-t", &format!("ALL.{test}"), url, url]);
        let finished = process::run(&mut command, LIMIT)?;
        let outcome = outcome(&finished);
        let known = outcome != Outcome::Hung && cannot_pass(test).is_some();
        if outcome > Outcome::Skipped && !known {
            println!("{test}: {outcome:?}\n{}", complaint(&finished.output));
        }
        outcomes.lock().expect("no worker panics").insert(test.clone(), outcome);
    }
    Ok(())
}

/// Every test the tool knows.
fn list() -> Result<Vec<String>> {
    let finished = process::run(Command::new("iscsi-test-cu").arg("--list"), LIMIT)?;
    let tests = listed(&finished.output);
    ensure!(!tests.is_empty(), "iscsi-test-cu lists no tests: {}", finished.tail(3));
    Ok(tests)
}

/// The tests that `iscsi-test-cu --list` names, without the name of the whole.
pub fn listed(output: &str) -> Vec<String> {
    let lines = output.lines().filter_map(|line| line.trim().strip_prefix("ALL."));
    lines.filter(|test| test.contains('.')).map(str::to_owned).collect()
}

/// What the tool's exit and words mean.
pub fn outcome(finished: &Finished) -> Outcome {
    match finished.code() {
        None if finished.status.is_none() => Outcome::Hung,
        None => Outcome::Crashed,
        Some(0) if skips(&finished.output) => Outcome::Skipped,
        Some(0) if ran(&finished.output) => Outcome::Passed,
        Some(_) => Outcome::Failed,
    }
}

/// Whether a test left itself out, wholly or in part.
fn skips(output: &str) -> bool {
    const WORDS: [&str; 4] = ["[SKIPPED]", "[SKIPPING]", "is not implemented", "Skipping test"];
    // Before and after each test the tool itself looks for reservations left behind.
    const TOOL: &str = "PERSISTENT RESERVE IN is not implemented";
    let test = output.split_once("  Test: ").map_or("", |(_, test)| test);
    let about_reservations = output.contains("Suite: Prin") || output.contains("Suite: Prout");
    test.lines()
        .filter(|line| about_reservations || !line.contains(TOOL))
        .any(|line| WORDS.iter().any(|word| line.contains(word)))
}

/// Whether the run summary counts a test that passed: a tool that could not even log in counts none.
fn ran(output: &str) -> bool {
    let tests = output.lines().find_map(|line| line.trim_start().strip_prefix("tests "));
    let passed = tests.and_then(|counts| counts.split_whitespace().nth(2));
    passed.is_some_and(|count| count != "0")
}

/// The lines of an output that say what was wrong.
pub fn complaint(output: &str) -> String {
    let telling = |line: &&str| {
        line.contains("[FAILED]") || line.contains("CU_") || line.to_lowercase().contains("error")
    };
    let lines: Vec<&str> = output.lines().filter(telling).take(6).collect();
    lines.join("\n")
}

/// A failed case is a test that neither passes nor skips, or one that was said to be unable to pass
/// and now does: then this list is wrong.
fn judge(outcomes: &BTreeMap<String, Outcome>) -> Tally {
    let mut tally = Tally::default();
    let mut skipped = 0;
    for (test, outcome) in outcomes {
        match (outcome, cannot_pass(test)) {
            (Outcome::Skipped, _) => skipped += 1,
            (Outcome::Passed, None) => tally.passed += 1,
            // Its own mistake may also be its end.
            (Outcome::Failed | Outcome::Crashed, Some(_)) => skipped += 1,
            _ => tally.failed += 1,
        }
    }
    tally.with_note(format!("of {} tests, {skipped} skipped or unable to pass", outcomes.len()))
}

/// Why a test cannot pass, if it is one of those.
pub fn cannot_pass(test: &str) -> Option<&'static str> {
    CANNOT_PASS.iter().find(|(name, _)| *name == test).map(|(_, reason)| *reason)
}

fn families(outcomes: &BTreeMap<String, Outcome>) -> String {
    let mut counts: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    for (test, outcome) in outcomes {
        let family = test.split('.').next().unwrap_or(test);
        let column = match outcome {
            Outcome::Passed => 0,
            Outcome::Skipped => 2,
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

/// Prints why tests are not expected to pass, for the last lines.
pub fn exceptions() -> Vec<String> {
    CANNOT_PASS.iter().map(|(test, reason)| format!("iscsi-test-cu {test}: {reason}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn finished(code: Option<i32>, output: &str) -> Finished {
        let status = code.map(|code| ExitStatus::from_raw(code << 8));
        Finished { status, output: output.to_owned() }
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
        assert_eq!(run("Read10", "\n"), Outcome::Passed);
        assert_eq!(
            run("Sanitize", "\n    [SKIPPED] SANITIZE is not implemented.\n"),
            Outcome::Skipped
        );
        assert_eq!(run("ProutClear", "\n"), Outcome::Skipped);
    }

    #[test]
    fn a_tool_that_ran_nothing_failed() {
        assert_eq!(outcome(&finished(Some(0), "could not connect")), Outcome::Failed);
        assert_eq!(outcome(&finished(Some(1), PASSED)), Outcome::Failed);
        assert_eq!(outcome(&finished(None, PASSED)), Outcome::Hung);
    }

    #[test]
    fn what_cannot_pass_must_not_pass() {
        let (name, _) = CANNOT_PASS[0];
        let one = |outcome| judge(&BTreeMap::from([(name.to_owned(), outcome)]));
        assert_eq!(one(Outcome::Failed).failed, 0);
        assert_eq!(one(Outcome::Passed).failed, 1);
        assert_eq!(one(Outcome::Hung).failed, 1);
    }

    #[test]
    fn families_are_counted() {
        let outcomes = BTreeMap::from([
            ("Read10.Simple".to_owned(), Outcome::Passed),
            ("Read10.Async".to_owned(), Outcome::Crashed),
        ]);
        assert!(families(&outcomes).contains("Read10     1     1     0"));
    }
}
