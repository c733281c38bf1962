//! Tests sessions with several connections (RFC 7143, 4.2.2, 6.3.4 to 6.3.6, 11.14).

use iscsi::{
    Cid, DataSegment, Isid, Itt, Pdu, Serial, Tsih, Ttt,
    pdu::{
        AsyncEvent, LoginStatus, LogoutReason, LogoutRequest, LogoutResult, TaskFunction,
        TaskFunctionResult,
    },
    session::target::{TargetCommandOutcome, TargetEvent, TargetSessionError},
};
use scsi::Lun;

use crate::rig::{CID, Rig, data_out, frame, pattern, response, task_result};

const TWO: &str = "MaxConnections=2\nInitialR2T=No\n";

fn good() -> TargetCommandOutcome {
    TargetCommandOutcome::good(DataSegment::new())
}

fn logout(rig: &mut Rig, on: Cid, reason: LogoutReason, cid: Cid) -> Vec<Pdu> {
    let request = LogoutRequest {
        immediate: true,
        reason: Ok(reason),
        itt: Itt(0x77),
        cid,
        cmd_sn: rig.cmd_sn,
        exp_stat_sn: Serial(0),
    };
    rig.send_on(on, Pdu::LogoutRequest(request))
}

#[track_caller]
fn logout_result(pdus: &[Pdu]) -> LogoutResult {
    match pdus.last() {
        Some(Pdu::LogoutResponse(response)) => response.result,
        _ => panic!("{pdus:?}"),
    }
}

fn aborts(rig: &mut Rig) -> Vec<u32> {
    let events = std::iter::from_fn(|| rig.session.poll_event());
    let mut aborted: Vec<u32> = events
        .filter_map(|event| match event {
            TargetEvent::Abort(itt) => Some(itt.0),
            TargetEvent::Command(_) | TargetEvent::Admission(_) | TargetEvent::Terminated(_) => {
                None
            }
            event => panic!("{event:?}"),
        })
        .collect();
    aborted.sort_unstable();
    aborted
}

#[test]
fn a_connection_that_is_added_sees_the_window_of_the_session() {
    let mut rig = Rig::new(TWO);
    for itt in 0..3 {
        let command = rig.read(itt, 0);
        rig.deliver(command);
    }
    let request = rig.join_request(8);
    let answer = rig.try_join(request).unwrap();
    assert_eq!((answer.status, answer.tsih), (LoginStatus::Success, Tsih(3)));
    assert_eq!(answer.numbers.exp_cmd_sn, rig.cmd_sn);
    assert_eq!(answer.numbers.max_cmd_sn, rig.cmd_sn.add(124), "three are in progress");
    assert_eq!(rig.session.connections().len(), 2);
}

#[test]
fn extra_connections_and_connections_of_other_initiators_are_refused() {
    let mut rig = Rig::new(TWO);
    rig.join(8);
    let request = rig.join_request(9);
    assert_eq!(rig.try_join(request).unwrap_err(), LoginStatus::TooManyConnections);
    let mut request = rig.join_request(9);
    request.tsih = Tsih(4);
    assert_eq!(rig.try_join(request).unwrap_err(), LoginStatus::SessionDoesNotExist);
    let mut request = rig.join_request(9);
    request.isid = Isid([0x80, 9, 9, 9, 9, 9]);
    assert_eq!(rig.try_join(request).unwrap_err(), LoginStatus::SessionDoesNotExist);
    assert_eq!(rig.session.connections().len(), 2);
}

#[test]
fn commands_run_in_order_over_all_connections_and_are_answered_on_their_own() {
    let mut rig = Rig::new(TWO);
    let other = rig.join(8);
    let first = rig.read(1, 0);
    let second = rig.read(2, 0);
    assert!(rig.send_on(other, Pdu::ScsiCommand(second)).is_empty());
    rig.no_event();
    rig.send(Pdu::ScsiCommand(first));
    assert_eq!(rig.command().itt, Itt(1));
    assert_eq!(rig.command().itt, Itt(2));
    assert!(rig.complete(2, good()).is_empty(), "not on the first");
    assert_eq!(response(&rig.output_of(other)).itt, Itt(2));
    assert_eq!(response(&rig.complete(1, good())).itt, Itt(1));
    assert!(rig.output_of(other).is_empty());
}

