//! Tests error recovery level 2, where tasks survive the end of their connection (RFC 7143, 6.3.4,
//! 7.2.2, 7.5, 11.5.6, 11.14).

use std::time::Duration;

use iscsi::{
    Cid, Itt, Pdu, Serial, Ttt,
    pdu::{
        AsyncEvent, LogoutReason, LogoutRequest, LogoutResult, TaskFunction, TaskFunctionResult,
    },
    session::target::{Settings, TargetCommandOutcome, TargetEvent},
};
use scsi::Lun;

use crate::rig::{
    CID, Rig, burst, data_ins, data_out, pattern, r2ts, response, sense, task_result,
};

/// The keys of a session with level 2 and two connections. Bursts have 1024 bytes and PDUs 512, so
/// that small transfers have several of each.
const TWO: &str = "ErrorRecoveryLevel=2\nMaxConnections=2\nInitialR2T=No\nFirstBurstLength=1024\n\
                   MaxBurstLength=1024\nMaxRecvDataSegmentLength=512\nDefaultTime2Wait=2\n\
                   DefaultTime2Retain=20\n";
const OTHER: Cid = Cid(8);

fn two_connections() -> Rig {
    let mut rig = Rig::new(TWO);
    rig.join(OTHER.0);
    rig
}

fn good(length: usize) -> TargetCommandOutcome {
    TargetCommandOutcome::good(
        [pattern(0, length)].into_iter().filter(|data| !data.is_empty()).collect(),
    )
}

fn logout(rig: &mut Rig, on: Cid, reason: LogoutReason, cid: Cid) -> (LogoutResult, u16, u16) {
    let request = LogoutRequest {
        immediate: true,
        reason: Ok(reason),
        itt: Itt(0x77),
        cid,
        cmd_sn: rig.cmd_sn,
        exp_stat_sn: Serial(0),
    };
    let pdus = rig.send_on(on, Pdu::LogoutRequest(request));
    let Some(Pdu::LogoutResponse(answer)) = pdus.last() else { panic!("{pdus:?}") };
    (answer.result, answer.time2wait, answer.time2retain)
}

/// Makes the second connection fail, and logs it out by a request on the first one.
fn lose_other(rig: &mut Rig) {
    rig.session.drop_connection(OTHER, rig.now);
    let pdus = rig.output();
    let [Pdu::Async(message)] = &pdus[..] else { panic!("{pdus:?}") };
    let dropped = AsyncEvent::ConnectionDropped { cid: OTHER, time2wait: 2, time2retain: 20 };
    assert_eq!(message.event, dropped);
    let answer = logout(rig, CID, LogoutReason::RemoveConnectionForRecovery, OTHER);
    assert_eq!(answer, (LogoutResult::Closed, 2, 20));
}

fn reassign(rig: &mut Rig, itt: u32, exp_data_sn: u32) -> (TaskFunctionResult, Vec<Pdu>) {
    let mut request = rig.task_request(TaskFunction::TaskReassign, 0x99, itt);
    request.exp_data_sn = exp_data_sn;
    let mut pdus = rig.send(Pdu::TaskRequest(request));
    let rest = pdus.split_off(1);
    (task_result(&pdus), rest)
}

fn aborts(rig: &mut Rig) -> Vec<u32> {
    std::iter::from_fn(|| rig.session.poll_event())
        .filter_map(|event| match event {
            TargetEvent::Abort(itt) => Some(itt.0),
            TargetEvent::Terminated(_) => None,
            event => panic!("{event:?}"),
        })
        .collect()
}

/// Sends a read of `length` bytes on the second connection, and passes it to the driver.
fn read_on_other(rig: &mut Rig, itt: u32, length: u32) {
    let command = rig.read(itt, length);
    rig.send_on(OTHER, Pdu::ScsiCommand(command));
    rig.command();
}

#[test]
fn a_reassigned_command_continues_and_is_answered_on_its_new_connection() {
    let mut rig = two_connections();
    read_on_other(&mut rig, 1, 700);
    lose_other(&mut rig);
    rig.no_event();
    let (result, rest) = reassign(&mut rig, 1, 0);
    assert_eq!(result, TaskFunctionResult::Complete);
    assert!(rest.is_empty());
    let pdus = rig.complete(1, good(700));
    assert_eq!(data_ins(&pdus).len(), 2);
    assert_eq!(rig.session.tasks(), 0);
}

