//! Tests pings, logout, unsupported PDUs and time-outs at the target.

use std::time::Duration;

use bytes::Bytes;
use iscsi::{
    Cid, Itt, Pdu, Serial, Ttt,
    codec::PduFrame,
    pdu::{
        AsyncEvent, LogoutReason, LogoutRequest, LogoutResult, NopOut, RejectReason, Snack,
        SnackKind,
    },
    session::target::{TargetEvent, TargetSessionError},
};
use proptest::prelude::*;
use scsi::Lun;

use crate::rig::{CID, Rig, frame, pattern, reject};

fn logout(rig: &mut Rig, reason: Result<LogoutReason, u8>, cid: u16) -> Vec<Pdu> {
    let cmd_sn = rig.next_cmd_sn();
    rig.send(Pdu::LogoutRequest(LogoutRequest {
        immediate: false,
        reason,
        itt: Itt(0x77),
        cid: Cid(cid),
        cmd_sn,
        exp_stat_sn: Serial(0),
    }))
}

#[track_caller]
fn logout_result(pdus: &[Pdu]) -> LogoutResult {
    match pdus {
        [Pdu::LogoutResponse(response)] => response.result,
        pdus => panic!("{pdus:?}"),
    }
}

#[test]
fn a_ping_is_echoed_up_to_the_limit_of_the_initiator() {
    let mut rig = Rig::new("MaxRecvDataSegmentLength=1024\n");
    for (sent, echoed) in [(0, 0), (100, 100), (5000, 1024)] {
        let ping = rig.ping(1, sent);
        let pdus = rig.send(Pdu::NopOut(ping));
        let [Pdu::NopIn(nop)] = &pdus[..] else { panic!("{pdus:?}") };
        assert_eq!((nop.itt, nop.ttt, &nop.data), (Itt(1), Ttt::NONE, &pattern(0, echoed)));
    }
}

#[test]
fn an_idle_initiator_is_pinged_and_a_silent_session_ends() {
    let mut rig = Rig::new("");
    rig.pass(Duration::from_secs(14)).unwrap();
    assert!(rig.output().is_empty());
    rig.pass(Duration::from_secs(1)).unwrap();
    let pdus = rig.output();
    let [Pdu::NopIn(ping)] = &pdus[..] else { panic!("{pdus:?}") };
    assert_eq!(ping.itt, Itt::NONE);
    assert_ne!(ping.ttt, Ttt::NONE);
    let stat_sn = ping.numbers.stat_sn;
    rig.pass(Duration::from_secs(44)).unwrap();
    assert_eq!(rig.pass(Duration::from_secs(1)), Err(TargetSessionError::Silent));

    let echo = rig.ping(1, 0);
    let pdus = rig.send(Pdu::NopOut(echo));
    let Pdu::NopIn(nop) = &pdus[0] else { panic!("{pdus:?}") };
    assert_eq!(nop.numbers.stat_sn, stat_sn, "the ping has not used up a StatSN");
}

#[test]
fn any_pdu_shows_that_the_initiator_is_alive() {
    let mut rig = Rig::new("");
    for _ in 0..5 {
        rig.pass(Duration::from_secs(15)).unwrap();
        assert_eq!(rig.output().len(), 1, "a ping");
        rig.pass(Duration::from_secs(40)).unwrap();
        let command = rig.read(rig.cmd_sn.0, 0);
        rig.deliver(command);
    }
}

#[test]
fn an_answer_to_our_ping_takes_no_part_in_command_order() {
    let mut rig = Rig::new("");
    rig.pass(Duration::from_secs(15)).unwrap();
    let pdus = rig.output();
    let [Pdu::NopIn(ping)] = &pdus[..] else { panic!("{pdus:?}") };
    let pong = NopOut {
        immediate: true,
        lun: ping.lun,
        itt: Itt::NONE,
        ttt: ping.ttt,
        cmd_sn: rig.cmd_sn,
        exp_stat_sn: Serial(0),
        data: Bytes::new(),
    };
    assert!(rig.send(Pdu::NopOut(pong)).is_empty());
    let command = rig.read(1, 0);
    rig.deliver(command);
}

#[test]
fn a_logout_ends_every_task_and_closes_after_its_response() {
    for (reason, cid) in [(LogoutReason::CloseSession, 99), (LogoutReason::CloseConnection, 7)] {
        let mut rig = Rig::new("");
        let command = rig.read(1, 0);
        rig.deliver(command);
        assert_eq!(logout_result(&logout(&mut rig, Ok(reason), cid)), LogoutResult::Closed);
        assert!(matches!(rig.session.poll_event(), Some(TargetEvent::Abort(Itt(1)))));
        if reason == LogoutReason::CloseConnection {
            assert!(matches!(rig.session.poll_event(), Some(TargetEvent::Terminated(_))));
        }
        assert!(rig.connection().is_closing());
        let late = rig.read(2, 0);
        assert!(rig.send(Pdu::ScsiCommand(late)).is_empty());
        rig.no_event();
    }
}

