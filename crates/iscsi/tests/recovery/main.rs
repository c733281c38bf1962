//! Tests the recovery of initiator and target in virtual time. A workload of reads and writes is
//! run once for each of its PDUs. In each run one PDU is dropped or damaged, or is the last of its
//! connection. This is repeated for every error recovery level, with one to four connections of
//! different delays. In every run each command is answered once, no write overwrites a later write
//! to the same block, and reads return the data that was written.

mod model;
mod plan;
mod login;
mod rig;

use std::panic::{self, AssertUnwindSafe};

use plan::{Fault, Mute, Plan, Report, SCRIPT, WORKERS};
use rig::run;

const COMMANDS: u32 = SCRIPT.len() as u32 * WORKERS as u32;

/// Runs the workload once for each of its PDUs, with the fault at that PDU, and passes each report
/// to `judge`.
fn everywhere(level: u8, connections: u16, fault: Fault, judge: impl Fn(&Report)) {
    let plan = Plan::new(level, connections);
    let whole = run(plan);
    assert_eq!((whole.answered, whole.failed, whole.rebuilt, whole.ended), (COMMANDS, 0, 0, 0));
    for place in 1..=whole.pdus {
        let report = panic::catch_unwind(AssertUnwindSafe(|| {
            // At level 0, only a time-out detects a lost PDU, so commands may fail.
            let may_fail = level == 0 && matches!(fault, Fault::Dropped | Fault::DataDamaged);
            let report = run(Plan { fault: Some((place, fault)), may_fail, ..plan });
            assert_eq!(report.answered, COMMANDS);
            judge(&report);
            report
        }));
        assert!(report.is_ok(), "level {level}, {connections} connections, {fault:?} at {place}");
    }
}

fn at_any_level_with_any_number_of_connections(fault: Fault, judge: impl Fn(u8, u16, &Report)) {
    for level in 0..=2 {
        for connections in 1..=4 {
            everywhere(level, connections, fault, |report| judge(level, connections, report));
        }
    }
}

#[test]
fn without_faults_nothing_is_recovered() {
    for level in 0..=2 {
        for connections in 1..=4 {
            let report = run(Plan::new(level, connections));
            assert_eq!((report.rebuilt, report.ended, report.seconds), (0, 0, 0), "{report:?}");
        }
    }
}

#[test]
fn a_pdu_that_is_lost() {
    at_any_level_with_any_number_of_connections(Fault::Dropped, |level, _, report| {
        assert!(level == 0 || report.failed == 0, "no error at the application: {report:?}");
        assert!(level == 0 || report.rebuilt == 0, "the session goes on: {report:?}");
    });
}

#[test]
fn a_pdu_whose_data_is_damaged() {
    at_any_level_with_any_number_of_connections(Fault::DataDamaged, |level, _, report| {
        assert!(level == 0 || report.failed == 0, "no error at the application: {report:?}");
        assert!(level == 0 || report.ended == 0, "within the connection: {report:?}");
    });
}

#[test]
fn a_pdu_whose_header_is_damaged() {
    at_any_level_with_any_number_of_connections(Fault::HeaderDamaged, |level, count, report| {
        let goes_on = level == 2 || count > 1;
        assert!(!goes_on || report.rebuilt == 0, "the session goes on: {report:?}");
    });
}

#[test]
fn a_connection_that_is_cut() {
    at_any_level_with_any_number_of_connections(Fault::Cut, |level, count, report| {
        let goes_on = level == 2 || count > 1;
        assert!(!goes_on || report.rebuilt == 0, "the session goes on: {report:?}");
        assert!(report.seconds < 2, "at once: {report:?}");
    });
}

#[test]
fn a_connection_that_is_cut_and_the_target_does_not_know() {
    at_any_level_with_any_number_of_connections(Fault::CutUnnoticed, |level, count, report| {
        let goes_on = level == 2 || count > 1;
        assert!(!goes_on || report.rebuilt == 0, "the session goes on: {report:?}");
        assert!(report.seconds < 2, "at once: {report:?}");
    });
}

/// Checks that the tests above depend on recovery: they must fail if SNACKs, retries or
/// reassignments never arrive.
#[test]
fn without_snacks_retries_or_reassignments_recovery_fails() {
    let cases = [
        (1, 1, Mute::Snacks, Fault::DataDamaged),
        (1, 2, Mute::Retries, Fault::Dropped),
        (2, 1, Mute::Reassigns, Fault::Cut),
        (2, 3, Mute::Retries, Fault::Cut),
    ];
    for (level, connections, mute, fault) in cases {
        let plan = Plan { mute: Some(mute), ..Plan::new(level, connections) };
        let fails = |place: u32| {
            let result = panic::catch_unwind(|| run(Plan { fault: Some((place, fault)), ..plan }));
            result.map_or(true, |report| report.rebuilt > 0)
        };
        assert!((1..=run(plan).pdus).any(fails), "{mute:?}");
    }
}

/// Checks that the tests above detect an application that loses a command.
#[test]
fn a_command_that_the_application_forgets_is_detected() {
    let misses = |place: u32| {
        let fault = Some((place, Fault::Cut));
        panic::catch_unwind(|| run(Plan { fault, forgets: true, ..Plan::new(0, 2) })).is_err()
    };
    assert!((1..60).any(misses));
}
