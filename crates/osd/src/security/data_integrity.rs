//! The integrity information at the end of the Data-Out and Data-In buffers, with the method
//! ALLDATA.

use super::{
    mac::{CODE_BYTES, IntegrityCheckValue},
    nonce::Nonce,
    request::CapabilityKey,
};
use crate::bytes::{array_at, put, u64_at};

/// Length in bytes of the integrity information in the Data-Out buffer.
pub const DATA_OUT_INTEGRITY_BYTES: usize = 24 + CODE_BYTES;
/// Length in bytes of the integrity information in the Data-In buffer.
pub const DATA_IN_INTEGRITY_BYTES: usize = 16 + CODE_BYTES;

/// The lengths of the parts of a Data-Out buffer, and a keyed hash of everything before this
/// information.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DataOutIntegrity {
    pub data_bytes: u64,
    pub set_attributes_bytes: u64,
    pub get_attributes_bytes: u64,
    pub value: IntegrityCheckValue,
}

/// The lengths of the parts of a Data-In buffer, and a keyed hash of everything before this
/// information.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DataInIntegrity {
    pub data_bytes: u64,
    pub retrieved_attributes_bytes: u64,
    pub value: IntegrityCheckValue,
}

impl DataOutIntegrity {
    /// Makes the integrity information of a Data-Out buffer. `before` are the pieces of the buffer
    /// before the information. `lengths` are those of data, set attributes and get attributes.
    #[must_use]
    pub fn new<'a>(
        key: &CapabilityKey,
        nonce: Nonce,
        before: impl IntoIterator<Item = &'a [u8]>,
        lengths: [u64; 3],
    ) -> Self {
        let [data_bytes, set_attributes_bytes, get_attributes_bytes] = lengths;
        let lengths = lengths.map(u64::to_be_bytes).concat();
        let value = code(key, nonce, before, &lengths);
        Self { data_bytes, set_attributes_bytes, get_attributes_bytes, value }
    }

    /// Parses integrity information of a Data-Out buffer; `None` if there are too few bytes.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            data_bytes: u64_at(bytes, 0)?,
            set_attributes_bytes: u64_at(bytes, 8)?,
            get_attributes_bytes: u64_at(bytes, 16)?,
            value: IntegrityCheckValue(array_at(bytes, 24)?),
        })
    }

    #[must_use]
    pub fn to_bytes(&self) -> [u8; DATA_OUT_INTEGRITY_BYTES] {
        let mut bytes = [0; DATA_OUT_INTEGRITY_BYTES];
        put(&mut bytes, 0, &self.data_bytes.to_be_bytes());
        put(&mut bytes, 8, &self.set_attributes_bytes.to_be_bytes());
        put(&mut bytes, 16, &self.get_attributes_bytes.to_be_bytes());
        put(&mut bytes, 24, &self.value.0);
        bytes
    }
}

impl DataInIntegrity {
    /// Makes the integrity information of a Data-In buffer. `before` are the pieces of the buffer
    /// before the information. `lengths` are those of data and retrieved attributes.
    #[must_use]
    pub fn new<'a>(
        key: &CapabilityKey,
        nonce: Nonce,
        before: impl IntoIterator<Item = &'a [u8]>,
        lengths: [u64; 2],
    ) -> Self {
        let [data_bytes, retrieved_attributes_bytes] = lengths;
        let value = code(key, nonce, before, &lengths.map(u64::to_be_bytes).concat());
        Self { data_bytes, retrieved_attributes_bytes, value }
    }

    /// Parses integrity information of a Data-In buffer; `None` if there are too few bytes.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            data_bytes: u64_at(bytes, 0)?,
            retrieved_attributes_bytes: u64_at(bytes, 8)?,
            value: IntegrityCheckValue(array_at(bytes, 16)?),
        })
    }

    #[must_use]
    pub fn to_bytes(&self) -> [u8; DATA_IN_INTEGRITY_BYTES] {
        let mut bytes = [0; DATA_IN_INTEGRITY_BYTES];
        put(&mut bytes, 0, &self.data_bytes.to_be_bytes());
        put(&mut bytes, 8, &self.retrieved_attributes_bytes.to_be_bytes());
        put(&mut bytes, 16, &self.value.0);
        bytes
    }
}

fn code<'a>(
    key: &CapabilityKey,
    nonce: Nonce,
    before: impl IntoIterator<Item = &'a [u8]>,
    lengths: &[u8],
) -> IntegrityCheckValue {
    let mut mac = key.mac().with(&nonce.to_bytes());
    before.into_iter().for_each(|piece| mac.update(piece));
    mac.with(lengths).finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        security::{Algorithm, Key},
        testing::{ascending, capability_vector, nonce_vector, system_vector},
    };

    fn key(algorithm: Algorithm) -> CapabilityKey {
        let capability = capability_vector(algorithm);
        CapabilityKey::new(algorithm, &Key::new(ascending(0)), &capability, &system_vector())
    }

    #[test]
    fn the_information_of_a_data_out_buffer_matches_the_vectors() {
        let pieces = [&b"hello"[..], b" world", &[0; 5]];
        let information =
            |algorithm| DataOutIntegrity::new(&key(algorithm), nonce_vector(), pieces, [16, 0, 0]);
        let value = |algorithm| format!("{:?}", information(algorithm).value);
        assert_eq!(value(Algorithm::HmacSha1)[..40], *"73353d89dce716ad46609c9f67f811272a4b37c8");
        assert_eq!(
            value(Algorithm::HmacSha256),
            "a5865d116e6f924eb677b6e53b7b9769a8b4b17e37e2628db4a498972b8fd197"
        );
        let information = information(Algorithm::Blake3);
        assert_eq!(DataOutIntegrity::parse(&information.to_bytes()), Some(information));
        assert_eq!(DataOutIntegrity::parse(&[0; DATA_OUT_INTEGRITY_BYTES - 1]), None);
    }

    #[test]
    fn the_information_of_a_data_in_buffer_decodes_to_itself() {
        let key = key(Algorithm::Blake3);
        let information = DataInIntegrity::new(&key, nonce_vector(), [&b"abc"[..]], [3, 8]);
        assert_eq!(DataInIntegrity::parse(&information.to_bytes()), Some(information));
        let other = DataInIntegrity::new(&key, nonce_vector(), [&b"abd"[..]], [3, 8]);
        assert_ne!(information.value, other.value);
    }
}
