//! Keyed hashes: HMAC-SHA1, HMAC-SHA-256 and BLAKE3.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac as _};
use sha1::Sha1;
use sha2::Sha256;
use subtle::ConstantTimeEq;

use super::key::Key;

/// Length in bytes of an integrity check value field. A shorter hash is followed by zeros.
pub const CODE_BYTES: usize = 32;

/// INTEGRITY CHECK VALUE ALGORITHM, the low four bits of byte 1 of a capability.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum Algorithm {
    HmacSha1 = 1,
    HmacSha256 = 2,
    /// An extension of Forebay: BLAKE3 with a key of 32 bytes, in place of HMAC.
    Blake3 = 3,
}

impl Algorithm {
    pub const ALL: [Self; 3] = [Self::HmacSha1, Self::HmacSha256, Self::Blake3];

    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::HmacSha1,
            2 => Self::HmacSha256,
            3 => Self::Blake3,
            _ => return None,
        })
    }
}

/// The value of a keyed hash. Two values are compared in constant time.
#[derive(Clone, Copy)]
pub struct IntegrityCheckValue(pub [u8; CODE_BYTES]);

impl IntegrityCheckValue {
    pub const ZERO: Self = Self([0; CODE_BYTES]);
}

impl PartialEq for IntegrityCheckValue {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for IntegrityCheckValue {}

impl fmt::Debug for IntegrityCheckValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A keyed hash whose input arrives in pieces.
#[derive(Clone)]
pub struct Mac(State);

// The variants differ in size, but a hash lives on the stack and only for one command.
#[allow(clippy::large_enum_variant)]
#[derive(Clone)]
enum State {
    Sha1(Hmac<Sha1>),
    Sha256(Hmac<Sha256>),
    Blake3(Box<GatheringHasher>),
}

/// BLAKE3 over bytes that it gets in pieces of [`GATHERED`] bytes. It hashes the 16 chunks of such a piece in parallel,
/// and is several times slower if it gets pages of 4 KiB, or pieces that do not begin at a multiple of their length.
#[derive(Clone)]
struct GatheringHasher {
    hasher: blake3::Hasher,
    /// Fewer than [`GATHERED`] bytes, which the hasher has not got yet.
    gathered: Vec<u8>,
}

/// Bytes that BLAKE3 gets at once: 16 chunks, as many as AVX-512 hashes in parallel.
const GATHERED: usize = 16 << 10;

impl GatheringHasher {
    fn update(&mut self, bytes: &[u8]) {
        let room = GATHERED - self.gathered.len();
        if bytes.len() < room {
            self.gathered.extend_from_slice(bytes);
            return;
        }
        let (first, rest) = if room < GATHERED { bytes.split_at(room) } else { (&[][..], bytes) };
        if !first.is_empty() {
            self.gathered.extend_from_slice(first);
            self.hasher.update(&self.gathered);
            self.gathered.clear();
        }
        let (whole, tail) = rest.split_at(rest.len() / GATHERED * GATHERED);
        self.hasher.update(whole);
        self.gathered.extend_from_slice(tail);
    }

    fn finish(mut self) -> [u8; CODE_BYTES] {
        self.hasher.update(&self.gathered);
        *self.hasher.finalize().as_bytes()
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The state stands for the key.
        f.write_str("Mac(..)")
    }
}

impl Mac {
    #[must_use]
    pub fn new(algorithm: Algorithm, key: &Key) -> Self {
        let any_length = "HMAC takes keys of any length";
        Self(match algorithm {
            Algorithm::HmacSha1 => {
                State::Sha1(Hmac::new_from_slice(key.bytes()).expect(any_length))
            }
            Algorithm::HmacSha256 => {
                State::Sha256(Hmac::new_from_slice(key.bytes()).expect(any_length))
            }
            Algorithm::Blake3 => {
                let hasher = blake3::Hasher::new_keyed(key.bytes());
                State::Blake3(Box::new(GatheringHasher { hasher, gathered: Vec::new() }))
            }
        })
    }

    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            State::Sha1(mac) => mac.update(bytes),
            State::Sha256(mac) => mac.update(bytes),
            State::Blake3(hasher) => hasher.update(bytes),
        }
    }

    #[must_use]
    pub fn with(mut self, bytes: &[u8]) -> Self {
        self.update(bytes);
        self
    }

    #[must_use]
    pub fn finish(self) -> IntegrityCheckValue {
        let mut code = [0; CODE_BYTES];
        match self.0 {
            State::Sha1(mac) => code[..20].copy_from_slice(&mac.finalize().into_bytes()),
            State::Sha256(mac) => code.copy_from_slice(&mac.finalize().into_bytes()),
            State::Blake3(hasher) => code = hasher.finish(),
        }
        IntegrityCheckValue(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_the_same_however_the_bytes_are_cut() {
        let key = Key::new([9; 32]);
        let bytes: Vec<u8> = (0..5 * GATHERED + 77).map(|at| (at % 251) as u8).collect();
        let whole = *blake3::keyed_hash(key.bytes(), &bytes).as_bytes();
        for algorithm in Algorithm::ALL {
            let at_once = Mac::new(algorithm, &key).with(&bytes).finish();
            for length in [1, 12, 4096, GATHERED - 1, GATHERED, GATHERED + 1, 3 * GATHERED] {
                let mac = Mac::new(algorithm, &key).with(&bytes[..12]);
                let pieces = bytes[12..].chunks(length).fold(mac, Mac::with);
                assert_eq!(pieces.finish(), at_once, "{algorithm:?} in pieces of {length}");
            }
            if algorithm == Algorithm::Blake3 {
                assert_eq!(at_once, IntegrityCheckValue(whole));
            }
        }
    }
}
