//! Commands that send and receive data.

use iscsi::{
    Pdu,
    keys::Parameters,
    pdu::{Residual, ScsiResponse},
    session::initiator::{DataPhase, InitiatorEvent, InitiatorSessionError},
};
use scsi::ScsiStatus;

use crate::{
    data::{data_in, r2t},
    scene::Scene,
};

/// A command that sends 3000 bytes, of which the first 1024 are not requested, and receives 1000.
fn exchange() -> DataPhase {
    DataPhase::Both { data_out: vec![5; 3000].into(), data_in: 1000 }
}

/// Returns a session at an error recovery level, which sends no unsolicited data but 1024 immediate
/// bytes.
fn with_level(error_recovery_level: u8) -> Scene {
    Scene::with(Parameters {
        error_recovery_level,
        initial_r2t: false,
        first_burst_length: 1024,
        max_burst_length: 4096,
        max_send_data_segment_length: 1024,
        max_outstanding_r2t: 2,
        ..Parameters::default()
    })
}

fn sent_bytes(pdus: &[Pdu]) -> Vec<(u32, usize)> {
    let data = |pdu: &Pdu| match pdu {
        Pdu::DataOut(pdu) => Some((pdu.buffer_offset, pdu.data.len())),
        _ => None,
    };
    pdus.iter().filter_map(data).collect()
}

#[test]
fn a_bidirectional_command_announces_both_lengths() {
    let mut scene = Scene::new();
    let command = scene.submit(3, exchange());
    assert!(command.read && command.write);
    assert_eq!(command.expected_data_transfer_length, 3000);
    assert_eq!(command.bidirectional_read_length, Some(1000));
}

/// Forebay's target sends all R2Ts before the Data-In, but another target may mix them.
#[test]
fn r2ts_and_data_in_share_one_sequence_of_numbers() {
    let mut scene = Scene::new();
    let itt = scene.submit(3, exchange()).itt;
    scene.receive(Pdu::ReadyToTransfer(r2t(itt, 0, 1024, 1000))).unwrap();
    assert_eq!(sent_bytes(&scene.sent()), [(1024, 1000)]);
    scene.receive(Pdu::DataIn(data_in(itt, 1, 0, &[1; 400]))).unwrap();
    scene.receive(Pdu::ReadyToTransfer(r2t(itt, 2, 2024, 976))).unwrap();
    assert_eq!(sent_bytes(&scene.sent()), [(2024, 976)]);
    scene.receive(Pdu::DataIn(data_in(itt, 3, 400, &[2; 500]))).unwrap();
    let response = ScsiResponse {
        exp_data_sn: 4,
        residual: Residual::Overflow(7),
        bidirectional_read_residual: Residual::Underflow(100),
        ..scene.respond(itt)
    };
    scene.receive(Pdu::ScsiResponse(response)).unwrap();
    let Some(InitiatorEvent::Completed { tag: 3, result: Ok(outcome) }) = scene.event() else {
        panic!()
    };
    assert_eq!(outcome.status, ScsiStatus::Good);
    assert_eq!(outcome.residual, Residual::Overflow(7));
    assert_eq!(outcome.bidirectional_read_residual, Residual::Underflow(100));
    assert_eq!(outcome.data_in.concat(), [&[1; 400][..], &[2; 500]].concat());
}

#[test]
fn separate_numbers_of_r2ts_and_data_in_are_an_error() {
    let mut scene = Scene::new();
    let itt = scene.submit(3, exchange()).itt;
    scene.receive(Pdu::ReadyToTransfer(r2t(itt, 0, 1024, 1000))).unwrap();
    let error = scene.receive(Pdu::DataIn(data_in(itt, 0, 0, &[1; 400])));
    assert!(matches!(error, Err(InitiatorSessionError::Protocol(_))), "{error:?}");
}

#[test]
fn a_lost_r2t_is_requested_when_data_in_shows_the_loss() {
    let mut scene = with_level(1);
    let itt = scene.submit(3, exchange()).itt;
    scene.sent();
    scene.receive(Pdu::DataIn(data_in(itt, 1, 0, &[1; 400]))).unwrap();
    let sent = scene.sent();
    let [Pdu::Snack(snack)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((snack.itt, snack.begin, snack.run_length), (itt, 0, 1));
    scene.receive(Pdu::ReadyToTransfer(r2t(itt, 0, 1024, 1000))).unwrap();
    assert_eq!(sent_bytes(&scene.sent()), [(1024, 1000)]);
    scene.receive(Pdu::ReadyToTransfer(r2t(itt, 2, 2024, 976))).unwrap();
    assert_eq!(sent_bytes(&scene.sent()), [(2024, 976)], "the Data-In is counted");
}

#[test]
fn lost_data_in_is_requested_when_an_r2t_shows_the_loss() {
    let mut scene = with_level(1);
    let itt = scene.submit(3, exchange()).itt;
    scene.sent();
    scene.receive(Pdu::ReadyToTransfer(r2t(itt, 1, 1024, 1000))).unwrap();
    let sent = scene.sent();
    let [Pdu::Snack(snack)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((snack.itt, snack.begin, snack.run_length), (itt, 0, 2), "the R2T is sent again");
    scene.receive(Pdu::DataIn(data_in(itt, 0, 0, &[1; 400]))).unwrap();
    scene.receive(Pdu::ReadyToTransfer(r2t(itt, 1, 1024, 1000))).unwrap();
    assert_eq!(sent_bytes(&scene.sent()), [(1024, 1000)]);
}

#[test]
fn a_good_status_without_all_the_data_of_a_direction_ends_the_connection() {
    let answered = |write: bool, read: bool| {
        let mut scene = Scene::new();
        let itt = scene.submit(3, exchange()).itt;
        scene.sent();
        if write {
            scene.receive(Pdu::ReadyToTransfer(r2t(itt, 0, 1024, 1976))).unwrap();
            scene.sent();
        }
        if read {
            scene.receive(Pdu::DataIn(data_in(itt, write.into(), 0, &[1; 1000]))).unwrap();
        }
        let response = scene.respond(itt);
        scene.receive(Pdu::ScsiResponse(response)).is_ok()
    };
    assert!(answered(true, true));
    assert!(!answered(true, false), "the Data-In is missing");
    assert!(!answered(false, true), "the Data-Out was not requested");
}

#[test]
fn more_data_in_than_expected_is_an_error() {
    let mut scene = Scene::new();
    let itt = scene.submit(3, exchange()).itt;
    let error = scene.receive(Pdu::DataIn(data_in(itt, 0, 0, &[1; 1001])));
    assert!(matches!(error, Err(InitiatorSessionError::Protocol(_))), "{error:?}");
}
