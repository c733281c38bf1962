//! Page B2h: logical block provisioning (SBC-3, 6.6.5).

use super::page::{framed, unframed};
use crate::field::u8_at;

/// Logical block provisioning: how initiators can deallocate blocks of the unit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LogicalBlockProvisioning {
    /// LBPU bit: the unit supports UNMAP.
    pub unmap: bool,
    /// LBPWS bit: a WRITE SAME (16) with UNMAP=1 deallocates blocks.
    pub write_same_16: bool,
    /// LBPWS10 bit: a WRITE SAME (10) with UNMAP=1 deallocates blocks.
    pub write_same_10: bool,
    /// LBPRZ: deallocated blocks read as zeros.
    pub reads_zeros: bool,
    /// ANC_SUP bit: the unit supports anchored blocks.
    pub anchor: bool,
    pub provisioning: ProvisioningType,
    /// THRESHOLD EXPONENT: a threshold set has 2 to this power blocks. 0: the unit has no
    /// thresholds.
    pub threshold_exponent: u8,
}

/// The field PROVISIONING TYPE (SBC-3, table 192).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum ProvisioningType {
    /// The unit is fully provisioned, or does not report its provisioning type.
    Full = 0,
    Resource = 1,
    Thin = 2,
}

impl LogicalBlockProvisioning {
    pub const PAGE: u8 = 0xb2;

    /// Encodes page B2h with its header, 8 bytes. The page has no provisioning group descriptor.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let flags = u8::from(self.unmap) << 7
            | u8::from(self.write_same_16) << 6
            | u8::from(self.write_same_10) << 5
            | u8::from(self.reads_zeros) << 2
            | u8::from(self.anchor) << 1;
        framed(Self::PAGE, &[self.threshold_exponent, flags, self.provisioning as u8, 0])
    }

    /// Parses VPD page B2h (logical block provisioning). Returns `None` if `bytes` are another page.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let rest = unframed(Self::PAGE, bytes)?;
        let flags = u8_at(rest, 1).unwrap_or(0);
        Some(Self {
            unmap: flags & 0x80 != 0,
            write_same_16: flags & 0x40 != 0,
            write_same_10: flags & 0x20 != 0,
            // SBC-4 has extended LBPRZ to three bits. Only 001b means that deallocated blocks read
            // as zeros.
            reads_zeros: flags & 0x1c == 0x04,
            anchor: flags & 0x02 != 0,
            provisioning: match u8_at(rest, 2).unwrap_or(0) & 0x07 {
                1 => ProvisioningType::Resource,
                2 => ProvisioningType::Thin,
                _ => ProvisioningType::Full,
            },
            threshold_exponent: u8_at(rest, 0).unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_at_the_bits_that_linux_reads() {
        let page = LogicalBlockProvisioning {
            unmap: true,
            write_same_16: true,
            write_same_10: true,
            reads_zeros: true,
            anchor: false,
            provisioning: ProvisioningType::Thin,
            threshold_exponent: 11,
        };
        assert_eq!(page.to_bytes(), [0, 0xb2, 0, 4, 11, 0xe4, 2, 0]);
        assert_eq!(LogicalBlockProvisioning::from_bytes(&page.to_bytes()), Some(page));
    }
}
