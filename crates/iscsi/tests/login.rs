//! Logins: our initiator against our target, the initiators of the field as they were read from
//! their sources, and ends that mean harm.

use std::sync::Arc;

use bytes::Bytes;
use iscsi::{
    Cid, Isid, Itt, Serial, Tsih,
    keys::{self, DigestPolicy, KeyError, Offer, Parameters},
    login::{
        Directory, Established, InitiatorLogin, InitiatorNames, InitiatorStep, LoginFailure,
        SessionType, TargetLogin, TargetStep,
    },
    pdu::{LoginRequest, LoginResponse, LoginStatus, Stage},
};
use proptest::prelude::*;

const INITIATOR: &str = "iqn.2026-01.com.example:host";
const TARGET: &str = "iqn.2026-01.com.example:disk";
const ISID: Isid = Isid([0x80, 1, 2, 3, 4, 5]);

struct OneTarget;

impl Directory for OneTarget {
    fn admit(&self, initiator: &str, target: Option<&str>) -> Result<u16, LoginStatus> {
        match (initiator, target) {
            ("iqn.2026-01.com.example:stranger", _) => Err(LoginStatus::AuthorizationFailure),
            (_, None | Some(TARGET)) => Ok(7),
            _ => Err(LoginStatus::NotFound),
        }
    }

    fn alias(&self, _target: &str) -> Option<String> {
        Some("a disk".to_owned())
    }
}

fn target(offer: Offer) -> TargetLogin {
    TargetLogin::new(offer, Arc::new(OneTarget))
}

fn initiator(offer: Offer, target_name: Option<&str>) -> InitiatorLogin {
    let names = InitiatorNames {
        initiator_name: INITIATOR.to_owned(),
        initiator_alias: Some("host".to_owned()),
        target_name: target_name.map(str::to_owned),
    };
    InitiatorLogin::new(offer, names, ISID, Tsih(0), Cid(1), Serial(100))
}

/// Lets both ends talk until one ends it. Counts the round trips.
fn log_in(
    mut initiator: InitiatorLogin,
    mut target: TargetLogin,
) -> (Result<(Established, Established), LoginFailure>, usize) {
    let mut request = initiator.start();
    let mut stat_sn = Serial(u32::MAX);
    let mut at_target = None;
    for round_trips in 1..100 {
        assert!(!(request.transit && request.continues));
        assert!(request.text.len() <= 8192);
        let mut response = match target.handle_request(request) {
            TargetStep::Respond(response) | TargetStep::Refused(response) => response,
            TargetStep::Established { mut response, login } => {
                response.tsih = Tsih(9);
                at_target = Some(*login);
                response
            }
        };
        assert!(!(response.transit && response.continues));
        assert!(response.text.len() <= 8192);
        response.numbers.stat_sn = stat_sn;
        response.numbers.exp_cmd_sn = Serial(100);
        response.numbers.max_cmd_sn = Serial(131);
        stat_sn = stat_sn.next();
        match initiator.handle_response(response) {
            InitiatorStep::Send(next) => request = next,
            InitiatorStep::Established(login) => {
                let at_target = at_target.expect("both ends are done at once");
                return (Ok((*login, at_target)), round_trips);
            }
            InitiatorStep::Failed(failure) => return (Err(failure), round_trips),
            InitiatorStep::Redirected { .. } => panic!("nobody moved"),
        }
    }
    panic!("the login does not end");
}

fn mirrored(parameters: &Parameters) -> Parameters {
    Parameters {
        max_recv_data_segment_length: parameters.max_send_data_segment_length,
        max_send_data_segment_length: parameters.max_recv_data_segment_length,
        ..parameters.clone()
    }
}

#[test]
fn our_defaults_meet_in_two_round_trips() {
    let (result, round_trips) =
        log_in(initiator(Offer::initiator(), Some(TARGET)), target(Offer::target()));
    let (ours, theirs) = result.unwrap();
    assert_eq!(round_trips, 2);
    let expected = Parameters {
        initial_r2t: false,
        max_recv_data_segment_length: 262_144,
        max_send_data_segment_length: 262_144,
        max_burst_length: 1_048_576,
        first_burst_length: 262_144,
        max_outstanding_r2t: 8,
        ..Parameters::default()
    };
    assert_eq!(ours.parameters, expected);
    assert_eq!(theirs.parameters, expected);
    assert_eq!(ours.session_type, SessionType::Normal);
    assert_eq!(ours.tsih, Tsih(9));
    assert_eq!(ours.tpgt, Some(7));
    assert_eq!(ours.target_alias.as_deref(), Some("a disk"));
    assert_eq!((ours.cmd_sn, ours.exp_cmd_sn), (Serial(100), Serial(100)));
    assert_eq!(ours.max_cmd_sn, Serial(131));
    assert_eq!(ours.exp_stat_sn, Serial(1));
    assert_eq!(theirs.initiator_name, INITIATOR);
    assert_eq!(theirs.initiator_alias.as_deref(), Some("host"));
    assert_eq!(theirs.target_name.as_deref(), Some(TARGET));
    assert_eq!((theirs.isid, theirs.cid, theirs.tsih), (ISID, Cid(1), Tsih(0)));
}

#[test]
fn discovery_names_no_target() {
    let (result, _) = log_in(initiator(Offer::initiator(), None), target(Offer::target()));
    let (ours, theirs) = result.unwrap();
    for end in [ours, theirs] {
        assert_eq!(end.session_type, SessionType::Discovery);
        assert_eq!(end.target_name, None);
        assert_eq!(end.parameters.max_burst_length, Parameters::default().max_burst_length);
        assert_eq!(end.parameters.max_send_data_segment_length, 262_144);
    }
}

