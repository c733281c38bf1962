//! Tests task management functions and the target's responses.

use iscsi::{
    DataSegment, Itt, Pdu, Ttt,
    pdu::{RejectReason, TaskFunction, TaskFunctionResult},
    session::target::{ManagementRequest, TargetCommandOutcome, TargetEvent},
};
use scsi::Lun;

use crate::rig::{Rig, data_out, r2ts, reject, task_result};

/// Returns a session with reads 1 to 3 in progress; read 3 is for unit 1.
fn three_tasks() -> Rig {
    let mut rig = Rig::new("");
    for itt in 1..4 {
        let mut command = rig.read(itt, 0);
        command.lun = Lun(if itt == 3 { 1 << 48 } else { 0 });
        rig.deliver(command);
    }
    rig
}

fn aborts(rig: &mut Rig) -> Vec<u32> {
    let mut aborted = Vec::new();
    while let Some(event) = rig.session.poll_event() {
        match event {
            TargetEvent::Abort(itt) => aborted.push(itt.0),
            event => panic!("{event:?}"),
        }
    }
    aborted.sort_unstable();
    aborted
}

fn good() -> TargetCommandOutcome {
    TargetCommandOutcome::good(DataSegment::new())
}

#[test]
fn an_aborted_task_is_never_answered() {
    let mut rig = three_tasks();
    let request = rig.task_request(TaskFunction::AbortTask, 10, 2);
    let pdus = rig.send(Pdu::TaskRequest(request));
    assert_eq!(task_result(&pdus), TaskFunctionResult::Complete);
    assert_eq!(aborts(&mut rig), [2]);
    assert!(rig.complete(2, good()).is_empty());
    assert_eq!(rig.complete(1, good()).len(), 1);
}

#[test]
fn a_task_that_was_answered_or_is_of_another_unit_does_not_exist() {
    let mut rig = three_tasks();
    rig.complete(2, good());
    for meant in [2, 3] {
        let mut request = rig.task_request(TaskFunction::AbortTask, 10, meant);
        request.ref_cmd_sn = rig.login_response.numbers.exp_cmd_sn;
        let pdus = rig.send(Pdu::TaskRequest(request));
        assert_eq!(task_result(&pdus), TaskFunctionResult::NoTask);
    }
    assert!(aborts(&mut rig).is_empty());
}

#[test]
fn aborting_a_task_that_has_not_arrived_counts_it_as_received() {
    let mut rig = Rig::new("");
    let lost = rig.read(1, 0);
    let after = rig.read(2, 0);
    rig.send(Pdu::ScsiCommand(after));
    rig.no_event();
    let mut request = rig.task_request(TaskFunction::AbortTask, 10, 1);
    request.ref_cmd_sn = lost.cmd_sn;
    let pdus = rig.send(Pdu::TaskRequest(request));
    assert_eq!(task_result(&pdus), TaskFunctionResult::Complete);
    assert_eq!(rig.command().itt, Itt(2), "the one after it need not wait any more");
    assert!(rig.send(Pdu::ScsiCommand(lost)).is_empty());
    rig.no_event();
}

#[test]
fn a_task_that_waits_for_its_turn_can_be_aborted() {
    let mut rig = Rig::new("");
    let first = rig.read(1, 0);
    let early = rig.read(2, 0);
    rig.send(Pdu::ScsiCommand(early));
    let request = rig.task_request(TaskFunction::AbortTask, 10, 2);
    let pdus = rig.send(Pdu::TaskRequest(request));
    assert_eq!(task_result(&pdus), TaskFunctionResult::Complete);
    rig.deliver(first);
    rig.no_event();
}

#[test]
fn aborting_a_write_stops_its_transfer() {
    let mut rig = Rig::new("InitialR2T=Yes\nImmediateData=No\n");
    let command = rig.write(1, 4096, 0, true);
    rig.send(Pdu::ScsiCommand(command));
    let r2t = r2ts(&rig.admit(1))[0];
    let request = rig.task_request(TaskFunction::AbortTask, 10, 1);
    assert_eq!(task_result(&rig.send(Pdu::TaskRequest(request))), TaskFunctionResult::Complete);
    assert_eq!(aborts(&mut rig), [1]);
    assert!(rig.send(data_out(1, r2t.ttt, 0, 0, 4096, true)).is_empty());
    assert!(rig.send(data_out(1, Ttt::NONE, 0, 0, 4096, true)).is_empty());
    rig.no_event();
    assert_eq!(rig.session.tasks(), 0);
}

