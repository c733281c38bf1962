//! CHAP at the target: checks the initiator's proof, and gives the target's proof in mutual CHAP.

use std::sync::Arc;

use subtle::{Choice, ConstantTimeEq};

use super::{
    Challenge,
    algorithm::ChapAlgorithm,
    keys::{self, ChapKeys, PeersChallenge},
    secret::{ChapSecret, Credential},
};
use crate::{
    keys::{KeyError, push},
    pdu::LoginStatus,
};

/// The terms on which a target accepts CHAP.
#[derive(Clone, Debug)]
pub struct ChapTerms {
    /// The users that can authenticate. [`crate::login::Directory::authorize`] decides afterwards
    /// if a user may log in.
    pub users: Arc<[Credential]>,
    /// The accepted algorithms, the most preferred first. The first one that the initiator also
    /// proposes is used.
    pub algorithms: Arc<[ChapAlgorithm]>,
    /// The name and secret of this target, for initiators that require it to prove its identity (mutual CHAP).
    pub mutual: Option<Credential>,
    /// True if CHAP is chosen whenever the initiator offers it, even if None would be accepted.
    pub preferred: bool,
}

/// One CHAP exchange.
///
/// ```text
/// -> CHAP_A    <- CHAP_A CHAP_I CHAP_C    -> CHAP_N CHAP_R [CHAP_I CHAP_C]    [<- CHAP_N CHAP_R]
/// ```
pub(in crate::login) struct Verifier {
    terms: ChapTerms,
    challenge: Challenge,
    chosen: Option<ChapAlgorithm>,
    /// The CHAP name (CHAP_N) that the initiator claims, for log messages.
    pub(in crate::login) claimed: Option<String>,
}

pub(in crate::login) enum ChapVerdict {
    /// The exchange continues; the reply has the next keys.
    Continue,
    /// The initiator has proved to be this user. `counter` is its challenge to the target.
    Proven { user: String, counter: Option<MutualChapChallenge> },
}

/// The challenge of an initiator that requests mutual CHAP.
pub(in crate::login) struct MutualChapChallenge {
    algorithm: ChapAlgorithm,
    challenge: PeersChallenge,
}

/// The login status for a failed exchange, and the reason for our own log messages.
pub(in crate::login) type ChapRefusal = (LoginStatus, &'static str);

impl Verifier {
    pub(in crate::login) fn new(terms: ChapTerms, challenge: Challenge) -> Self {
        Self { terms, challenge, chosen: None, claimed: None }
    }

    /// Processes the CHAP keys of one login text of the initiator, and appends the answer to `reply`.
    pub(in crate::login) fn receive(
        &mut self,
        keys: &ChapKeys<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<ChapVerdict, ChapRefusal> {
        match (self.chosen, keys) {
            // A text without CHAP keys only continues the exchange.
            (_, keys) if keys.is_empty() => Ok(ChapVerdict::Continue),
            (
                None,
                ChapKeys {
                    algorithms: Some(offered),
                    identifier: None,
                    challenge: None,
                    name: None,
                    response: None,
                },
            ) => {
                self.choose(offered, reply)?;
                Ok(ChapVerdict::Continue)
            }
            (Some(algorithm), ChapKeys { algorithms: None, .. }) => self.judge(algorithm, keys),
            _ => Err((LoginStatus::InitiatorError, "CHAP keys out of order")),
        }
    }

    fn choose(&mut self, offered: &str, reply: &mut Vec<u8>) -> Result<(), ChapRefusal> {
        let is_offered = |ours: &&ChapAlgorithm| keys::algorithms(offered).any(|o| o == **ours);
        let Some(&algorithm) = self.terms.algorithms.iter().find(is_offered) else {
            let reason = "no CHAP algorithm in common";
            return Err((LoginStatus::AuthenticationFailure, reason));
        };
        push(reply, "CHAP_A", &algorithm.number().to_string());
        keys::push_challenge(reply, self.challenge.identifier, self.asked(algorithm));
        self.chosen = Some(algorithm);
        Ok(())
    }

    /// Returns the first bytes of the challenge, as many as this algorithm needs. Only they are
    /// sent as CHAP_C.
    fn asked(&self, algorithm: ChapAlgorithm) -> &[u8] {
        &self.challenge.value[..algorithm.length()]
    }

    fn judge(
        &mut self,
        algorithm: ChapAlgorithm,
        keys: &ChapKeys<'_>,
    ) -> Result<ChapVerdict, ChapRefusal> {
        let (Some(name), Some(response)) = (keys.name, keys.response) else {
            return Err((LoginStatus::MissingParameter, "CHAP_N or CHAP_R is missing"));
        };
        self.claimed = Some(name.to_owned());
        let response = keys::bytes("CHAP_R", response).map_err(malformed)?;
        let counter = match (keys.identifier, keys.challenge) {
            (None, None) => None,
            (Some(identifier), Some(value)) => {
                let challenge = PeersChallenge::parse(identifier, value).map_err(malformed)?;
                Some(MutualChapChallenge { algorithm, challenge })
            }
            _ => return Err((LoginStatus::MissingParameter, "CHAP_I or CHAP_C is missing")),
        };
        let asked = self.asked(algorithm);
        // Refuse our own challenge: our response to it would be the proof that we ask for (RFC
        // 7143, 9.2.1).
        if counter.as_ref().is_some_and(|counter| counter.challenge.value == asked) {
            return Err((
                LoginStatus::AuthenticationFailure,
                "the initiator sent our own challenge",
            ));
        }
        // An unknown user costs the same work and gets the same status, so that an attacker cannot
        // find out which users exist.
        let user = self.terms.users.iter().find(|user| user.name == name);
        let nobody =
            ChapSecret::new(&self.challenge.value).expect("32 bytes are a secret's length");
        let secret = user.map_or(&nobody, |user| &user.secret);
        let identifier = self.challenge.identifier;
        let expected = algorithm.response(identifier, secret, asked);
        let is_right = expected.ct_eq(&response) & Choice::from(u8::from(user.is_some()));
        let Some(user) = user.filter(|_| is_right.into()) else {
            let reason = if user.is_some() { "wrong CHAP secret" } else { "unknown CHAP user" };
            return Err((LoginStatus::AuthenticationFailure, reason));
        };
        // Refuse the same secret for both directions: an eavesdropper could replay the target's
        // response as the initiator's.
        if self.terms.mutual.as_ref().is_some_and(|mutual| mutual.secret == user.secret) {
            let reason = "the CHAP secrets of both directions are the same";
            return Err((LoginStatus::AuthenticationFailure, reason));
        }
        Ok(ChapVerdict::Proven { user: user.name.clone(), counter })
    }

    /// Appends the target's proof to `reply`.
    pub(in crate::login) fn prove(
        &self,
        counter: &MutualChapChallenge,
        reply: &mut Vec<u8>,
    ) -> Result<(), ChapRefusal> {
        let Some(Credential { name, secret }) = &self.terms.mutual else {
            let reason = "mutual CHAP is requested, but this target has no secret for it";
            return Err((LoginStatus::AuthenticationFailure, reason));
        };
        let PeersChallenge { identifier, value } = &counter.challenge;
        let response = counter.algorithm.response(*identifier, secret, value);
        keys::push_response(reply, name, &response);
        Ok(())
    }
}

fn malformed(_: KeyError) -> ChapRefusal {
    (LoginStatus::InitiatorError, "malformed CHAP value")
}