#[test]
fn a_required_digest_is_agreed_or_the_login_fails() {
    let with = |policy| Offer { header_digest: policy, ..Offer::initiator() };
    use DigestPolicy::*;
    for (ours, theirs, expected) in [
        (Off, Off, Some(false)),
        (Off, Allow, Some(false)),
        (Off, Prefer, Some(false)),
        (Off, Require, None),
        (Allow, Allow, Some(false)),
        (Allow, Require, Some(true)),
        (Prefer, Off, Some(false)),
        (Prefer, Allow, Some(true)),
        (Require, Off, None),
        (Require, Allow, Some(true)),
        (Require, Require, Some(true)),
    ] {
        let (result, _) = log_in(initiator(with(ours), Some(TARGET)), target(with(theirs)));
        let agreed = result.ok().map(|(end, _)| end.parameters.digests.header);
        assert_eq!(agreed, expected, "{ours:?} meets {theirs:?}");
    }
}

fn offers() -> impl Strategy<Value = Offer> {
    let policy = prop_oneof![
        Just(DigestPolicy::Off),
        Just(DigestPolicy::Allow),
        Just(DigestPolicy::Prefer),
        Just(DigestPolicy::Require),
    ];
    let length = || prop_oneof![512..=8192u32, 8193..=1_048_576u32, Just((1u32 << 24) - 1)];
    (
        (policy.clone(), policy, any::<[bool; 4]>()),
        (length(), length(), length()),
        (1..=65535u16, 0..=3600u16, 0..=3600u16, 1..=65535u16, 0..=2u8),
    )
        .prop_map(|((header, data, flags), (segment, burst, first), numbers)| Offer {
            header_digest: header,
            data_digest: data,
            max_connections: numbers.0,
            initial_r2t: flags[0],
            immediate_data: flags[1],
            max_recv_data_segment_length: segment,
            max_burst_length: burst,
            first_burst_length: first,
            default_time2wait: numbers.1,
            default_time2retain: numbers.2,
            max_outstanding_r2t: numbers.3,
            data_pdu_in_order: flags[2],
            data_sequence_in_order: flags[3],
            error_recovery_level: numbers.4,
        })
}

proptest! {
    #[test]
    fn both_ends_agree(ours in offers(), theirs in offers(), discovery: bool) {
        let name = (!discovery).then_some(TARGET);
        let (result, _) = log_in(initiator(ours.clone(), name), target(theirs.clone()));
        let digests_clash = |a: DigestPolicy, b: DigestPolicy| {
            let (off, require) = (DigestPolicy::Off, DigestPolicy::Require);
            (a == off && b == require) || (a == require && b == off)
        };
        let clash = digests_clash(ours.header_digest, theirs.header_digest)
            || digests_clash(ours.data_digest, theirs.data_digest);
        prop_assert_eq!(result.is_err(), clash, "{:?}", result);
        let Ok((initiator, target)) = result else { return Ok(()) };
        let agreed = &initiator.parameters;
        prop_assert_eq!(&mirrored(agreed), &target.parameters);
        prop_assert_eq!(agreed.max_recv_data_segment_length, ours.max_recv_data_segment_length);
        prop_assert_eq!(agreed.default_time2wait, ours.default_time2wait.max(theirs.default_time2wait));
        prop_assert_eq!(agreed.default_time2retain, ours.default_time2retain.min(theirs.default_time2retain));
        if discovery {
            prop_assert_eq!(agreed.error_recovery_level, 0);
            prop_assert_eq!(agreed.max_outstanding_r2t, 1);
            return Ok(());
        }
        prop_assert_eq!(agreed.initial_r2t, ours.initial_r2t || theirs.initial_r2t);
        prop_assert_eq!(agreed.immediate_data, ours.immediate_data && theirs.immediate_data);
        prop_assert_eq!(agreed.data_pdu_in_order, ours.data_pdu_in_order || theirs.data_pdu_in_order);
        prop_assert_eq!(agreed.max_burst_length, ours.max_burst_length.min(theirs.max_burst_length));
        prop_assert_eq!(agreed.max_connections, ours.max_connections.min(theirs.max_connections));
        let level = ours.error_recovery_level.min(theirs.error_recovery_level);
        prop_assert_eq!(agreed.error_recovery_level, level);
        prop_assert!(agreed.first_burst_length <= agreed.max_burst_length);
        prop_assert!(agreed.max_outstanding_r2t <= ours.max_outstanding_r2t.min(theirs.max_outstanding_r2t));
        if level > 0 && agreed.data_sequence_in_order {
            prop_assert_eq!(agreed.max_outstanding_r2t, 1);
        }
    }

    #[test]
    fn no_text_makes_a_target_panic(texts in prop::collection::vec(hostile_text(), 1..6), flags: u64) {
        let mut login = target(Offer::target());
        for (index, text) in texts.into_iter().enumerate() {
            let bit = |n: usize| flags >> (index * 8 + n) & 1 == 1;
            let stage = if bit(0) { Stage::Operational } else { Stage::Security };
            let next = if bit(1) { Stage::FullFeature } else { Stage::Operational };
            let request = LoginRequest {
                transit: bit(2),
                continues: bit(3) && bit(4),
                current_stage: stage,
                next_stage: next,
                text: text.into(),
                ..LoginRequest::default()
            };
            if let TargetStep::Refused(response) = login.handle_request(request) {
                prop_assert_ne!(response.status, LoginStatus::Success);
                return Ok(());
            }
        }
    }

    #[test]
    fn no_text_makes_an_initiator_panic(texts in prop::collection::vec(hostile_text(), 1..6), flags: u64) {
        let mut login = initiator(Offer::initiator(), Some(TARGET));
        let mut request = login.start();
        for (index, text) in texts.into_iter().enumerate() {
            let bit = |n: usize| flags >> (index * 8 + n) & 1 == 1;
            let response = LoginResponse {
                transit: bit(0) && request.transit,
                continues: bit(1) && bit(2) && !bit(0),
                current_stage: request.current_stage,
                next_stage: request.next_stage,
                isid: request.isid,
                itt: request.itt,
                tsih: Tsih(1),
                text: text.into(),
                ..LoginResponse::default()
            };
            match login.handle_response(response) {
                InitiatorStep::Send(next) => request = next,
                InitiatorStep::Established(end) => {
                    let agreed = end.parameters;
                    prop_assert!((512..1 << 24).contains(&agreed.max_send_data_segment_length));
                    prop_assert!((512..1 << 24).contains(&agreed.max_burst_length));
                    prop_assert!(agreed.first_burst_length <= agreed.max_burst_length);
                    prop_assert!(agreed.max_outstanding_r2t >= 1);
                    return Ok(());
                }
                InitiatorStep::Failed(_) | InitiatorStep::Redirected { .. } => return Ok(()),
            }
        }
    }
}

