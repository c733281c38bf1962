//! The keys of a drive. The drive's owner derives all of them from the master key.
//!
//! SET KEY derives each key from the key one level above and a seed. The seeds are computed from the master key, the
//! level and the partition. The file with the master key is therefore enough to sign any command, and nothing else has
//! to be kept.

use object::KeyToSet;
use osd::security::{
    Algorithm, CapabilityKey, Key, KeyPair, Mac, MasterKeyError, SEED_BYTES, SigningKey, SystemId,
    parse_master_key,
};

/// The master key of a drive, from which all other keys of the drive are derived.
#[derive(Clone, Debug)]
pub struct KeyChain {
    master: KeyPair,
}

/// First input of the keyed hash that makes seeds, so that no other use of the generation key can give the same value.
const SEED_CONTEXT: &[u8] = b"forebay object seed 1";

impl KeyChain {
    #[must_use]
    pub const fn new(master: KeyPair) -> Self {
        Self { master }
    }

    /// Parses the content of a file with a master key.
    ///
    /// # Errors
    /// The content is not a master key.
    pub fn parse(content: &[u8]) -> Result<Self, MasterKeyError> {
        parse_master_key(content).map(Self::new)
    }

    /// Returns the SEED with which SET KEY makes the drive derive the key `key`.
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

    /// Returns the authentication key that signs a capability. `version`, 0 to 15, selects a working key.
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

    /// Signs a capability. Returns its bytes, and the key with which a client proves it to the drive `system`.
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

#[cfg(test)]
mod tests {
    use super::*;

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
