//! Commands as values, and their CDBs. How a CDB is read is `operation`'s.

use crate::{
    BlockTransfer, ByteCheck, Cdb, ClaimAction, Form, IdentifyingType, LogSelect, LogSense,
    ModeSelect, ModeSense, PersistentReserveIn, PersistentReserveOut, ReadDefectData,
    ReportTargetPortGroups, Reporting, Sanitize, StartStop,
    copy::{
        CopyResults,
        cdb::{encode_abort, encode_out},
    },
    primary::identifying,
};

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
    Read(BlockTransfer),
    /// WRITE (6), (10), (12), (16) (SBC-3, 5.33).
    Write(BlockTransfer),
    /// WRITE AND VERIFY (10), (12), (16) (SBC-3, 5.38). FUA stays false: it is always stable.
    WriteAndVerify {
        /// Which blocks.
        transfer: BlockTransfer,
        /// What is compared after the write.
        byte_check: ByteCheck,
    },
    /// VERIFY (10), (12), (16) (SBC-3, 5.29). FUA stays false.
    Verify {
        /// Which blocks.
        transfer: BlockTransfer,
        /// What they are compared with.
        byte_check: ByteCheck,
    },
    /// SYNCHRONIZE CACHE (10), (16) (SBC-3, 5.21). FUA and DPO stay false; zero blocks: all.
    SynchronizeCache {
        /// Which blocks.
        transfer: BlockTransfer,
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
        transfer: BlockTransfer,
        /// UNMAP: the blocks may be given back where they then read as the pattern.
        unmap: bool,
        /// ANCHOR: keep the space reserved.
        anchor: bool,
        /// NDOB: no data comes, the pattern is zeros. Form 16 only.
        no_data_out: bool,
    },
    /// COMPARE AND WRITE (SBC-3, 5.2): at most 255 blocks, form 16. As much data comes to compare
    /// with as to write.
    CompareAndWrite(BlockTransfer),
    /// ORWRITE (16) (SBC-3, 5.9).
    OrWrite(BlockTransfer),
    /// WRITE ATOMIC (16) (SBC-4, 5.51): at most 65,535 blocks, form 16.
    WriteAtomic {
        /// Which blocks.
        transfer: BlockTransfer,
        /// ATOMIC BOUNDARY: so many blocks are atomic each; zero: all together.
        boundary: u16,
    },
    /// PRE-FETCH (10), (16) (SBC-3, 5.10). FUA and DPO stay false; zero blocks: to the end.
    PreFetch {
        /// Which blocks.
        transfer: BlockTransfer,
        /// IMMED: the status may come before the blocks are there.
        immediate: bool,
    },
    /// GET LBA STATUS (16) (SBC-3, 5.6).
    GetLbaStatus {
        /// The first block asked about.
        lba: u64,
        /// At most this many bytes come back.
        allocation_length: u32,
    },
    /// READ DEFECT DATA (10) and (12) (SBC-3, 5.18).
    ReadDefectData(ReadDefectData),
    /// SANITIZE (SBC-3, 5.20).
    Sanitize(Sanitize),
    /// EXTENDED COPY (SPC-4, 6.4).
    ExtendedCopy {
        /// LID4: list identifiers of four bytes; otherwise LID1, the older list.
        long: bool,
        /// Bytes of parameter list that come with it.
        parameter_list_length: u32,
    },
    /// POPULATE TOKEN (SBC-3, 5.11).
    PopulateToken {
        /// LIST IDENTIFIER, under which the token is to be asked for.
        list: u32,
        /// Bytes of parameter list that come with it.
        parameter_list_length: u32,
    },
    /// WRITE USING TOKEN (SBC-3, 5.47).
    WriteUsingToken {
        /// LIST IDENTIFIER, under which the outcome is to be asked for.
        list: u32,
        /// Bytes of parameter list that come with it.
        parameter_list_length: u32,
    },
    /// COPY OPERATION ABORT (SPC-4, 6.3).
    CopyOperationAbort {
        /// LIST IDENTIFIER of the copy.
        list: u32,
    },
    /// RECEIVE COPY RESULTS (SPC-4, 6.22) and RECEIVE ROD TOKEN INFORMATION (6.28).
    ReceiveCopyResults {
        /// What is asked.
        results: CopyResults,
        /// At most this many bytes come back.
        allocation_length: u32,
    },
    /// MODE SELECT (6) and (10) (SPC-4, 6.11).
    ModeSelect(ModeSelect),
    /// RESERVE (6) and (10) of SPC-2, of the whole unit.
    Reserve {
        /// RESERVE (10); otherwise (6).
        ten: bool,
    },
    /// RELEASE (6) and (10) of SPC-2, of the whole unit.
    Release {
        /// RELEASE (10); otherwise (6).
        ten: bool,
    },
    /// PERSISTENT RESERVE IN (SPC-4, 6.15).
    PersistentReserveIn(PersistentReserveIn),
    /// PERSISTENT RESERVE OUT (SPC-4, 6.16).
    PersistentReserveOut(PersistentReserveOut),
    /// START STOP UNIT (SBC-3, 5.22).
    StartStop(StartStop),
    /// PREVENT ALLOW MEDIUM REMOVAL (SBC-3, 5.12).
    PreventAllow {
        /// PREVENT: the medium cannot be taken out as long as this nexus lasts.
        prevent: bool,
    },
    /// LOG SELECT (SPC-4, 6.7).
    LogSelect(LogSelect),
    /// LOG SENSE (SPC-4, 6.8).
    LogSense(LogSense),
    /// REPORT TARGET PORT GROUPS (SPC-4, 6.37).
    ReportTargetPortGroups(ReportTargetPortGroups),
    /// SET TARGET PORT GROUPS (SPC-4, 6.45).
    SetTargetPortGroups {
        /// Bytes of parameter list that come with it.
        parameter_list_length: u32,
    },
    /// REPORT IDENTIFYING INFORMATION (SPC-4, 6.32).
    ReportIdentifying {
        /// Which information; `None`: which there can be.
        kind: Option<IdentifyingType>,
        /// At most this many bytes come back.
        allocation_length: u32,
    },
    /// SET IDENTIFYING INFORMATION (SPC-4, 6.43).
    SetIdentifying {
        /// Which information.
        kind: IdentifyingType,
        /// Bytes of it, at most as many as there may be.
        parameter_list_length: u32,
    },
    /// REPORT TIMESTAMP (SPC-4, 6.38).
    ReportTimestamp {
        /// At most this many bytes come back.
        allocation_length: u32,
    },
    /// SET TIMESTAMP (SPC-4, 6.46).
    SetTimestamp {
        /// Bytes of parameter list that come with it.
        parameter_list_length: u32,
    },
    /// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (SPC-4, 6.36).
    ReportTaskFunctions {
        /// REPD: with time-outs.
        extended: bool,
        /// At most this many bytes come back.
        allocation_length: u32,
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
    /// CLAIM IN, our own: who alone changes the unit.
    ClaimIn {
        /// At most this many bytes come back.
        allocation_length: u16,
    },
    /// CLAIM OUT, our own: become the only one that changes the unit, or give that back.
    ClaimOut {
        /// Which.
        action: ClaimAction,
        /// Bytes of parameter list that come with it.
        parameter_list_length: u16,
    },
    /// TOKEN IN, our own: what the unit has to tell a gateway that shares it with others.
    TokenIn {
        /// How long to wait until there is something, in milliseconds.
        wait_ms: u16,
        /// At most this many bytes come back.
        allocation_length: u32,
    },
    /// TOKEN OUT, our own: what a gateway asks of a unit that it shares with others.
    TokenOut {
        /// Bytes of parameter list that come with it.
        parameter_list_length: u32,
    },
    /// ROLL BACK, our own: give up what no SYNCHRONIZE CACHE has followed.
    RollBack,
}

