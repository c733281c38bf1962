//! The capability key, and the request integrity check value that a client makes with it.

use std::sync::Arc;

use super::{
    Algorithm,
    key::Key,
    mac::{CODE_BYTES, IntegrityCheckValue, Mac},
    nonce::Nonce,
};
use crate::layout::{CAPABILITY_BYTES, CDB_BYTES, CONTINUATION_INTEGRITY, INTEGRITY};

/// Length of the OSD SYSTEM ID in bytes.
pub const SYSTEM_ID_BYTES: usize = 20;

/// OSD SYSTEM ID: distinguishes drives that have the same keys.
pub type SystemId = [u8; SYSTEM_ID_BYTES];

/// The key with which a client proves that it has a capability: the keyed hash of the capability
/// and of the drive's identifier under an authentication key.
#[derive(Clone, Debug)]
pub struct CapabilityKey {
    pub algorithm: Algorithm,
    pub key: Key,
    /// The keyed hash before its first byte, with HMAC. Each code begins with a copy of it, because HMAC hashes two
    /// blocks to take in the key. `None` with BLAKE3, which takes in a key without hashing.
    begun: Option<Arc<Mac>>,
}

impl CapabilityKey {
    /// Returns a capability key that was computed before.
    #[must_use]
    pub fn from_key(algorithm: Algorithm, key: Key) -> Self {
        let is_hmac = algorithm != Algorithm::Blake3;
        let begun = is_hmac.then(|| Arc::new(Mac::new(algorithm, &key)));
        Self { algorithm, key, begun }
    }

    /// Computes the capability key of an encoded capability.
    #[must_use]
    pub fn new(
        algorithm: Algorithm,
        authentication: &Key,
        capability: &[u8; CAPABILITY_BYTES],
        system: &SystemId,
    ) -> Self {
        let code = Mac::new(algorithm, authentication).with(capability).with(system).finish();
        Self::from_key(algorithm, Key::from(code))
    }

    /// Begins a keyed hash under the capability key.
    #[must_use]
    pub fn mac(&self) -> Mac {
        match &self.begun {
            Some(begun) => Mac::clone(begun),
            None => Mac::new(self.algorithm, &self.key),
        }
    }

    /// Returns the request integrity check value of the method CAPKEY: the keyed hash of the
    /// security token of the session.
    #[must_use]
    pub fn of_token(&self, token: &[u8]) -> IntegrityCheckValue {
        self.mac().with(token).finish()
    }

    /// Returns the request integrity check value of the methods CMDRSP and ALLDATA: the keyed hash
    /// of the CDB with a field of zeros in place of the value.
    #[must_use]
    pub fn of_cdb(&self, cdb: &[u8; CDB_BYTES]) -> IntegrityCheckValue {
        self.mac()
            .with(&cdb[..INTEGRITY])
            .with(&[0; CODE_BYTES])
            .with(&cdb[INTEGRITY + CODE_BYTES..])
            .finish()
    }

    /// Returns the integrity check value of a CDB continuation segment, with the methods CMDRSP and
    /// ALLDATA: the keyed hash of the nonce and of the segment with a field of zeros in place of
    /// the value. This is our definition.
    ///
    /// # Panics
    /// If the segment is shorter than its header.
    #[must_use]
    pub fn of_continuation(&self, nonce: Nonce, segment: &[u8]) -> IntegrityCheckValue {
        self.mac()
            .with(&nonce.to_bytes())
            .with(&segment[..CONTINUATION_INTEGRITY])
            .with(&[0; CODE_BYTES])
            .with(&segment[CONTINUATION_INTEGRITY + CODE_BYTES..])
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ascending, capability_vector, hex, nonce_vector, system_vector};

    fn key(algorithm: Algorithm) -> CapabilityKey {
        let capability = capability_vector(algorithm);
        CapabilityKey::new(algorithm, &Key::new(ascending(0)), &capability, &system_vector())
    }

    #[test]
    fn capability_keys_match_the_vectors() {
        let sha1 = hex(key(Algorithm::HmacSha1).key.bytes());
        assert_eq!(sha1[..40], *"405ffbc346ba3f8dc6459c85d541eb9bfc24645f");
        assert_eq!(sha1[40..], *"000000000000000000000000");
        assert_eq!(
            hex(key(Algorithm::HmacSha256).key.bytes()),
            "90c8b35f407bd27db5649769ac65ca9924581396018d3b5898645b8c67488e6d"
        );
        assert_eq!(
            hex(key(Algorithm::Blake3).key.bytes()),
            "45dfb1f0d4ae960d6015c38fc4f17e72863fdead07522c4235a1ab94f49daa5f"
        );
    }

    #[test]
    fn codes_of_one_key_do_not_depend_on_earlier_codes() {
        for algorithm in Algorithm::ALL {
            let key = key(algorithm);
            let first = key.of_token(&[1; 16]);
            assert_ne!(key.of_token(&[2; 16]), first, "{algorithm:?}");
            assert_eq!(key.clone().of_token(&[1; 16]), first, "{algorithm:?}");
            assert_eq!(Mac::new(algorithm, &key.key).with(&[1; 16]).finish(), first);
        }
    }

    #[test]
    fn proofs_of_a_token_match_the_vectors() {
        let token: [u8; 16] = ascending(0);
        let proof = |algorithm| format!("{:?}", key(algorithm).of_token(&token));
        assert_eq!(proof(Algorithm::HmacSha1)[..40], *"29c766ee212b4a1713bb435971cf044e3e5036cf");
        assert_eq!(
            proof(Algorithm::HmacSha256),
            "01016dbfb66be737c4d14d74167769a072db87c21eb1469fdf28793aa988b458"
        );
    }

    #[test]
    fn the_code_of_a_continuation_segment_matches_the_vector_whatever_its_field_has() {
        let mut segment = vec![1, 0, 0x88, 0x85, 0, 0, 0, 0];
        segment.extend_from_slice(&[7; CODE_BYTES]);
        segment.extend_from_slice(&[0, 1, 0, 0, 0, 0, 0, 16]);
        segment.extend_from_slice(&4096u64.to_be_bytes());
        segment.extend_from_slice(&512u64.to_be_bytes());
        assert_eq!(
            format!("{:?}", key(Algorithm::HmacSha256).of_continuation(nonce_vector(), &segment)),
            "a51b75f0d027718dd940a826b46211c527476a04065118fa475c5927073c8b8a"
        );
    }
}
