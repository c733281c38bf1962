//! The response integrity check value: the drive's proof of a status (OSD-2, 4.11.7).

use super::{
    mac::{CODE_BYTES, IntegrityCheckValue},
    nonce::Nonce,
    request::CapabilityKey,
};
use crate::layout::{CURRENT_COMMAND_BYTES, RESPONSE_IN_PAGE};

/// Returns the proof of a GOOD status: the keyed hash of the nonce, the status, and the current
/// command page with zeros in place of the proof.
#[must_use]
pub fn response_of_page(
    key: &CapabilityKey,
    nonce: Nonce,
    page: &[u8; CURRENT_COMMAND_BYTES],
) -> IntegrityCheckValue {
    let status_good = 0;
    key.mac()
        .with(&nonce.to_bytes())
        .with(&[status_good])
        .with(&page[..RESPONSE_IN_PAGE])
        .with(&[0; CODE_BYTES])
        .with(&page[RESPONSE_IN_PAGE + CODE_BYTES..])
        .finish()
}

/// Returns the proof of a status other than GOOD: the keyed hash of the nonce, the status and the
/// sense data, in which the 32 bytes at `value_at` (in descriptor 07h) count as zeros.
///
/// # Panics
/// If the sense data is shorter than `value_at + 32`.
#[must_use]
pub fn response_of_sense(
    key: &CapabilityKey,
    nonce: Nonce,
    status: u8,
    sense: &[u8],
    value_at: usize,
) -> IntegrityCheckValue {
    key.mac()
        .with(&nonce.to_bytes())
        .with(&[status])
        .with(&sense[..value_at])
        .with(&[0; CODE_BYTES])
        .with(&sense[value_at + CODE_BYTES..])
        .finish()
}

/// Returns the proof of a status other than GOOD, from sense data with zeros in place of the proof.
/// See [`response_of_sense`].
#[must_use]
pub fn response_of_zeroed_sense(
    key: &CapabilityKey,
    nonce: Nonce,
    status: u8,
    sense: &[u8],
) -> IntegrityCheckValue {
    key.mac().with(&nonce.to_bytes()).with(&[status]).with(sense).finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        security::{Algorithm, Key},
        testing::{ascending, capability_vector, nonce_vector, system_vector},
    };

    fn key(algorithm: Algorithm) -> CapabilityKey {
        let capability = capability_vector(algorithm);
        CapabilityKey::new(algorithm, &Key::new(ascending(0)), &capability, &system_vector())
    }

    #[test]
    fn the_proof_of_sense_data_covers_everything_but_the_value() {
        let key = key(Algorithm::HmacSha256);
        let sense: Vec<u8> = (0..80).collect();
        let proof = |sense: &[u8]| response_of_sense(&key, nonce_vector(), 2, sense, 20);
        let mut altered = sense.clone();
        altered[20..52].fill(0xee);
        assert_eq!(proof(&sense), proof(&altered));
        for at in (0..20).chain(52..80) {
            let mut altered = sense.clone();
            altered[at] ^= 1;
            assert_ne!(proof(&sense), proof(&altered), "byte {at}");
        }
    }
}