#[test]
fn each_connection_numbers_its_own_statuses() {
    let mut rig = Rig::new(TWO);
    let other = rig.join(8);
    for (itt, cid) in [(1, CID), (2, other), (3, CID), (4, other)] {
        let command = rig.read(itt, 0);
        rig.send_on(cid, Pdu::ScsiCommand(command));
        rig.command();
        rig.session.complete(Itt(itt), good());
        let pdus = rig.output_of(cid);
        assert_eq!(response(&pdus).numbers.stat_sn, Serial(501 + (itt - 1) / 2));
    }
}

#[test]
fn unsolicited_data_of_a_command_that_waits_for_its_turn_is_kept() {
    let mut rig = Rig::new(TWO);
    let other = rig.join(8);
    let first = rig.read(1, 0);
    let write = rig.write(2, 3000, 1000, false);
    rig.send_on(other, Pdu::ScsiCommand(write));
    rig.send_on(other, data_out(2, Ttt::NONE, 0, 1000, 1000, false));
    rig.send(Pdu::ScsiCommand(first));
    rig.send_on(other, data_out(2, Ttt::NONE, 1, 2000, 1000, true));
    assert_eq!(rig.command().itt, Itt(1));
    assert_eq!(rig.command().data_out.concat(), pattern(0, 3000));
}

#[test]
fn early_data_beyond_the_first_burst_is_not_kept() {
    let mut rig = Rig::new("MaxConnections=2\nInitialR2T=No\nFirstBurstLength=1024\n");
    let other = rig.join(8);
    let _first = rig.read(1, 0);
    let write = rig.write(2, 1 << 20, 0, false);
    rig.send_on(other, Pdu::ScsiCommand(write));
    for data_sn in 0..8 {
        rig.send_on(other, data_out(2, Ttt::NONE, data_sn, 512 * data_sn as usize, 512, false));
    }
    assert_eq!(rig.session.counters().ignored, 6);
}

#[test]
fn data_of_a_write_is_accepted_on_its_own_connection_only() {
    let mut rig = Rig::new(TWO);
    let other = rig.join(8);
    let write = rig.write(1, 2000, 1000, false);
    rig.send(Pdu::ScsiCommand(write));
    rig.send_on(other, data_out(1, Ttt::NONE, 0, 1000, 1000, true));
    rig.no_event();
    rig.send(data_out(1, Ttt::NONE, 0, 1000, 1000, true));
    rig.command();
}

#[test]
fn a_failed_connection_ends_its_tasks_and_the_session_continues() {
    let mut rig = Rig::new(TWO);
    let other = rig.join(8);
    for (itt, cid) in [(1, CID), (2, other), (3, other)] {
        let command = rig.read(itt, 0);
        rig.send_on(cid, Pdu::ScsiCommand(command));
    }
    // The command that is lost and the one that waits for it both count as not received.
    let lost = rig.read(4, 0);
    let held = rig.read(5, 0);
    rig.send_on(other, Pdu::ScsiCommand(held.clone()));
    rig.session.drop_connection(other, rig.now);
    assert_eq!(aborts(&mut rig), [2, 3]);
    let pdus = rig.output();
    let [Pdu::Async(message)] = &pdus[..] else { panic!("{pdus:?}") };
    let event = AsyncEvent::ConnectionDropped { cid: other, time2wait: 2, time2retain: 0 };
    assert_eq!(message.event, event);
    assert_eq!(response(&rig.complete(1, good())).itt, Itt(1));
    for retried in [lost, held] {
        let itt = retried.itt;
        rig.send(Pdu::ScsiCommand(retried));
        assert_eq!(rig.command().itt, itt);
    }
    assert!(!rig.session.is_over());
    rig.session.drop_connection(CID, rig.now);
    assert!(rig.session.is_over());
}