/// Pairs that are nearly right, now and then bytes that are not.
fn hostile_text() -> impl Strategy<Value = Vec<u8>> {
    let key = prop_oneof![
        prop::sample::select(vec![
            "InitiatorName",
            "TargetName",
            "SessionType",
            "AuthMethod",
            "HeaderDigest",
            "DataDigest",
            "MaxConnections",
            "InitialR2T",
            "ImmediateData",
            "TargetAlias",
            "MaxRecvDataSegmentLength",
            "MaxBurstLength",
            "FirstBurstLength",
            "IFMarker",
            "DefaultTime2Wait",
            "DefaultTime2Retain",
            "MaxOutstandingR2T",
            "DataPDUInOrder",
            "DataSequenceInOrder",
            "ErrorRecoveryLevel",
            "TaskReporting",
            "OFMarkInt",
            "iSCSIProtocolLevel",
            "TargetPortalGroupTag",
            "TargetAddress",
            "SendTargets",
        ])
        .prop_map(str::to_owned),
        "[A-Z][a-z]{0,3}",
    ];
    let value = prop_oneof![
        prop::sample::select(vec![
            "Yes",
            "No",
            "None",
            "CRC32C",
            "CRC32C,None",
            "Reject",
            "Irrelevant",
            "Normal",
            "NotUnderstood",
            "Discovery",
            INITIATOR,
            TARGET,
            "0",
            "1",
            "512",
            "65536",
            "0xffffff",
        ])
        .prop_map(str::to_owned),
        any::<u32>().prop_map(|number| number.to_string()),
        ".{0,8}",
    ];
    let pairs = prop::collection::vec((key, value), 0..8).prop_map(|pairs| {
        let mut text = Vec::new();
        for (key, value) in pairs {
            keys::push(&mut text, &key, &value.replace('\0', ""));
        }
        text
    });
    prop_oneof![9 => pairs, 1 => prop::collection::vec(any::<u8>(), 0..64)]
}

// --- A scripted initiator ---------------------------------------------------------------------

fn text(pairs: &[&str]) -> Bytes {
    pairs.iter().flat_map(|pair| [pair.as_bytes(), &[0]].concat()).collect::<Vec<u8>>().into()
}

/// A request in `current` that asks for `next`, if there is one.
fn request(current: Stage, next: Option<Stage>, pairs: &[&str]) -> LoginRequest {
    LoginRequest {
        transit: next.is_some(),
        current_stage: current,
        next_stage: next.unwrap_or_default(),
        isid: ISID,
        text: text(pairs),
        ..LoginRequest::default()
    }
}

use Stage::{FullFeature, Operational, Security};

const NAMES: [&str; 2] =
    ["InitiatorName=iqn.2026-01.com.example:host", "TargetName=iqn.2026-01.com.example:disk"];

fn respond(login: &mut TargetLogin, request: LoginRequest) -> LoginResponse {
    match login.handle_request(request) {
        TargetStep::Respond(response) => response,
        step => panic!("{step:?}"),
    }
}

fn establish(login: &mut TargetLogin, request: LoginRequest) -> (Vec<String>, Established) {
    match login.handle_request(request) {
        TargetStep::Established { response, login } => {
            assert!(response.transit && response.next_stage == FullFeature);
            (said(&response), *login)
        }
        step => panic!("{step:?}"),
    }
}

fn refuse(login: &mut TargetLogin, request: LoginRequest) -> LoginStatus {
    match login.handle_request(request) {
        TargetStep::Refused(response) => {
            assert!(!response.transit && response.text.is_empty());
            response.status
        }
        step => panic!("{step:?}"),
    }
}

fn said(response: &LoginResponse) -> Vec<String> {
    keys::parse(&response.text)
        .unwrap()
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect()
}

/// Names along with `pairs` in one request straight to full feature phase.
fn at_once(pairs: &[&str]) -> TargetStep {
    let pairs = [&NAMES, pairs].concat();
    target(Offer::target()).handle_request(request(Operational, Some(FullFeature), &pairs))
}

/// What the target answers to these operational keys, its own declarations left out.
#[track_caller]
fn answers(pairs: &[&str], expected: &[&str]) -> Parameters {
    let TargetStep::Established { response, login } = at_once(pairs) else {
        panic!("{:?}", at_once(pairs))
    };
    let own = ["TargetAlias=a disk", "TargetPortalGroupTag=7", "MaxRecvDataSegmentLength=262144"];
    let mut said = said(&response);
    said.retain(|pair| !own.contains(&pair.as_str()));
    assert_eq!(said, expected);
    login.parameters
}

#[track_caller]
fn refused(pairs: &[&str], status: LoginStatus) {
    match at_once(pairs) {
        TargetStep::Refused(response) => assert_eq!(response.status, status, "{pairs:?}"),
        step => panic!("{pairs:?}: {step:?}"),
    }
}

