//! The target's login with initiators that obey or violate the rules.

use super::*;

/// Sends the names and `pairs` in one request that asks for full feature phase at once.
fn at_once(pairs: &[&str]) -> TargetStep {
    let pairs = [&NAMES, pairs].concat();
    target(NegotiationOffer::target()).handle_request(request(
        Operational,
        Some(FullFeature),
        &pairs,
    ))
}

/// Checks the answers of the target to these operational keys; its own declarations are left out.
/// Returns the negotiated parameters.
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
fn each_key_is_negotiated_by_its_rule() {
    answers(&["HeaderDigest=CRC32C,None"], &["HeaderDigest=CRC32C"]);
    answers(&["HeaderDigest=None,CRC32C"], &["HeaderDigest=None"]);
    answers(&["DataDigest=Y-com.example.md5,CRC32C"], &["DataDigest=CRC32C"]);
    answers(&["DataDigest=Y-com.example.md5"], &["DataDigest=Reject"]);
    answers(&["MaxConnections=8"], &["MaxConnections=4"]);
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
    answers(&["DefaultTime2Wait=0"], &["DefaultTime2Wait=0"]);
    answers(&["DefaultTime2Wait=9"], &["DefaultTime2Wait=9"]);
    answers(&["DefaultTime2Wait=3601"], &["DefaultTime2Wait=Reject"]);
    answers(&["DefaultTime2Retain=65536"], &["DefaultTime2Retain=Reject"]);
    answers(&["DefaultTime2Retain=0"], &["DefaultTime2Retain=0"]);
    answers(&["MaxOutstandingR2T=64"], &["MaxOutstandingR2T=16"]);
    answers(&["MaxOutstandingR2T=0"], &["MaxOutstandingR2T=Reject"]);
    answers(&["DataPDUInOrder=No"], &["DataPDUInOrder=Yes"]);
    answers(&["DataSequenceInOrder=No"], &["DataSequenceInOrder=Yes"]);
    answers(&["ErrorRecoveryLevel=2"], &["ErrorRecoveryLevel=2"]);
    answers(&["ErrorRecoveryLevel=3"], &["ErrorRecoveryLevel=Reject"]);
    answers(&["TaskReporting=FastAbort,ResponseFence,RFC3720"], &["TaskReporting=RFC3720"]);
    answers(&["iSCSIProtocolLevel=2"], &["iSCSIProtocolLevel=1"]);
    answers(&["IFMarker=Yes"], &["IFMarker=No"]);
    answers(&["OFMarkInt=2048~8192"], &["OFMarkInt=Reject"]);
    answers(&["X-io.forebay.Compression=lz4,None"], &["X-io.forebay.Compression=None"]);
    answers(&["X-io.forebay.Compression=lz4"], &["X-io.forebay.Compression=Reject"]);
    answers(&["X-com.example.key=1"], &["X-com.example.key=NotUnderstood"]);
    answers(&["Whatever="], &["Whatever=NotUnderstood"]);
    answers(&["X#NodeArchitecture=Unix/7"], &[]);
    answers(&["InitiatorAlias=me"], &[]);
}