#[test]
fn a_connection_can_be_logged_out_from_another() {
    let mut rig = Rig::new(TWO);
    let other = rig.join(8);
    let command = rig.read(1, 0);
    rig.send_on(other, Pdu::ScsiCommand(command));
    rig.command();
    let pdus = logout(&mut rig, CID, LogoutReason::CloseConnection, other);
    assert_eq!(logout_result(&pdus), LogoutResult::Closed);
    assert_eq!(aborts(&mut rig), [1]);
    let closing = rig.session.connection(other).unwrap();
    assert!(closing.is_closing() && closing.output().is_empty());
    assert!(!rig.connection().is_closing());
    rig.session.drop_connection(other, rig.now);
    let pdus = logout(&mut rig, CID, LogoutReason::CloseConnection, other);
    assert_eq!(logout_result(&pdus), LogoutResult::CidNotFound);
    rig.join(9);
}

#[test]
fn a_session_logout_closes_every_connection() {
    let mut rig = Rig::new(TWO);
    let other = rig.join(8);
    let command = rig.read(1, 0);
    rig.send_on(other, Pdu::ScsiCommand(command));
    let pdus = logout(&mut rig, CID, LogoutReason::CloseSession, Cid(99));
    assert_eq!(logout_result(&pdus), LogoutResult::Closed);
    assert_eq!(aborts(&mut rig), [1]);
    assert!(rig.session.connections().all(|connection| connection.is_closing()));
    let request = rig.join_request(9);
    assert_eq!(rig.try_join(request).unwrap_err(), LoginStatus::SessionDoesNotExist);
}

#[test]
fn a_login_with_a_cid_in_use_replaces_that_connection() {
    let mut rig = Rig::new("MaxConnections=1\n");
    let command = rig.read(1, 0);
    rig.deliver(command);
    let request = rig.join_request(CID.0);
    rig.try_join(request).unwrap();
    assert_eq!(aborts(&mut rig), [1]);
    assert_eq!(rig.session.connections().len(), 1);
    assert!(rig.complete(1, good()).is_empty());
    let command = rig.read(2, 0);
    rig.deliver(command);
    assert_eq!(response(&rig.complete(2, good())).numbers.stat_sn, Serial(501));
}

#[test]
fn the_answer_to_a_function_waits_for_answers_on_other_connections() {
    let mut rig = Rig::new(TWO);
    let other = rig.join(8);
    let command = rig.read(1, 0);
    rig.send_on(other, Pdu::ScsiCommand(command));
    rig.command();
    rig.session.complete(Itt(1), good());
    let stat_sn = response(&rig.output_of(other)).numbers.stat_sn;
    let request = rig.task_request(TaskFunction::LogicalUnitReset, 10, u32::MAX);
    rig.send(Pdu::TaskRequest(request));
    assert!(matches!(rig.session.poll_event(), Some(TargetEvent::Management(_))));
    rig.session.answer_management(Itt(10), TaskFunctionResult::Complete);
    assert!(rig.output().is_empty(), "the initiator may not have the answer of the other");
    let pdus = rig.output_of(other);
    assert!(matches!(&pdus[..], [Pdu::NopIn(ping)] if ping.ttt != Ttt::NONE), "{pdus:?}");
    let mut pong = rig.ping(u32::MAX, 0);
    pong.exp_stat_sn = stat_sn.next();
    rig.send_on(other, Pdu::NopOut(pong));
    assert_eq!(task_result(&rig.output()), TaskFunctionResult::Complete);
    assert_eq!(rig.session.tasks(), 0);
}