#[test]
fn each_key_has_its_rule() {
    answers(&["HeaderDigest=CRC32C,None"], &["HeaderDigest=CRC32C"]);
    answers(&["HeaderDigest=None,CRC32C"], &["HeaderDigest=None"]);
    answers(&["DataDigest=Y-com.example.md5,CRC32C"], &["DataDigest=CRC32C"]);
    answers(&["DataDigest=Y-com.example.md5"], &["DataDigest=Reject"]);
    answers(&["MaxConnections=8"], &["MaxConnections=1"]);
    answers(&["InitialR2T=Yes"], &["InitialR2T=Yes"]);
    answers(&["InitialR2T=No"], &["InitialR2T=No"]);
    answers(&["ImmediateData=Yes"], &["ImmediateData=Yes"]);
    answers(&["ImmediateData=No"], &["ImmediateData=No"]);
    answers(&["ImmediateData=yes"], &["ImmediateData=Reject"]);
    answers(&["MaxBurstLength=16776192"], &["MaxBurstLength=16776192"]);
    answers(&["MaxBurstLength=16777215"], &["MaxBurstLength=16776192"]);
    answers(&["MaxBurstLength=16777216"], &["MaxBurstLength=Reject"]);
    answers(&["MaxBurstLength=0x10000"], &["MaxBurstLength=65536"]);
    answers(&["MaxBurstLength=511"], &["MaxBurstLength=Reject"]);
    answers(&["MaxBurstLength=4096~8192"], &["MaxBurstLength=Reject"]);
    answers(&["DefaultTime2Wait=0"], &["DefaultTime2Wait=2"]);
    answers(&["DefaultTime2Wait=9"], &["DefaultTime2Wait=9"]);
    answers(&["DefaultTime2Wait=3601"], &["DefaultTime2Wait=Reject"]);
    answers(&["DefaultTime2Retain=0"], &["DefaultTime2Retain=0"]);
    answers(&["MaxOutstandingR2T=64"], &["MaxOutstandingR2T=16"]);
    answers(&["MaxOutstandingR2T=0"], &["MaxOutstandingR2T=Reject"]);
    answers(&["DataPDUInOrder=No"], &["DataPDUInOrder=Yes"]);
    answers(&["DataSequenceInOrder=No"], &["DataSequenceInOrder=Yes"]);
    answers(&["ErrorRecoveryLevel=2"], &["ErrorRecoveryLevel=0"]);
    answers(&["ErrorRecoveryLevel=3"], &["ErrorRecoveryLevel=Reject"]);
    answers(&["TaskReporting=FastAbort,ResponseFence,RFC3720"], &["TaskReporting=RFC3720"]);
    answers(&["iSCSIProtocolLevel=2"], &["iSCSIProtocolLevel=1"]);
    answers(&["IFMarker=Yes"], &["IFMarker=No"]);
    answers(&["OFMarkInt=2048~8192"], &["OFMarkInt=Reject"]);
    answers(&["X-com.example.key=1"], &["X-com.example.key=NotUnderstood"]);
    answers(&["Whatever="], &["Whatever=NotUnderstood"]);
    answers(&["X#NodeArchitecture=Unix/7"], &[]);
    answers(&["InitiatorAlias=me"], &[]);
}

#[test]
fn a_declared_segment_length_is_obeyed_or_the_login_refused() {
    for (value, expected) in [
        ("512", 512),
        ("16777215", 16_777_215),
        ("16777216", 16_777_215),
        ("0xfffffffff", 16_777_215),
    ] {
        let agreed = answers(&[&format!("MaxRecvDataSegmentLength={value}")], &[]);
        assert_eq!(agreed.max_send_data_segment_length, expected);
    }
    for value in ["0", "511", "-1", "many", ""] {
        refused(&[&format!("MaxRecvDataSegmentLength={value}")], LoginStatus::InitiatorError);
    }
}

#[test]
fn the_first_burst_never_exceeds_the_burst() {
    let agreed = answers(
        &["FirstBurstLength=262144", "MaxBurstLength=65536"],
        &["MaxBurstLength=65536", "FirstBurstLength=65536"],
    );
    assert_eq!((agreed.first_burst_length, agreed.max_burst_length), (65_536, 65_536));
}

#[test]
fn a_default_first_burst_above_the_burst_is_put_right_by_the_target() {
    let mut login = target(Offer::target());
    let pairs = [&NAMES[..], &["MaxBurstLength=8192"]].concat();
    let response = respond(&mut login, request(Operational, Some(FullFeature), &pairs));
    assert!(!response.transit);
    assert!(said(&response).contains(&"FirstBurstLength=8192".to_owned()));
    let answer = request(Operational, Some(FullFeature), &["FirstBurstLength=4096"]);
    let (_, end) = establish(&mut login, answer);
    assert_eq!(end.parameters.first_burst_length, 4096);
}

#[test]
fn a_proposal_of_the_target_that_is_passed_over_ends_the_login() {
    let mut login = target(Offer { immediate_data: false, ..Offer::target() });
    let first = respond(&mut login, request(Operational, Some(FullFeature), &NAMES));
    assert!(said(&first).contains(&"ImmediateData=No".to_owned()));
    // The proposal decides by itself: no answer is needed.
    let mut proposing = target(Offer { default_time2retain: 0, ..Offer::target() });
    respond(&mut proposing, request(Operational, Some(FullFeature), &NAMES));
    let silence = request(Operational, Some(FullFeature), &[]);
    assert_eq!(refuse(&mut proposing, silence.clone()), LoginStatus::InitiatorError);
    let (_, end) = establish(&mut login, silence);
    assert!(!end.parameters.immediate_data);
}