#[track_caller]
fn check_unit_function(function: TaskFunction, lun: Lun, expected: &[u32]) {
    let mut rig = three_tasks();
    let mut request = rig.task_request(function, 10, u32::MAX);
    request.lun = lun;
    assert!(rig.send(Pdu::TaskRequest(request)).is_empty(), "the answer waits for the driver");
    let Some(TargetEvent::Management(request)) = rig.session.poll_event() else { panic!() };
    assert_eq!(request, ManagementRequest { itt: Itt(10), function, lun });
    rig.session.abort_for(&request);
    assert_eq!(aborts(&mut rig), expected);
    rig.session.answer_management(Itt(10), TaskFunctionResult::Complete);
    assert_eq!(task_result(&rig.output()), TaskFunctionResult::Complete);
    assert_eq!(rig.session.tasks(), 3 - expected.len());
}

#[test]
fn functions_for_a_unit_affect_its_tasks_in_either_lun_form() {
    for function in
        [TaskFunction::AbortTaskSet, TaskFunction::ClearTaskSet, TaskFunction::LogicalUnitReset]
    {
        check_unit_function(function, Lun(0), &[1, 2]);
        check_unit_function(function, Lun(0x4001 << 48), &[3]);
        check_unit_function(function, Lun(9 << 48), &[]);
    }
}

#[test]
fn a_target_reset_aborts_every_task_before_the_driver_receives_it() {
    for function in [TaskFunction::TargetWarmReset, TaskFunction::TargetColdReset] {
        let mut rig = three_tasks();
        let request = rig.task_request(function, 10, u32::MAX);
        assert!(rig.send(Pdu::TaskRequest(request)).is_empty());
        let events: Vec<_> = std::iter::from_fn(|| rig.session.poll_event()).collect();
        assert_eq!(events.len(), 4);
        assert!(matches!(events[3], TargetEvent::Management(_)));
    }
}

#[test]
fn an_immediate_function_does_not_affect_later_commands() {
    let mut rig = three_tasks();
    let mut request = rig.task_request(TaskFunction::AbortTaskSet, 10, u32::MAX);
    request.cmd_sn = rig.login_response.numbers.exp_cmd_sn.next();
    rig.send(Pdu::TaskRequest(request));
    let Some(TargetEvent::Management(request)) = rig.session.poll_event() else { panic!() };
    rig.session.abort_for(&request);
    assert_eq!(aborts(&mut rig), [1]);
}

#[test]
fn functions_missing_at_error_recovery_level_0_are_answered_as_unsupported() {
    let mut rig = three_tasks();
    for (function, result) in [
        (Ok(TaskFunction::TaskReassign), TaskFunctionResult::ReassignNotSupported),
        (Ok(TaskFunction::ClearAca), TaskFunctionResult::NotSupported),
        (Err(100), TaskFunctionResult::NotSupported),
    ] {
        let mut request = rig.task_request(TaskFunction::AbortTask, 10, 1);
        request.function = function;
        assert_eq!(task_result(&rig.send(Pdu::TaskRequest(request))), result);
    }
    rig.no_event();
}

#[test]
fn a_function_with_a_tag_in_use_is_rejected() {
    let mut rig = three_tasks();
    let request = rig.task_request(TaskFunction::AbortTask, 1, 2);
    let pdus = rig.send(Pdu::TaskRequest(request));
    assert_eq!(reject(&pdus), RejectReason::InvalidPduField);
}

#[test]
fn another_session_may_clear_the_tasks_of_a_unit() {
    let mut rig = three_tasks();
    rig.session.abort_tasks(Some(Lun(0)));
    assert_eq!(aborts(&mut rig), [1, 2]);
    rig.session.abort_tasks(None);
    assert_eq!(aborts(&mut rig), [3]);
    rig.session.abort_tasks(None);
    assert_eq!(rig.session.tasks(), 0);
    let pdus = rig.output();
    let [Pdu::NopIn(first), Pdu::NopIn(second)] = &pdus[..] else { panic!("{pdus:?}") };
    assert_eq!((first.itt, first.ttt), (Itt::NONE, Ttt::NONE));
    let numbers = second.numbers;
    assert_eq!(numbers.max_cmd_sn, numbers.exp_cmd_sn.add(127), "the window is announced as open");
}