#[test]
fn a_command_that_ends_without_a_connection_is_answered_at_its_reassignment() {
    let mut rig = two_connections();
    read_on_other(&mut rig, 1, 700);
    lose_other(&mut rig);
    assert!(rig.complete(1, good(700)).is_empty());
    let (result, rest) = reassign(&mut rig, 1, 0);
    assert_eq!(result, TaskFunctionResult::Complete);
    let data: Vec<u8> = data_ins(&rest).iter().flat_map(|d| d.data.concat()).collect();
    assert_eq!(data, pattern(0, 700));
    assert!(data_ins(&rest)[1].status.is_some());
}

#[test]
fn an_unacknowledged_answer_is_sent_again_from_exp_data_sn() {
    for (exp_data_sn, first, offset) in [(0, 0, 0), (3, 3, 1536), (9, 0, 0)] {
        let mut rig = two_connections();
        read_on_other(&mut rig, 1, 2500);
        rig.session.complete(Itt(1), good(2500));
        rig.output_of(OTHER);
        lose_other(&mut rig);
        let (result, rest) = reassign(&mut rig, 1, exp_data_sn);
        assert_eq!(result, TaskFunctionResult::Complete);
        let data_ins = data_ins(&rest);
        assert_eq!((data_ins[0].data_sn, data_ins[0].buffer_offset), (first, offset));
        assert!(data_ins.last().unwrap().status.is_some());
        let numbers = data_ins.last().unwrap().numbers;
        assert_eq!(numbers.stat_sn, Serial(504), "a number of its new connection");
    }
}

#[test]
fn if_all_data_has_arrived_only_the_status_is_sent_again() {
    let mut rig = two_connections();
    read_on_other(&mut rig, 1, 2500);
    rig.session.complete(Itt(1), good(2500));
    rig.output_of(OTHER);
    lose_other(&mut rig);
    let (_, rest) = reassign(&mut rig, 1, 5);
    assert_eq!((response(&rest).status, response(&rest).exp_data_sn), (0, 5));
}

#[test]
fn a_reassignment_fails_if_the_retained_answer_was_dropped() {
    let settings = Settings { retained_bytes: 10, ..Settings::default() };
    let mut rig = Rig::with(TWO, settings);
    rig.join(OTHER.0);
    for itt in [1, 2] {
        read_on_other(&mut rig, itt, 700);
        rig.session.complete(Itt(itt), good(700));
    }
    rig.output_of(OTHER);
    lose_other(&mut rig);
    let (_, rest) = reassign(&mut rig, 1, 0);
    assert_eq!(sense(response(&rest)), (0xb, 0x11, 0x13));
    let (_, rest) = reassign(&mut rig, 2, 0);
    assert_eq!(data_ins(&rest).len(), 2);
}

#[test]
fn a_failed_reassignment_has_the_format_that_the_unit_requires() {
    let settings = Settings { retained_bytes: 10, ..Settings::default() };
    let mut rig = Rig::with(TWO, settings);
    rig.session.use_descriptor_sense(vec![Lun(0)]);
    rig.join(OTHER.0);
    for itt in [1, 2] {
        read_on_other(&mut rig, itt, 700);
        rig.session.complete(Itt(itt), good(700));
    }
    rig.output_of(OTHER);
    lose_other(&mut rig);
    let (_, rest) = reassign(&mut rig, 1, 0);
    assert_eq!(response(&rest).sense[..4], [0x72, 0xb, 0x11, 0x13]);
}

#[test]
fn answers_without_a_connection_are_kept_within_the_bound() {
    let settings = Settings { retained_bytes: 1000, ..Settings::default() };
    let mut rig = Rig::with(TWO, settings);
    rig.join(OTHER.0);
    for itt in [1, 2] {
        read_on_other(&mut rig, itt, 700);
    }
    lose_other(&mut rig);
    for itt in [1, 2] {
        rig.complete(itt, good(700));
    }
    let (_, rest) = reassign(&mut rig, 1, 0);
    assert_eq!(data_ins(&rest).len(), 2);
    let (_, rest) = reassign(&mut rig, 2, 0);
    assert_eq!(sense(response(&rest)), (0xb, 0x11, 0x13));
}

