//! Tests logins of our initiator at our target.

use Compression::{Lz4, Zstd};
use proptest::prelude::*;

use super::*;

/// Exchanges PDUs until one end finishes the login. Returns its result and the number of round
/// trips.
pub(super) fn log_in(
    mut initiator: InitiatorLogin,
    mut target: TargetLogin,
) -> (Result<(EstablishedLogin, EstablishedLogin), LoginFailure>, usize) {
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
            InitiatorStep::Redirected { .. } => panic!("the target has not moved"),
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
fn a_login_with_default_offers_takes_two_round_trips() {
    let (result, round_trips) = log_in(
        initiator(NegotiationOffer::initiator(), Some(TARGET)),
        target(NegotiationOffer::target()),
    );
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
    let (result, _) =
        log_in(initiator(NegotiationOffer::initiator(), None), target(NegotiationOffer::target()));
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
    let with = |policy| NegotiationOffer { header_digest: policy, ..NegotiationOffer::initiator() };
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

fn offers() -> impl Strategy<Value = NegotiationOffer> {
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
        prop::sample::select(vec![vec![], vec![Lz4], vec![Zstd], vec![Zstd, Lz4]]),
    )
        .prop_map(|((header, data, flags), (segment, burst, first), numbers, compression)| {
            NegotiationOffer {
                header_digest: header,
                data_digest: data,
                compression,
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
            }
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
        let mut login = target(NegotiationOffer::target());
        for (index, text) in texts.into_iter().enumerate() {
            let bit = |n: usize| flags >> (index * 8 + n) & 1 == 1;
            let stage = if bit(0) { LoginStage::Operational } else { LoginStage::Security };
            let next = if bit(1) { LoginStage::FullFeature } else { LoginStage::Operational };
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
        let mut login = initiator(NegotiationOffer::initiator(), Some(TARGET));
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

/// Text keys of a login, and some that are not allowed in a login.
const HOSTILE_KEYS: &[&str] = &[
    "InitiatorName",
    "TargetName",
    "SessionType",
    "AuthMethod",
    "CHAP_A",
    "CHAP_I",
    "CHAP_C",
    "CHAP_N",
    "CHAP_R",
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
];

/// Values of text keys, each valid for at least one key.
const HOSTILE_VALUES: &[&str] = &[
    "Yes",
    "No",
    "None",
    "CHAP",
    "CHAP,None",
    "5",
    "0x00112233445566778899aabbccddeeff",
    "CRC32C",
    "CRC32C,None",
    "Reject",
    "Irrelevant",
    "Normal",
    "NotUnderstood",
    "Discovery",
    "lz4",
    "zstd,None",
    INITIATOR,
    TARGET,
    "0",
    "1",
    "512",
    "65536",
    "0xffffff",
];

/// Returns key-value pairs that are almost valid, and sometimes random bytes.
fn hostile_text() -> impl Strategy<Value = Vec<u8>> {
    let key =
        prop_oneof![prop::sample::select(HOSTILE_KEYS).prop_map(str::to_owned), "[A-Z][a-z]{0,3}",];
    let value = prop_oneof![
        prop::sample::select(HOSTILE_VALUES).prop_map(str::to_owned),
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

#[test]
fn a_refused_login_returns_its_status() {
    let (result, _) = log_in(
        initiator(NegotiationOffer::initiator(), Some("iqn.2026-01.com.example:other")),
        target(NegotiationOffer::target()),
    );
    assert_eq!(result.unwrap_err(), LoginFailure::Refused(LoginStatus::NotFound));
}
