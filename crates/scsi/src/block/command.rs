//! `BlockCommand`: the commands of block devices.

use crate::{
    Cdb,
    block::{BlockTransfer, ByteCheck, Form, ReadDefectData, Sanitize, StartStop},
    copy::cdb::encode_out,
};

/// A command of SBC-3, or WRITE ATOMIC of SBC-4: the fields of its CDB, without its data.
///
/// The first paragraph of each variant is its row in `docs/protocols.md`: the operation codes in
/// hexadecimal, with service actions, then the name and what our units do.
///
/// A field that has several sizes in the standards has the largest of them here.
/// [`BlockCommand::encode`] never truncates a value; it panics if the form of the CDB cannot hold
/// it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BlockCommand {
    /// 08, 28, A8, 88: READ (6), (10), (12), (16) (SBC-3, 5.7). FUA flushes the volume first; DPO
    /// has no effect.
    Read(BlockTransfer),
    /// 0A, 2A, AA, 8A: WRITE (6), (10), (12), (16) (SBC-3, 5.33).
    Write(BlockTransfer),
    /// 2E, AE, 8E: WRITE AND VERIFY (10), (12), (16) (SBC-3, 5.38). Always stable; BYTCHK 0 and 1.
    ///
    /// `fua` is false, since the command always writes to stable storage.
    WriteAndVerify {
        transfer: BlockTransfer,
        /// BYTCHK: what the unit compares after the write.
        byte_check: ByteCheck,
    },
    /// 2F, AF, 8F: VERIFY (10), (12), (16) (SBC-3, 5.29). BYTCHK 0, 1 and 3.
    ///
    /// `fua` is false.
    Verify {
        transfer: BlockTransfer,
        /// BYTCHK field: whether and how the unit compares the data.
        byte_check: ByteCheck,
    },
    /// 35, 91: SYNCHRONIZE CACHE (10), (16) (SBC-3, 5.21). Makes the whole volume stable before the
    /// status, even with IMMED.
    ///
    /// `fua` and `dpo` are false. Zero blocks stand for the whole unit.
    SynchronizeCache {
        transfer: BlockTransfer,
        /// IMMED: the unit may answer before the blocks are stable.
        immediate: bool,
    },
    /// 25: READ CAPACITY (10) (SBC-3, 5.15).
    ReadCapacity10,
    /// 9E/10: READ CAPACITY (16) (SBC-3, 5.16). LBPME and LBPRZ if the volume is thin.
    ReadCapacity16 { allocation_length: u32 },
    /// 42: UNMAP (SBC-3, 5.28). Thin volumes; up to 256 descriptors.
    Unmap {
        /// ANCHOR: keep the space of the blocks reserved.
        anchor: bool,
        parameter_list_length: u16,
    },
    /// 41, 93: WRITE SAME (10), (16) (SBC-3, 5.43). NDOB; 0 blocks are refused (WSNZ), or by
    /// setting stand for all blocks up to the end.
    ///
    /// `fua` and `dpo` are false. Zero blocks stand for all blocks up to the end of the unit.
    WriteSame {
        transfer: BlockTransfer,
        /// UNMAP bit: the unit may deallocate the blocks if they then read as the pattern.
        unmap: bool,
        /// ANCHOR: keep the space of the blocks reserved.
        anchor: bool,
        /// NDOB: the command has no data, and the pattern is zeros. Only in WRITE SAME (16).
        no_data_out: bool,
    },
    /// 89: COMPARE AND WRITE (SBC-3, 5.2). At most 255 blocks.
    ///
    /// The data is the blocks to compare followed by equally many blocks to write. The CDB has 16
    /// bytes.
    CompareAndWrite(BlockTransfer),
    /// 8B: ORWRITE (16) (SBC-3, 5.9).
    OrWrite(BlockTransfer),
    /// 9C: WRITE ATOMIC (16) (SBC-4, 5.51). Memory volumes only: a crash may leave a part of a
    /// write in a file or log.
    ///
    /// At most 65,535 blocks.
    WriteAtomic {
        transfer: BlockTransfer,
        /// ATOMIC BOUNDARY: the write is divided into parts of this many blocks, each of which is
        /// atomic. Zero: the whole write is atomic.
        boundary: u16,
    },
    /// 34, 90: PRE-FETCH (10), (16) (SBC-3, 5.10). Reads up to 16 MiB into the caches, with IMMED
    /// nothing; always GOOD.
    ///
    /// `fua` and `dpo` are false. Zero blocks stand for all blocks up to the end of the unit.
    PreFetch {
        transfer: BlockTransfer,
        /// IMMED: the unit may answer before the blocks are in the cache.
        immediate: bool,
    },
    /// 9E/12: GET LBA STATUS (16) (SBC-3, 5.6). Files, memory and far volumes; blocks of unknown
    /// state count as mapped.
    GetLbaStatus {
        /// Address of the first block to report.
        lba: u64,
        allocation_length: u32,
    },
    /// 37, B7: READ DEFECT DATA (10), (12) (SBC-3, 5.18). Empty lists.
    ReadDefectData(ReadDefectData),
    /// 48/01-03, 48/1F: SANITIZE: OVERWRITE, BLOCK ERASE, CRYPTOGRAPHIC ERASE, EXIT FAILURE MODE
    /// (SBC-3, 5.20). Units without a cache or far volume; CRYPTOGRAPHIC ERASE with an `encrypt`
    /// layer on top.
    Sanitize(Sanitize),
    /// 83/10: POPULATE TOKEN (SBC-3, 5.11).
    PopulateToken {
        /// LIST IDENTIFIER, which the initiator uses to query the token.
        list: u32,
        parameter_list_length: u32,
    },
    /// 83/11: WRITE USING TOKEN (SBC-3, 5.47).
    WriteUsingToken {
        /// LIST IDENTIFIER, which the initiator uses to query the result.
        list: u32,
        parameter_list_length: u32,
    },
    /// 1B: START STOP UNIT (SBC-3, 5.22). Ejects and loads a removable medium; a stop flushes.
    StartStop(StartStop),
    /// 1E: PREVENT ALLOW MEDIUM REMOVAL (SBC-3, 5.12).
    PreventAllow {
        /// PREVENT field: if set, the medium cannot be removed while this nexus exists.
        prevent: bool,
    },
}

