//! Tests that a task management function waits for data that R2Ts have requested for the tasks that
//! it ends (RFC 7143, 4.2.3.3 a).

use std::time::Duration;

use iscsi::{
    Cid, Itt, Pdu, Ttt,
    pdu::{ReadyToTransfer, TaskFunction, TaskFunctionResult},
    session::target::TargetEvent,
};
use scsi::Lun;

use crate::rig::{Rig, burst, data_out, r2ts, task_result};

const KEYS: &str = "InitialR2T=Yes\nImmediateData=No\nMaxConnections=2\nMaxBurstLength=8192\n\
                    MaxOutstandingR2T=1\n";
const FOR_A_UNIT: [TaskFunction; 3] =
    [TaskFunction::AbortTaskSet, TaskFunction::ClearTaskSet, TaskFunction::LogicalUnitReset];
const FOR_ALL: [TaskFunction; 2] = [TaskFunction::TargetWarmReset, TaskFunction::TargetColdReset];

/// Begins a write of two bursts. The target requests the first one; returns its R2T.
fn writing(rig: &mut Rig, itt: u32, lun: Lun) -> ReadyToTransfer {
    let mut command = rig.write(itt, 16_384, 0, true);
    command.lun = lun;
    rig.send(Pdu::ScsiCommand(command));
    let mut r2ts = r2ts(&rig.admit(itt));
    assert_eq!(r2ts.len(), 1);
    r2ts.remove(0)
}

fn ask(rig: &mut Rig, function: TaskFunction) {
    let request = rig.task_request(function, 10, u32::MAX);
    assert!(rig.send(Pdu::TaskRequest(request)).is_empty());
}

/// Checks that the task management function is executed now and aborts exactly the commands `expected`.
#[track_caller]
fn takes_effect(rig: &mut Rig, function: TaskFunction, expected: &[u32]) {
    let mut aborted = Vec::new();
    loop {
        match rig.session.poll_event() {
            Some(TargetEvent::Abort(itt)) => aborted.push(itt.0),
            Some(TargetEvent::Management(request)) => {
                assert_eq!(request.function, function);
                if FOR_A_UNIT.contains(&function) {
                    rig.session.abort_for(&request);
                    continue;
                }
            }
            None => break,
            event => panic!("{event:?}"),
        }
    }
    assert_eq!(aborted, expected, "{function:?}");
    assert!(rig.output().is_empty());
    rig.session.answer_management(Itt(10), TaskFunctionResult::Complete);
    assert_eq!(task_result(&rig.output()), TaskFunctionResult::Complete);
}

#[test]
fn a_function_waits_for_the_requested_burst_and_no_other_burst_is_requested() {
    for function in FOR_A_UNIT.into_iter().chain(FOR_ALL) {
        let mut rig = Rig::new(KEYS);
        let r2t = writing(&mut rig, 1, Lun(0));
        ask(&mut rig, function);
        let [first, last] = &burst(&r2t, 4096)[..] else { panic!("two PDUs") };
        assert!(rig.send(first.clone()).is_empty());
        rig.no_event();
        assert!(rig.send(last.clone()).is_empty(), "not asked for the rest");
        takes_effect(&mut rig, function, &[1]);
        assert_eq!(rig.session.tasks(), 0);
    }
}

#[test]
fn a_write_that_becomes_complete_before_a_function_takes_effect_is_aborted() {
    let mut rig = Rig::new(&KEYS.replace("8192", "16384"));
    let r2t = writing(&mut rig, 1, Lun(0));
    assert_eq!(r2t.desired_data_transfer_length, 16_384);
    ask(&mut rig, TaskFunction::AbortTaskSet);
    rig.send(data_out(1, r2t.ttt, 0, 0, 16_384, true));
    takes_effect(&mut rig, TaskFunction::AbortTaskSet, &[1]);
}

#[test]
fn an_initiator_that_sends_nothing_more_is_not_waited_for_long() {
    for function in FOR_A_UNIT.into_iter().chain(FOR_ALL) {
        let mut rig = Rig::new(KEYS);
        let r2t = writing(&mut rig, 1, Lun(0));
        ask(&mut rig, function);
        assert_eq!(rig.session.poll_timeout(), Some(rig.now + Duration::from_secs(2)));
        rig.pass(Duration::from_millis(1999)).unwrap();
        rig.no_event();
        rig.pass(Duration::from_millis(1)).unwrap();
        takes_effect(&mut rig, function, &[1]);
        // The target ignores data that arrives after the abort.
        assert!(rig.send(data_out(1, r2t.ttt, 0, 0, 8192, true)).is_empty());
        rig.no_event();
    }
}

#[test]
fn a_function_does_not_wait_for_ever_for_data_that_trickles_in() {
    let mut rig = Rig::new(KEYS);
    let r2t = writing(&mut rig, 1, Lun(0));
    ask(&mut rig, TaskFunction::LogicalUnitReset);
    for piece in 0..6 {
        rig.send(data_out(1, r2t.ttt, piece, 512 * piece as usize, 512, false));
        rig.no_event();
        rig.pass(Duration::from_millis(1600)).unwrap();
    }
    rig.no_event();
    rig.pass(Duration::from_millis(400)).unwrap();
    takes_effect(&mut rig, TaskFunction::LogicalUnitReset, &[1]);
}

