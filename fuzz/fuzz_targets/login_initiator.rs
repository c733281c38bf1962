//! Lets an initiator log in to a hostile target. Memory and time must be bounded, and the result must stay within the
//! initiator's offer. An initiator that requires authentication must never accept a target that cannot authenticate
//! itself.
#![no_main]

use iscsi::{
    Cid, Isid, Serial, Tsih,
    keys::NegotiationOffer,
    login::{
        InitiatorLogin, InitiatorNames, InitiatorStep,
        chap::{ChapAlgorithm, Challenge, InitiatorChap, Credential, ChapSecret},
    },
    pdu::{LoginResponse, LoginStatus, LoginStage},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let offer = NegotiationOffer::initiator();
    let names = InitiatorNames {
        initiator_name: "i".to_owned(),
        initiator_alias: None,
        target_name: Some("t".to_owned()),
    };
    let (isid, tsih, cid) = (Isid::default(), Tsih(0), Cid(0));
    let mut login = InitiatorLogin::new(offer.clone(), names, isid, tsih, cid, Serial(1));
    let (&first, input) = input.split_first().unwrap_or((&0, &[]));
    let (proves, asks) = (first & 1 != 0, first & 3 == 3);
    if proves {
        let credential = |name: &str| Credential {
            name: name.to_owned(),
            secret: ChapSecret::new(name.repeat(12).as_bytes()).expect("twelve bytes"),
        };
        let chap = InitiatorChap {
            user: credential("u"),
            target: asks.then(|| credential("t")),
            algorithms: vec![ChapAlgorithm::Sha256, ChapAlgorithm::Md5],
        };
        login = login.with_chap(chap, Challenge { identifier: 1, value: [5; 32] });
    }
    let mut request = login.start();
    let mut responses = 0;
    // The input is a list of login responses, each with flags and text. The byte 0xff, which never occurs in UTF-8,
    // separates them.
    for part in input.split(|&byte| byte == 0xff) {
        let (flags, text) = part.split_first().unwrap_or((&0, &[]));
        let response = LoginResponse {
            transit: flags & 0x80 != 0,
            continues: flags & 0x40 != 0,
            // Send the right stage most of the time. With a wrong stage, the login ends before the
            // code that follows is tested.
            current_stage: if flags & 8 == 0 { request.current_stage } else { LoginStage::Security },
            next_stage: if flags & 4 == 0 { request.next_stage } else { LoginStage::FullFeature },
            status: match flags & 3 {
                1 => LoginStatus::TargetMovedTemporarily,
                2 => LoginStatus::OutOfResources,
                _ => LoginStatus::Success,
            },
            isid: request.isid,
            itt: request.itt,
            tsih: Tsih(u16::from(flags & 0x20 == 0)),
            text: text.to_vec().into(),
            ..LoginResponse::default()
        };
        responses += 1;
        assert!(responses <= 65, "a login ends");
        match login.handle_response(response) {
            InitiatorStep::Send(next) => {
                assert!(next.text.len() <= 8192);
                assert!(!(next.transit && next.continues));
                request = next;
            }
            InitiatorStep::Established(login) => {
                assert!(!asks, "no target can know the answer to the challenge");
                let agreed = login.parameters;
                assert!((512..1 << 24).contains(&agreed.max_send_data_segment_length));
                assert!((512..=offer.max_burst_length).contains(&agreed.max_burst_length));
                assert!(agreed.first_burst_length <= offer.first_burst_length);
                assert!(agreed.first_burst_length <= agreed.max_burst_length);
                assert!((1..=offer.max_outstanding_r2t).contains(&agreed.max_outstanding_r2t));
                return;
            }
            InitiatorStep::Redirected { address, .. } => {
                assert!(!address.is_empty() && address.len() <= 255);
                return;
            }
            InitiatorStep::Failed(_) => return,
        }
    }
});