#[test]
fn session_keys_are_irrelevant_to_discovery() {
    let mut login = target(Offer::target());
    let pairs = [
        NAMES[0],
        "SessionType=Discovery",
        "MaxBurstLength=65536",
        "InitialR2T=No",
        "HeaderDigest=CRC32C",
        "TaskReporting=RFC3720",
        "ErrorRecoveryLevel=1",
    ];
    let (said, end) = establish(&mut login, request(Operational, Some(FullFeature), &pairs));
    for pair in [
        "TargetPortalGroupTag=7",
        "MaxBurstLength=Irrelevant",
        "InitialR2T=Irrelevant",
        "HeaderDigest=CRC32C",
        "TaskReporting=Irrelevant",
        "ErrorRecoveryLevel=0",
    ] {
        assert!(said.contains(&pair.to_owned()), "{pair} in {said:?}");
    }
    assert_eq!(end.parameters.max_burst_length, 262_144);
    assert_eq!(end.session_type, SessionType::Discovery);
}

#[test]
fn text_that_breaks_the_rules_is_refused() {
    for pairs in [
        &["InitialR2T=Reject"][..],
        &["MaxBurstLength=NotUnderstood"],
        &["X-com.example.key=NotUnderstood"],
        &["MaxBurstLength=4096", "MaxBurstLength=4096"],
        &["TargetAlias=x"],
        &["TargetPortalGroupTag=1"],
        &["SendTargets=All"],
        &["AuthMethod=None"],
        &["CHAP_A=5"],
        &["no pair"],
        &["=x"],
        &["InitiatorName=iqn.2026-01.com.example:host"],
    ] {
        refused(pairs, LoginStatus::InitiatorError);
    }
    refused(&["SessionType=Other"], LoginStatus::SessionTypeNotSupported);
}

#[test]
fn who_and_where_to_decide_the_status() {
    for (pairs, status) in [
        (&["TargetName=iqn.2026-01.com.example:disk"][..], LoginStatus::MissingParameter),
        (&["InitiatorName=iqn.2026-01.com.example:host"], LoginStatus::MissingParameter),
        (&[], LoginStatus::MissingParameter),
        (&["InitiatorName=a\nb", NAMES[1]], LoginStatus::InitiatorError),
        (&["InitiatorName=", NAMES[1]], LoginStatus::InitiatorError),
        (&[NAMES[0], "TargetName=iqn.2026-01.com.example:other"], LoginStatus::NotFound),
        (
            &["InitiatorName=iqn.2026-01.com.example:stranger", NAMES[1]],
            LoginStatus::AuthorizationFailure,
        ),
        (&[NAMES[0], NAMES[1], "AuthMethod=CHAP"], LoginStatus::AuthenticationFailure),
        (&[NAMES[0], NAMES[1], "AuthMethod=CHAP,KRB5"], LoginStatus::AuthenticationFailure),
        (&[NAMES[0], NAMES[1], "MaxBurstLength=4096"], LoginStatus::InitiatorError),
    ] {
        let request = request(Security, Some(Operational), pairs);
        assert_eq!(refuse(&mut target(Offer::target()), request), status, "{pairs:?}");
    }
}

#[test]
fn none_is_chosen_wherever_it_stands_among_the_methods() {
    for method in ["AuthMethod=None", "AuthMethod=CHAP,None", "AuthMethod=None,CHAP"] {
        let pairs = [NAMES[0], NAMES[1], method];
        let response =
            respond(&mut target(Offer::target()), request(Security, Some(Operational), &pairs));
        assert!(said(&response).contains(&"AuthMethod=None".to_owned()), "{method}");
        assert!(response.transit);
    }
}

#[test]
fn stages_go_forward_only() {
    let first = |current, next| {
        let mut login = target(Offer::target());
        login.handle_request(request(current, next, &NAMES))
    };
    let is_refused = |step| match step {
        TargetStep::Refused(response) => response.status == LoginStatus::InitiatorError,
        _ => false,
    };
    assert!(is_refused(first(FullFeature, None)));
    assert!(is_refused(first(FullFeature, Some(FullFeature))));
    assert!(is_refused(first(Operational, Some(Operational))));
    assert!(is_refused(first(Operational, Some(Security))));
    assert!(is_refused(first(Security, Some(Security))));

    let mut login = target(Offer::target());
    respond(&mut login, request(Security, Some(Operational), &NAMES));
    assert_eq!(
        refuse(&mut login, request(Security, Some(Operational), &[])),
        LoginStatus::InitiatorError
    );

    let mut login = target(Offer::target());
    let response = respond(&mut login, request(Security, None, &NAMES));
    assert!(!response.transit);
    assert_eq!(refuse(&mut login, request(Operational, None, &[])), LoginStatus::InitiatorError);
}

#[test]
fn security_may_lead_straight_to_full_feature_phase() {
    let mut login = target(Offer::target());
    let (_, end) = establish(&mut login, request(Security, Some(FullFeature), &NAMES));
    assert_eq!(end.parameters, Parameters::default());
    let again = request(FullFeature, None, &[]);
    assert_eq!(refuse(&mut login, again), LoginStatus::InvalidDuringLogin);
}

#[test]
fn a_target_that_cannot_take_the_defaults_insists_on_the_operational_stage() {
    let mut login = target(Offer { max_burst_length: 65_536, ..Offer::target() });
    let response = respond(&mut login, request(Security, Some(FullFeature), &NAMES));
    assert_eq!((response.transit, response.next_stage), (true, Operational));
    let response = respond(&mut login, request(Operational, Some(FullFeature), &[]));
    assert!(said(&response).contains(&"MaxBurstLength=65536".to_owned()));
}

