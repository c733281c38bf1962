//! The encoding of a drive's keys in the store, before the bytes are encrypted.

use object::Timestamp;
use osd::security::{KEY_BYTES, Key, KeyPair};
use zeroize::Zeroizing;

/// Number of working keys of a partition.
pub const WORKING_KEYS: usize = 16;

/// A pair of authentication key and generation key, with the identifier that SET KEY gave it.
#[derive(Clone, Debug)]
pub struct NamedPair {
    pub pair: KeyPair,
    pub identifier: [u8; 7],
}

/// The root key of a drive, as it is stored.
#[derive(Clone, Debug)]
pub struct RootKeys {
    pub root: NamedPair,
    /// Number of times that the root key was set.
    pub number: u64,
}

/// The partition key and the working keys of one partition, as they are stored.
#[derive(Clone, Debug)]
pub struct PartitionKeys {
    /// The time at which the partition was created. If a later partition has the same identifier, these keys are not
    /// valid for it.
    pub created: Timestamp,
    /// [`RootKeys::number`] at the time when the partition key was set. A new root key makes all partition keys
    /// invalid.
    pub root_number: u64,
    pub partition: NamedPair,
    /// The working keys; the index is the key version. A new partition key makes all working keys invalid.
    pub working: [Option<NamedPair>; WORKING_KEYS],
}

/// Length in bytes of an encoded pair: 1 if present, identifier (7 bytes), authentication key, generation key.
const PAIR_BYTES: usize = 8 + 2 * KEY_BYTES;

impl RootKeys {
    #[must_use]
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(8 + PAIR_BYTES));
        bytes.extend_from_slice(&self.number.to_be_bytes());
        push(&mut bytes, Some(&self.root));
        bytes
    }

    /// Decodes the root key; `None` if the bytes have another length or form.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (number, pair) = bytes.split_first_chunk()?;
        Some(Self { number: u64::from_be_bytes(*number), root: parse(pair)?? })
    }
}

impl PartitionKeys {
    #[must_use]
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let length = 14 + (1 + WORKING_KEYS) * PAIR_BYTES;
        // Allocate the whole capacity now: a reallocation would leave a copy of the keys in freed memory.
        let mut bytes = Zeroizing::new(Vec::with_capacity(length));
        bytes.extend_from_slice(&self.created.to_bytes());
        bytes.extend_from_slice(&self.root_number.to_be_bytes());
        push(&mut bytes, Some(&self.partition));
        self.working.iter().for_each(|pair| push(&mut bytes, pair.as_ref()));
        bytes
    }

    /// Decodes the keys of a partition; `None` if the bytes have another length or form.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (created, bytes) = bytes.split_first_chunk()?;
        let (root_number, bytes) = bytes.split_first_chunk()?;
        let (partition, rest) = bytes.split_at_checked(PAIR_BYTES)?;
        if rest.len() != WORKING_KEYS * PAIR_BYTES {
            return None;
        }
        let mut working = [const { None }; WORKING_KEYS];
        for (place, pair) in working.iter_mut().zip(rest.chunks_exact(PAIR_BYTES)) {
            *place = parse(pair)?;
        }
        Some(Self {
            created: Timestamp::from_bytes(*created),
            root_number: u64::from_be_bytes(*root_number),
            partition: parse(partition)??,
            working,
        })
    }
}

fn push(bytes: &mut Vec<u8>, pair: Option<&NamedPair>) {
    let Some(NamedPair { pair, identifier }) = pair else {
        bytes.resize(bytes.len() + PAIR_BYTES, 0);
        return;
    };
    bytes.push(1);
    bytes.extend_from_slice(identifier);
    bytes.extend_from_slice(pair.authentication.bytes());
    bytes.extend_from_slice(pair.generation.bytes());
}

/// Decodes a pair of keys: `None` for bytes of another form, `Some(None)` for an absent pair.
fn parse(bytes: &[u8]) -> Option<Option<NamedPair>> {
    let bytes: &[u8; PAIR_BYTES] = bytes.try_into().ok()?;
    match bytes[0] {
        0 => Some(None),
        1 => {
            let key = |at: usize| Some(Key::new(bytes[at..at + KEY_BYTES].try_into().ok()?));
            let pair = KeyPair { authentication: key(8)?, generation: key(8 + KEY_BYTES)? };
            Some(Some(NamedPair { pair, identifier: bytes[1..8].try_into().ok()? }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(number: u8) -> NamedPair {
        let [authentication, generation] = [number, number + 1].map(|byte| Key::new([byte; 32]));
        NamedPair { pair: KeyPair { authentication, generation }, identifier: [number; 7] }
    }

    #[test]
    fn records_decode_to_the_keys_and_other_lengths_are_refused() {
        let root = RootKeys { root: pair(1), number: 9 };
        let bytes = root.to_bytes();
        assert_eq!(RootKeys::parse(&bytes).unwrap().to_bytes(), bytes);
        let mut working = [const { None }; WORKING_KEYS];
        working[3] = Some(pair(3));
        let created = Timestamp::from_ms(77);
        let keys = PartitionKeys { created, root_number: 9, partition: pair(2), working };
        let long = keys.to_bytes();
        let parsed = PartitionKeys::parse(&long).unwrap();
        assert_eq!(parsed.to_bytes(), long);
        assert_eq!(parsed.working.iter().flatten().count(), 1);
        for length in 0..long.len() {
            assert!(PartitionKeys::parse(&long[..length]).is_none(), "{length} bytes");
            assert!(length == bytes.len() || RootKeys::parse(&long[..length]).is_none());
        }
    }
}
