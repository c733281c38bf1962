//! Tests the command order (CmdSN): the window, duplicates and immediate commands.

use iscsi::{
    DataSegment, Itt, Pdu, Ttt,
    pdu::{Numbers, RejectReason, TaskFunction},
    session::target::{Settings, TargetCommandOutcome},
};
use scsi::ScsiStatus;

use crate::rig::{Rig, data_out, frame, reject, response};

fn good() -> TargetCommandOutcome {
    TargetCommandOutcome::good(DataSegment::new())
}

#[test]
fn commands_run_in_cmd_sn_order_in_whatever_order_they_arrive() {
    let mut rig = Rig::new("");
    let commands: Vec<_> = (0..4).map(|itt| rig.read(itt, 0)).collect();
    for at in [2, 1, 3] {
        rig.send(Pdu::ScsiCommand(commands[at].clone()));
        rig.no_event();
    }
    rig.send(Pdu::ScsiCommand(commands[0].clone()));
    for itt in 0..4 {
        assert_eq!(rig.command().itt, Itt(itt));
    }
}

#[test]
fn of_two_commands_with_one_cmd_sn_the_first_runs() {
    let mut rig = Rig::new("");
    let first = rig.read(1, 0);
    let mut second = rig.read(2, 0);
    second.cmd_sn = first.cmd_sn;
    rig.deliver(first);
    assert!(rig.send(Pdu::ScsiCommand(second)).is_empty());
    rig.no_event();
    assert_eq!(rig.session.counters().ignored, 1);
}

#[test]
fn a_command_outside_of_the_window_is_ignored() {
    let mut rig = Rig::new("");
    for distance in [128, 1 << 20, u32::MAX] {
        let mut command = rig.read(1, 0);
        command.cmd_sn = rig.login_response.numbers.exp_cmd_sn.add(distance);
        assert!(rig.send(Pdu::ScsiCommand(command)).is_empty());
        rig.no_event();
    }
}

#[test]
fn the_window_closes_when_the_queue_is_full_and_opens_with_an_answer() {
    let mut rig = Rig::with("", Settings { queue_commands: 4, ..Settings::default() });
    let window = rig.login_response.numbers;
    assert_eq!(window.max_cmd_sn, window.exp_cmd_sn.add(3));
    for itt in 0..4 {
        let command = rig.read(itt, 0);
        rig.deliver(command);
    }
    let extra = rig.read(9, 0);
    assert!(rig.send(Pdu::ScsiCommand(extra.clone())).is_empty());
    rig.no_event();
    let pdus = rig.complete(2, good());
    let numbers = response(&pdus).numbers;
    assert_eq!(numbers.max_cmd_sn, numbers.exp_cmd_sn, "room for one");
    rig.deliver(extra);
    let pdus = rig.complete(0, good());
    let numbers = response(&pdus).numbers;
    assert_eq!(numbers.max_cmd_sn, numbers.exp_cmd_sn);
    for itt in [1, 3, 9] {
        rig.complete(itt, good());
    }
    let ping = rig.ping(5, 0);
    let pdus = rig.send(Pdu::NopOut(ping));
    let Pdu::NopIn(nop) = &pdus[0] else { panic!("{pdus:?}") };
    assert_eq!(nop.numbers.max_cmd_sn, nop.numbers.exp_cmd_sn.add(3), "all of it open again");
}

#[test]
fn immediate_commands_pass_by_a_closed_window_and_are_bounded() {
    let settings = Settings { queue_commands: 1, immediate_commands: 2, ..Settings::default() };
    let mut rig = Rig::with("", settings);
    let command = rig.read(0, 0);
    rig.deliver(command);
    let immediate = |rig: &mut Rig, itt| {
        let mut command = rig.read(itt, 0);
        rig.cmd_sn = command.cmd_sn;
        command.immediate = true;
        rig.send(Pdu::ScsiCommand(command))
    };
    for itt in 1..3 {
        assert!(immediate(&mut rig, itt).is_empty());
        assert_eq!(rig.command().itt, Itt(itt));
    }
    assert_eq!(reject(&immediate(&mut rig, 3)), RejectReason::ImmediateCommandReject);
    rig.complete(1, good());
    assert!(immediate(&mut rig, 4).is_empty());
    let pdus = rig.complete(4, good());
    let numbers = response(&pdus).numbers;
    assert_eq!(numbers.max_cmd_sn.next(), numbers.exp_cmd_sn, "the window is still closed");
}