#[test]
fn an_acknowledged_answer_cannot_be_reassigned() {
    let mut rig = two_connections();
    read_on_other(&mut rig, 1, 0);
    rig.session.complete(Itt(1), good(0));
    let stat_sn = response(&rig.output_of(OTHER)).numbers.stat_sn;
    let mut pong = rig.ping(u32::MAX, 0);
    pong.exp_stat_sn = stat_sn.next();
    rig.send_on(OTHER, Pdu::NopOut(pong));
    lose_other(&mut rig);
    assert_eq!(reassign(&mut rig, 1, 0).0, TaskFunctionResult::NoTask);
}

#[test]
fn a_reassigned_write_requests_data_that_did_not_arrive() {
    let mut rig = two_connections();
    let command = rig.write(1, 2048, 0, true);
    rig.send_on(OTHER, Pdu::ScsiCommand(command));
    rig.admit(1);
    let first = r2ts(&rig.output_of(OTHER))[0];
    rig.send_on(OTHER, burst(&first, 512)[0].clone());
    lose_other(&mut rig);
    let (result, rest) = reassign(&mut rig, 1, 0);
    assert_eq!(result, TaskFunctionResult::Complete);
    let mut r2t = r2ts(&rest)[0];
    assert_eq!((r2t.buffer_offset, r2t.desired_data_transfer_length), (512, 512));
    for _ in 0..2 {
        let pdus: Vec<Pdu> = burst(&r2t, 512).into_iter().flat_map(|pdu| rig.send(pdu)).collect();
        match &r2ts(&pdus)[..] {
            [next] => r2t = *next,
            _ => break,
        }
    }
    assert_eq!(rig.command().data_out.concat(), pattern(0, 2048));
    assert_eq!(response(&rig.complete(1, good(0))).status, 0);
}

#[test]
fn a_reassigned_write_requests_lost_unsolicited_data() {
    let mut rig = two_connections();
    let command = rig.write(1, 1024, 256, false);
    rig.send_on(OTHER, Pdu::ScsiCommand(command));
    rig.send_on(OTHER, data_out(1, Ttt::NONE, 0, 256, 256, false));
    lose_other(&mut rig);
    let (_, rest) = reassign(&mut rig, 1, 0);
    let r2t = r2ts(&rest)[0];
    assert_eq!((r2t.buffer_offset, r2t.desired_data_transfer_length), (512, 512));
    rig.send(burst(&r2t, 512)[0].clone());
    assert_eq!(rig.command().data_out.concat(), pattern(0, 1024));
}

#[test]
fn a_write_that_was_admitted_without_a_connection_continues() {
    let mut rig = two_connections();
    let command = rig.write(1, 2048, 0, true);
    rig.send_on(OTHER, Pdu::ScsiCommand(command));
    assert!(matches!(rig.session.poll_event(), Some(TargetEvent::Admission(_))));
    lose_other(&mut rig);
    rig.session.admit(Itt(1), None);
    let (_, rest) = reassign(&mut rig, 1, 0);
    assert_eq!(r2ts(&rest)[0].buffer_offset, 0);
}

#[test]
fn no_task_is_reassigned_before_its_connection_is_logged_out() {
    let mut rig = two_connections();
    read_on_other(&mut rig, 1, 0);
    read_on_other(&mut rig, 2, 0);
    rig.session.complete(Itt(2), good(0));
    for itt in [1, 2] {
        assert_eq!(reassign(&mut rig, itt, 0).0, TaskFunctionResult::StillAllegiant);
    }
    rig.session.drop_connection(OTHER, rig.now);
    rig.output();
    for itt in [1, 2] {
        assert_eq!(reassign(&mut rig, itt, 0).0, TaskFunctionResult::StillAllegiant);
    }
    assert_eq!(reassign(&mut rig, 3, 0).0, TaskFunctionResult::NoTask);
}

