//! Tests asynchronous messages, logouts and text exchanges at the initiator.

use bytes::Bytes;
use iscsi::{
    Cid, Itt, Pdu, Serial, Ttt,
    codec::Digests,
    pdu::{AsyncEvent, AsyncMessage, LogoutResponse, LogoutResult, TextResponse},
    session::initiator::{InitiatorEvent, InitiatorSessionError, JoinedConnection},
};
use scsi::{Lun, Sense, SenseKey};

use crate::scene::Scene;

#[test]
fn the_end_of_a_session_announced_by_the_target_has_a_time_to_wait() {
    let mut scene = Scene::new();
    let news = AsyncMessage {
        lun: Lun(0),
        event: AsyncEvent::SessionDropped { time2wait: 3, time2retain: 0 },
        numbers: scene.next_status(),
        data: Bytes::new(),
    };
    assert_eq!(
        scene.receive(Pdu::Async(news)),
        Err(InitiatorSessionError::SessionDropped { time2wait: 3 })
    );
}

/// Lets the target request an immediate logout while commands are in flight. Returns the tag of the
/// logout request.
fn asked_to_log_out(scene: &mut Scene) -> Itt {
    let news = AsyncMessage {
        lun: Lun(0),
        event: AsyncEvent::LogoutRequested { time: 0 },
        numbers: scene.next_status(),
        data: Bytes::new(),
    };
    scene.receive(Pdu::Async(news)).unwrap();
    let logout = |pdu| if let Pdu::LogoutRequest(request) = pdu { Some(request.itt) } else { None };
    scene.sent().into_iter().find_map(logout).expect("a logout")
}

fn logged_out(scene: &mut Scene, itt: Itt, result: LogoutResult) -> Pdu {
    let numbers = scene.next_status();
    Pdu::LogoutResponse(LogoutResponse { result, itt, numbers, time2wait: 0, time2retain: 0 })
}

#[test]
fn a_response_after_the_logout_response_is_ignored() {
    let mut scene = Scene::new();
    let read = scene.read(512);
    let itt = asked_to_log_out(&mut scene);
    let answer = logged_out(&mut scene, itt, LogoutResult::Closed);
    scene.receive(answer).unwrap();
    assert!(scene.session.is_over());
    let late = scene.respond(read);
    scene.receive(Pdu::ScsiResponse(late)).unwrap();
    let events: Vec<InitiatorEvent> = std::iter::from_fn(|| scene.session.poll_event()).collect();
    assert!(
        !events.iter().any(|event| matches!(event, InitiatorEvent::Completed { .. })),
        "{events:?}"
    );
    let unanswered: Vec<u64> = scene.session.take_unanswered().iter().map(|r| r.tag).collect();
    assert_eq!(unanswered, [1], "it is for the next session");
}

#[test]
fn commands_of_a_connection_are_returned_only_when_its_logout_succeeded() {
    for result in [LogoutResult::Closed, LogoutResult::CleanupFailed, LogoutResult::CidNotFound] {
        let mut scene = Scene::new();
        scene.write(512);
        let another = JoinedConnection {
            cid: Cid(1),
            digests: Digests::default(),
            max_send_data_segment_length: 1024,
            exp_stat_sn: Serial(7),
            exp_cmd_sn: Serial(1),
            max_cmd_sn: Serial(32),
        };
        scene.session.join(another, scene.now);
        let itt = asked_to_log_out(&mut scene);
        let answer = logged_out(&mut scene, itt, result);
        scene.receive(answer).unwrap();
        let events: Vec<InitiatorEvent> =
            std::iter::from_fn(|| scene.session.poll_event()).collect();
        let returned = events.iter().any(|event| matches!(event, InitiatorEvent::Returned(_)));
        let ended = result == LogoutResult::Closed;
        assert_eq!((returned, scene.session.is_over()), (ended, !ended), "{result:?}");
        let left = if ended { 0 } else { 1 };
        assert_eq!(scene.session.take_unanswered().len(), left, "{result:?}");
    }
}

#[test]
fn asynchronous_scsi_events_arrive_with_their_sense_data() {
    let mut scene = Scene::new();
    let sense = Sense::new(SenseKey::UnitAttention, 0x2a, 0x09);
    let news = AsyncMessage {
        lun: Lun(5),
        event: AsyncEvent::Scsi,
        numbers: scene.next_status(),
        data: sense.to_bytes().into(),
    };
    scene.receive(Pdu::Async(news)).unwrap();
    match scene.event() {
        Some(InitiatorEvent::Sense(lun, arrived)) => {
            assert_eq!((lun, arrived), (Lun(5), Some(sense)))
        }
        _ => panic!("no news"),
    }
}

#[test]
fn a_requested_negotiation_is_started() {
    let mut scene = Scene::new();
    let news = AsyncMessage {
        lun: Lun(0),
        event: AsyncEvent::NegotiationRequested { time: 3 },
        numbers: scene.next_status(),
        data: Bytes::new(),
    };
    scene.receive(Pdu::Async(news)).unwrap();
    assert!(matches!(scene.sent()[..], [Pdu::TextRequest(_)]));
}

#[test]
fn text_without_end_ends_the_connection() {
    for text in [&b""[..], &[b'x'; 8000]] {
        let mut scene = Scene::new();
        let request = Bytes::from_static(b"SendTargets=All\0");
        assert!(scene.session.text(request.clone(), scene.now));
        assert!(!scene.session.text(request, scene.now), "one at a time");
        let itt = match &scene.sent()[..] {
            [Pdu::TextRequest(request)] => request.itt,
            other => panic!("{other:?}"),
        };
        let ended = (0..1000).any(|_| {
            let response = TextResponse {
                is_final: false,
                continues: true,
                lun: Lun(0),
                itt,
                ttt: Ttt(1),
                numbers: scene.next_status(),
                text: Bytes::copy_from_slice(text),
            };
            scene.receive(Pdu::TextResponse(response)).is_err()
        });
        assert!(ended);
    }
}
