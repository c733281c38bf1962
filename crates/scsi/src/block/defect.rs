//! READ DEFECT DATA (10) and (12) (SBC-3, 5.18 and 5.19): the CDB, and the parameter data, which
//! never lists a defect.

use crate::{
    Cdb,
    field::{be16, be32},
};

/// The CDB fields of READ DEFECT DATA.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ReadDefectData {
    /// True for READ DEFECT DATA (12), false for READ DEFECT DATA (10).
    pub twelve: bool,
    /// REQ_PLIST: list the defects known at manufacture.
    pub primary: bool,
    /// REQ_GLIST: list the defects found in use.
    pub grown: bool,
    /// DEFECT LIST FORMAT, 0 to 7.
    pub format: u8,
    /// ADDRESS DESCRIPTOR INDEX: the number of list entries that the unit skips. Zero in READ
    /// DEFECT DATA (10).
    pub index: u32,
    /// At most 65,535 in READ DEFECT DATA (10).
    pub allocation_length: u32,
}

impl ReadDefectData {
    pub(crate) fn encode(self) -> Cdb {
        let length = self.allocation_length.to_be_bytes();
        if self.twelve {
            let mut cdb = [0; 12];
            (cdb[0], cdb[1]) = (0xb7, self.flags());
            cdb[2..6].copy_from_slice(&self.index.to_be_bytes());
            cdb[6..10].copy_from_slice(&length);
            Cdb::new(&cdb)
        } else {
            assert!(self.allocation_length <= 0xffff && self.index == 0, "not in (10)");
            Cdb::new(&[0x37, 0, self.flags(), 0, 0, 0, 0, length[2], length[3], 0])
        }
    }

    /// Parses the CDB of READ DEFECT DATA (10) or (12).
    pub(crate) fn parse(cdb: &[u8]) -> Self {
        let twelve = cdb.len() == 12;
        let flags = if twelve { cdb[1] } else { cdb[2] };
        Self {
            twelve,
            primary: flags & 0x10 != 0,
            grown: flags & 0x08 != 0,
            format: flags & 0x07,
            index: if twelve { be32(cdb, 2) } else { 0 },
            allocation_length: if twelve { be32(cdb, 6) } else { u32::from(be16(cdb, 7)) },
        }
    }

    fn flags(self) -> u8 {
        u8::from(self.primary) << 4 | u8::from(self.grown) << 3 | self.format & 0x07
    }

    /// Encodes parameter data in the requested format with the requested lists, both of them empty.
    #[must_use]
    pub fn no_defects(&self) -> Vec<u8> {
        let length = if self.twelve { 8 } else { 4 };
        let mut bytes = vec![0; length];
        bytes[1] = self.flags();
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_defect_list_repeats_the_requested_format() {
        let asked = ReadDefectData::parse(&[0x37, 0, 0x1d, 0, 0, 0, 0, 1, 2, 0]);
        assert_eq!((asked.format, asked.allocation_length), (5, 258));
        assert_eq!(asked.no_defects(), [0, 0x1d, 0, 0]);
        let asked = ReadDefectData::parse(&[0xb7, 0x08, 0, 0, 0, 9, 0, 0, 0, 8, 0, 0]);
        assert_eq!((asked.index, asked.no_defects()), (9, vec![0, 0x08, 0, 0, 0, 0, 0, 0]));
    }
}