#[test]
fn a_function_does_not_stop_writes_to_other_units() {
    let mut rig = Rig::new(KEYS);
    let r2t = writing(&mut rig, 1, Lun(0));
    let other = writing(&mut rig, 2, Lun(1 << 48));
    ask(&mut rig, TaskFunction::LogicalUnitReset);
    let mut pdu = data_out(2, other.ttt, 0, 0, 8192, true);
    if let Pdu::DataOut(data_out) = &mut pdu {
        data_out.lun = Lun(1 << 48);
    }
    assert_eq!(r2ts(&rig.send(pdu)).len(), 1, "the next burst");
    rig.send(data_out(1, r2t.ttt, 0, 0, 8192, true));
    takes_effect(&mut rig, TaskFunction::LogicalUnitReset, &[1]);
    assert_eq!(rig.session.tasks(), 1);
}

#[test]
fn writes_continue_after_a_function_that_aborts_nothing() {
    let mut rig = Rig::new(KEYS);
    let r2t = writing(&mut rig, 1, Lun(0));
    ask(&mut rig, TaskFunction::LogicalUnitReset);
    rig.send(data_out(1, r2t.ttt, 0, 0, 8192, true));
    assert!(matches!(rig.session.poll_event(), Some(TargetEvent::Management(_))));
    rig.session.answer_management(Itt(10), TaskFunctionResult::NoLun);
    let pdus = rig.output();
    assert!(matches!(&pdus[0], Pdu::ReadyToTransfer(r2t) if r2t.buffer_offset == 8192), "{pdus:?}");
    assert_eq!(task_result(&pdus[1..]), TaskFunctionResult::NoLun);
}

#[test]
fn writes_of_other_connections_continue_if_a_function_is_lost_with_its_connection() {
    let mut rig = Rig::new(KEYS);
    let other = rig.join(8);
    let r2t = writing(&mut rig, 1, Lun(0));
    let request = rig.task_request(TaskFunction::ClearTaskSet, 10, u32::MAX);
    rig.send_on(other, Pdu::TaskRequest(request));
    assert!(rig.send(data_out(1, r2t.ttt, 0, 0, 8192, true)).is_empty());
    let Some(TargetEvent::Management(_)) = rig.session.poll_event() else { panic!("it has all") };
    let mut rig = Rig::new(KEYS);
    let other: Cid = rig.join(8);
    let r2t = writing(&mut rig, 1, Lun(0));
    let request = rig.task_request(TaskFunction::ClearTaskSet, 10, u32::MAX);
    rig.send_on(other, Pdu::TaskRequest(request));
    rig.session.drop_connection(other, rig.now);
    rig.output();
    let next = r2ts(&rig.send(data_out(1, r2t.ttt, 0, 0, 8192, true)));
    assert_eq!(next.len(), 1);
    assert_ne!(next[0].ttt, Ttt::NONE);
    rig.send(data_out(1, next[0].ttt, 0, 8192, 8192, true));
    assert_eq!(rig.command().itt, Itt(1));
}

/// A regression test. An immediate function and the next command have the same CmdSN. If the
/// function had to wait, that command was aborted without a response.
#[test]
fn commands_after_a_waiting_function_are_not_aborted_by_it() {
    for function in FOR_A_UNIT.into_iter().chain(FOR_ALL) {
        let mut rig = Rig::new(KEYS);
        let r2t = writing(&mut rig, 1, Lun(0));
        let mut before = rig.read(2, 0);
        (before.immediate, rig.cmd_sn) = (true, before.cmd_sn);
        rig.deliver(before);
        ask(&mut rig, function);
        let after = rig.read(3, 0);
        rig.deliver(after);
        let late = writing(&mut rig, 4, Lun(0));
        let [first, last] = &burst(&r2t, 4096)[..] else { panic!("two PDUs") };
        rig.send(first.clone());
        rig.no_event();
        rig.send(last.clone());
        let mut ended = Vec::new();
        while let Some(event) = rig.session.poll_event() {
            match event {
                TargetEvent::Abort(itt) => ended.push(itt.0),
                TargetEvent::Management(request) if FOR_A_UNIT.contains(&function) => {
                    rig.session.abort_for(&request);
                }
                _ => {}
            }
        }
        ended.sort_unstable();
        assert_eq!(ended, [1, 2], "{function:?}");
        rig.session.answer_management(Itt(10), TaskFunctionResult::Complete);
        rig.output();
        let pdus = rig.send(burst(&late, 8192).remove(0));
        assert_eq!(r2ts(&pdus).len(), 1, "the write after it goes on");
    }
}

/// Writes also continue when the connection that sent the function is logged out or fails.
#[test]
fn writes_continue_when_the_connection_of_a_function_is_replaced() {
    let mut rig = Rig::new(KEYS);
    let other = Cid(8);
    rig.join(other.0);
    let r2t = writing(&mut rig, 1, Lun(0));
    let request = rig.task_request(TaskFunction::LogicalUnitReset, 10, u32::MAX);
    assert!(rig.send_on(other, Pdu::TaskRequest(request)).is_empty());
    assert!(rig.send(burst(&r2t, 4096).remove(0)).is_empty());
    rig.no_event();
    let mut waiting = rig.write(2, 8192, 0, true);
    (waiting.immediate, rig.cmd_sn) = (true, waiting.cmd_sn);
    rig.send(Pdu::ScsiCommand(waiting));
    assert!(rig.admit(2).is_empty(), "it is about to end");
    rig.join(other.0);
    assert_eq!(r2ts(&rig.output())[0].itt, Itt(2), "nothing ends it any more");
}
