//! CHAP at the initiator: proves the user, and with mutual CHAP checks the target's proof.

use subtle::ConstantTimeEq;

use super::{
    Challenge,
    algorithm::{ChapAlgorithm, ChapResponse},
    keys::{self, ChapKeys, PeersChallenge},
    secret::Credential,
};
use crate::keys::{KeyError, push};

/// How the initiator authenticates, and whether the target must.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct InitiatorChap {
    /// The user as whom the initiator authenticates.
    pub user: Credential,
    /// The credential that the target must prove (mutual CHAP); `None` if the target need not
    /// authenticate.
    pub target: Option<Credential>,
    /// The algorithms to propose, the most preferred first.
    pub algorithms: Vec<ChapAlgorithm>,
}

/// The reason why CHAP fails at the initiator, which then closes the connection.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::login) enum ProofFailure {
    Keys(KeyError),
    Proof(&'static str),
}

/// One CHAP exchange.
///
/// ```text
/// Begun ── CHAP_A out ──> Asked ── CHAP_A CHAP_I CHAP_C in, proof out ──> Answered
///                                        Answered ── CHAP_N CHAP_R in, if mutual ──> Done
/// ```
pub(in crate::login) struct Prover {
    chap: InitiatorChap,
    challenge: Challenge,
    state: ChapProverState,
}

enum ChapProverState {
    Begun,
    Asked,
    /// Our response was sent. `expected` is the response that the target must give; `None` without
    /// mutual CHAP.
    Answered {
        expected: Option<ExpectedChapResponse>,
    },
    Done,
}

struct ExpectedChapResponse {
    response: ChapResponse,
    /// The response to our challenge computed with our own secret. A target that sends this value
    /// has reflected our own response and does not know its secret.
    ours: ChapResponse,
}

impl Prover {
    pub(in crate::login) fn new(chap: InitiatorChap, challenge: Challenge) -> Self {
        Self { chap, challenge, state: ChapProverState::Begun }
    }

    /// Returns true if the target must authenticate as well (mutual CHAP).
    pub(in crate::login) fn is_mutual(&self) -> bool {
        self.chap.target.is_some()
    }

    /// Returns true if our proof was sent, so that the login may request the next stage.
    pub(in crate::login) fn has_answered(&self) -> bool {
        matches!(self.state, ChapProverState::Answered { .. } | ChapProverState::Done)
    }

    pub(in crate::login) fn into_user(self) -> String {
        self.chap.user.name
    }

    /// Starts the exchange after the target has chosen CHAP: appends CHAP_A to `text`.
    pub(in crate::login) fn begin(&mut self, text: &mut Vec<u8>) {
        let numbers: Vec<_> =
            self.chap.algorithms.iter().map(|algorithm| algorithm.number().to_string()).collect();
        push(text, "CHAP_A", &numbers.join(","));
        self.state = ChapProverState::Asked;
    }

    /// Processes the CHAP keys of one login text of the target, and appends the answer to `text`.
    pub(in crate::login) fn receive(
        &mut self,
        keys: &ChapKeys<'_>,
        text: &mut Vec<u8>,
    ) -> Result<(), ProofFailure> {
        match (&self.state, keys) {
            (
                ChapProverState::Asked,
                ChapKeys {
                    algorithms: Some(algorithm),
                    identifier: Some(identifier),
                    challenge: Some(challenge),
                    name: None,
                    response: None,
                },
            ) => {
                let challenge = PeersChallenge::parse(identifier, challenge);
                self.answer(algorithm, &challenge.map_err(ProofFailure::Keys)?, text)
            }
            (
                ChapProverState::Answered { expected: Some(expected) },
                ChapKeys {
                    algorithms: None,
                    identifier: None,
                    challenge: None,
                    name: Some(name),
                    response: Some(response),
                },
            ) => {
                self.judge(expected, name, response)?;
                self.state = ChapProverState::Done;
                Ok(())
            }
            (ChapProverState::Answered { expected: None }, keys) if keys.is_empty() => {
                self.state = ChapProverState::Done;
                Ok(())
            }
            (ChapProverState::Answered { expected: Some(_) }, keys) if keys.is_empty() => {
                Err(ProofFailure::Proof("no response to our challenge"))
            }
            (ChapProverState::Done, keys) if keys.is_empty() => Ok(()),
            _ => Err(ProofFailure::Proof("CHAP keys are missing or out of order")),
        }
    }

    fn answer(
        &mut self,
        algorithm: &str,
        asked: &PeersChallenge,
        text: &mut Vec<u8>,
    ) -> Result<(), ProofFailure> {
        let single = !algorithm.contains(',');
        let algorithm = keys::algorithms(algorithm).next().filter(|_| single);
        let algorithm = algorithm.filter(|chosen| self.chap.algorithms.contains(chosen));
        let wrong = || ProofFailure::Keys(KeyError::Answer("CHAP_A".to_owned()));
        let algorithm = algorithm.ok_or_else(wrong)?;
        let Challenge { identifier, value } = &self.challenge;
        let challenge = &value[..algorithm.length()];
        if self.is_mutual() && asked.value == challenge {
            return Err(ProofFailure::Proof("it sent our own challenge before we did"));
        }
        let user = &self.chap.user;
        let response = algorithm.response(asked.identifier, &user.secret, &asked.value);
        keys::push_response(text, &user.name, &response);
        let expected = self.chap.target.as_ref().map(|target| {
            keys::push_challenge(text, *identifier, challenge);
            ExpectedChapResponse {
                response: algorithm.response(*identifier, &target.secret, challenge),
                ours: algorithm.response(*identifier, &user.secret, challenge),
            }
        });
        self.state = ChapProverState::Answered { expected };
        Ok(())
    }

    fn judge(
        &self,
        expected: &ExpectedChapResponse,
        name: &str,
        response: &str,
    ) -> Result<(), ProofFailure> {
        let response = keys::bytes("CHAP_R", response).map_err(ProofFailure::Keys)?;
        if expected.ours.ct_eq(&response).into() {
            return Err(ProofFailure::Proof("its response was made with our own secret"));
        }
        if !bool::from(expected.response.ct_eq(&response)) {
            return Err(ProofFailure::Proof("wrong response to our challenge"));
        }
        if self.chap.target.as_ref().is_none_or(|target| target.name != name) {
            return Err(ProofFailure::Proof("its CHAP name is not the expected one"));
        }
        Ok(())
    }
}