#[test]
fn the_header_stays_the_same_through_a_login() {
    type Change = fn(&mut LoginRequest);
    let changes: [Change; 4] = [
        |request| request.isid.0[5] ^= 1,
        |request| request.tsih = Tsih(5),
        |request| request.cid = Cid(5),
        |request| request.itt = Itt(5),
    ];
    for change in changes {
        let mut login = target(Offer::target());
        respond(&mut login, request(Security, Some(Operational), &NAMES));
        let mut next = request(Operational, Some(FullFeature), &[]);
        change(&mut next);
        assert_eq!(refuse(&mut login, next), LoginStatus::InitiatorError);
    }
}

#[test]
fn another_version_is_refused_and_ours_named() {
    let request = LoginRequest {
        version_max: 3,
        version_min: 1,
        ..request(Security, Some(Operational), &NAMES)
    };
    let mut login = target(Offer::target());
    let TargetStep::Refused(response) = login.handle_request(request.clone()) else { panic!() };
    assert_eq!(response.status, LoginStatus::UnsupportedVersion);
    assert_eq!(response.version_active, 0);
    let mut login = target(Offer::target());
    respond(&mut login, LoginRequest { version_min: 0, ..request });
}

#[test]
fn text_may_come_in_pieces() {
    let whole = text(&[&NAMES[..], &["X-com.example.filler=abcdefghij"]].concat());
    for cut in 1..whole.len() {
        let mut login = target(Offer::target());
        let first = LoginRequest {
            continues: true,
            text: whole.slice(..cut),
            ..request(Operational, None, &[])
        };
        let response = respond(&mut login, first);
        assert!(response.text.is_empty() && !response.transit && !response.continues);
        let last = LoginRequest {
            text: whole.slice(cut..),
            ..request(Operational, Some(FullFeature), &[])
        };
        let (said, _) = establish(&mut login, last);
        assert!(said.contains(&"X-com.example.filler=NotUnderstood".to_owned()));
    }
}

#[test]
fn continued_text_cannot_ask_for_the_next_stage() {
    let mut login = target(Offer::target());
    let request = LoginRequest { continues: true, ..request(Security, Some(Operational), &NAMES) };
    assert_eq!(refuse(&mut login, request), LoginStatus::InitiatorError);
}

#[test]
fn a_text_without_end_is_refused() {
    let mut login = target(Offer::target());
    let piece = LoginRequest {
        continues: true,
        text: Bytes::from(vec![b'A'; 8192]),
        ..request(Security, None, &[])
    };
    respond(&mut login, piece.clone());
    respond(&mut login, piece.clone());
    assert_eq!(refuse(&mut login, piece), LoginStatus::InitiatorError);
}

#[test]
fn a_login_without_end_is_refused() {
    let mut login = target(Offer::target());
    respond(&mut login, request(Security, None, &NAMES));
    for _ in 1..64 {
        respond(&mut login, request(Security, None, &[]));
    }
    assert_eq!(refuse(&mut login, request(Security, None, &[])), LoginStatus::InitiatorError);
}

#[test]
fn answers_longer_than_a_pdu_come_in_pieces() {
    // 110 keys of 63 bytes, each not understood.
    let keys: Vec<String> = (0..110).map(|n| format!("X{n:0>62}=")).collect();
    let pairs: Vec<&str> = NAMES.into_iter().chain(keys.iter().map(String::as_str)).collect();
    let mut login = target(Offer::target());
    let first = LoginRequest {
        transit: true,
        next_stage: FullFeature,
        ..request(Operational, None, &pairs)
    };
    let response = respond(&mut login, first);
    assert!(response.continues && !response.transit);
    assert_eq!(response.text.len(), 8192);
    let TargetStep::Established { response: last, .. } =
        login.handle_request(request(Operational, Some(FullFeature), &[]))
    else {
        panic!()
    };
    let whole = [response.text, last.text].concat();
    let said = keys::parse(&whole).unwrap();
    assert_eq!(said.iter().filter(|(_, value)| *value == "NotUnderstood").count(), 110);

    let mut login = target(Offer::target());
    respond(&mut login, request(Operational, Some(FullFeature), &pairs));
    let interruption = request(Operational, Some(FullFeature), &["MaxBurstLength=4096"]);
    assert_eq!(refuse(&mut login, interruption), LoginStatus::InitiatorError);
}

// --- Initiators of the field ------------------------------------------------------------------

const SECURITY_KEYS: [&str; 4] = [NAMES[0], NAMES[1], "SessionType=Normal", "AuthMethod=None"];

/// Security, then operational keys; returns the answers to the latter.
fn two_stages(security: &[&str], operational: &[&str]) -> (Vec<String>, Parameters) {
    let mut login = target(Offer::target());
    let response = respond(&mut login, request(Security, Some(Operational), security));
    assert_eq!((response.transit, response.next_stage), (true, Operational));
    let (said, end) = establish(&mut login, request(Operational, Some(FullFeature), operational));
    (said, end.parameters)
}

#[test]
fn linux_logs_in() {
    let (said, agreed) = two_stages(
        &[NAMES[0], "InitiatorAlias=debian", NAMES[1], "SessionType=Normal", "AuthMethod=None"],
        &[
            "HeaderDigest=None",
            "DataDigest=None",
            "DefaultTime2Wait=2",
            "DefaultTime2Retain=0",
            "IFMarker=No",
            "OFMarker=No",
            "ErrorRecoveryLevel=0",
            "InitialR2T=No",
            "ImmediateData=Yes",
            "MaxBurstLength=16776192",
            "FirstBurstLength=262144",
            "MaxOutstandingR2T=1",
            "MaxConnections=1",
            "DataPDUInOrder=Yes",
            "DataSequenceInOrder=Yes",
            "MaxRecvDataSegmentLength=262144",
        ],
    );
    assert!(said.contains(&"IFMarker=No".to_owned()));
    assert!(!said.iter().any(|pair| pair.ends_with("NotUnderstood") || pair.ends_with("Reject")));
    let expected = Parameters {
        initial_r2t: false,
        max_recv_data_segment_length: 262_144,
        max_send_data_segment_length: 262_144,
        max_burst_length: 16_776_192,
        first_burst_length: 262_144,
        default_time2retain: 0,
        ..Parameters::default()
    };
    assert_eq!(agreed, expected);
}

