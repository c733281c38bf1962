//! The CDB of MODE SELECT (SPC-4, 6.11 and 6.12). The module `mode` parses its parameter list.

use crate::{Cdb, field::be16};

/// The CDB fields of MODE SELECT.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ModeSelect {
    /// True for MODE SELECT (10), false for MODE SELECT (6).
    pub ten: bool,
    /// PF: pages of the standard follow the header and the block descriptor.
    pub page_format: bool,
    /// RTD bit: the unit restores all default values, and the command has no parameter list.
    pub revert: bool,
    /// SP bit: the unit saves the changed pages, so that they survive a power loss.
    pub save: bool,
    /// At most 255 in MODE SELECT (6).
    pub parameter_list_length: u16,
}

impl ModeSelect {
    pub(crate) fn encode(self) -> Cdb {
        let flags =
            u8::from(self.page_format) << 4 | u8::from(self.revert) << 1 | u8::from(self.save);
        let [high, low] = self.parameter_list_length.to_be_bytes();
        if self.ten {
            Cdb::new(&[0x55, flags, 0, 0, 0, 0, 0, high, low, 0])
        } else {
            assert!(high == 0, "not in MODE SELECT (6)");
            Cdb::new(&[0x15, flags, 0, 0, low, 0])
        }
    }

    /// Parses the CDB of MODE SELECT (6) or (10).
    pub(crate) fn parse(cdb: &[u8]) -> Self {
        let ten = cdb.len() == 10;
        Self {
            ten,
            page_format: cdb[1] & 0x10 != 0,
            revert: cdb[1] & 0x02 != 0,
            save: cdb[1] & 0x01 != 0,
            parameter_list_length: if ten { be16(cdb, 7) } else { u16::from(cdb[4]) },
        }
    }
}