#[test]
fn a_logout_that_is_not_possible_is_answered_with_its_reason() {
    let mut rig = Rig::new("");
    let pdus = logout(&mut rig, Ok(LogoutReason::CloseConnection), 8);
    assert_eq!(logout_result(&pdus), LogoutResult::CidNotFound);
    let pdus = logout(&mut rig, Ok(LogoutReason::RemoveConnectionForRecovery), 7);
    assert_eq!(logout_result(&pdus), LogoutResult::RecoveryNotSupported);
    assert!(!rig.connection().is_closing());
}

#[test]
fn the_target_may_ask_for_a_logout() {
    let mut rig = Rig::new("");
    rig.session.ask_for_logout(3);
    let pdus = rig.output();
    let [Pdu::Async(message)] = &pdus[..] else { panic!("{pdus:?}") };
    assert_eq!(message.event, AsyncEvent::LogoutRequested { time: 3 });
}

#[test]
fn a_snack_is_rejected_at_level_zero() {
    let mut rig = Rig::new("");
    let pdus = rig.send(Pdu::Snack(Snack {
        kind: Ok(SnackKind::Status),
        lun: Lun(0),
        itt: Itt::NONE,
        ttt: Ttt::NONE,
        exp_stat_sn: Serial(0),
        begin: 0,
        run_length: 0,
    }));
    assert_eq!(reject(&pdus), RejectReason::SnackReject);
}

#[test]
fn pdus_that_only_a_target_sends_and_unknown_ones_are_rejected() {
    let mut rig = Rig::new("");
    let mut mirrored = frame(Pdu::NopOut(rig.ping(1, 0)));
    for opcode in [0x20, 0x21, 0x31, 0x1c, 0x3e] {
        mirrored.bhs[0] = 0x40 | opcode;
        let (_, pdus) = rig.try_frame(mirrored.clone());
        assert_eq!(reject(&pdus), RejectReason::CommandNotSupported, "opcode {opcode:#x}");
    }
    let command = rig.read(1, 0);
    rig.deliver(command);
}

#[test]
fn a_broken_header_field_ends_the_connection() {
    let mut rig = Rig::new("");
    let mut broken = frame(Pdu::ScsiCommand(rig.read(1, 0)));
    broken.ahs = Bytes::from_static(&[0, 200, 1, 0]);
    let (result, pdus) = rig.try_frame(broken);
    assert!(matches!(result, Err(TargetSessionError::Format(_))));
    assert_eq!(reject(&pdus), RejectReason::InvalidPduField);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Sends random frames with plausible opcodes and numbers. The session never panics, its memory
    /// stays within the limits, and it still answers afterwards.
    #[test]
    fn hostile_frames_do_no_harm(
        frames in prop::collection::vec(
            (any::<[u8; 24]>(), any::<[u8; 24]>(), 0u8..8, 0u32..6, prop::collection::vec(any::<u8>(), 0..64), any::<bool>()),
            1..60,
        ),
    ) {
        let mut rig = Rig::new("InitialR2T=No\nMaxOutstandingR2T=4\n");
        for (front, back, opcode, itt, data, digest_error) in frames {
            let mut bhs = [0; 48];
            bhs[..24].copy_from_slice(&front);
            bhs[24..].copy_from_slice(&back);
            bhs[0] = if opcode == 3 { 0x10 } else { opcode } | front[0] & 0x40;
            bhs[4] = 0;
            bhs[16..20].copy_from_slice(&itt.to_be_bytes());
            let cmd_sn = rig.cmd_sn.add(u32::from(back[0] % 4));
            if back[1] % 4 != 0 {
                bhs[24..28].copy_from_slice(&cmd_sn.0.to_be_bytes());
            }
            let (ahs, data) = (Bytes::new(), data.into());
            let frame = PduFrame { bhs, ahs, data, is_shared: false, data_digest_error: digest_error };
            let (result, _) = rig.try_frame(frame);
            if result.is_err() || rig.connection().is_closing() {
                break;
            }
            while let Some(event) = rig.session.poll_event() {
                match event {
                    TargetEvent::Admission(admission) => rig.session.admit(admission.itt, None),
                    TargetEvent::Command(command) if back[2] % 2 == 0 => {
                        let outcome = iscsi::session::target::TargetCommandOutcome::status(scsi::ScsiStatus::Good);
                        rig.session.complete(command.itt, outcome);
                    }
                    TargetEvent::SendTargets(..) => rig.session.answer_send_targets(CID, []),
                    TargetEvent::Management(request) => {
                        rig.session.abort_for(&request);
                        let result = iscsi::pdu::TaskFunctionResult::Complete;
                        rig.session.answer_management(request.itt, result);
                    }
                    TargetEvent::Command(_) | TargetEvent::Abort(_) | TargetEvent::Terminated(_) => {}
                }
            }
            rig.output();
            prop_assert!(rig.session.tasks() <= 128 + 16);
            rig.cmd_sn = rig.cmd_sn.add(u32::from(back[3] % 2));
        }
    }
}