#[test]
fn below_level_two_no_task_is_reassigned() {
    let mut rig = Rig::new("ErrorRecoveryLevel=1\nMaxConnections=2\n");
    rig.join(OTHER.0);
    read_on_other(&mut rig, 1, 0);
    rig.session.drop_connection(OTHER, rig.now);
    assert_eq!(aborts(&mut rig), [1]);
    rig.output();
    assert_eq!(reassign(&mut rig, 1, 0).0, TaskFunctionResult::ReassignNotSupported);
    let answer = logout(&mut rig, CID, LogoutReason::RemoveConnectionForRecovery, OTHER);
    assert_eq!(answer.0, LogoutResult::RecoveryNotSupported);
}

#[test]
fn tasks_that_are_not_reassigned_in_time_are_aborted() {
    let mut rig = two_connections();
    read_on_other(&mut rig, 1, 0);
    lose_other(&mut rig);
    let pong = rig.ping(u32::MAX, 0);
    rig.now += Duration::from_secs(21);
    rig.send(Pdu::NopOut(pong));
    rig.session.handle_timeout(rig.now);
    assert!(aborts(&mut rig).is_empty());
    rig.pass(Duration::from_secs(1)).unwrap();
    assert_eq!(aborts(&mut rig), [1]);
    assert_eq!(reassign(&mut rig, 1, 0).0, TaskFunctionResult::NoTask);
}

#[test]
fn a_session_without_connections_ends_after_its_time_to_retain() {
    let mut rig = Rig::new(TWO);
    let command = rig.read(1, 0);
    rig.deliver(command);
    rig.session.drop_connection(CID, rig.now);
    assert!(!rig.session.is_over());
    rig.now += Duration::from_secs(22);
    assert_eq!(rig.session.poll_timeout(), Some(rig.now));
    rig.session.handle_timeout(rig.now);
    assert_eq!(aborts(&mut rig), [1]);
    assert!(rig.session.is_over());
}

#[test]
fn the_only_connection_is_restored_and_its_tasks_are_reassigned() {
    let mut rig = Rig::new(TWO);
    let command = rig.read(1, 0);
    rig.deliver(command);
    rig.session.drop_connection(CID, rig.now);
    rig.join(CID.0);
    assert_eq!(reassign(&mut rig, 1, 0).0, TaskFunctionResult::Complete);
    assert_eq!(response(&rig.complete(1, good(0))).status, 0);
}

#[test]
fn a_login_with_a_cid_in_use_logs_that_connection_out_for_recovery() {
    let mut rig = Rig::new(TWO);
    let command = rig.read(1, 0);
    rig.deliver(command);
    rig.join(CID.0);
    rig.no_event();
    assert_eq!(reassign(&mut rig, 1, 0).0, TaskFunctionResult::Complete);
    assert_eq!(response(&rig.complete(1, good(0))).itt, Itt(1));
}

#[test]
fn immediate_commands_and_functions_do_not_outlive_their_connection() {
    let mut rig = two_connections();
    let mut command = rig.read(1, 0);
    rig.cmd_sn = command.cmd_sn;
    command.immediate = true;
    rig.send_on(OTHER, Pdu::ScsiCommand(command));
    rig.command();
    let request = rig.task_request(TaskFunction::LogicalUnitReset, 10, u32::MAX);
    rig.send_on(OTHER, Pdu::TaskRequest(request));
    assert!(matches!(rig.session.poll_event(), Some(TargetEvent::Management(_))));
    rig.session.drop_connection(OTHER, rig.now);
    assert_eq!(aborts(&mut rig), [1]);
    assert_eq!(rig.session.tasks(), 0);
    rig.output();
    rig.session.answer_management(Itt(10), TaskFunctionResult::Complete);
    assert!(rig.output().is_empty());
}