#[test]
fn libiscsi_logs_in() {
    let (_, agreed) = two_stages(
        &[
            NAMES[0],
            "InitiatorAlias=libiscsi",
            NAMES[1],
            "SessionType=Normal",
            "AuthMethod=CHAP,None",
        ],
        &[
            "HeaderDigest=None,CRC32C",
            "DataDigest=None",
            "InitialR2T=No",
            "ImmediateData=Yes",
            "MaxBurstLength=16776192",
            "FirstBurstLength=262144",
            "DefaultTime2Wait=2",
            "DefaultTime2Retain=0",
            "MaxOutstandingR2T=1",
            "ErrorRecoveryLevel=0",
            "IFMarker=No",
            "OFMarker=No",
            "MaxConnections=1",
            "MaxRecvDataSegmentLength=262144",
            "DataPDUInOrder=Yes",
            "DataSequenceInOrder=Yes",
        ],
    );
    assert!(!agreed.digests.header);
    assert_eq!(agreed.max_burst_length, 16_776_192);
}

#[test]
fn ipxe_logs_in() {
    let (said, agreed) = two_stages(
        &SECURITY_KEYS,
        &[
            "HeaderDigest=None",
            "DataDigest=None",
            "MaxConnections=1",
            "InitialR2T=Yes",
            "ImmediateData=No",
            "MaxRecvDataSegmentLength=8192",
            "MaxBurstLength=262144",
            "FirstBurstLength=65536",
            "DefaultTime2Wait=0",
            "DefaultTime2Retain=0",
            "MaxOutstandingR2T=1",
            "DataPDUInOrder=Yes",
            "DataSequenceInOrder=Yes",
            "ErrorRecoveryLevel=0",
        ],
    );
    assert!(said.contains(&"InitialR2T=Yes".to_owned()));
    assert!(agreed.initial_r2t && !agreed.immediate_data);
    assert_eq!(agreed.default_time2wait, 2);
}

#[test]
fn freebsd_logs_in() {
    let (_, agreed) = two_stages(
        &[NAMES[0], NAMES[1], "SessionType=Normal", "AuthMethod=None,CHAP"],
        &[
            "HeaderDigest=CRC32C",
            "DataDigest=CRC32C",
            "ImmediateData=Yes",
            "MaxBurstLength=262144",
            "FirstBurstLength=262144",
            "InitialR2T=Yes",
            "MaxOutstandingR2T=1",
            "MaxRecvDataSegmentLength=262144",
            "DefaultTime2Wait=0",
            "DefaultTime2Retain=0",
            "ErrorRecoveryLevel=0",
        ],
    );
    assert!(agreed.digests.header && agreed.digests.data);
    assert_eq!(agreed.first_burst_length, 262_144);
}

#[test]
fn openbsd_logs_in() {
    let (_, agreed) = two_stages(
        &[NAMES[0], NAMES[1], "AuthMethod=None"],
        &["MaxRecvDataSegmentLength=65536", "HeaderDigest=None", "DataDigest=None"],
    );
    assert_eq!(agreed.max_send_data_segment_length, 65_536);
    assert_eq!(agreed.max_recv_data_segment_length, 262_144);
}

// --- A scripted target ------------------------------------------------------------------------

/// What the initiator makes of a target that agrees in the security stage and answers `pairs`,
/// changed by `change`, in the operational one.
fn answered(pairs: &[&str], change: impl Fn(&mut LoginResponse)) -> InitiatorStep {
    let mut login = initiator(Offer::initiator(), Some(TARGET));
    let first = login.start();
    let agree = LoginResponse {
        transit: true,
        next_stage: Operational,
        isid: first.isid,
        itt: first.itt,
        text: text(&["AuthMethod=None", "TargetPortalGroupTag=1"]),
        ..LoginResponse::default()
    };
    let InitiatorStep::Send(second) = login.handle_response(agree.clone()) else { panic!() };
    assert_eq!(second.exp_stat_sn, Serial(1));
    let mut response = LoginResponse {
        current_stage: Operational,
        next_stage: FullFeature,
        tsih: Tsih(1),
        text: text(pairs),
        ..agree
    };
    change(&mut response);
    login.handle_response(response)
}

#[track_caller]
fn fails(pairs: &[&str], change: impl Fn(&mut LoginResponse)) -> LoginFailure {
    match answered(pairs, change) {
        InitiatorStep::Failed(failure) => failure,
        step => panic!("{pairs:?}: {step:?}"),
    }
}

#[test]
fn answers_that_do_not_follow_are_refused() {
    for pair in [
        "HeaderDigest=MD5",
        "HeaderDigest=CRC32C,None",
        "MaxBurstLength=16776192",
        "MaxBurstLength=0",
        "MaxBurstLength=many",
        "FirstBurstLength=262145",
        "MaxOutstandingR2T=0",
        "MaxOutstandingR2T=9",
        "DefaultTime2Wait=1",
        "DefaultTime2Wait=4000",
        "DefaultTime2Retain=21",
        "ErrorRecoveryLevel=1",
        "DataPDUInOrder=No",
        "ImmediateData=Maybe",
        "MaxBurstLength=NotUnderstood",
    ] {
        let key = pair.split('=').next().unwrap().to_owned();
        assert_eq!(fails(&[pair], |_| ()), LoginFailure::Keys(KeyError::Answer(key)), "{pair}");
    }
}

