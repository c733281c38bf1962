//! The commands that units of every device type may have.

use crate::{
    Cdb,
    primary::{
        IdentifyingType, LogSelect, LogSense, ModeSelect, ModeSense, PersistentReserveIn,
        PersistentReserveOut, ReportTargetPortGroups, Reporting,
        copy::{
            CopyResults,
            cdb::{encode_abort, encode_out},
        },
        identifying,
    },
};

/// A command of SPC-4, or RESERVE or RELEASE of SPC-2: what its CDB says, nothing about its data.
///
/// Fields of several sizes in the standards have the largest here; [`PrimaryCommand::encode`] cuts no
/// value short silently, it panics on what the form cannot hold.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PrimaryCommand {
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
    /// REPORT LUNS (SPC-4, 6.33).
    ReportLuns {
        /// SELECT REPORT: 00h without well-known units, 01h those only, 02h all.
        select_report: u8,
        /// At most this many bytes come back.
        allocation_length: u32,
    },
    /// EXTENDED COPY (SPC-4, 6.4).
    ExtendedCopy {
        /// LID4: list identifiers of four bytes; otherwise LID1, the older list.
        long: bool,
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
}

impl PrimaryCommand {
    /// The command's CDB, CONTROL byte zero.
    ///
    /// # Panics
    /// If a value does not fit its form: for what we build ourselves. Whatever came out of a parser fits.
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
            Self::ReportLuns { select_report, allocation_length } => {
                let mut cdb = [0; 12];
                (cdb[0], cdb[2]) = (0xa0, select_report);
                cdb[6..10].copy_from_slice(&allocation_length.to_be_bytes());
                Cdb::new(&cdb)
            }
            Self::ExtendedCopy { long, parameter_list_length } => {
                encode_out(u8::from(long), 0, parameter_list_length)
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
