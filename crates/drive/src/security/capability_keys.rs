//! A bounded cache of capability keys: a client sends its capability in every command, and the drive need not compute
//! the key from it each time.

use std::{collections::HashMap, mem};

use osd::{CAPABILITY_BYTES, security::CapabilityKey};
use parking_lot::Mutex;

use super::nonces::KeySlot;

/// A capability, the key under which it was signed, and [`KeyStore::generation`](crate::security::KeyStore::generation)
/// at that time. The next change of keys makes the entry useless.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct SignedCapability {
    pub capability: [u8; CAPABILITY_BYTES],
    pub slot: KeySlot,
    pub generation: u64,
}

/// A cache of capability keys in two halves. When the first half is full, it replaces the second half, whose entries
/// are forgotten. A use of an entry in the second half moves it to the first.
pub struct CapabilityKeys {
    half: usize,
    state: Mutex<[HashMap<SignedCapability, CapabilityKey>; 2]>,
}

impl CapabilityKeys {
    /// Returns an empty cache for at most `capacity` capability keys.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { half: (capacity / 2).max(1), state: Mutex::default() }
    }

    #[must_use]
    pub fn get(&self, capability: &SignedCapability) -> Option<CapabilityKey> {
        let mut halves = self.state.lock();
        if let Some(key) = halves[0].get(capability) {
            return Some(key.clone());
        }
        let key = halves[1].remove(capability)?;
        self.insert_into(&mut halves, *capability, key.clone());
        Some(key)
    }

    /// Adds a capability key. Add only keys with which a request was proved: otherwise anyone could fill the cache.
    pub fn insert(&self, capability: SignedCapability, key: CapabilityKey) {
        self.insert_into(&mut self.state.lock(), capability, key);
    }

    fn insert_into(
        &self,
        halves: &mut [HashMap<SignedCapability, CapabilityKey>; 2],
        capability: SignedCapability,
        key: CapabilityKey,
    ) {
        if halves[0].len() >= self.half {
            halves[1] = mem::take(&mut halves[0]);
        }
        halves[0].insert(capability, key);
    }
}

#[cfg(test)]
mod tests {
    use osd::security::{Algorithm, Key, SigningKey};

    use super::*;

    fn signed(number: u16, generation: u64) -> SignedCapability {
        let mut capability = [0; CAPABILITY_BYTES];
        capability[..2].copy_from_slice(&number.to_be_bytes());
        let slot = KeySlot { key: SigningKey::Root, version: 0 };
        SignedCapability { capability, slot, generation }
    }

    fn key(number: u8) -> CapabilityKey {
        CapabilityKey::from_key(Algorithm::HmacSha256, Key::new([number; 32]))
    }

    #[test]
    fn a_key_is_found_for_its_capability_and_generation_only() {
        let cache = CapabilityKeys::new(4);
        cache.insert(signed(1, 1), key(1));
        assert_eq!(cache.get(&signed(1, 1)).unwrap().key.bytes(), &[1; 32]);
        assert!(cache.get(&signed(1, 2)).is_none(), "SET KEY came in between");
        assert!(cache.get(&signed(2, 1)).is_none());
        let other = KeySlot { key: SigningKey::Root, version: 1 };
        assert!(cache.get(&SignedCapability { slot: other, ..signed(1, 1) }).is_none());
    }

    #[test]
    fn the_cache_is_bounded_and_keeps_what_is_used() {
        let cache = CapabilityKeys::new(8);
        cache.insert(signed(0, 0), key(0));
        for number in 1..1000 {
            cache.insert(signed(number, 0), key(1));
            assert!(cache.get(&signed(0, 0)).is_some(), "used between insertions");
            assert!(cache.state.lock().iter().map(HashMap::len).sum::<usize>() <= 8);
        }
        assert!(cache.get(&signed(1, 0)).is_none());
    }
}
