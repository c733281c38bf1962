//! The CDB of MODE SENSE (SPC-4, 6.13 and 6.14).

use crate::{Cdb, field::be16};

/// The CDB fields of MODE SENSE.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ModeSense {
    /// True for MODE SENSE (10), false for MODE SENSE (6).
    pub ten: bool,
    /// LLBAA: the unit may return a long block descriptor. Only in MODE SENSE (10).
    pub long_lba: bool,
    /// DBD: the unit must not return a block descriptor.
    pub no_block_descriptors: bool,
    pub control: PageControl,
    /// PAGE CODE; 3Fh stands for all pages.
    pub page: u8,
    /// SUBPAGE CODE; FFh stands for all subpages.
    pub subpage: u8,
    /// At most 255 in MODE SENSE (6).
    pub allocation_length: u16,
}

/// The field PAGE CONTROL of MODE SENSE (SPC-4, table 167).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum PageControl {
    Current = 0,
    Changeable = 1,
    Default = 2,
    Saved = 3,
}

impl ModeSense {
    pub(crate) fn encode(self) -> Cdb {
        let flags = u8::from(self.long_lba) << 4 | u8::from(self.no_block_descriptors) << 3;
        let page = (self.control as u8) << 6 | self.page & 0x3f;
        let [high, low] = self.allocation_length.to_be_bytes();
        if self.ten {
            Cdb::new(&[0x5a, flags, page, self.subpage, 0, 0, 0, high, low, 0])
        } else {
            assert!(high == 0 && !self.long_lba, "not in MODE SENSE (6)");
            Cdb::new(&[0x1a, flags, page, self.subpage, low, 0])
        }
    }

    /// Parses the CDB of MODE SENSE (6) or (10).
    pub(crate) fn parse(cdb: &[u8]) -> Self {
        let ten = cdb.len() == 10;
        Self {
            ten,
            long_lba: ten && cdb[1] & 0x10 != 0,
            no_block_descriptors: cdb[1] & 0x08 != 0,
            control: PageControl::from_bits(cdb[2] >> 6),
            page: cdb[2] & 0x3f,
            subpage: cdb[3],
            allocation_length: if ten { be16(cdb, 7) } else { u16::from(cdb[4]) },
        }
    }
}

impl PageControl {
    /// Decodes PAGE CONTROL from the low two bits of `bits`.
    pub(crate) const fn from_bits(bits: u8) -> Self {
        match bits & 0x03 {
            0 => Self::Current,
            1 => Self::Changeable,
            2 => Self::Default,
            _ => Self::Saved,
        }
    }
}
