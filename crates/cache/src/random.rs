//! Numbers that nobody else draws.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
};

/// Bytes that nobody else draws: from the keys that the system gives at random to every process,
/// and what else is different.
pub(crate) fn random(name: &str) -> [u8; 16] {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let time = time.map_or(0, |time| time.as_nanos());
    let mut bytes = [0; 16];
    for half in bytes.chunks_mut(8) {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u128(time);
        hasher.write(name.as_bytes());
        half.copy_from_slice(&hasher.finish().to_le_bytes());
    }
    bytes
}
