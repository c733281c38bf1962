//! Page B1h: block device characteristics (SBC-3, 6.6.2).

use super::page::{framed, unframed};
use crate::field::{u8_at, u16_at};

/// Properties of the medium. The page reports no form factor.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct BlockDeviceCharacteristics {
    /// MEDIUM ROTATION RATE. 0: not reported; 1: non-rotating medium; 0401h to FFFEh: rotations per
    /// minute.
    pub rotation_rate: u16,
    /// True if WABEREQ is 01b: after a BLOCK ERASE, blocks can be read without a write first. False
    /// stands for 00b: not reported.
    pub reads_after_block_erase: bool,
    /// True if WACEREQ is 01b: after a CRYPTOGRAPHIC ERASE, blocks can be read without a write
    /// first. False stands for 00b: not reported.
    pub reads_after_key_erase: bool,
}

impl BlockDeviceCharacteristics {
    pub const PAGE: u8 = 0xb1;

    /// Encodes VPD page B1h (block device characteristics): 64 bytes with its header.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut rest = [0; 60];
        rest[..2].copy_from_slice(&self.rotation_rate.to_be_bytes());
        rest[3] =
            u8::from(self.reads_after_block_erase) << 6 | u8::from(self.reads_after_key_erase) << 4;
        framed(Self::PAGE, &rest)
    }

    /// Parses VPD page B1h (block device characteristics). Returns `None` if `bytes` are another page.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let rest = unframed(Self::PAGE, bytes)?;
        let requirements = u8_at(rest, 3).unwrap_or(0);
        Some(Self {
            rotation_rate: u16_at(rest, 0).unwrap_or(0),
            reads_after_block_erase: requirements >> 6 == 1,
            reads_after_key_erase: requirements >> 4 & 3 == 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_reads_back() {
        for (reads_after_block_erase, reads_after_key_erase, byte) in
            [(true, false, 0x40), (true, true, 0x50), (false, false, 0)]
        {
            let page = BlockDeviceCharacteristics {
                rotation_rate: 7200,
                reads_after_block_erase,
                reads_after_key_erase,
            };
            assert_eq!(page.to_bytes()[..8], [0, 0xb1, 0, 0x3c, 0x1c, 0x20, 0, byte]);
            assert_eq!(BlockDeviceCharacteristics::from_bytes(&page.to_bytes()), Some(page));
        }
    }
}