impl Command {
    /// READ of these blocks, in form 10 or 16.
    #[must_use]
    pub fn read(lba: u64, blocks: u32) -> Self {
        Self::Read(BlockTransfer::new(lba, blocks))
    }

    /// WRITE of these blocks, in form 10 or 16.
    #[must_use]
    pub fn write(lba: u64, blocks: u32, fua: bool) -> Self {
        Self::Write(BlockTransfer::new(lba, blocks).with_fua(fua))
    }

    /// SYNCHRONIZE CACHE (10) of everything.
    #[must_use]
    pub fn synchronize_cache() -> Self {
        Self::SynchronizeCache { transfer: BlockTransfer::new(0, 0), immediate: false }
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
            Self::ExtendedCopy { long, parameter_list_length } => {
                encode_out(u8::from(long), 0, parameter_list_length)
            }
            Self::PopulateToken { list, parameter_list_length } => {
                encode_out(0x10, list, parameter_list_length)
            }
            Self::WriteUsingToken { list, parameter_list_length } => {
                encode_out(0x11, list, parameter_list_length)
            }
            Self::CopyOperationAbort { list } => encode_abort(list),
            Self::ReceiveCopyResults { results, allocation_length } => {
                results.encode(allocation_length)
            }
            Self::ReportSupportedOperationCodes { reporting, timeouts, allocation_length } => {
                let (option, opcode, service_action) = reporting.fields();
                let mut cdb = [0; 12];
                cdb[..4].copy_from_slice(&[0xa3, 0x0c, u8::from(timeouts) << 7 | option, opcode]);
                cdb[4..6].copy_from_slice(&service_action.to_be_bytes());
                cdb[6..10].copy_from_slice(&allocation_length.to_be_bytes());
                Cdb::new(&cdb)
            }
            Self::ModeSelect(select) => select.encode(),
            Self::Reserve { ten: false } => Cdb::new(&[0x16, 0, 0, 0, 0, 0]),
            Self::Reserve { ten: true } => Cdb::new(&[0x56, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            Self::Release { ten: false } => Cdb::new(&[0x17, 0, 0, 0, 0, 0]),
            Self::Release { ten: true } => Cdb::new(&[0x57, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            Self::PersistentReserveIn(reserve) => reserve.encode(),
            Self::PersistentReserveOut(reserve) => reserve.encode(),
            Self::StartStop(start_stop) => start_stop.encode(),
            Self::PreventAllow { prevent } => Cdb::new(&[0x1e, 0, 0, 0, u8::from(prevent), 0]),
            Self::LogSelect(select) => select.encode(),
            Self::LogSense(sense) => sense.encode(),
            Self::ReportTargetPortGroups(report) => report.encode(),
            Self::SetTargetPortGroups { parameter_list_length } => {
                maintenance(0xa4, 0x0a, 0, parameter_list_length)
            }
            Self::ReportIdentifying { kind, allocation_length } => {
                let kind = kind.map_or(identifying::SUPPORTED, |kind| kind as u8);
                identifying(0xa3, 0x05, kind, allocation_length)
            }
            Self::SetIdentifying { kind, parameter_list_length } => {
                identifying(0xa4, 0x06, kind as u8, parameter_list_length)
            }
            Self::ClaimIn { allocation_length } => {
                let [high, low] = allocation_length.to_be_bytes();
                Cdb::new(&[0xc0, 0, 0, 0, 0, 0, 0, high, low, 0])
            }
            Self::ClaimOut { action, parameter_list_length } => {
                let [high, low] = parameter_list_length.to_be_bytes();
                Cdb::new(&[0xc1, action as u8, 0, 0, 0, 0, 0, high, low, 0])
            }
            Self::TokenIn { wait_ms, allocation_length } => token(0xc3, wait_ms, allocation_length),
            Self::TokenOut { parameter_list_length } => token(0xc4, 0, parameter_list_length),
            Self::RollBack => Cdb::new(&[0xc2, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            Self::ReportTimestamp { allocation_length } => {
                maintenance(0xa3, 0x0f, 0, allocation_length)
            }
            Self::SetTimestamp { parameter_list_length } => {
                maintenance(0xa4, 0x0f, 0, parameter_list_length)
            }
            Self::ReportTaskFunctions { extended, allocation_length } => {
                maintenance(0xa3, 0x0d, u8::from(extended) << 7, allocation_length)
            }
        }
    }
}

/// TOKEN IN and TOKEN OUT.
fn token(opcode: u8, wait_ms: u16, length: u32) -> Cdb {
    let [high, low] = wait_ms.to_be_bytes();
    let [a, b, c, d] = length.to_be_bytes();
    Cdb::new(&[opcode, 0, 0, high, low, a, b, c, d, 0])
}

/// A CDB of MAINTENANCE IN or OUT: service action, byte 2, length.
fn maintenance(opcode: u8, action: u8, flags: u8, length: u32) -> Cdb {
    let mut cdb = [0; 12];
    cdb[..3].copy_from_slice(&[opcode, action, flags]);
    cdb[6..10].copy_from_slice(&length.to_be_bytes());
    Cdb::new(&cdb)
}

/// The same with an identifying information type.
fn identifying(opcode: u8, action: u8, kind: u8, length: u32) -> Cdb {
    let mut cdb = [0; 12];
    (cdb[0], cdb[1], cdb[10]) = (opcode, action, kind << 1);
    cdb[6..10].copy_from_slice(&length.to_be_bytes());
    Cdb::new(&cdb)
}
