//! REPORT and SET IDENTIFYING INFORMATION (SPC-4, 6.32 and 6.43), with which an operator labels a
//! unit.

use crate::Sense;

/// The field IDENTIFYING INFORMATION TYPE (SPC-4, 6.32).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum IdentifyingType {
    /// Bytes that only the initiator that has set them interprets.
    Unit = 0x00,
    /// UTF-8 text that ends with a zero byte.
    Text = 0x02,
}

impl IdentifyingType {
    /// All types of identifying information, in the order of their codes.
    pub const ALL: [Self; 2] = [Self::Unit, Self::Text];

    /// Returns the maximum length of the information in bytes.
    #[must_use]
    pub const fn most(self) -> u16 {
        match self {
            Self::Unit => 512,
            Self::Text => 256,
        }
    }

    /// Reads the type in byte 10 of a CDB.
    pub(crate) fn parse(cdb: &[u8]) -> Result<Self, Sense> {
        let unknown = Sense::invalid_bit_in_cdb(10, 7);
        Self::ALL.into_iter().find(|kind| *kind as u8 == cdb[10] >> 1).ok_or(unknown)
    }
}

/// IDENTIFYING INFORMATION TYPE 1111111b requests the list of supported types.
pub(crate) const SUPPORTED: u8 = 0x7f;

/// Encodes the parameter data of REPORT IDENTIFYING INFORMATION for one type.
#[must_use]
pub fn identifying_information(information: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes[2..4].copy_from_slice(&(information.len() as u16).to_be_bytes());
    bytes.extend_from_slice(information);
    bytes
}

/// Encodes the list of supported types for REPORT IDENTIFYING INFORMATION.
#[must_use]
pub fn identifying_types() -> Vec<u8> {
    let descriptors = IdentifyingType::ALL.iter().flat_map(|kind| {
        let [high, low] = kind.most().to_be_bytes();
        [(*kind as u8) << 1, 0, high, low]
    });
    identifying_information(&descriptors.collect::<Vec<u8>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifying_information_is_encoded_byte_by_byte() {
        assert_eq!(identifying_information(b"db"), [0, 0, 0, 2, b'd', b'b']);
        assert_eq!(identifying_types(), [0, 0, 0, 8, 0, 0, 2, 0, 4, 0, 1, 0]);
    }
}
