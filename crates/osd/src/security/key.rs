//! The keys that a manager and a drive share, and how SET KEY derives them.
//!
//! There are four levels: master, root, one key for each partition, and 16 working keys in each
//! partition. Each is a pair of an *authentication key*, which signs capabilities, and a
//! *generation key*, from which SET KEY derives the pair one level below.

use std::fmt;

use zeroize::Zeroize;

use super::mac::{Algorithm, IntegrityCheckValue, Mac};

/// Length of a key in bytes.
pub const KEY_BYTES: usize = 32;
/// Length of the SEED of SET KEY in bytes.
pub const SEED_BYTES: usize = 20;

/// A secret key, which is overwritten when it is dropped.
#[derive(Clone)]
pub struct Key([u8; KEY_BYTES]);

impl Key {
    #[must_use]
    pub const fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    #[must_use]
    pub const fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl From<IntegrityCheckValue> for Key {
    fn from(value: IntegrityCheckValue) -> Self {
        Self(value.0)
    }
}

/// Prints no byte of the key, so that a key never gets into a log.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// The authentication key and the generation key of one level.
#[derive(Clone, Debug)]
pub struct KeyPair {
    pub authentication: Key,
    pub generation: Key,
}

impl KeyPair {
    /// Derives the pair one level below from the SEED of SET KEY. HMAC-SHA-256 is used whatever
    /// algorithm capabilities name: the authentication key is the keyed hash of the seed with the
    /// lowest bit of its last byte 0, the generation key the keyed hash of the seed with this bit
    /// 1.
    #[must_use]
    pub fn derive(&self, seed: &[u8; SEED_BYTES]) -> Self {
        let with_bit = |bit: u8| {
            let mut seed = *seed;
            seed[SEED_BYTES - 1] = seed[SEED_BYTES - 1] & 0xfe | bit;
            Key::from(Mac::new(Algorithm::HmacSha256, &self.generation).with(&seed).finish())
        };
        Self { authentication: with_bit(0), generation: with_bit(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ascending, hex};

    #[test]
    fn derived_keys_match_the_vectors() {
        let seed: [u8; SEED_BYTES] = ascending(0xa0);
        let master = KeyPair {
            authentication: Key::new(ascending(0x40)),
            generation: Key::new(ascending(0x60)),
        };
        let root = master.derive(&seed);
        let partition = root.derive(&seed);
        let working = partition.derive(&seed);
        let expected = [
            (
                &root.authentication,
                "b620ecadfba56ef0beaf87219362672c17ff06de868cfb68f740696a5b567bcb",
            ),
            (&root.generation, "8a6e2f4e99a30a35687b16391bb0c892767291b04b1d4e3b259f58efcab548b7"),
            (
                &partition.authentication,
                "fa83bde71d86972c3d18be77e81c4ef081dd92bf40315c57ac30419f9507d77e",
            ),
            (
                &working.authentication,
                "bc2cd2e0ffc77228c46cfbc5b2336df30ee8937aca313495feba90b8fe89d728",
            ),
        ];
        for (key, expected) in expected {
            assert_eq!(hex(key.bytes()), expected);
        }
    }

    #[test]
    fn a_printed_key_shows_nothing_of_its_bytes() {
        assert_eq!(format!("{:?}", Key::new([0x5a; 32])), "Key(..)");
    }
}
