//! Tests the data PDUs of reads and writes at the initiator, valid and invalid ones.

use bytes::Bytes;
use iscsi::{
    DataSegment, Itt, Pdu, Ttt,
    pdu::{DataIn, DataInStatus, ReadyToTransfer, Residual, ScsiResponse},
    session::initiator::{CommandFailure, InitiatorEvent},
};
use scsi::{Lun, ObjectSense, ScsiStatus, Sense, SenseKey};

use crate::scene::{Scene, numbers};

/// A function that makes a valid PDU of the target invalid.
type Change<P> = fn(&mut P);

pub fn data_in(itt: Itt, data_sn: u32, buffer_offset: u32, data: &[u8]) -> DataIn {
    DataIn {
        is_final: false,
        acknowledge: false,
        status: None,
        lun: Lun(0),
        itt,
        ttt: Ttt::NONE,
        numbers: numbers(),
        data_sn,
        buffer_offset,
        data: DataSegment::from_elem(Bytes::copy_from_slice(data), 1),
    }
}

pub fn r2t(itt: Itt, r2t_sn: u32, buffer_offset: u32, length: u32) -> ReadyToTransfer {
    ReadyToTransfer {
        lun: Lun(0),
        itt,
        ttt: Ttt(9 + r2t_sn),
        numbers: numbers(),
        r2t_sn,
        buffer_offset,
        desired_data_transfer_length: length,
    }
}

#[test]
fn a_read_ends_with_the_status_in_its_last_data() {
    let mut scene = Scene::new();
    let itt = scene.read(1000);
    scene.receive(Pdu::DataIn(data_in(itt, 0, 0, &[1; 400]))).unwrap();
    let mut last = data_in(itt, 1, 400, &[2; 100]);
    last.numbers = scene.next_status();
    last.status = Some(DataInStatus { status: 0, residual: Residual::Underflow(500) });
    last.is_final = true;
    scene.receive(Pdu::DataIn(last)).unwrap();
    let Some(InitiatorEvent::Completed { tag: 1, result: Ok(outcome) }) = scene.event() else {
        panic!()
    };
    assert_eq!(outcome.status, ScsiStatus::Good);
    assert_eq!(outcome.residual, Residual::Underflow(500));
    assert_eq!(outcome.data_in.concat(), [&[1; 400][..], &[2; 100]].concat());
}

#[test]
fn sense_data_comes_with_check_condition() {
    let mut scene = Scene::new();
    let itt = scene.read(1000);
    let mut response = scene.respond(itt);
    let sense = Sense::new(SenseKey::MediumError, 0x11, 0);
    (response.status, response.sense) = (2, sense.to_bytes().into());
    scene.receive(Pdu::ScsiResponse(response)).unwrap();
    let Some(InitiatorEvent::Completed { result: Ok(outcome), .. }) = scene.event() else {
        panic!()
    };
    assert_eq!((outcome.status, outcome.sense), (ScsiStatus::CheckCondition, Some(sense)));
    assert!(outcome.object_sense.is_none());
}

#[test]
fn descriptors_of_objects_arrive_with_the_sense_data() {
    let mut scene = Scene::new();
    let itt = scene.read(1000);
    let mut response = scene.respond(itt);
    let sense = Sense::invalid_field_in_cdb(24);
    let descriptors = ObjectSense { response_integrity: Some([7; 32]), ..ObjectSense::default() };
    let (bytes, at) = descriptors.encode(&sense);
    (response.status, response.sense) = (2, bytes.clone().into());
    scene.receive(Pdu::ScsiResponse(response)).unwrap();
    let Some(InitiatorEvent::Completed { result: Ok(outcome), .. }) = scene.event() else {
        panic!()
    };
    let received = outcome.object_sense.expect("descriptors of objects");
    assert_eq!((outcome.sense, received.descriptors), (Some(sense), descriptors));
    let mut proven = bytes;
    proven[at.unwrap()..][..32].fill(0);
    assert_eq!(received.proven, proven);
}

#[test]
fn responses_without_a_valid_status_are_failures() {
    let cases: [(Change<ScsiResponse>, CommandFailure); 2] = [
        (|response| response.response = 1, CommandFailure::Response(1)),
        (|response| response.status = 0x33, CommandFailure::Status(0x33)),
    ];
    for (change, expected) in cases {
        let mut scene = Scene::new();
        let itt = scene.read(1000);
        let mut response = scene.respond(itt);
        change(&mut response);
        scene.receive(Pdu::ScsiResponse(response)).unwrap();
        let Some(InitiatorEvent::Completed { result: Err(failure), .. }) = scene.event() else {
            panic!()
        };
        assert_eq!(failure, expected);
    }
}

