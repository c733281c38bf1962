//! The hash of slot numbers for hash tables.

use std::hash::Hasher;

/// Hashes slot numbers cheaply. No attacker chooses the numbers, and a strong hash would cost more than the
/// rest of a cache hit.
#[derive(Default)]
pub(crate) struct SlotHasher(u64);

impl Hasher for SlotHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, number: u64) {
        // Fibonacci hashing, folded: the map uses the low bits for the bucket and the highest seven for the
        // tag.
        let product = u128::from(self.0 ^ number) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}
