//! Random numbers without a call to the system, for ids that must be unique. They are not for secrets.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
};

/// Returns 16 bytes that differ from those of any other call: a hash of the time and `name` under the random
/// keys that the system gives to every process.
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