#[test]
fn data_in_that_does_not_fit_ends_the_connection() {
    let wrong: [(&str, Change<DataIn>); 6] = [
        ("beyond the end", |pdu| pdu.data = DataSegment::from_elem(vec![0; 1001].into(), 1)),
        ("offset", |pdu| pdu.buffer_offset = 1),
        ("offset far away", |pdu| pdu.buffer_offset = u32::MAX),
        ("DataSN", |pdu| pdu.data_sn = 1),
        ("unknown task", |pdu| pdu.itt = Itt(pdu.itt.0 ^ 0x10000)),
        ("no task", |pdu| pdu.itt = Itt::NONE),
    ];
    for (what, change) in wrong {
        let mut scene = Scene::new();
        let itt = scene.read(1000);
        let mut pdu = data_in(itt, 0, 0, &[1; 100]);
        change(&mut pdu);
        assert!(scene.receive(Pdu::DataIn(pdu)).is_err(), "{what}");
        assert_eq!(scene.session.take_unanswered().len(), 1, "{what}: to be sent again");
    }
}

#[test]
fn data_in_for_a_write_ends_the_connection() {
    let mut scene = Scene::new();
    let itt = scene.write(100);
    assert!(scene.receive(Pdu::DataIn(data_in(itt, 0, 0, &[1]))).is_err());
}

#[test]
fn data_is_sent_as_the_r2ts_request_it() {
    let mut scene = Scene::new();
    let itt = scene.write(8192);
    scene.receive(Pdu::ReadyToTransfer(r2t(itt, 0, 1024, 3000))).unwrap();
    scene.receive(Pdu::ReadyToTransfer(r2t(itt, 1, 4024, 4096))).unwrap();
    let sent: Vec<_> = scene
        .sent()
        .into_iter()
        .map(|pdu| match pdu {
            Pdu::DataOut(data) => {
                (data.ttt.0, data.data_sn, data.buffer_offset, data.data.len(), data.is_final)
            }
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [
        (9, 0, 1024, 1024, false),
        (9, 1, 2048, 1024, false),
        (9, 2, 3072, 952, true),
        (10, 0, 4024, 1024, false),
        (10, 1, 5048, 1024, false),
        (10, 2, 6072, 1024, false),
        (10, 3, 7096, 1024, true),
    ];
    assert_eq!(sent, expected);
}

#[test]
fn invalid_r2ts_end_the_connection() {
    let wrong: [(&str, Change<ReadyToTransfer>); 9] = [
        ("more than MaxBurstLength", |r2t| r2t.desired_data_transfer_length = 4097),
        ("nothing", |r2t| r2t.desired_data_transfer_length = 0),
        ("beyond the end", |r2t| r2t.buffer_offset = 8000),
        ("an overflow", |r2t| r2t.buffer_offset = u32::MAX),
        ("a gap", |r2t| r2t.buffer_offset = 1025),
        ("data again", |r2t| r2t.buffer_offset = 0),
        ("R2TSN", |r2t| r2t.r2t_sn = 1),
        ("no tag", |r2t| r2t.ttt = Ttt::NONE),
        ("unknown task", |r2t| r2t.itt = Itt(77)),
    ];
    for (what, change) in wrong {
        let mut scene = Scene::new();
        let itt = scene.write(8192);
        let mut pdu = r2t(itt, 0, 1024, 4096);
        change(&mut pdu);
        assert!(scene.receive(Pdu::ReadyToTransfer(pdu)).is_err(), "{what}");
    }
    let mut scene = Scene::new();
    let itt = scene.read(8192);
    assert!(scene.receive(Pdu::ReadyToTransfer(r2t(itt, 0, 0, 100))).is_err(), "for a read");
}

#[test]
fn more_r2ts_than_agreed_end_the_connection() {
    let mut scene = Scene::new();
    let itt = scene.write(8192);
    for r2t_sn in 0..2 {
        scene.receive(Pdu::ReadyToTransfer(r2t(itt, r2t_sn, 1024 + r2t_sn * 10, 10))).unwrap();
    }
    assert!(scene.receive(Pdu::ReadyToTransfer(r2t(itt, 2, 1044, 10))).is_err());
}

#[test]
fn a_write_that_ends_early_stops_its_data() {
    let mut scene = Scene::new();
    let itt = scene.write(8192);
    scene.receive(Pdu::ReadyToTransfer(r2t(itt, 0, 1024, 4096))).unwrap();
    let mut response = scene.respond(itt);
    response.status = 8;
    scene.receive(Pdu::ScsiResponse(response)).unwrap();
    assert_eq!(scene.sent(), []);
    assert!(matches!(scene.event(), Some(InitiatorEvent::Completed { result: Ok(_), .. })));
}

#[test]
fn good_status_for_a_write_whose_data_was_not_requested_ends_the_connection() {
    let mut scene = Scene::new();
    let itt = scene.write(8192);
    let response = scene.respond(itt);
    assert!(scene.receive(Pdu::ScsiResponse(response)).is_err());
    assert!(scene.event().is_none());
    assert_eq!(scene.session.take_unanswered().len(), 1, "the next session has to do it again");
}
