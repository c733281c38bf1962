//! Extracts the keys of the CHAP exchange from a text.

use super::{algorithm::ChapAlgorithm, binary};
use crate::keys::{KeyError, number_within, push};

/// The values of the CHAP keys in a text.
#[derive(Debug, Default)]
pub(in crate::login) struct ChapKeys<'a> {
    pub(super) algorithms: Option<&'a str>,
    pub(super) identifier: Option<&'a str>,
    pub(super) challenge: Option<&'a str>,
    pub(super) name: Option<&'a str>,
    pub(super) response: Option<&'a str>,
}

impl<'a> ChapKeys<'a> {
    /// Moves the pairs with CHAP keys out of `pairs`. Unknown keys that begin with `CHAP_` stay in
    /// `pairs`, and the negotiation refuses them later.
    pub(in crate::login) fn take(pairs: &mut Vec<(&'a str, &'a str)>) -> Self {
        let mut keys = Self::default();
        pairs.retain(|&(key, value)| {
            let place = match key {
                "CHAP_A" => &mut keys.algorithms,
                "CHAP_I" => &mut keys.identifier,
                "CHAP_C" => &mut keys.challenge,
                "CHAP_N" => &mut keys.name,
                "CHAP_R" => &mut keys.response,
                _ => return true,
            };
            *place = Some(value);
            false
        });
        keys
    }

    pub(in crate::login) fn is_empty(&self) -> bool {
        let Self { algorithms, identifier, challenge, name, response } = self;
        [algorithms, identifier, challenge, name, response].into_iter().all(Option::is_none)
    }
}

/// The challenge (CHAP_I, CHAP_C) that the peer has sent and that this end must hash.
#[derive(Clone, Debug)]
pub(in crate::login) struct PeersChallenge {
    pub(super) identifier: u8,
    pub(super) value: Vec<u8>,
}

impl PeersChallenge {
    pub(super) fn parse(identifier: &str, challenge: &str) -> Result<Self, KeyError> {
        let identifier = number_within(identifier, 0, u8::MAX.into());
        let identifier = identifier.ok_or_else(|| KeyError::Value("CHAP_I".to_owned()))?;
        Ok(Self { identifier: identifier as u8, value: bytes("CHAP_C", challenge)? })
    }
}

/// Returns the algorithms in a CHAP_A list that we support, in the order of the list.
pub(super) fn algorithms(value: &str) -> impl Iterator<Item = ChapAlgorithm> {
    let number = |value| number_within(value, 0, u8::MAX.into());
    value.split(',').filter_map(move |value| ChapAlgorithm::from_number(number(value)?))
}

pub(super) fn bytes(key: &str, value: &str) -> Result<Vec<u8>, KeyError> {
    binary::decode(value).ok_or_else(|| KeyError::Value(key.to_owned()))
}

pub(super) fn push_challenge(text: &mut Vec<u8>, identifier: u8, challenge: &[u8]) {
    push(text, "CHAP_I", &identifier.to_string());
    push(text, "CHAP_C", &binary::encode(challenge));
}

pub(super) fn push_response(text: &mut Vec<u8>, name: &str, response: &[u8]) {
    push(text, "CHAP_N", name);
    push(text, "CHAP_R", &binary::encode(response));
}
