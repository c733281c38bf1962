//! Tests that each unit reports commands that were aborted because their connection ended (RFC
//! 7143, 11.14.5).

use std::time::Duration;

use iscsi::{
    Cid, DataSegment, Itt, Pdu, Serial,
    pdu::{LogoutReason, LogoutRequest, TaskFunction},
    session::target::{TargetCommandOutcome, TargetEvent},
};
use scsi::Lun;

use crate::rig::{CID, Rig};

const TWO: &str = "MaxConnections=2\n";
const RECOVERED: &str =
    "MaxConnections=2\nErrorRecoveryLevel=2\nDefaultTime2Wait=2\nDefaultTime2Retain=20\n";
const OTHER: Cid = Cid(8);

/// Returns the tags of the aborted commands, and the units that must report this. The rig has two
/// reads of unit 1 and one of unit 2 on the second connection, and one read of unit 3 on the first.
fn events(rig: &mut Rig) -> (Vec<u32>, Vec<Lun>) {
    let (mut aborted, mut told) = (Vec::new(), Vec::new());
    while let Some(event) = rig.session.poll_event() {
        match event {
            TargetEvent::Abort(itt) => aborted.push(itt.0),
            TargetEvent::Terminated(lun) => told.push(lun),
            event => panic!("{event:?}"),
        }
    }
    aborted.sort_unstable();
    told.sort_unstable_by_key(|lun| lun.0);
    (aborted, told)
}

fn lun(number: u16) -> Lun {
    Lun::from_number(number).unwrap()
}

fn busy(keys: &str) -> Rig {
    let mut rig = Rig::new(keys);
    rig.join(OTHER.0);
    for (itt, number, cid) in [(1, 1, OTHER), (2, 1, OTHER), (3, 2, OTHER), (4, 3, CID)] {
        let mut command = rig.read(itt, 0);
        command.lun = lun(number);
        rig.send_on(cid, Pdu::ScsiCommand(command));
        rig.command();
    }
    rig
}

fn log_out(rig: &mut Rig, reason: LogoutReason) {
    let request = LogoutRequest {
        immediate: true,
        reason: Ok(reason),
        itt: Itt(0x77),
        cid: OTHER,
        cmd_sn: rig.cmd_sn,
        exp_stat_sn: Serial(0),
    };
    rig.send(Pdu::LogoutRequest(request));
}

fn each_unit_once() -> (Vec<u32>, Vec<Lun>) {
    (vec![1, 2, 3], vec![lun(1), lun(2)])
}

#[test]
fn a_connection_that_fails_below_level_two() {
    let mut rig = busy(TWO);
    rig.session.drop_connection(OTHER, rig.now);
    assert_eq!(events(&mut rig), each_unit_once());
}

#[test]
fn a_connection_that_is_logged_out_or_replaced() {
    let mut rig = busy(TWO);
    log_out(&mut rig, LogoutReason::CloseConnection);
    assert_eq!(events(&mut rig), each_unit_once());
    let mut rig = busy(TWO);
    rig.join(OTHER.0);
    assert_eq!(events(&mut rig), each_unit_once());
}

#[test]
fn a_connection_that_is_not_recovered_in_time() {
    for reason in [None, Some(LogoutReason::RemoveConnectionForRecovery)] {
        let mut rig = busy(RECOVERED);
        match reason {
            None => rig.session.drop_connection(OTHER, rig.now),
            Some(reason) => log_out(&mut rig, reason),
        }
        // Only the second connection has failed: the initiator still answers on the first one.
        rig.now += Duration::from_secs(14);
        let pong = rig.ping(u32::MAX, 0);
        rig.send(Pdu::NopOut(pong));
        rig.now += Duration::from_secs(7);
        rig.session.handle_timeout(rig.now);
        assert_eq!(events(&mut rig), (vec![], vec![]), "until Time2Wait and Time2Retain are over");
        rig.pass(Duration::from_secs(1)).unwrap();
        assert_eq!(events(&mut rig), each_unit_once());
    }
}

#[test]
fn a_reassigned_task_is_not_reported_as_terminated() {
    let mut rig = busy(RECOVERED);
    log_out(&mut rig, LogoutReason::RemoveConnectionForRecovery);
    for (itt, meant) in [(11, 1), (12, 2)] {
        let request = rig.task_request(TaskFunction::TaskReassign, itt, meant);
        rig.send(Pdu::TaskRequest(request));
    }
    rig.now += Duration::from_secs(14);
    let pong = rig.ping(u32::MAX, 0);
    rig.send(Pdu::NopOut(pong));
    rig.pass(Duration::from_secs(8)).unwrap();
    assert_eq!(events(&mut rig), (vec![3], vec![lun(2)]));
}

#[test]
fn an_answered_command_and_an_aborted_one_did_not_end_with_their_connection() {
    let mut rig = busy(TWO);
    rig.session.complete(Itt(1), TargetCommandOutcome::good(DataSegment::new()));
    let mut request = rig.task_request(TaskFunction::AbortTask, 10, 2);
    request.lun = lun(1);
    rig.send(Pdu::TaskRequest(request));
    assert_eq!(events(&mut rig), (vec![2], vec![]));
    rig.session.drop_connection(OTHER, rig.now);
    assert_eq!(events(&mut rig), (vec![3], vec![lun(2)]));
}
