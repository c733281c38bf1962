//! Runs libiscsi's test suite over the machine's network stack. `cargo xtask test` runs the whole
//! suite on the host in less time; this scenario adds the network in between.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::suite::conformance::{self, LibiscsiTestOutcome};
use crate::vm::guest::{HOSTS, Hardware};
use crate::vm::stage::{SHORT, VmScenarioStage, settings};

const TARGET: &str = "iqn.2026-11.forebay.vm:conformance";

/// Families of tests that run by default. Under emulation each test of these families takes well
/// below a second.
const FAST: &[&str] = &[
    "Inquiry",
    "ModeSense6",
    "Read10",
    "Read16",
    "ReadCapacity10",
    "ReadCapacity16",
    "TestUnitReady",
    "Unmap",
    "Verify10",
    "Write10",
    "Write16",
    "iSCSIResiduals",
    "iSCSIcmdsn",
];

/// Time limit of a test: ten times the limit on the host, since some tests wait.
const LIMIT: Duration = Duration::from_secs(100);

pub fn play(stage: &mut VmScenarioStage<'_>) -> Result<()> {
    // Just below 1 GiB: on larger units some tests skip themselves.
    let unit = "{ memory = { size = \"1023MiB\" } }";
    let node = stage.serve("target", &settings(TARGET, &[0], unit))?;
    let mut guest = stage.boot(Hardware::default())?;
    let url = format!("iscsi://{}:{}/{TARGET}/0", HOSTS[0], node.portal().port());
    let list = guest.run("iscsi-test-cu --list", SHORT, "iscsi-test-cu --list")?;
    let mut tests = conformance::listed(&list);
    if !stage.all {
        tests.retain(|test| FAST.iter().any(|family| family_of(test) == *family));
    }
    ensure!(!tests.is_empty(), "iscsi-test-cu lists no tests");
    let command = |test: &String| format!("iscsi-test-cu -d -S -V -t ALL.{test} {url} {url}");
    let commands: Vec<String> = tests.iter().map(command).collect();
    let what = "tests of iscsi-test-cu, each in a process of its own";
    let ended = guest.each(what, LIMIT, &commands)?;
    let (mut passed, mut wrong) = (0, vec![]);
    for (test, finished) in tests.iter().zip(&ended) {
        match (conformance::outcome(finished), conformance::cannot_pass(test)) {
            (LibiscsiTestOutcome::Passed, _) => passed += 1,
            (_, Some(why)) => stage.leave_out(test, why),
            (LibiscsiTestOutcome::Skipped, None) => {
                stage.leave_out(test, "skips itself, wholly or in part, on a default unit");
            }
            (outcome, None) => {
                println!("{test}: {outcome:?}\n{}", conformance::complaint(&finished.output));
                wrong.push(test.as_str());
            }
        }
    }
    ensure!(wrong.is_empty(), "{passed} tests pass, but not {}", wrong.join(", "));
    ensure!(passed > 0, "no test passes");
    stage.held(format!("{passed} tests of iscsi-test-cu pass over the machine's network"));
    if !stage.all {
        stage.leave_out("the other families", "they take long under emulation: --all runs them");
    }
    node.stop()?;
    Ok(())
}

fn family_of(test: &str) -> &str {
    test.split('.').next().unwrap_or(test)
}