#[test]
fn a_tag_in_use_is_rejected() {
    let mut rig = Rig::new("");
    let command = rig.read(1, 0);
    rig.deliver(command);
    let twin = rig.read(1, 0);
    assert_eq!(reject(&rig.send(Pdu::ScsiCommand(twin))), RejectReason::InvalidPduField);
    rig.no_event();
    assert_eq!(response(&rig.complete(1, good())).status, ScsiStatus::Good as u8);
    let again = rig.read(1, 0);
    rig.deliver(again);
}

#[test]
fn the_tag_that_means_no_task_is_rejected() {
    let mut rig = Rig::new("");
    let command = rig.read(u32::MAX, 0);
    assert_eq!(reject(&rig.send(Pdu::ScsiCommand(command))), RejectReason::InvalidPduField);
}

/// A regression test. After a gap in CmdSN, a discovery session used to keep these PDUs, so that an
/// initiator could occupy memory without authentication.
#[test]
fn a_command_or_data_ends_a_discovery_session_before_anything_is_kept() {
    for in_turn in [true, false] {
        for number in 0..3 {
            let mut rig = Rig::discovery("");
            if !in_turn {
                rig.next_cmd_sn();
            }
            let write = rig.write(1, 4096, 4096, true);
            let function = rig.task_request(TaskFunction::LogicalUnitReset, 1, 0);
            let data = data_out(1, Ttt::NONE, 0, 0, 4096, true);
            let pdus = [Pdu::ScsiCommand(write), Pdu::TaskRequest(function), data];
            let (result, answers) = rig.try_frame(frame(pdus[number].clone()));
            assert!(result.is_err_and(|error| error.ends_session()), "{:?}", pdus[number]);
            assert_eq!(reject(&answers), RejectReason::ProtocolError);
            assert_eq!(rig.session.waiting_bytes(), 0);
            rig.no_event();
        }
    }
}

/// A regression test. MaxCmdSN used to move only when a task ended. When an idle session had sent a
/// whole window of PDUs that are no tasks, it could not send anything again.
#[test]
fn pdus_that_are_no_tasks_leave_the_window_open() {
    for queue_commands in [1, 4] {
        let settings = Settings { queue_commands, ..Settings::default() };
        let mut rig = Rig::with("", settings);
        for itt in 0..10 {
            let mut ping = rig.ping(itt, 0);
            (ping.immediate, ping.cmd_sn) = (false, rig.next_cmd_sn());
            let text = rig.text(100 + itt, "X-key=1\n");
            let mut function = rig.task_request(TaskFunction::ClearAca, 200 + itt, 0);
            (function.immediate, function.cmd_sn) = (false, rig.next_cmd_sn());
            let rejected = rig.read(u32::MAX, 0);
            for pdu in [
                Pdu::NopOut(ping),
                Pdu::TextRequest(text),
                Pdu::TaskRequest(function),
                Pdu::ScsiCommand(rejected),
            ] {
                let pdus = rig.send(pdu);
                let [answer] = &pdus[..] else { panic!("{pdus:?}") };
                let numbers = numbers_of(answer);
                assert_eq!(numbers.max_cmd_sn, numbers.exp_cmd_sn.add(queue_commands - 1));
            }
        }
        let command = rig.read(1, 0);
        rig.deliver(command);
    }
}

#[test]
fn a_discovery_session_has_no_limit_of_requests() {
    let mut rig = Rig::discovery("");
    for itt in 0..300 {
        let mut ping = rig.ping(itt, 0);
        (ping.immediate, ping.cmd_sn) = (false, rig.next_cmd_sn());
        assert_eq!(rig.send(Pdu::NopOut(ping)).len(), 1, "{itt}");
    }
}

#[test]
fn aborting_a_command_that_has_not_arrived_opens_the_window() {
    let mut rig = Rig::with("", Settings { queue_commands: 1, ..Settings::default() });
    let lost = rig.read(1, 0);
    let mut request = rig.task_request(TaskFunction::AbortTask, 10, 1);
    request.ref_cmd_sn = lost.cmd_sn;
    let pdus = rig.send(Pdu::TaskRequest(request));
    let numbers = numbers_of(&pdus[0]);
    assert_eq!((numbers.exp_cmd_sn, numbers.max_cmd_sn), (rig.cmd_sn, rig.cmd_sn));
    let next = rig.read(2, 0);
    rig.deliver(next);
}

#[track_caller]
fn numbers_of(pdu: &Pdu) -> Numbers {
    match pdu {
        Pdu::NopIn(pdu) => pdu.numbers,
        Pdu::TextResponse(pdu) => pdu.numbers,
        Pdu::TaskResponse(pdu) => pdu.numbers,
        Pdu::Reject(pdu) => pdu.numbers,
        pdu => panic!("{pdu:?}"),
    }
}
