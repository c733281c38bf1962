//! Tests the initiator's reactions to responses and rejects, and its aborts of commands.

use bytes::Bytes;
use iscsi::{
    Cid, Itt, Pdu, Serial, Ttt,
    codec::PduFrame,
    pdu::{
        LogoutResponse, LogoutResult, NopIn, Reject, RejectReason, ScsiCommand, TaskFunctionResult,
        TaskResponse, TextResponse,
    },
    session::initiator::{CommandFailure, DataPhase, InitiatorEvent, InitiatorSessionError},
};
use scsi::Lun;

use crate::{
    data::data_in,
    scene::{SECOND, Scene, numbers},
};

#[test]
fn a_second_answer_ends_the_connection() {
    let mut scene = Scene::new();
    let itt = scene.read(100);
    let response = scene.respond(itt);
    scene.receive(Pdu::ScsiResponse(response)).unwrap();
    // The task table uses the entry of the ended task again, but with another tag.
    assert_ne!(scene.read(100), itt);
    let again = scene.respond(itt);
    assert!(scene.receive(Pdu::ScsiResponse(again)).is_err());
}

#[test]
fn a_stat_sn_out_of_order_ends_the_connection() {
    for wrong in [6, 8] {
        let mut scene = Scene::new();
        let itt = scene.read(100);
        let mut response = scene.respond(itt);
        response.numbers.stat_sn = Serial(wrong);
        assert!(scene.receive(Pdu::ScsiResponse(response)).is_err());
    }
}

#[test]
fn unrequested_responses_end_the_connection() {
    let itt = Itt(0x1_fffe);
    let unasked = [
        Pdu::NopIn(NopIn {
            lun: Lun(0),
            itt,
            ttt: Ttt::NONE,
            numbers: numbers(),
            data: Bytes::new(),
        }),
        Pdu::TaskResponse(TaskResponse {
            result: TaskFunctionResult::Complete,
            itt,
            numbers: numbers(),
        }),
        Pdu::TextResponse(TextResponse {
            is_final: true,
            continues: false,
            lun: Lun(0),
            itt,
            ttt: Ttt::NONE,
            numbers: numbers(),
            text: Bytes::new(),
        }),
        Pdu::LogoutResponse(LogoutResponse {
            result: LogoutResult::Closed,
            itt,
            numbers: numbers(),
            time2wait: 0,
            time2retain: 0,
        }),
        Pdu::LoginResponse(iscsi::pdu::LoginResponse { itt, ..Default::default() }),
        Pdu::ScsiCommand(ScsiCommand { itt, is_final: true, ..Default::default() }),
    ];
    for pdu in unasked {
        assert!(Scene::new().receive(pdu.clone()).is_err(), "{pdu:?}");
    }
}

#[test]
fn a_rejected_command_fails_alone() {
    let mut scene = Scene::new();
    let command = scene.submit(3, DataPhase::In(100));
    let itt = command.itt;
    let (header, ..) = Pdu::ScsiCommand(command).encode();
    let reject = |numbers, reason| {
        let header = Bytes::copy_from_slice(&header);
        Pdu::Reject(Reject { reason, numbers, data_sn: 0, header })
    };
    let numbers = scene.next_status();
    scene.receive(reject(numbers, RejectReason::InvalidPduField)).unwrap();
    match scene.event() {
        Some(InitiatorEvent::Completed { tag: 3, result: Err(failure) }) => {
            assert_eq!(failure, CommandFailure::Rejected(RejectReason::InvalidPduField));
        }
        other => panic!("{other:?}"),
    }
    // The task has ended, so a PDU with its tag is an error.
    assert!(scene.receive(Pdu::DataIn(data_in(itt, 0, 0, &[1]))).is_err());
}

#[test]
fn a_command_that_arrived_damaged_is_sent_again_by_way_of_a_new_session() {
    let mut scene = Scene::new();
    let command = scene.submit(3, DataPhase::In(100));
    let (header, ..) = Pdu::ScsiCommand(command).encode();
    let reject = Reject {
        reason: RejectReason::DataDigestError,
        numbers: scene.next_status(),
        data_sn: 0,
        header: Bytes::copy_from_slice(&header),
    };
    assert!(scene.receive(Pdu::Reject(reject)).is_err());
    assert_eq!(scene.session.take_unanswered()[0].tag, 3);
}

#[test]
fn a_reject_of_half_a_header_ends_the_connection() {
    let mut scene = Scene::new();
    let reject = Reject {
        reason: RejectReason::ProtocolError,
        numbers: scene.next_status(),
        data_sn: 0,
        header: Bytes::from_static(&[1; 20]),
    };
    assert!(scene.receive(Pdu::Reject(reject)).is_err());
}

#[test]
fn a_data_digest_error_ends_the_connection() {
    let mut scene = Scene::new();
    let itt = scene.read(100);
    let (bhs, _, data) = Pdu::DataIn(data_in(itt, 0, 0, &[1; 100])).encode();
    let frame = PduFrame {
        bhs,
        ahs: Bytes::new(),
        data: data.concat().into(),
        is_shared: false,
        data_digest_error: true,
    };
    let taken = scene.session.handle_frame(Cid(0), frame, scene.now);
    assert_eq!(taken, Err(InitiatorSessionError::DataDigest));
}

#[test]
fn an_abort_that_is_not_answered_ends_the_connection() {
    let mut scene = Scene::new();
    scene.read(100);
    scene.pass(4 * SECOND).unwrap();
    // Let PDUs arrive all the time. The time-out of a ping then cannot be the reason why the
    // connection ends.
    let news = |scene: &mut Scene| {
        let nop = NopIn {
            lun: Lun(0),
            itt: Itt::NONE,
            ttt: Ttt::NONE,
            numbers: numbers(),
            data: Bytes::new(),
        };
        scene.receive(Pdu::NopIn(nop)).unwrap();
    };
    while !scene.sent().iter().any(|pdu| matches!(pdu, Pdu::TaskRequest(_))) {
        news(&mut scene);
        scene.pass(SECOND).unwrap();
    }
    news(&mut scene);
    scene.pass(4 * SECOND).unwrap();
    news(&mut scene);
    assert_eq!(scene.pass(SECOND), Err(InitiatorSessionError::Unanswered("an ABORT TASK")));
    assert_eq!(scene.session.take_unanswered().len(), 1);
}

#[test]
fn a_response_that_crosses_its_abort_is_used() {
    let mut scene = Scene::new();
    let itt = scene.read(100);
    scene.pass(31 * SECOND).unwrap();
    let abort = scene
        .sent()
        .into_iter()
        .find_map(|pdu| if let Pdu::TaskRequest(abort) = pdu { Some(abort) } else { None })
        .expect("an ABORT TASK");
    assert_eq!(abort.referenced_itt, itt);
    let response = scene.respond(itt);
    scene.receive(Pdu::ScsiResponse(response)).unwrap();
    assert!(matches!(scene.event(), Some(InitiatorEvent::Completed { result: Ok(_), .. })));
    let answer = TaskResponse {
        result: TaskFunctionResult::NoTask,
        itt: abort.itt,
        numbers: scene.next_status(),
    };
    scene.receive(Pdu::TaskResponse(answer)).unwrap();
    assert!(scene.event().is_none());
}
