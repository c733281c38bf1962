//! CHAP for both ends (RFC 7143, 12.1.3; RFC 1994), as values and steps. The caller provides
//! secrets and random bytes.

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

/// A challenge that the peer must hash: random bytes that must never repeat (RFC 7143, 9.2.1). They
/// come from the random source of the operating system, new for each login.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Challenge {
    pub identifier: u8,
    /// CHAP_C. The number of bytes sent is the length of the algorithm's result, at least 16.
    pub value: [u8; CHALLENGE_BYTES],
}

/// The length in bytes of the longest result of an algorithm. Existing targets send challenges of
/// this length.
pub const CHALLENGE_BYTES: usize = 32;
