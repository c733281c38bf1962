//! Commands as values, and their CDBs. How a CDB is read is `operation`'s.

use crate::Cdb;

/// A command of a block device: what its CDB says, nothing about its data.
///
/// Fields of several sizes in the standards have the largest here; [`Command::encode`] cuts no
/// value short silently, it panics on what the form cannot hold.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Command {
    /// TEST UNIT READY (SPC-4, 6.47).
    TestUnitReady,
    /// REQUEST SENSE (SPC-4, 6.39).
    RequestSense {
        /// DESC: descriptor format is asked for.
        descriptor_format: bool,
        /// At most this many bytes come back.
        allocation_length: u8,
    },
    /// INQUIRY (SPC-4, 6.6).
    Inquiry {
        /// The vital product data page that is asked for; `None`: standard INQUIRY data.
        page: Option<u8>,
        /// At most this many bytes come back.
        allocation_length: u16,
    },
    /// MODE SENSE (6) and (10) (SPC-4, 6.13).
    ModeSense(ModeSense),
    /// READ (6), (10), (12), (16) (SBC-3, 5.7).
    Read(Transfer),
    /// WRITE (6), (10), (12), (16) (SBC-3, 5.33).
    Write(Transfer),
    /// WRITE AND VERIFY (10), (12), (16) (SBC-3, 5.38). FUA stays false: it is always stable.
    WriteAndVerify {
        /// Which blocks.
        transfer: Transfer,
        /// What is compared after the write.
        byte_check: ByteCheck,
    },
    /// VERIFY (10), (12), (16) (SBC-3, 5.29). FUA stays false.
    Verify {
        /// Which blocks.
        transfer: Transfer,
        /// What they are compared with.
        byte_check: ByteCheck,
    },
    /// SYNCHRONIZE CACHE (10), (16) (SBC-3, 5.21). FUA and DPO stay false; zero blocks: all.
    SynchronizeCache {
        /// Which blocks.
        transfer: Transfer,
        /// IMMED: the status may come before the blocks are stable.
        immediate: bool,
    },
    /// READ CAPACITY (10) (SBC-3, 5.15).
    ReadCapacity10,
    /// READ CAPACITY (16) (SBC-3, 5.16).
    ReadCapacity16 {
        /// At most this many bytes come back.
        allocation_length: u32,
    },
    /// REPORT LUNS (SPC-4, 6.33).
    ReportLuns {
        /// SELECT REPORT: 00h without well-known units, 01h those only, 02h all.
        select_report: u8,
        /// At most this many bytes come back.
        allocation_length: u32,
    },
    /// UNMAP (SBC-3, 5.28).
    Unmap {
        /// ANCHOR: keep the space reserved.
        anchor: bool,
        /// Bytes of parameter list that come with it.
        parameter_list_length: u16,
    },
    /// WRITE SAME (10) and (16) (SBC-3, 5.43). FUA and DPO stay false; zero blocks: to the end.
    WriteSame {
        /// Which blocks.
        transfer: Transfer,
        /// UNMAP: the blocks may be given back where they then read as the pattern.
        unmap: bool,
        /// ANCHOR: keep the space reserved.
        anchor: bool,
        /// NDOB: no data comes, the pattern is zeros. Form 16 only.
        no_data_out: bool,
    },
    /// REPORT SUPPORTED OPERATION CODES (SPC-4, 6.35).
    ReportSupportedOperationCodes {
        /// Which commands are asked about.
        reporting: Reporting,
        /// RCTD: with command time-outs descriptors.
        timeouts: bool,
        /// At most this many bytes come back.
        allocation_length: u32,
    },
}

/// The blocks that a command moves or looks at.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Transfer {
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

/// MODE SENSE's fields.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ModeSense {
    /// MODE SENSE (10); otherwise (6).
    pub ten: bool,
    /// LLBAA: a long block descriptor may come back. Only in (10).
    pub long_lba: bool,
    /// DBD: no block descriptor.
    pub no_block_descriptors: bool,
    /// Which values of the pages.
    pub control: PageControl,
    /// PAGE CODE; 3Fh: all.
    pub page: u8,
    /// SUBPAGE CODE; FFh: all.
    pub subpage: u8,
    /// At most this many bytes come back; at most 255 in (6).
    pub allocation_length: u16,
}

/// PAGE CONTROL (SPC-4, table 167).
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum PageControl {
    Current = 0,
    Changeable = 1,
    Default = 2,
    Saved = 3,
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

/// REPORTING OPTIONS with what they ask for (SPC-4, table 277).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reporting {
    /// 000b: all commands.
    All,
    /// 001b: one that has no service actions.
    OperationCode(u8),
    /// 010b: one that has service actions.
    ServiceAction(u8, u16),
    /// 011b: one of either kind; service action 0 where there are none.
    Either(u8, u16),
}

