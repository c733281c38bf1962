//! The keys of a drive, as its owner derives them from the master key alone.
//!
//! SET KEY derives each key from the key one level above and a seed. The seeds are computed from the master key, the
//! level and the partition. The file with the master key is therefore enough to sign any command, and nothing else has
//! to be kept.

use object::KeyToSet;
use osd::security::{
    Algorithm, CapabilityKey, KEY_BYTES, Key, KeyPair, Mac, SEED_BYTES, SigningKey, SystemId,
};
use zeroize::Zeroizing;

/// The content of a key file is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "a key file has two different lines of 64 hexadecimal digits: the authentication and the generation key"
)]
pub struct InvalidKeyFile;

/// The master key of a drive, and all keys below it.
#[derive(Clone, Debug)]
pub struct KeyChain {
    master: KeyPair,
}

/// Separates the seeds from all other uses of the generation key.
const SEED_CONTEXT: &[u8] = b"forebay object seed 1";

impl KeyChain {
    #[must_use]
    pub const fn new(master: KeyPair) -> Self {
        Self { master }
    }

    /// Parses the content of a key file.
    ///
    /// # Errors
    /// The content is not a key.
    pub fn parse(content: &[u8]) -> Result<Self, InvalidKeyFile> {
        let mut lines = content.strip_suffix(b"\n").unwrap_or(content).split(|&byte| byte == b'\n');
        let mut key = || lines.next().and_then(parse_line).ok_or(InvalidKeyFile);
        let (authentication, generation) = (key()?, key()?);
        if lines.next().is_some() || *authentication == *generation {
            return Err(InvalidKeyFile);
        }
        let [authentication, generation] =
            [authentication, generation].map(|bytes| Key::new(*bytes));
        Ok(Self::new(KeyPair { authentication, generation }))
    }

    /// Returns the seed with which SET KEY makes the drive derive this key.
    #[must_use]
    pub fn seed(&self, key: KeyToSet) -> [u8; SEED_BYTES] {
        let (level, partition, version) = match key {
            KeyToSet::Root => (1, 0, 0),
            KeyToSet::Partition { partition } => (2, partition, 0),
            KeyToSet::Working { partition, version } => (3, partition, version),
        };
        let code = Mac::new(Algorithm::HmacSha256, &self.master.generation)
            .with(SEED_CONTEXT)
            .with(&[level, version])
            .with(&partition.to_be_bytes())
            .finish();
        let mut seed = [0; SEED_BYTES];
        seed.copy_from_slice(&code.0[..SEED_BYTES]);
        seed
    }

    /// Returns the authentication key that signs a capability. `version` is that of a working key.
    fn authentication(&self, key: SigningKey, version: u8) -> Key {
        let root = || self.master.derive(&self.seed(KeyToSet::Root));
        let of_partition = |partition| root().derive(&self.seed(KeyToSet::Partition { partition }));
        let pair = match key {
            SigningKey::Master => self.master.clone(),
            SigningKey::Root => root(),
            SigningKey::Partition { partition } => of_partition(partition),
            SigningKey::Working { partition } => {
                of_partition(partition).derive(&self.seed(KeyToSet::Working { partition, version }))
            }
        };
        pair.authentication
    }

    /// Signs a capability: returns its bytes, and the key that proves it to the drive `system`.
    #[must_use]
    pub fn sign(
        &self,
        capability: &osd::Capability,
        key: SigningKey,
        system: &SystemId,
    ) -> ([u8; osd::CAPABILITY_BYTES], CapabilityKey) {
        let bytes = capability.to_bytes();
        let authentication = self.authentication(key, capability.key_version);
        (bytes, CapabilityKey::new(capability.algorithm, &authentication, &bytes, system))
    }
}

fn parse_line(line: &[u8]) -> Option<Zeroizing<[u8; KEY_BYTES]>> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.len() != 2 * KEY_BYTES {
        return None;
    }
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    for (byte, digits) in key.iter_mut().zip(line.as_chunks::<2>().0) {
        let digit = |at: usize| char::from(digits[at]).to_digit(16);
        *byte = (digit(0)? << 4 | digit(1)?) as u8;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_file_has_two_different_lines() {
        let (first, second) = ("0a".repeat(32), "Fb".repeat(32));
        assert!(KeyChain::parse(format!("{first}\n{second}\n").as_bytes()).is_ok());
        assert!(KeyChain::parse(format!("{first}\r\n{second}\r\n").as_bytes()).is_ok());
        let wrong = [
            String::new(),
            first.clone(),
            format!("{first}\n{first}\n"),
            format!("{first}\n{second}\n{first}\n"),
            format!("{first}\n{}\n", &second[1..]),
            format!("{first}\nx{}\n", &second[1..]),
        ];
        for content in wrong {
            assert!(KeyChain::parse(content.as_bytes()).is_err(), "{content}");
        }
    }

    #[test]
    fn each_key_has_another_seed() {
        let chain =
            KeyChain::parse(format!("{}\n{}\n", "01".repeat(32), "02".repeat(32)).as_bytes());
        let chain = chain.unwrap();
        let keys = [
            KeyToSet::Root,
            KeyToSet::Partition { partition: 0x10000 },
            KeyToSet::Partition { partition: 0x10001 },
            KeyToSet::Working { partition: 0x10000, version: 0 },
            KeyToSet::Working { partition: 0x10000, version: 1 },
        ];
        let seeds: std::collections::HashSet<_> = keys.map(|key| chain.seed(key)).into();
        assert_eq!(seeds.len(), 5);
        let other =
            KeyChain::parse(format!("{}\n{}\n", "01".repeat(32), "03".repeat(32)).as_bytes());
        assert_ne!(other.unwrap().seed(KeyToSet::Root), chain.seed(KeyToSet::Root));
    }
}
