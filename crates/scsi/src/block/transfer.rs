//! The block range of a command: LBA, transfer length and flags in CDBs of four lengths.

use crate::{
    Cdb, Sense,
    field::{be16, be32, be64},
};

/// The blocks that a command transfers, verifies or synchronizes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BlockTransfer {
    pub lba: u64,
    /// The number of blocks. Some commands give zero a special meaning.
    pub blocks: u32,
    /// DPO bit (disable page out): the initiator will not read these blocks again soon.
    pub dpo: bool,
    /// FUA bit (force unit access): the unit reads from stable storage, or writes to it before it answers.
    pub fua: bool,
    pub form: Form,
}

/// The form of a CDB. Its number is in brackets after the name of a command, as in READ (10).
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Form {
    /// 6 bytes: LBA of 21 bits, 1 to 256 blocks.
    Six,
    /// 10 bytes: LBA of 32 bits, transfer length of 16 bits.
    Ten,
    /// 12 bytes: LBA and transfer length of 32 bits.
    Twelve,
    /// 16 bytes: LBA of 64 bits, transfer length of 32 bits.
    Sixteen,
}

/// BYTCHK (SBC-3, table 105): what WRITE AND VERIFY and VERIFY compare.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum ByteCheck {
    /// 00b: check that the medium is readable; the command has no data.
    Medium = 0,
    /// 01b: compare the blocks with equally many blocks of data.
    Data = 1,
    /// BYTCHK=11b: the unit compares every block with the same single block of data.
    Block = 3,
}

impl BlockTransfer {
    /// Returns a transfer without DPO and FUA, in form 10 if the values fit, otherwise in form 16.
    #[must_use]
    pub fn new(lba: u64, blocks: u32) -> Self {
        let form = if lba <= u64::from(u32::MAX) && blocks <= u32::from(u16::MAX) {
            Form::Ten
        } else {
            Form::Sixteen
        };
        Self { lba, blocks, dpo: false, fua: false, form }
    }

    #[must_use]
    pub const fn with_fua(mut self, fua: bool) -> Self {
        self.fua = fua;
        self
    }
}

impl BlockTransfer {
    /// Returns byte 1 of a CDB with the bits DPO and FUA, and zeros elsewhere.
    pub(crate) const fn flags(self) -> u8 {
        (self.dpo as u8) << 4 | (self.fua as u8) << 3
    }

    /// Encodes the CDB. `opcodes` has the operation codes of the four forms, with zero for a form
    /// that the command does not have. `flags` is byte 1 of the three longer forms.
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

    /// Parses a CDB of 6 bytes. A transfer length of zero stands for 256 blocks.
    pub(crate) fn parse_6(cdb: &[u8]) -> Self {
        let lba = u64::from(be32(cdb, 0) & 0x1f_ffff);
        let blocks = if cdb[4] == 0 { 256 } else { u32::from(cdb[4]) };
        Self { lba, blocks, dpo: false, fua: false, form: Form::Six }
    }

    /// Parses LBA and transfer length of a CDB of 10, 12 or 16 bytes. DPO and FUA are ignored.
    pub(crate) fn parse_plain(cdb: &[u8]) -> Self {
        let (lba, blocks, form) = match cdb.len() {
            10 => (u64::from(be32(cdb, 2)), u32::from(be16(cdb, 7)), Form::Ten),
            12 => (u64::from(be32(cdb, 2)), be32(cdb, 6), Form::Twelve),
            _ => (be64(cdb, 2), be32(cdb, 10), Form::Sixteen),
        };
        Self { lba, blocks, dpo: false, fua: false, form }
    }

    /// Parses a transfer with DPO and FUA. RDPROTECT, WRPROTECT or VRPROTECT must be zero.
    pub(crate) fn parse(cdb: &[u8]) -> Result<Self, Sense> {
        unprotected(cdb)?;
        Ok(Self { dpo: cdb[1] & 0x10 != 0, fua: cdb[1] & 0x08 != 0, ..Self::parse_plain(cdb) })
    }

    /// Parses the CDB of a command that transfers blocks and has the fields DPO and BYTCHK.
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

/// Returns an error unless bits 7-5 of byte 1 are zero. These bits request protection information,
/// which the unit does not have (PROTECT=0).
pub(crate) fn unprotected(cdb: &[u8]) -> Result<(), Sense> {
    if cdb[1] & 0xe0 == 0 { Ok(()) } else { Err(Sense::invalid_bit_in_cdb(1, 7)) }
}