impl BlockCommand {
    /// Returns the CDB of the command, with a CONTROL byte of zero.
    ///
    /// # Panics
    /// If a value does not fit the form of the CDB, or the command has no such form. This is for
    /// commands that our own code builds; every value that a parser returned fits.
    #[must_use]
    pub fn encode(&self) -> Cdb {
        match *self {
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
            Self::Unmap { anchor, parameter_list_length } => {
                let [high, low] = parameter_list_length.to_be_bytes();
                Cdb::new(&[0x42, u8::from(anchor), 0, 0, 0, 0, 0, high, low, 0])
            }
            Self::WriteSame { transfer, unmap, anchor, no_data_out } => {
                assert!(!no_data_out || transfer.form == Form::Sixteen, "NDOB needs form 16");
                let flags = u8::from(anchor) << 4 | u8::from(unmap) << 3 | u8::from(no_data_out);
                transfer.encode([0, 0x41, 0, 0x93], flags)
            }
            Self::CompareAndWrite(transfer) => {
                assert!(transfer.blocks <= 255, "COMPARE AND WRITE has one byte of length");
                transfer.encode([0, 0, 0, 0x89], transfer.flags())
            }
            Self::OrWrite(transfer) => transfer.encode([0, 0, 0, 0x8b], transfer.flags()),
            Self::WriteAtomic { transfer, boundary } => {
                let blocks = u16::try_from(transfer.blocks).expect("two bytes of length");
                let mut cdb = [0; 16];
                (cdb[0], cdb[1]) = (0x9c, transfer.flags());
                cdb[2..10].copy_from_slice(&transfer.lba.to_be_bytes());
                cdb[10..12].copy_from_slice(&boundary.to_be_bytes());
                cdb[12..14].copy_from_slice(&blocks.to_be_bytes());
                Cdb::new(&cdb)
            }
            Self::PreFetch { transfer, immediate } => {
                transfer.encode([0, 0x34, 0, 0x90], u8::from(immediate) << 1)
            }
            Self::GetLbaStatus { lba, allocation_length } => {
                let mut cdb = [0; 16];
                cdb[..2].copy_from_slice(&[0x9e, 0x12]);
                cdb[2..10].copy_from_slice(&lba.to_be_bytes());
                cdb[10..14].copy_from_slice(&allocation_length.to_be_bytes());
                Cdb::new(&cdb)
            }
            Self::ReadDefectData(asked) => asked.encode(),
            Self::Sanitize(sanitize) => sanitize.encode(),
            Self::PopulateToken { list, parameter_list_length } => {
                encode_out(0x10, list, parameter_list_length)
            }
            Self::WriteUsingToken { list, parameter_list_length } => {
                encode_out(0x11, list, parameter_list_length)
            }
            Self::StartStop(start_stop) => start_stop.encode(),
            Self::PreventAllow { prevent } => Cdb::new(&[0x1e, 0, 0, 0, u8::from(prevent), 0]),
        }
    }
}