#[test]
fn the_first_compression_of_the_initiators_that_is_allowed_is_chosen() {
    const KEY: &str = "X-io.forebay.Compression";
    let allowed = NegotiationOffer {
        compression: vec![Compression::Lz4, Compression::Zstd],
        ..NegotiationOffer::target()
    };
    for (proposed, answer, chosen) in [
        ("zstd,lz4,None", "zstd", Some(Compression::Zstd)),
        ("brotli,lz4,None", "lz4", Some(Compression::Lz4)),
        ("None,lz4", "None", None),
        ("brotli", "Reject", None),
        ("", "Reject", None),
    ] {
        let proposed = format!("{KEY}={proposed}");
        let pairs = [&NAMES[..], &[&proposed]].concat();
        let step =
            target(allowed.clone()).handle_request(request(Operational, Some(FullFeature), &pairs));
        let TargetStep::Established { response, login } = step else { panic!("{step:?}") };
        assert!(said(&response).contains(&format!("{KEY}={answer}")), "{proposed}");
        assert_eq!(login.parameters.compression, chosen);
    }
    assert_eq!(
        keys::receive_in_full_feature(KEY, "lz4", &mut Parameters::default()),
        Some("Reject"),
        "it begins with the login or not at all"
    );
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
fn the_first_burst_never_exceeds_the_maximum_burst() {
    let agreed = answers(
        &["FirstBurstLength=262144", "MaxBurstLength=65536"],
        &["MaxBurstLength=65536", "FirstBurstLength=65536"],
    );
    assert_eq!((agreed.first_burst_length, agreed.max_burst_length), (65_536, 65_536));
}

#[test]
fn a_first_burst_without_effect_is_not_negotiated() {
    let pairs = ["InitialR2T=Yes", "ImmediateData=No", "MaxBurstLength=8192"];
    let agreed = answers(&pairs, &pairs);
    assert_eq!((agreed.first_burst_length, agreed.max_burst_length), (8192, 8192));
}

#[test]
fn names_and_session_type_cannot_be_sent_after_the_first_request() {
    for late in ["SessionType=Discovery", "InitiatorName=iqn.x", "TargetName=iqn.x"] {
        let mut login = target(NegotiationOffer::target());
        respond(&mut login, request(Security, Some(Operational), &NAMES));
        let request = request(Operational, Some(FullFeature), &[late]);
        assert_eq!(refuse(&mut login, request), LoginStatus::InitiatorError, "{late}");
    }
}

#[test]
fn the_target_corrects_a_default_first_burst_above_the_maximum_burst() {
    let mut login = target(NegotiationOffer::target());
    let pairs = [&NAMES[..], &["MaxBurstLength=8192"]].concat();
    let response = respond(&mut login, request(Operational, Some(FullFeature), &pairs));
    assert!(!response.transit);
    assert!(said(&response).contains(&"FirstBurstLength=8192".to_owned()));
    let answer = request(Operational, Some(FullFeature), &["FirstBurstLength=4096"]);
    let (_, end) = establish(&mut login, answer);
    assert_eq!(end.parameters.first_burst_length, 4096);
}

#[test]
fn an_unanswered_proposal_of_the_target_ends_the_login() {
    let mut login =
        target(NegotiationOffer { immediate_data: false, ..NegotiationOffer::target() });
    let first = respond(&mut login, request(Operational, Some(FullFeature), &NAMES));
    assert!(said(&first).contains(&"ImmediateData=No".to_owned()));
    // Our proposal ImmediateData=No determines the result alone, so the login succeeds without an
    // answer. DefaultTime2Retain needs one.
    let mut proposing =
        target(NegotiationOffer { default_time2retain: 0, ..NegotiationOffer::target() });
    respond(&mut proposing, request(Operational, Some(FullFeature), &NAMES));
    let silence = request(Operational, Some(FullFeature), &[]);
    assert_eq!(refuse(&mut proposing, silence.clone()), LoginStatus::InitiatorError);
    let (_, end) = establish(&mut login, silence);
    assert!(!end.parameters.immediate_data);
}

#[test]
fn session_keys_are_irrelevant_to_discovery() {
    let mut login = target(NegotiationOffer::target());
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
fn the_names_in_a_login_decide_its_status() {
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
        assert_eq!(refuse(&mut target(NegotiationOffer::target()), request), status, "{pairs:?}");
    }
}

#[test]
fn auth_method_none_is_chosen_at_any_position_in_the_list() {
    for method in ["AuthMethod=None", "AuthMethod=CHAP,None", "AuthMethod=None,CHAP"] {
        let pairs = [NAMES[0], NAMES[1], method];
        let response = respond(
            &mut target(NegotiationOffer::target()),
            request(Security, Some(Operational), &pairs),
        );
        assert!(said(&response).contains(&"AuthMethod=None".to_owned()), "{method}");
        assert!(response.transit);
    }
}

#[test]
fn a_moved_target_redirects_and_the_initiator_gets_the_new_address() {
    let mut initiator = initiator(NegotiationOffer::initiator(), Some(MOVED));
    let TargetStep::Refused(response) =
        target(NegotiationOffer::target()).handle_request(initiator.start())
    else {
        panic!("not refused")
    };
    assert_eq!(response.status, LoginStatus::TargetMovedPermanently);
    // In a redirection, TargetAddress has no portal group tag (RFC 7143, 13.8).
    assert_eq!(said(&response), ["TargetAddress=[::1]:3261"]);
    match initiator.handle_response(response) {
        InitiatorStep::Redirected { address, permanent } => {
            assert_eq!((address.as_str(), permanent), ("[::1]:3261", true));
        }
        step => panic!("{step:?}"),
    }
}

#[test]
fn stages_go_forward_only() {
    let first = |current, next| {
        let mut login = target(NegotiationOffer::target());
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

    let mut login = target(NegotiationOffer::target());
    respond(&mut login, request(Security, Some(Operational), &NAMES));
    assert_eq!(
        refuse(&mut login, request(Security, Some(Operational), &[])),
        LoginStatus::InitiatorError
    );

    let mut login = target(NegotiationOffer::target());
    let response = respond(&mut login, request(Security, None, &NAMES));
    assert!(!response.transit);
    assert_eq!(refuse(&mut login, request(Operational, None, &[])), LoginStatus::InitiatorError);
}

#[test]
fn security_may_lead_straight_to_full_feature_phase() {
    let mut login = target(NegotiationOffer::target());
    let (_, end) = establish(&mut login, request(Security, Some(FullFeature), &NAMES));
    assert_eq!(end.parameters, Parameters::default());
    let again = request(FullFeature, None, &[]);
    assert_eq!(refuse(&mut login, again), LoginStatus::InvalidDuringLogin);
}

#[test]
fn a_target_that_cannot_take_the_defaults_insists_on_the_operational_stage() {
    let mut login =
        target(NegotiationOffer { max_burst_length: 65_536, ..NegotiationOffer::target() });
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
        let mut login = target(NegotiationOffer::target());
        respond(&mut login, request(Security, Some(Operational), &NAMES));
        let mut next = request(Operational, Some(FullFeature), &[]);
        change(&mut next);
        assert_eq!(refuse(&mut login, next), LoginStatus::InitiatorError);
    }
}

#[test]
fn another_version_is_refused_and_the_supported_one_named() {
    let request = LoginRequest {
        version_max: 3,
        version_min: 1,
        ..request(Security, Some(Operational), &NAMES)
    };
    let mut login = target(NegotiationOffer::target());
    let TargetStep::Refused(response) = login.handle_request(request.clone()) else { panic!() };
    assert_eq!(response.status, LoginStatus::UnsupportedVersion);
    assert_eq!(response.version_active, 0);
    let mut login = target(NegotiationOffer::target());
    respond(&mut login, LoginRequest { version_min: 0, ..request });
}

#[test]
fn login_text_may_arrive_in_pieces() {
    let whole = text(&[&NAMES[..], &["X-com.example.filler=abcdefghij"]].concat());
    for cut in 1..whole.len() {
        let mut login = target(NegotiationOffer::target());
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
    let mut login = target(NegotiationOffer::target());
    let request = LoginRequest { continues: true, ..request(Security, Some(Operational), &NAMES) };
    assert_eq!(refuse(&mut login, request), LoginStatus::InitiatorError);
}

#[test]
fn a_text_without_end_is_refused() {
    let mut login = target(NegotiationOffer::target());
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
    let mut login = target(NegotiationOffer::target());
    respond(&mut login, request(Security, None, &NAMES));
    for _ in 1..64 {
        respond(&mut login, request(Security, None, &[]));
    }
    assert_eq!(refuse(&mut login, request(Security, None, &[])), LoginStatus::InitiatorError);
}

#[test]
fn answers_longer_than_a_pdu_are_sent_in_pieces() {
    // 110 keys of 63 bytes, each of which is answered with NotUnderstood.
    let keys: Vec<String> = (0..110).map(|n| format!("X{n:0>62}=")).collect();
    let pairs: Vec<&str> = NAMES.into_iter().chain(keys.iter().map(String::as_str)).collect();
    let mut login = target(NegotiationOffer::target());
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

    let mut login = target(NegotiationOffer::target());
    respond(&mut login, request(Operational, Some(FullFeature), &pairs));
    let interruption = request(Operational, Some(FullFeature), &["MaxBurstLength=4096"]);
    assert_eq!(refuse(&mut login, interruption), LoginStatus::InitiatorError);
}

#[test]
fn only_a_few_keys_can_change_in_full_feature_phase() {
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
