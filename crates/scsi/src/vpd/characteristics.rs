//! Page B1h: block device characteristics (SBC-3, 6.6.2).

use super::page::{framed, unframed};
use crate::field::u16_at;

/// What the medium is like. The form factor is not said.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct BlockDeviceCharacteristics {
    /// MEDIUM ROTATION RATE: 0 not said, 1 it does not rotate, 0401h to FFFEh rotations a minute.
    pub rotation_rate: u16,
}

impl BlockDeviceCharacteristics {
    /// The page's code.
    pub const PAGE: u8 = 0xb1;

    /// The page, header included: 64 bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut rest = [0; 60];
        rest[..2].copy_from_slice(&self.rotation_rate.to_be_bytes());
        framed(Self::PAGE, &rest)
    }

    /// Reads the page.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let rest = unframed(Self::PAGE, bytes)?;
        Some(Self { rotation_rate: u16_at(rest, 0).unwrap_or(0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_reads_back() {
        let page = BlockDeviceCharacteristics { rotation_rate: 7200 };
        assert_eq!(page.to_bytes()[..6], [0, 0xb1, 0, 0x3c, 0x1c, 0x20]);
        assert_eq!(BlockDeviceCharacteristics::from_bytes(&page.to_bytes()), Some(page));
    }
}
