//! The initiator's side of CHAP: here is who we are, and, if wanted, who are you?

use subtle::ConstantTimeEq;

use super::{
    Challenge,
    algorithm::{ChapAlgorithm, ChapResponse},
    keys::{self, ChapKeys, PeersChallenge},
    secret::Credential,
};
use crate::keys::{KeyError, push};

/// How an initiator proves itself, and whether the target has to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct InitiatorChap {
    /// Who we are.
    pub user: Credential,
    /// Who the target must prove to be (mutual CHAP); `None` if it need not.
    pub target: Option<Credential>,
    /// What is proposed, most wanted first.
    pub algorithms: Vec<ChapAlgorithm>,
}

/// Why the exchange cannot go on. The connection is closed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::login) enum ProofFailure {
    Keys(KeyError),
    Proof(&'static str),
}

/// One exchange.
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
    /// With what a target that proves itself must say.
    Answered {
        expected: Option<ExpectedChapResponse>,
    },
    Done,
}

struct ExpectedChapResponse {
    response: ChapResponse,
    /// What we would have said ourselves: a target that says so knows no more than we told it.
    ours: ChapResponse,
}

impl Prover {
    pub(in crate::login) fn new(chap: InitiatorChap, challenge: Challenge) -> Self {
        Self { chap, challenge, state: ChapProverState::Begun }
    }

    /// Must the target prove itself?
    pub(in crate::login) fn is_mutual(&self) -> bool {
        self.chap.target.is_some()
    }

    /// Our part is said: the next stage may be asked for.
    pub(in crate::login) fn has_answered(&self) -> bool {
        matches!(self.state, ChapProverState::Answered { .. } | ChapProverState::Done)
    }

    /// Who we are.
    pub(in crate::login) fn into_user(self) -> String {
        self.chap.user.name
    }

    /// CHAP was chosen: the first step is ours.
    pub(in crate::login) fn begin(&mut self, text: &mut Vec<u8>) {
        let numbers: Vec<_> =
            self.chap.algorithms.iter().map(|algorithm| algorithm.number().to_string()).collect();
        push(text, "CHAP_A", &numbers.join(","));
        self.state = ChapProverState::Asked;
    }

    /// Takes the keys of one text; what to say next is appended to `text`.
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
                Err(ProofFailure::Proof("it does not answer the challenge"))
            }
            (ChapProverState::Done, keys) if keys.is_empty() => Ok(()),
            _ => Err(ProofFailure::Proof("CHAP keys that are missing or out of turn")),
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
            return Err(ProofFailure::Proof("our own challenge came before we sent it"));
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
            return Err(ProofFailure::Proof("it answers with our own secret"));
        }
        if !bool::from(expected.response.ct_eq(&response)) {
            return Err(ProofFailure::Proof("its answer to the challenge is wrong"));
        }
        if self.chap.target.as_ref().is_none_or(|target| target.name != name) {
            return Err(ProofFailure::Proof("it has another CHAP name than is expected"));
        }
        Ok(())
    }
}
