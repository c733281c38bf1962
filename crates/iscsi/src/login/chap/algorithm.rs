//! The CHAP algorithms that IANA lists for iSCSI.

use md5::Digest;
use smallvec::SmallVec;

use super::secret::ChapSecret;

/// A hash algorithm for challenges; the number is that of CHAP_A.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum ChapAlgorithm {
    /// The only algorithm of iPXE, Windows and older systems. Collisions of MD5 do not weaken CHAP,
    /// but an eavesdropper can guess secrets fast.
    Md5 = 5,
    /// Linux supports SHA-1 for CHAP since 5.4.
    Sha1 = 6,
    /// Linux supports SHA-256 for CHAP since 5.4. (tgt and IET use this number for SHA-1.)
    Sha256 = 7,
    /// Linux supports SHA3-256 for CHAP since 5.4.
    Sha3 = 8,
}

/// A CHAP response (a hash), with space for the longest algorithm.
pub(super) type ChapResponse = SmallVec<[u8; 32]>;

impl ChapAlgorithm {
    /// All supported hash algorithms of CHAP, strongest first.
    pub const ALL: [Self; 4] = [Self::Sha3, Self::Sha256, Self::Sha1, Self::Md5];

    /// Returns the hash algorithm that has this number in the key CHAP_A.
    pub(super) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| u32::from(algorithm.number()) == number)
    }

    pub(super) fn number(self) -> u8 {
        self as u8
    }

    /// Returns the length in bytes of a response, and of the challenges that we send.
    pub(super) fn length(self) -> usize {
        match self {
            Self::Md5 => 16,
            Self::Sha1 => 20,
            Self::Sha256 | Self::Sha3 => 32,
        }
    }

    /// Computes CHAP_R: the hash of identifier, secret and challenge (RFC 1994, 4.1).
    pub(super) fn response(
        self,
        identifier: u8,
        secret: &ChapSecret,
        challenge: &[u8],
    ) -> ChapResponse {
        fn hash<D: Digest>(identifier: u8, secret: &ChapSecret, challenge: &[u8]) -> ChapResponse {
            let state = D::new().chain_update([identifier]).chain_update(secret.bytes());
            ChapResponse::from_slice(&state.chain_update(challenge).finalize())
        }
        let hash = match self {
            Self::Md5 => hash::<md5::Md5>,
            Self::Sha1 => hash::<sha1::Sha1>,
            Self::Sha256 => hash::<sha2::Sha256>,
            Self::Sha3 => hash::<sha3::Sha3_256>,
        };
        hash(identifier, secret, challenge)
    }
}

#[cfg(test)]
mod tests {
    use super::super::binary;
    use super::*;

    /// The expected values were made with Python's hashlib over bytes([7]) + b"a secret of 24 bytes
    /// !!!" + bytes(range(16)).
    #[test]
    fn chap_responses_match_another_implementation() {
        let secret = ChapSecret::new(b"a secret of 24 bytes !!!").unwrap();
        let challenge: Vec<u8> = (0..16).collect();
        for (algorithm, expected) in [
            (ChapAlgorithm::Md5, MD5),
            (ChapAlgorithm::Sha1, SHA1),
            (ChapAlgorithm::Sha256, SHA256),
            (ChapAlgorithm::Sha3, SHA3),
        ] {
            let response = algorithm.response(7, &secret, &challenge);
            assert_eq!(response.len(), algorithm.length());
            assert_eq!(binary::encode(&response), expected);
            assert_eq!(ChapAlgorithm::from_number(algorithm.number().into()), Some(algorithm));
        }
        assert_eq!(ChapAlgorithm::from_number(4), None);
    }

    const MD5: &str = "0x805621391ee1f58fee9e8fb0177cface";
    const SHA1: &str = "0xc9af186a6accd58b2dc79186496504fd8ac33d10";
    const SHA256: &str = "0x3a8d7cd00b0e05a01692a44b477c9c7b1ad09dc2c3be61487a6cf4dfe500133e";
    const SHA3: &str = "0xfb6f3fa543c02b5508dc5902b32914de061bbe9f8a1d8d7688981ce7a9205866";
}