#[test]
fn a_function_waits_for_the_commands_before_it() {
    let mut rig = Rig::new(TWO);
    let other = rig.join(8);
    let mut late = rig.read(1, 0);
    late.lun = Lun(0);
    let request = rig.task_request(TaskFunction::AbortTaskSet, 10, u32::MAX);
    rig.send(Pdu::TaskRequest(request));
    rig.no_event();
    rig.send_on(other, Pdu::ScsiCommand(late));
    assert_eq!(rig.command().itt, Itt(1));
    let Some(TargetEvent::Management(request)) = rig.session.poll_event() else { panic!() };
    rig.session.abort_for(&request);
    assert_eq!(aborts(&mut rig), [1]);
}

#[test]
fn a_function_is_rejected_if_earlier_commands_do_not_arrive_in_time() {
    let mut rig = Rig::new(TWO);
    let other = rig.join(8);
    let answered = rig.read(1, 0);
    rig.send_on(other, Pdu::ScsiCommand(answered));
    rig.command();
    rig.session.complete(Itt(1), good());
    // Command 2 is late on the other connection, so command 3 has to wait.
    let commands = [2, 3].map(|itt| rig.read(itt, 0));
    rig.send(Pdu::ScsiCommand(commands[1].clone()));
    let request = rig.task_request(TaskFunction::LogicalUnitReset, 10, u32::MAX);
    rig.send(Pdu::TaskRequest(request));
    rig.pass(std::time::Duration::from_millis(9_999)).unwrap();
    rig.no_event();
    assert!(rig.output().is_empty());
    rig.pass(std::time::Duration::from_millis(1)).unwrap();
    rig.no_event();
    let result = task_result(&rig.output());
    assert_eq!(result, TaskFunctionResult::Rejected, "at once, since it is about no answer");
    rig.send_on(other, Pdu::ScsiCommand(commands[0].clone()));
    assert_eq!([rig.command().itt, rig.command().itt], [2, 3].map(Itt), "none of them was ended");
}

#[test]
fn a_target_reset_counts_missing_commands_as_aborted() {
    let mut rig = Rig::new(TWO);
    let lost = rig.read(1, 0);
    let request = rig.task_request(TaskFunction::TargetWarmReset, 10, u32::MAX);
    rig.send(Pdu::TaskRequest(request));
    assert!(matches!(rig.session.poll_event(), Some(TargetEvent::Management(_))));
    rig.send(Pdu::ScsiCommand(lost));
    rig.no_event();
    let next = rig.read(2, 0);
    rig.deliver(next);
}

#[test]
fn only_the_silent_connection_of_a_session_is_dropped() {
    let mut rig = Rig::new(TWO);
    let other = rig.join(8);
    rig.pass(std::time::Duration::from_secs(15)).unwrap();
    assert_eq!(rig.output().len(), 1, "a ping");
    assert_eq!(rig.output_of(other).len(), 1, "a ping");
    let pong = rig.ping(u32::MAX, 0);
    rig.send(Pdu::NopOut(pong));
    rig.now += std::time::Duration::from_secs(45);
    let failed = rig.session.handle_timeout(rig.now);
    assert_eq!(failed[..], [(other, TargetSessionError::Silent)]);
    assert!(!failed[0].1.ends_session());
}

#[test]
fn the_end_of_a_session_is_announced_on_every_connection() {
    let mut rig = Rig::new(TWO);
    let other = rig.join(8);
    rig.session.announce_end(1);
    for cid in [CID, other] {
        let pdus = rig.output_of(cid);
        let [Pdu::Async(message)] = &pdus[..] else { panic!("{pdus:?}") };
        assert_eq!(message.event, AsyncEvent::SessionDropped { time2wait: 1, time2retain: 0 });
    }
}

#[test]
fn a_frame_of_a_dropped_connection_changes_nothing() {
    let mut rig = Rig::new(TWO);
    let other = rig.join(8);
    rig.session.drop_connection(other, rig.now);
    let command = rig.read(1, 0);
    assert_eq!(rig.session.handle_frame(other, frame(Pdu::ScsiCommand(command)), rig.now), Ok(()));
    rig.no_event();
}
