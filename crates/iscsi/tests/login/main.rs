//! Tests of logins: our initiator with our target, logins as the source code of existing initiators
//! sends them, and peers that violate the protocol.

mod chap;
mod field;
mod initiator;
mod pair;
mod target;

use std::sync::Arc;

use bytes::Bytes;
use iscsi::{
    Cid, Isid, Itt, Serial, Tsih,
    keys::{self, Compression, DigestPolicy, KeyError, NegotiationOffer, Parameters},
    login::{
        Denial, Directory, EstablishedLogin, InitiatorLogin, InitiatorNames, InitiatorStep,
        LoginFailure, SessionType, TargetLogin, TargetStep,
    },
    pdu::{
        LoginRequest, LoginResponse,
        LoginStage::{self, FullFeature, Operational, Security},
        LoginStatus,
    },
};

const INITIATOR: &str = "iqn.2026-01.com.example:host";
const TARGET: &str = "iqn.2026-01.com.example:disk";
const MOVED: &str = "iqn.2026-01.com.example:moved";
const ISID: Isid = Isid([0x80, 1, 2, 3, 4, 5]);

struct OneTarget;

impl Directory for OneTarget {
    fn admit(&self, initiator: &str, target: Option<&str>) -> Result<u16, Denial> {
        match (initiator, target) {
            ("iqn.2026-01.com.example:stranger", _) => {
                Err(LoginStatus::AuthorizationFailure.into())
            }
            (_, None | Some(TARGET)) => Ok(7),
            (_, Some(MOVED)) => {
                Err(Denial::Moved { address: "[::1]:3261".to_owned(), permanent: true })
            }
            _ => Err(LoginStatus::NotFound.into()),
        }
    }

    fn alias(&self, _target: &str) -> Option<String> {
        Some("a disk".to_owned())
    }
}

fn target(offer: NegotiationOffer) -> TargetLogin {
    TargetLogin::new(offer, Arc::new(OneTarget))
}

fn initiator(offer: NegotiationOffer, target_name: Option<&str>) -> InitiatorLogin {
    let names = InitiatorNames {
        initiator_name: INITIATOR.to_owned(),
        initiator_alias: Some("host".to_owned()),
        target_name: target_name.map(str::to_owned),
    };
    InitiatorLogin::new(offer, names, ISID, Tsih(0), Cid(1), Serial(100))
}

fn text(pairs: &[&str]) -> Bytes {
    pairs.iter().flat_map(|pair| [pair.as_bytes(), &[0]].concat()).collect::<Vec<u8>>().into()
}

/// Returns a request in stage `current` with these pairs. It asks for the stage `next`, if given.
fn request(current: LoginStage, next: Option<LoginStage>, pairs: &[&str]) -> LoginRequest {
    LoginRequest {
        transit: next.is_some(),
        current_stage: current,
        next_stage: next.unwrap_or_default(),
        isid: ISID,
        text: text(pairs),
        ..LoginRequest::default()
    }
}

const NAMES: [&str; 2] =
    ["InitiatorName=iqn.2026-01.com.example:host", "TargetName=iqn.2026-01.com.example:disk"];

fn respond(login: &mut TargetLogin, request: LoginRequest) -> LoginResponse {
    match login.handle_request(request) {
        TargetStep::Respond(response) => response,
        step => panic!("{step:?}"),
    }
}

fn establish(login: &mut TargetLogin, request: LoginRequest) -> (Vec<String>, EstablishedLogin) {
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
