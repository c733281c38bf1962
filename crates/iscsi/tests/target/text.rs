//! Tests SendTargets and other text keys in full feature phase.

use iscsi::{
    Pdu, Ttt,
    pdu::{RejectReason, TextResponse},
    session::target::{SendTargets, TargetEvent},
};

use crate::rig::{CID, Rig, TARGET, reject};

#[track_caller]
fn response(pdus: &[Pdu]) -> &TextResponse {
    match pdus {
        [Pdu::TextResponse(response)] => response,
        pdus => panic!("{pdus:?}"),
    }
}

#[track_caller]
fn asked(rig: &mut Rig) -> SendTargets {
    match rig.session.poll_event() {
        Some(TargetEvent::SendTargets(CID, which)) => which,
        event => panic!("{event:?}"),
    }
}

fn answer(rig: &mut Rig, targets: &[(&str, &[String])]) -> Vec<Pdu> {
    rig.session.answer_send_targets(CID, targets.iter().copied());
    rig.output()
}

#[test]
fn send_targets_lists_names_and_addresses() {
    let mut rig = Rig::discovery("");
    let request = rig.text(1, "SendTargets=All\n");
    assert!(rig.send(Pdu::TextRequest(request)).is_empty());
    assert_eq!(asked(&mut rig), SendTargets::All);
    let addresses = ["192.0.2.1:3260,1".to_owned(), "[2001:db8::1]:3260,1".to_owned()];
    let pdus = answer(&mut rig, &[(TARGET, &addresses), ("iqn.b", &[])]);
    let response = response(&pdus);
    assert!(response.is_final && !response.continues);
    assert_eq!(response.ttt, Ttt::NONE);
    let expected = format!(
        "TargetName={TARGET}\0TargetAddress=192.0.2.1:3260,1\0\
         TargetAddress=[2001:db8::1]:3260,1\0TargetName=iqn.b\0"
    );
    assert_eq!(response.text, expected);
}

#[test]
fn a_long_text_response_is_sent_in_parts() {
    let mut rig = Rig::discovery("MaxRecvDataSegmentLength=512\n");
    let names: Vec<String> = (0..100).map(|n| format!("iqn.2026-11.io.forebay:disk-{n}")).collect();
    let targets: Vec<(&str, &[String])> = names.iter().map(|name| (&name[..], &[][..])).collect();
    let request = rig.text(1, "SendTargets=All\n");
    rig.send(Pdu::TextRequest(request));
    asked(&mut rig);
    let mut pdus = answer(&mut rig, &targets);
    let mut text = Vec::new();
    loop {
        let part = response(&pdus).clone();
        assert!(part.text.len() <= 512);
        text.extend_from_slice(&part.text);
        if part.is_final {
            assert!(!part.continues && part.ttt == Ttt::NONE);
            break;
        }
        assert!(part.continues && part.ttt != Ttt::NONE);
        let mut request = rig.text(1, "");
        request.ttt = part.ttt;
        pdus = rig.send(Pdu::TextRequest(request));
    }
    let expected: String = names.iter().map(|name| format!("TargetName={name}\0")).collect();
    assert_eq!(text, expected.as_bytes());
}

#[test]
fn a_normal_session_may_query_only_its_own_target() {
    let mut rig = Rig::new("");
    let request = rig.text(1, "SendTargets=\n");
    rig.send(Pdu::TextRequest(request));
    assert_eq!(asked(&mut rig), SendTargets::Own);
    answer(&mut rig, &[]);
    let request = rig.text(1, &format!("SendTargets={TARGET}\n"));
    rig.send(Pdu::TextRequest(request));
    assert_eq!(asked(&mut rig), SendTargets::Named(TARGET.to_owned()));
    answer(&mut rig, &[]);
    let request = rig.text(1, "SendTargets=All\n");
    let pdus = rig.send(Pdu::TextRequest(request));
    assert_eq!(response(&pdus).text, "SendTargets=Reject\0");
}

#[test]
fn a_text_request_may_arrive_in_parts() {
    let mut rig = Rig::discovery("");
    let mut first = rig.text(1, "SendTarg");
    (first.is_final, first.continues) = (false, true);
    let pdus = rig.send(Pdu::TextRequest(first));
    let open = response(&pdus);
    assert!(open.text.is_empty() && !open.is_final && open.ttt != Ttt::NONE);
    let mut second = rig.text(1, "ets=All\n");
    second.ttt = open.ttt;
    rig.send(Pdu::TextRequest(second));
    assert_eq!(asked(&mut rig), SendTargets::All);
}

#[test]
fn other_keys_are_answered_and_the_receive_limit_may_change() {
    let mut rig = Rig::new("");
    let request = rig.text(1, "X-com.example.what=1\nMaxRecvDataSegmentLength=1024\n");
    let pdus = rig.send(Pdu::TextRequest(request));
    assert!(response(&pdus).text.starts_with(b"X-com.example.what=NotUnderstood\0"));
    let command = rig.read(2, 4096);
    rig.deliver(command);
    let data = crate::rig::pattern(0, 4096);
    let pdus = rig.complete(
        2,
        iscsi::session::target::TargetCommandOutcome::good([data].into_iter().collect()),
    );
    assert_eq!(pdus.len(), 4, "four Data-In PDUs of 1024 bytes");
}

#[test]
fn invalid_text_requests_are_rejected() {
    let mut rig = Rig::new("");
    let request = rig.text(1, "no equals sign\n");
    assert_eq!(reject(&rig.send(Pdu::TextRequest(request))), RejectReason::ProtocolError);
    let mut request = rig.text(2, "A=b\n");
    request.continues = true; // invalid together with F
    assert_eq!(reject(&rig.send(Pdu::TextRequest(request))), RejectReason::ProtocolError);
    let mut request = rig.text(3, "");
    request.ttt = Ttt(0x1234);
    assert_eq!(reject(&rig.send(Pdu::TextRequest(request))), RejectReason::InvalidPduField);
}

#[test]
fn a_text_request_without_end_is_rejected() {
    let mut rig = Rig::new("");
    let mut ttt = Ttt::NONE;
    for round in 0.. {
        let mut request = rig.text(1, &"x".repeat(2000));
        (request.is_final, request.continues, request.ttt) = (false, true, ttt);
        let pdus = rig.send(Pdu::TextRequest(request));
        match &pdus[..] {
            [Pdu::TextResponse(response)] if round < 4 => ttt = response.ttt,
            pdus => {
                assert_eq!((round, reject(pdus)), (4, RejectReason::ProtocolError));
                break;
            }
        }
    }
}