#[test]
fn a_first_burst_above_the_burst_is_no_agreement() {
    let failure = fails(&["MaxBurstLength=65536", "FirstBurstLength=262144"], |_| ());
    assert_eq!(failure, LoginFailure::Keys(KeyError::Answer("FirstBurstLength".to_owned())));
    // The default of an answer withheld, likewise.
    let failure = fails(&["MaxBurstLength=32768"], |_| ());
    assert_eq!(failure, LoginFailure::Keys(KeyError::Disagreement("FirstBurstLength")));
}

#[test]
fn a_target_cannot_send_an_initiators_keys() {
    for pair in
        ["InitiatorName=x", "TargetName=x", "SessionType=Normal", "SendTargets=", "AuthMethod=None"]
    {
        let key = pair.split('=').next().unwrap().to_owned();
        assert_eq!(fails(&[pair], |_| ()), LoginFailure::Keys(KeyError::NotAllowed(key)), "{pair}");
    }
    let failure = fails(&["MaxRecvDataSegmentLength=0"], |_| ());
    assert!(matches!(failure, LoginFailure::Keys(KeyError::Value(_))));
    // The tag was given in the security stage.
    let failure = fails(&["TargetPortalGroupTag=1"], |_| ());
    assert!(matches!(failure, LoginFailure::Keys(KeyError::Repeated(_))));
}

#[test]
fn a_header_that_does_not_fit_is_refused() {
    type Change = fn(&mut LoginResponse);
    let changes: [Change; 8] = [
        |response| response.itt = Itt(77),
        |response| response.isid.0[0] ^= 1,
        |response| response.version_active = 1,
        |response| response.current_stage = Security,
        |response| response.next_stage = Operational,
        |response| response.next_stage = Security,
        |response| response.continues = true,
        |response| response.tsih = Tsih(0),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        assert!(matches!(fails(&[], change), LoginFailure::Protocol(_)), "change {index}");
    }
    assert!(matches!(answered(&[], |_| ()), InitiatorStep::Established(_)));
}

#[test]
fn silence_leaves_the_defaults() {
    let InitiatorStep::Established(end) = answered(&[], |_| ()) else { panic!() };
    let expected = Parameters { max_recv_data_segment_length: 262_144, ..Parameters::default() };
    assert_eq!(end.parameters, expected);
}

#[test]
fn a_proposal_of_the_target_is_answered() {
    let propose = |response: &mut LoginResponse| response.transit = false;
    let pairs = ["TaskReporting=RFC3720,FastAbort", "X-key=1", "IFMarkInt=1"];
    let InitiatorStep::Send(request) = answered(&pairs, propose) else { panic!() };
    assert!(request.transit);
    let said = keys::parse(&request.text).unwrap();
    for pair in [("TaskReporting", "RFC3720"), ("X-key", "NotUnderstood"), ("IFMarkInt", "Reject")]
    {
        assert!(said.contains(&pair), "{pair:?} in {said:?}");
    }
    let failure = fails(&["TaskReporting=RFC3720"], |_| ());
    assert!(matches!(failure, LoginFailure::Protocol(_)), "no answer is possible any more");
}

#[test]
fn a_target_that_never_agrees_is_left() {
    let mut login = initiator(Offer::initiator(), Some(TARGET));
    let first = login.start();
    let stall = LoginResponse { isid: first.isid, itt: first.itt, ..LoginResponse::default() };
    for exchange in 0..100 {
        match login.handle_response(stall.clone()) {
            InitiatorStep::Send(request) => assert!(request.transit),
            InitiatorStep::Failed(LoginFailure::Protocol(_)) => {
                assert!(exchange >= 6, "six exchanges at least (RFC 7143, 6.2)");
                return;
            }
            step => panic!("{step:?}"),
        }
    }
    panic!("the login does not end");
}

#[test]
fn a_redirect_names_the_new_address() {
    let moved = |status, pairs: &'static [&'static str]| {
        answered(pairs, move |response| {
            response.status = status;
            response.transit = false;
        })
    };
    match moved(LoginStatus::TargetMovedTemporarily, &["TargetAddress=[::1]:3261,5"]) {
        InitiatorStep::Redirected { address, permanent } => {
            assert_eq!((address.as_str(), permanent), ("[::1]:3261", false));
        }
        step => panic!("{step:?}"),
    }
    match moved(LoginStatus::TargetMovedPermanently, &["TargetAddress=a.example.com"]) {
        InitiatorStep::Redirected { permanent, .. } => assert!(permanent),
        step => panic!("{step:?}"),
    }
    for pairs in [&[][..], &["TargetAddress="], &["TargetAddress=a b\nc"]] {
        let step = moved(LoginStatus::TargetMovedTemporarily, pairs);
        assert!(matches!(step, InitiatorStep::Failed(_)), "{pairs:?}");
    }
}

#[test]
fn a_refusal_says_why() {
    let (result, _) = log_in(
        initiator(Offer::initiator(), Some("iqn.2026-01.com.example:other")),
        target(Offer::target()),
    );
    assert_eq!(result.unwrap_err(), LoginFailure::Refused(LoginStatus::NotFound));
}

// --- Full feature phase -----------------------------------------------------------------------

#[test]
fn few_keys_change_in_full_feature_phase() {
    let mut parameters = Parameters::default();
    let mut receive = |key, value| keys::receive_in_full_feature(key, value, &mut parameters);
    assert_eq!(receive("MaxRecvDataSegmentLength", "65536"), None);
    assert_eq!(receive("MaxRecvDataSegmentLength", "5"), Some("Reject"));
    assert_eq!(receive("MaxBurstLength", "65536"), Some("Reject"));
    assert_eq!(receive("InitiatorAlias", "me"), None);
    assert_eq!(receive("X-key", "1"), Some("NotUnderstood"));
    assert_eq!(receive("X-key", "NotUnderstood"), None);
    let expected = Parameters { max_send_data_segment_length: 65_536, ..Parameters::default() };
    assert_eq!(parameters, expected);
}