#[test]
fn a_connection_removed_for_recovery_sends_nothing_more() {
    let mut rig = two_connections();
    read_on_other(&mut rig, 1, 700);
    let answer = logout(&mut rig, OTHER, LogoutReason::RemoveConnectionForRecovery, OTHER);
    assert_eq!(answer, (LogoutResult::Closed, 2, 20));
    rig.session.complete(Itt(1), good(700));
    assert!(rig.output_of(OTHER).is_empty());
    rig.session.drop_connection(OTHER, rig.now);
    assert!(rig.output().is_empty(), "it did not fail");
    assert_eq!(data_ins(&reassign(&mut rig, 1, 0).1).len(), 2);
}

#[test]
fn closing_a_lost_connection_ends_its_tasks() {
    let mut rig = two_connections();
    read_on_other(&mut rig, 1, 0);
    rig.session.drop_connection(OTHER, rig.now);
    rig.output();
    let answer = logout(&mut rig, CID, LogoutReason::CloseConnection, OTHER);
    assert_eq!(answer.0, LogoutResult::Closed);
    assert_eq!(aborts(&mut rig), [1]);
    assert_eq!(
        logout(&mut rig, CID, LogoutReason::CloseConnection, OTHER).0,
        LogoutResult::CidNotFound
    );
}

#[test]
fn a_lost_task_can_be_aborted_from_another_connection() {
    let mut rig = two_connections();
    read_on_other(&mut rig, 1, 0);
    read_on_other(&mut rig, 2, 0);
    rig.session.complete(Itt(2), good(0));
    lose_other(&mut rig);
    let request = rig.task_request(TaskFunction::AbortTask, 10, 1);
    let pdus = rig.send(Pdu::TaskRequest(request));
    assert_eq!(task_result(&pdus), TaskFunctionResult::Complete);
    assert_eq!(aborts(&mut rig), [1]);
    let mut request = rig.task_request(TaskFunction::AbortTask, 11, 2);
    request.ref_cmd_sn = rig.login_response.numbers.exp_cmd_sn;
    let pdus = rig.send(Pdu::TaskRequest(request));
    assert_eq!(response(&pdus[..1]).itt, Itt(2), "its status comes first");
    assert_eq!(task_result(&pdus[1..]), TaskFunctionResult::NoTask);
}

#[test]
fn a_function_is_never_reassigned_or_aborted() {
    let mut rig = two_connections();
    let request = rig.task_request(TaskFunction::LogicalUnitReset, 10, u32::MAX);
    rig.send(Pdu::TaskRequest(request));
    assert_eq!(reassign(&mut rig, 10, 0).0, TaskFunctionResult::Rejected);
    let request = rig.task_request(TaskFunction::AbortTask, 11, 10);
    assert_eq!(task_result(&rig.send(Pdu::TaskRequest(request))), TaskFunctionResult::Rejected);
}

#[test]
fn a_tag_that_is_used_again_forgets_the_answer_of_the_command_before() {
    let mut rig = two_connections();
    read_on_other(&mut rig, 1, 0);
    rig.session.complete(Itt(1), good(0));
    lose_other(&mut rig);
    let command = rig.read(1, 0);
    rig.deliver(command);
    assert_eq!(reassign(&mut rig, 1, 0).0, TaskFunctionResult::StillAllegiant);
    assert_eq!(response(&rig.complete(1, good(0))).itt, Itt(1));
}

#[test]
fn without_time_to_retain_nothing_is_kept() {
    let keys = TWO.replace("DefaultTime2Retain=20", "DefaultTime2Retain=0");
    let mut rig = Rig::new(&keys);
    let command = rig.read(1, 0);
    rig.deliver(command);
    rig.session.drop_connection(CID, rig.now);
    assert_eq!(aborts(&mut rig), [1]);
    assert!(rig.session.is_over());
}

#[test]
fn tasks_of_connections_that_fail_repeatedly_do_not_accumulate() {
    let mut rig = two_connections();
    let mut aborted = 0;
    for itt in 0..20 {
        read_on_other(&mut rig, itt, 0);
        rig.session.drop_connection(OTHER, rig.now);
        aborted += aborts(&mut rig).len();
        rig.output();
        rig.join(OTHER.0);
    }
    assert_eq!(aborted, 12, "eight are remembered");
    assert_eq!(rig.session.tasks(), 8);
}
