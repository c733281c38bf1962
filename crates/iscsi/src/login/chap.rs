//! CHAP (RFC 7143, 12.1.3; RFC 1994), both ends of it, as values and steps. Where secrets and
//! random bytes come from is the caller's affair.

mod secret;
mod algorithm;
mod binary;
mod keys;
mod verifier;
mod prover;

pub use self::{
    algorithm::ChapAlgorithm,
    prover::InitiatorChap,
    secret::{ChapSecret, Credential, SECRET_MAX, SECRET_MIN, SecretLength},
    verifier::ChapTerms,
};
pub(super) use self::{
    keys::ChapKeys,
    prover::{ProofFailure, Prover},
    verifier::{ChapRefusal, ChapVerdict, Verifier},
};

/// What one end asks the other to hash: random bytes that must never repeat (RFC 7143, 9.2.1), so
/// they come from the operating system's source, anew for each login.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Challenge {
    /// CHAP_I.
    pub identifier: u8,
    /// CHAP_C; as many bytes of it are sent as the algorithm's result has, 16 at least.
    pub value: [u8; CHALLENGE_BYTES],
}

/// As long as the longest result of an algorithm: what the field's targets send.
pub const CHALLENGE_BYTES: usize = 32;
