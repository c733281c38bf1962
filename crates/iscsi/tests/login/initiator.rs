//! Tests the initiator's login with targets that obey or violate the rules.

use super::*;

/// Returns the step of the initiator after a target has agreed in the security stage and has
/// answered `pairs`, changed by `change`, in the operational stage.
fn answered(pairs: &[&str], change: impl Fn(&mut LoginResponse)) -> InitiatorStep {
    answered_with(NegotiationOffer::initiator(), pairs, change)
}

fn answered_with(
    offer: NegotiationOffer,
    pairs: &[&str],
    change: impl Fn(&mut LoginResponse),
) -> InitiatorStep {
    let mut login = initiator(offer, Some(TARGET));
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
fn answers_that_do_not_match_their_offers_are_refused() {
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
fn a_first_burst_above_the_maximum_burst_is_refused() {
    let failure = fails(&["MaxBurstLength=65536", "FirstBurstLength=262144"], |_| ());
    assert_eq!(failure, LoginFailure::Keys(KeyError::Answer("FirstBurstLength".to_owned())));
    // If the target does not answer FirstBurstLength, the default of the standard applies, which is
    // also above MaxBurstLength here.
    let failure = fails(&["MaxBurstLength=32768"], |_| ());
    assert_eq!(failure, LoginFailure::Keys(KeyError::Disagreement("FirstBurstLength")));
}

#[test]
fn a_first_burst_above_a_maximum_burst_that_was_not_answered() {
    let offer = NegotiationOffer { first_burst_length: 524_288, ..NegotiationOffer::initiator() };
    match answered_with(offer, &["FirstBurstLength=524288"], |_| ()) {
        InitiatorStep::Failed(LoginFailure::Keys(KeyError::Disagreement(key))) => {
            assert_eq!(key, "FirstBurstLength");
        }
        step => panic!("{step:?}"),
    }
}

#[test]
fn a_long_login_text_is_sent_in_pieces() {
    let names = InitiatorNames {
        initiator_name: INITIATOR.to_owned(),
        initiator_alias: Some("a".repeat(9000)),
        target_name: Some(TARGET.to_owned()),
    };
    let start = || {
        InitiatorLogin::new(
            NegotiationOffer::initiator(),
            names.clone(),
            ISID,
            Tsih(0),
            Cid(1),
            Serial(1),
        )
    };
    let mut login = start();
    let first = login.start();
    assert_eq!((first.transit, first.continues, first.text.len()), (false, true, 8192));
    let go_on = LoginResponse { isid: first.isid, itt: first.itt, ..LoginResponse::default() };
    let InitiatorStep::Send(second) = login.handle_response(go_on.clone()) else { panic!() };
    assert_eq!((second.transit, second.continues), (true, false));
    let whole = [first.text, second.text].concat();
    assert!(whole.ends_with(b"AuthMethod=None\0"));

    // While the initiator is still sending its text, the target may neither send text nor move to
    // another stage.
    let agree = LoginResponse { transit: true, next_stage: Operational, ..go_on.clone() };
    let talk = LoginResponse { text: text(&["TargetAlias=x"]), ..go_on };
    for response in [agree, talk] {
        let mut login = start();
        login.start();
        let step = login.handle_response(response);
        assert!(matches!(step, InitiatorStep::Failed(LoginFailure::Protocol(_))), "{step:?}");
    }
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
    // The target has sent its portal group tag already, in the security stage.
    let failure = fails(&["TargetPortalGroupTag=1"], |_| ());
    assert!(matches!(failure, LoginFailure::Keys(KeyError::Repeated(_))));
}

#[test]
fn a_login_response_with_wrong_header_fields_is_refused() {
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
fn a_target_that_does_not_understand_compression_gets_an_uncompressed_session() {
    const KEY: &str = "X-io.forebay.Compression";
    let offer =
        NegotiationOffer { compression: vec![Compression::Zstd], ..NegotiationOffer::initiator() };
    for (answer, chosen) in [
        (None, None),
        (Some("NotUnderstood"), None),
        (Some("Reject"), None),
        (Some("None"), None),
        (Some("zstd"), Some(Compression::Zstd)),
    ] {
        let pair = answer.map(|answer| format!("{KEY}={answer}"));
        let pairs: Vec<&str> = pair.iter().map(String::as_str).collect();
        let step = answered_with(offer.clone(), &pairs, |_| ());
        let InitiatorStep::Established(end) = step else { panic!("{answer:?}: {step:?}") };
        assert_eq!(end.parameters.compression, chosen);
    }
    for answer in ["lz4", "zstd,None", "Yes"] {
        let step = answered_with(offer.clone(), &[&format!("{KEY}={answer}")], |_| ());
        assert!(matches!(step, InitiatorStep::Failed(LoginFailure::Keys(_))), "{answer}: {step:?}");
    }
    // An initiator that does not offer compression does not propose the key.
    let step = answered(&[&format!("{KEY}=lz4")], |response| response.transit = false);
    let InitiatorStep::Send(request) = step else { panic!("{step:?}") };
    assert!(keys::parse(&request.text).unwrap().contains(&(KEY, "Reject")));
}

#[test]
fn unanswered_keys_keep_their_defaults() {
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
fn a_login_that_the_target_never_completes_is_ended() {
    let mut login = initiator(NegotiationOffer::initiator(), Some(TARGET));
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

/// SessionType is for leading connections only (RFC 7143, 13.21, "Use: LO"). LIO ends a login on
/// another connection that sends it.
#[test]
fn only_the_leading_connection_sends_the_session_type() {
    let names = InitiatorNames {
        initiator_name: INITIATOR.to_owned(),
        initiator_alias: None,
        target_name: Some(TARGET.to_owned()),
    };
    for (tsih, says) in [(Tsih(0), true), (Tsih(7), false)] {
        let offer = NegotiationOffer::initiator();
        let mut login = InitiatorLogin::new(offer, names.clone(), ISID, tsih, Cid(2), Serial(1));
        let first = String::from_utf8(login.start().text.to_vec()).unwrap();
        assert!(first.contains("TargetName=") && first.contains("InitiatorName="));
        assert_eq!(first.contains("SessionType"), says, "{first}");
    }
}
