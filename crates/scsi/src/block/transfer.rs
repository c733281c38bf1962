//! The blocks of a command: where LBA, length and flags stand in CDBs of four lengths.

use crate::{
    Cdb, Sense,
    field::{be16, be32, be64},
};

/// The blocks that a command moves or looks at.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BlockTransfer {
    /// First block.
    pub lba: u64,
    /// How many.
    pub blocks: u32,
    /// Disable page out: a hint that nobody will read this soon.
    pub dpo: bool,
    /// Force unit access: from, or on, stable storage.
    pub fua: bool,
    /// The CDB's form.
    pub form: Form,
}

/// The length of a CDB, the number in brackets after a command's name.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Form {
    /// 21 bits of LBA, 1 to 256 blocks.
    Six,
    /// 32 bits of LBA, 16 bits of length.
    Ten,
    /// 32 bits of LBA, 32 bits of length.
    Twelve,
    /// 64 bits of LBA, 32 bits of length.
    Sixteen,
}

/// BYTCHK (SBC-3, table 105).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum ByteCheck {
    /// 00b: the medium is to be readable; no data comes.
    Medium = 0,
    /// 01b: every block is compared with the data that comes.
    Data = 1,
    /// 11b: every block is compared with the one block that comes.
    Block = 3,
}

impl BlockTransfer {
    /// These blocks in the smallest form from 10 up that can say so, without FUA.
    #[must_use]
    pub fn new(lba: u64, blocks: u32) -> Self {
        let form = if lba <= u64::from(u32::MAX) && blocks <= u32::from(u16::MAX) {
            Form::Ten
        } else {
            Form::Sixteen
        };
        Self { lba, blocks, dpo: false, fua: false, form }
    }

    /// The same with FUA as given.
    #[must_use]
    pub const fn with_fua(mut self, fua: bool) -> Self {
        self.fua = fua;
        self
    }
}

impl BlockTransfer {
    /// DPO and FUA where byte 1 has them.
    pub(crate) const fn flags(self) -> u8 {
        (self.dpo as u8) << 4 | (self.fua as u8) << 3
    }

    /// Opcodes of the four forms (zero: there is none), byte 1 of the longer three.
    pub(crate) fn encode(self, opcodes: [u8; 4], flags: u8) -> Cdb {
        let opcode = opcodes[self.form as usize];
        assert!(opcode != 0, "the command has no form {:?}", self.form);
        let lba = self.lba.to_be_bytes();
        let blocks = self.blocks.to_be_bytes();
        let mut cdb = [0; 16];
        (cdb[0], cdb[1]) = (opcode, flags);
        match self.form {
            Form::Six => {
                assert!(self.lba < 1 << 21 && (1..=256).contains(&self.blocks) && flags == 0);
                cdb[1..4].copy_from_slice(&lba[5..]);
                cdb[4] = blocks[3];
                Cdb::new(&cdb[..6])
            }
            Form::Ten => {
                assert!(self.lba <= u64::from(u32::MAX) && self.blocks <= u32::from(u16::MAX));
                cdb[2..6].copy_from_slice(&lba[4..]);
                cdb[7..9].copy_from_slice(&blocks[2..]);
                Cdb::new(&cdb[..10])
            }
            Form::Twelve => {
                assert!(self.lba <= u64::from(u32::MAX));
                cdb[2..6].copy_from_slice(&lba[4..]);
                cdb[6..10].copy_from_slice(&blocks);
                Cdb::new(&cdb[..12])
            }
            Form::Sixteen => {
                cdb[2..10].copy_from_slice(&lba);
                cdb[10..14].copy_from_slice(&blocks);
                Cdb::new(&cdb)
            }
        }
    }

    /// Of a CDB of 6 bytes.
    pub(crate) fn parse_6(cdb: &[u8]) -> Self {
        let lba = u64::from(be32(cdb, 0) & 0x1f_ffff);
        let blocks = if cdb[4] == 0 { 256 } else { u32::from(cdb[4]) };
        Self { lba, blocks, dpo: false, fua: false, form: Form::Six }
    }

    /// LBA and transfer length where they stand in CDBs of 10, 12 and 16 bytes; DPO and FUA left
    /// out.
    pub(crate) fn parse_plain(cdb: &[u8]) -> Self {
        let (lba, blocks, form) = match cdb.len() {
            10 => (u64::from(be32(cdb, 2)), u32::from(be16(cdb, 7)), Form::Ten),
            12 => (u64::from(be32(cdb, 2)), be32(cdb, 6), Form::Twelve),
            _ => (be64(cdb, 2), be32(cdb, 10), Form::Sixteen),
        };
        Self { lba, blocks, dpo: false, fua: false, form }
    }

    /// A transfer with DPO and FUA, and with RDPROTECT, WRPROTECT or VRPROTECT zero.
    pub(crate) fn parse(cdb: &[u8]) -> Result<Self, Sense> {
        unprotected(cdb)?;
        Ok(Self { dpo: cdb[1] & 0x10 != 0, fua: cdb[1] & 0x08 != 0, ..Self::parse_plain(cdb) })
    }

    /// A transfer with DPO and BYTCHK.
    pub(crate) fn parse_checked(cdb: &[u8]) -> Result<(Self, ByteCheck), Sense> {
        unprotected(cdb)?;
        let byte_check = match cdb[1] >> 1 & 0x03 {
            0 => ByteCheck::Medium,
            1 => ByteCheck::Data,
            3 => ByteCheck::Block,
            _ => return Err(Sense::invalid_bit_in_cdb(1, 2)),
        };
        Ok((Self { dpo: cdb[1] & 0x10 != 0, ..Self::parse_plain(cdb) }, byte_check))
    }
}

/// That bits 7-5 of byte 1 are zero: there is no protection information (PROTECT=0), so nothing
/// else may be asked for.
pub(crate) fn unprotected(cdb: &[u8]) -> Result<(), Sense> {
    if cdb[1] & 0xe0 == 0 { Ok(()) } else { Err(Sense::invalid_bit_in_cdb(1, 7)) }
}
