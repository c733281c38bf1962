//! Lets a hostile initiator log in to a target. Memory and time must be bounded, and the result must stay within the
//! target's offer. A target that requires authentication must admit no initiator without it.
#![no_main]

use std::sync::Arc;

use iscsi::{
    keys::NegotiationOffer,
    login::{
        Authentication, Denial, Directory, TargetLogin, TargetStep,
        chap::{ChapAlgorithm, Challenge, ChapTerms, Credential, ChapSecret},
    },
    pdu::{LoginRequest, LoginStatus, LoginStage},
};
use libfuzzer_sys::fuzz_target;

/// A directory of targets. It admits every initiator, or only an initiator that authenticates as
/// the user.
struct Door {
    asks: bool,
}

impl Directory for Door {
    fn admit(&self, _initiator: &str, target: Option<&str>) -> Result<u16, Denial> {
        if target == Some("t") || target.is_none() {
            Ok(1)
        } else {
            Err(LoginStatus::NotFound.into())
        }
    }

    fn authentication(&self, _initiator: &str, _target: Option<&str>) -> Authentication {
        let credential = |name: &str| Credential {
            name: name.to_owned(),
            secret: ChapSecret::new(name.repeat(12).as_bytes()).expect("twelve bytes"),
        };
        let terms = ChapTerms {
            users: [credential("u")].into(),
            algorithms: [ChapAlgorithm::Md5, ChapAlgorithm::Sha256].into(),
            mutual: Some(credential("t")),
            preferred: true,
        };
        Authentication { none: !self.asks, chap: self.asks.then_some(terms) }
    }
}

fuzz_target!(|input: &[u8]| {
    let (&first, input) = input.split_first().unwrap_or((&0, &[]));
    let door = Door { asks: first & 1 != 0 };
    let asks = door.asks;
    let offer = NegotiationOffer::target();
    let challenge = Challenge { identifier: 1, value: [5; 32] };
    let mut login = TargetLogin::new(offer.clone(), Arc::new(door)).with_challenge(challenge);
    let mut requests = 0;
    // The input is a list of login requests, each with flags and text. The byte 0xff, which never occurs in UTF-8,
    // separates them.
    for part in input.split(|&byte| byte == 0xff) {
        let (flags, text) = part.split_first().unwrap_or((&0, &[]));
        let stage = |bits| match bits & 3 {
            0 => LoginStage::Security,
            1 => LoginStage::Operational,
            2 => LoginStage::Reserved,
            _ => LoginStage::FullFeature,
        };
        let request = LoginRequest {
            transit: flags & 0x80 != 0,
            continues: flags & 0x40 != 0,
            version_min: flags >> 4 & 1,
            current_stage: stage(flags >> 2),
            next_stage: stage(*flags),
            text: text.to_vec().into(),
            ..LoginRequest::default()
        };
        requests += 1;
        assert!(requests <= 65, "a login ends");
        match login.handle_request(request) {
            TargetStep::Respond(response) => {
                assert_eq!(response.status, LoginStatus::Success);
                assert!(response.text.len() <= 8192);
                assert!(!(response.transit && response.continues));
            }
            TargetStep::Refused(response) => {
                assert_ne!(response.status, LoginStatus::Success);
                return;
            }
            TargetStep::Established { login, .. } => {
                assert!(!asks, "no initiator without the secret can answer the challenge");
                let agreed = login.parameters;
                assert!((512..1 << 24).contains(&agreed.max_send_data_segment_length));
                assert!((512..=offer.max_burst_length).contains(&agreed.max_burst_length));
                assert!(agreed.first_burst_length <= agreed.max_burst_length);
                assert!((1..=offer.max_outstanding_r2t).contains(&agreed.max_outstanding_r2t));
                assert!((1..=offer.max_connections).contains(&agreed.max_connections));
                assert!(agreed.error_recovery_level <= offer.error_recovery_level);
                return;
            }
        }
    }
});
