//! Parameter data of READ CAPACITY (10) and (16) (SBC-3, 5.15 and 5.16).

use crate::field::{u8_at, u16_at, u32_at, u64_at};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Capacity10 {
    /// The number of the last block. `u32::MAX` means that the number does not fit and the
    /// initiator must use READ CAPACITY (16).
    pub last_lba: u32,
    /// The logical block length in bytes.
    pub block_size: u32,
}

/// READ CAPACITY (16) data, always without protection information.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Capacity16 {
    pub last_lba: u64,
    /// The logical block length in bytes.
    pub block_size: u32,
    /// LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT, 0 to 15.
    pub physical_exponent: u8,
    /// LOWEST ALIGNED LOGICAL BLOCK ADDRESS, 0 to 16383.
    pub lowest_aligned: u16,
    /// LBPME: the unit can deallocate blocks.
    pub provisioning: bool,
    /// LBPRZ: deallocated blocks read as zeros.
    pub reads_zeros: bool,
}

impl Capacity10 {
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        [self.last_lba.to_be_bytes(), self.block_size.to_be_bytes()].concat()
    }

    /// Parses READ CAPACITY (10) data. Returns `None` for fewer than eight bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self { last_lba: u32_at(bytes, 0)?, block_size: u32_at(bytes, 4)? })
    }
}

impl Capacity16 {
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; 32];
        bytes[..8].copy_from_slice(&self.last_lba.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.block_size.to_be_bytes());
        bytes[13] = self.physical_exponent & 0x0f;
        let flags = u16::from(self.provisioning) << 15 | u16::from(self.reads_zeros) << 14;
        bytes[14..16].copy_from_slice(&(flags | self.lowest_aligned & 0x3fff).to_be_bytes());
        bytes
    }

    /// Parses READ CAPACITY (16) data. Returns `None` for fewer than twelve bytes, which hold the
    /// last block and the block size. Fields that are missing after them become zero.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let flags = u16_at(bytes, 14).unwrap_or(0);
        Some(Self {
            last_lba: u64_at(bytes, 0)?,
            block_size: u32_at(bytes, 8)?,
            physical_exponent: u8_at(bytes, 13).unwrap_or(0) & 0x0f,
            lowest_aligned: flags & 0x3fff,
            provisioning: flags & 0x8000 != 0,
            reads_zeros: flags & 0x4000 != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_capacity_forms_are_decoded_as_encoded() {
        let short = Capacity10 { last_lba: 0x0102_0304, block_size: 512 };
        assert_eq!(short.to_bytes(), [1, 2, 3, 4, 0, 0, 2, 0]);
        assert_eq!(Capacity10::from_bytes(&short.to_bytes()), Some(short));
        assert_eq!(Capacity10::from_bytes(&[0; 7]), None);

        let long = Capacity16 {
            last_lba: 0xff_ffff_ffff,
            block_size: 512,
            physical_exponent: 3,
            lowest_aligned: 0,
            provisioning: true,
            reads_zeros: true,
        };
        let bytes = long.to_bytes();
        assert_eq!(bytes[..16], [0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 2, 0, 0, 3, 0xc0, 0]);
        assert_eq!(Capacity16::from_bytes(&bytes), Some(long));
        assert_eq!(Capacity16::from_bytes(&bytes[..12]).unwrap().physical_exponent, 0);
        assert_eq!(Capacity16::from_bytes(&bytes[..11]), None);
    }
}