impl Transfer {
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

impl Command {
    /// READ of these blocks, in form 10 or 16.
    #[must_use]
    pub fn read(lba: u64, blocks: u32) -> Self {
        Self::Read(Transfer::new(lba, blocks))
    }

    /// WRITE of these blocks, in form 10 or 16.
    #[must_use]
    pub fn write(lba: u64, blocks: u32, fua: bool) -> Self {
        Self::Write(Transfer::new(lba, blocks).with_fua(fua))
    }

    /// SYNCHRONIZE CACHE (10) of everything.
    #[must_use]
    pub fn synchronize_cache() -> Self {
        Self::SynchronizeCache { transfer: Transfer::new(0, 0), immediate: false }
    }

    /// The command's CDB, CONTROL byte zero.
    ///
    /// # Panics
    /// If a value does not fit its form, or the command has no such form: for what we build
    /// ourselves. Whatever came out of `parse` fits.
    #[must_use]
    pub fn encode(&self) -> Cdb {
        match *self {
            Self::TestUnitReady => Cdb::new(&[0; 6]),
            Self::RequestSense { descriptor_format, allocation_length } => {
                Cdb::new(&[0x03, u8::from(descriptor_format), 0, 0, allocation_length, 0])
            }
            Self::Inquiry { page, allocation_length } => {
                let [high, low] = allocation_length.to_be_bytes();
                Cdb::new(&[0x12, u8::from(page.is_some()), page.unwrap_or(0), high, low, 0])
            }
            Self::ModeSense(sense) => sense.encode(),
            Self::Read(transfer) => transfer.encode([0x08, 0x28, 0xa8, 0x88], transfer.flags()),
            Self::Write(transfer) => transfer.encode([0x0a, 0x2a, 0xaa, 0x8a], transfer.flags()),
            Self::WriteAndVerify { transfer, byte_check } => {
                transfer.encode([0, 0x2e, 0xae, 0x8e], transfer.flags() | (byte_check as u8) << 1)
            }
            Self::Verify { transfer, byte_check } => {
                transfer.encode([0, 0x2f, 0xaf, 0x8f], transfer.flags() | (byte_check as u8) << 1)
            }
            Self::SynchronizeCache { transfer, immediate } => {
                transfer.encode([0, 0x35, 0, 0x91], u8::from(immediate) << 1)
            }
            Self::ReadCapacity10 => Cdb::new(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            Self::ReadCapacity16 { allocation_length } => {
                let mut cdb = [0; 16];
                cdb[..2].copy_from_slice(&[0x9e, 0x10]);
                cdb[10..14].copy_from_slice(&allocation_length.to_be_bytes());
                Cdb::new(&cdb)
            }
            Self::ReportLuns { select_report, allocation_length } => {
                let mut cdb = [0; 12];
                (cdb[0], cdb[2]) = (0xa0, select_report);
                cdb[6..10].copy_from_slice(&allocation_length.to_be_bytes());
                Cdb::new(&cdb)
            }
            Self::Unmap { anchor, parameter_list_length } => {
                let [high, low] = parameter_list_length.to_be_bytes();
                Cdb::new(&[0x42, u8::from(anchor), 0, 0, 0, 0, 0, high, low, 0])
            }
            Self::WriteSame { transfer, unmap, anchor, no_data_out } => {
                assert!(!no_data_out || transfer.form == Form::Sixteen, "NDOB needs form 16");
                let flags = u8::from(anchor) << 4 | u8::from(unmap) << 3 | u8::from(no_data_out);
                transfer.encode([0, 0x41, 0, 0x93], flags)
            }
            Self::ReportSupportedOperationCodes { reporting, timeouts, allocation_length } => {
                let (option, opcode, service_action) = match reporting {
                    Reporting::All => (0, 0, 0),
                    Reporting::OperationCode(opcode) => (1, opcode, 0),
                    Reporting::ServiceAction(opcode, action) => (2, opcode, action),
                    Reporting::Either(opcode, action) => (3, opcode, action),
                };
                let mut cdb = [0; 12];
                cdb[..4].copy_from_slice(&[0xa3, 0x0c, u8::from(timeouts) << 7 | option, opcode]);
                cdb[4..6].copy_from_slice(&service_action.to_be_bytes());
                cdb[6..10].copy_from_slice(&allocation_length.to_be_bytes());
                Cdb::new(&cdb)
            }
        }
    }
}

impl Transfer {
    /// DPO and FUA where byte 1 has them.
    const fn flags(self) -> u8 {
        (self.dpo as u8) << 4 | (self.fua as u8) << 3
    }

    /// Opcodes of the four forms (zero: there is none), byte 1 of the longer three.
    fn encode(self, opcodes: [u8; 4], flags: u8) -> Cdb {
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
}

impl ModeSense {
    fn encode(self) -> Cdb {
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
}
