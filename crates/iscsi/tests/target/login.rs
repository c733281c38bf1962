//! Logins, and the answers to peers that do not log in.

use std::time::{Duration, Instant};

use iscsi::{
    Pdu, Serial, Tsih,
    keys::NegotiationOffer,
    pdu::{LoginStatus, RejectReason},
    session::target::{LoginPhase, LoginProgress, Settings, TargetSessionError},
};

use crate::rig::{Rig, TARGET, frame, login_output, login_phase, login_request, reject};

fn phase() -> LoginPhase {
    login_phase(NegotiationOffer::target(), Settings::default(), Instant::now())
}

fn keys(more: &str) -> String {
    format!("InitiatorName=iqn.2026-11.io.forebay:i\nTargetName={TARGET}\n{more}")
}

#[test]
fn the_final_response_opens_the_window_and_names_the_session() {
    let rig = Rig::new("");
    let response = rig.login_response;
    assert_eq!(response.status, LoginStatus::Success);
    assert_eq!(response.tsih, Tsih(3));
    assert_eq!(response.numbers.stat_sn, Serial(500));
    assert_eq!(response.numbers.exp_cmd_sn, Serial(100));
    assert_eq!(response.numbers.max_cmd_sn, Serial(100 + 127));
}

#[test]
fn a_first_pdu_that_is_no_login_request_gets_no_answer() {
    let mut rig = Rig::new("");
    let mut undefined = frame(Pdu::NopOut(rig.ping(1, 0)));
    undefined.bhs[0] = 0x1f;
    for first in
        [frame(Pdu::NopOut(rig.ping(1, 0))), frame(Pdu::ScsiCommand(rig.read(1, 512))), undefined]
    {
        let mut phase = phase();
        let progress = phase.handle_frame(&first);
        assert!(matches!(progress, LoginProgress::NoLogin), "{progress:?}");
        assert_eq!(login_output(&mut phase), []);
    }
}

#[test]
fn a_reserved_or_backward_stage_is_an_initiator_error() {
    // Make the flags of a request with T, CSG and NSG. The request is sent as the first one, or
    // after a request that leaves the login in the operational stage.
    let flags = |current: u8, next: u8| 0x80 | current << 2 | next;
    for second in [flags(1, 2), flags(2, 3), flags(1, 0), flags(1, 1), flags(0, 1), flags(3, 3)] {
        for begun in [false, true] {
            if !begun && second == flags(0, 1) {
                continue;
            }
            let mut phase = phase();
            if begun {
                let mut first = login_request(&keys(""));
                first.transit = false;
                assert!(matches!(
                    phase.handle_frame(&frame(Pdu::LoginRequest(first))),
                    LoginProgress::Continue
                ));
                login_output(&mut phase);
            }
            let request = login_request(&keys(""));
            let itt = request.itt;
            let mut request = frame(Pdu::LoginRequest(request));
            request.bhs[1] = second;
            let progress = phase.handle_frame(&request);
            assert!(
                matches!(progress, LoginProgress::Close(LoginStatus::InitiatorError)),
                "{progress:?}"
            );
            let output = login_output(&mut phase);
            let [Pdu::LoginResponse(response)] = &output[..] else { panic!("{output:?}") };
            assert_eq!((response.status, response.itt), (LoginStatus::InitiatorError, itt));
        }
    }
}

#[test]
fn an_undefined_pdu_within_a_login_ends_it_with_a_status() {
    let mut phase = phase();
    let mut request = login_request(&keys(""));
    request.transit = false;
    let mut undefined = frame(Pdu::LoginRequest(request.clone()));
    undefined.bhs[0] = 0x1f;
    phase.handle_frame(&frame(Pdu::LoginRequest(request)));
    login_output(&mut phase);
    assert!(matches!(
        phase.handle_frame(&undefined),
        LoginProgress::Close(LoginStatus::InvalidDuringLogin)
    ));
    let output = login_output(&mut phase);
    assert!(matches!(&output[..], [Pdu::LoginResponse(_)]), "{output:?}");
}

#[test]
fn another_pdu_within_login_ends_it_with_its_own_status() {
    let mut rig = Rig::new("");
    let mut phase = phase();
    let mut request = login_request(&keys(""));
    request.transit = false;
    assert!(matches!(
        phase.handle_frame(&frame(Pdu::LoginRequest(request))),
        LoginProgress::Continue
    ));
    login_output(&mut phase);
    let command = Pdu::ScsiCommand(rig.read(1, 512));
    assert!(matches!(phase.handle_frame(&frame(command)), LoginProgress::Close(_)));
    let output = login_output(&mut phase);
    let [Pdu::LoginResponse(response)] = &output[..] else { panic!("{output:?}") };
    assert_eq!(response.status, LoginStatus::InvalidDuringLogin);
}

#[test]
fn an_unknown_target_is_not_found() {
    let text = "InitiatorName=iqn.2026-11.io.forebay:i\nTargetName=iqn.2026-11.io.forebay:none\n";
    let mut phase = phase();
    let progress = phase.handle_frame(&frame(Pdu::LoginRequest(login_request(text))));
    assert!(matches!(progress, LoginProgress::Close(LoginStatus::NotFound)));
}

#[test]
fn an_established_login_may_still_be_refused() {
    let mut phase = phase();
    let request = frame(Pdu::LoginRequest(login_request(&keys(""))));
    assert!(matches!(phase.handle_frame(&request), LoginProgress::Established(_)));
    phase.refuse(LoginStatus::OutOfResources);
    let initiator = phase.claims().initiator;
    assert_eq!(
        initiator.as_deref(),
        Some("iqn.2026-11.io.forebay:i"),
        "the event names the initiator"
    );
    let output = login_output(&mut phase);
    let [Pdu::LoginResponse(response)] = &output[..] else { panic!("{output:?}") };
    assert_eq!(response.status, LoginStatus::OutOfResources);
    assert!(phase.accept(Tsih(1), Instant::now()).is_none());
}

#[test]
fn a_pdu_before_the_final_answer_ends_the_login() {
    let mut phase = phase();
    let request = frame(Pdu::LoginRequest(login_request(&keys(""))));
    assert!(matches!(phase.handle_frame(&request), LoginProgress::Established(_)));
    assert!(matches!(phase.handle_frame(&request), LoginProgress::Close(_)));
    assert!(phase.accept(Tsih(1), Instant::now()).is_none());
}

#[test]
fn a_login_has_a_deadline() {
    let now = Instant::now();
    let mut phase = login_phase(NegotiationOffer::target(), Settings::default(), now);
    let deadline = phase.poll_timeout();
    assert_eq!(deadline, now + Duration::from_secs(15));
    assert!(phase.handle_timeout(deadline - Duration::from_millis(1)).is_ok());
    assert_eq!(phase.handle_timeout(deadline), Err(TargetSessionError::LoginTimeout));
}

#[test]
fn a_login_request_in_full_feature_phase_ends_the_connection() {
    let mut rig = Rig::new("");
    let (result, output) = rig.try_frame(frame(Pdu::LoginRequest(login_request(&keys("")))));
    assert!(matches!(result, Err(TargetSessionError::Protocol(_))));
    assert_eq!(reject(&output), RejectReason::ProtocolError);
}
