//! `PrimaryCommand`: the commands that units of every device type may have.

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

/// A command of SPC-4, or RESERVE or RELEASE of SPC-2: the fields of its CDB, without its data.
///
/// The first paragraph of each variant is its row in `docs/protocols.md`: the operation codes in
/// hexadecimal, with service actions, then the name and what our units do.
///
/// A field that has several sizes in the standards has the largest of them here.
/// [`PrimaryCommand::encode`] never truncates a value; it panics if the form of the CDB cannot hold
/// it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PrimaryCommand {
    /// 00: TEST UNIT READY (SPC-4, 6.47).
    TestUnitReady,
    /// 03: REQUEST SENSE (SPC-4, 6.39). Both formats.
    RequestSense {
        /// DESC: the initiator requests descriptor format.
        descriptor_format: bool,
        allocation_length: u8,
    },
    /// 12: INQUIRY (SPC-4, 6.6). SPC-4, or SPC-3 by setting; TPGS 3; RMB by setting.
    Inquiry {
        /// PAGE CODE of the requested vital product data page; `None` requests standard INQUIRY
        /// data.
        page: Option<u8>,
        allocation_length: u16,
    },
    /// 1A, 5A: MODE SENSE (6), (10) (SPC-4, 6.13). DPOFUA; saved values with `state`.
    ModeSense(ModeSense),
    /// A0: REPORT LUNS (SPC-4, 6.33). The target answers it, also for absent units.
    ReportLuns {
        /// SELECT REPORT: 00h all units but well-known ones, 01h well-known units only, 02h all
        /// units.
        select_report: u8,
        allocation_length: u32,
    },
    /// 83/00-01: EXTENDED COPY (LID1), (LID4) (SPC-4, 6.4).
    ExtendedCopy {
        /// True for LID4 (list identifiers of four bytes), false for LID1 of older standards.
        long: bool,
        parameter_list_length: u32,
    },
    /// 83/1C: COPY OPERATION ABORT (SPC-4, 6.3). Ends a copy of the same session.
    CopyOperationAbort { list: u32 },
    /// 84/00, 84/03-05, 84/07: RECEIVE COPY RESULTS (SPC-4, 6.22), RECEIVE ROD TOKEN INFORMATION
    /// (6.28).
    ReceiveCopyResults { results: CopyResults, allocation_length: u32 },
    /// 15, 55: MODE SELECT (6), (10) (SPC-4, 6.11). WCE (not with epochs), SWP, D_SENSE; SP with
    /// `state`.
    ModeSelect(ModeSelect),
    /// 16, 56: RESERVE (6), (10) (SPC-2). The whole unit.
    Reserve {
        /// True for RESERVE (10), false for RESERVE (6).
        ten: bool,
    },
    /// 17, 57: RELEASE (6), (10) (SPC-2). The whole unit.
    Release {
        /// True for RELEASE (10), false for RELEASE (6).
        ten: bool,
    },
    /// 5E/00-03: PERSISTENT RESERVE IN (SPC-4, 6.15).
    PersistentReserveIn(PersistentReserveIn),
    /// 5F/00-07: PERSISTENT RESERVE OUT (SPC-4, 6.16). All service actions and six types.
    PersistentReserveOut(PersistentReserveOut),
    /// 4C: LOG SELECT (SPC-4, 6.7). No parameters.
    LogSelect(LogSelect),
    /// 4D: LOG SENSE (SPC-4, 6.8).
    LogSense(LogSense),
    /// A3/0A: REPORT TARGET PORT GROUPS (SPC-4, 6.37). One group of all ports, active/optimized;
    /// extended header.
    ReportTargetPortGroups(ReportTargetPortGroups),
    /// A4/0A: SET TARGET PORT GROUPS (SPC-4, 6.45). Accepts the current state only.
    SetTargetPortGroups { parameter_list_length: u32 },
    /// A3/05: REPORT IDENTIFYING INFORMATION (SPC-4, 6.32). With `state`.
    ReportIdentifying {
        /// The requested type; `None` requests the list of supported types.
        kind: Option<IdentifyingType>,
        allocation_length: u32,
    },
    /// A4/06: SET IDENTIFYING INFORMATION (SPC-4, 6.43). With `state`: 512 bytes and a text of 256,
    /// stable.
    SetIdentifying {
        kind: IdentifyingType,
        /// The length in bytes of the new identifying information; at most
        /// [`IdentifyingType::most`].
        parameter_list_length: u32,
    },
    /// A3/0F: REPORT TIMESTAMP (SPC-4, 6.38). The machine's clock, unless an initiator has set the
    /// time since target reset or restart.
    ReportTimestamp { allocation_length: u32 },
    /// A4/0F: SET TIMESTAMP (SPC-4, 6.46).
    SetTimestamp { parameter_list_length: u32 },
    /// A3/0D: REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (SPC-4, 6.36). REPD.
    ReportTaskFunctions {
        /// REPD: return the extended parameter data.
        extended: bool,
        allocation_length: u32,
    },
    /// A3/0C: REPORT SUPPORTED OPERATION CODES (SPC-4, 6.35). RCTD.
    ReportSupportedOperationCodes {
        /// REPORTING OPTIONS: which commands are reported.
        reporting: Reporting,
        /// RCTD bit: the initiator also requests the descriptors of command timeouts.
        timeouts: bool,
        allocation_length: u32,
    },
}

impl PrimaryCommand {
    /// Returns the CDB of the command, with a CONTROL byte of zero.
    ///
    /// # Panics
    /// If a value does not fit the form of the CDB. This is for commands that our own code builds;
    /// every value that a parser returned fits.
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

/// Encodes the CDB of MAINTENANCE IN or MAINTENANCE OUT. `flags` becomes byte 2.
fn maintenance(opcode: u8, action: u8, flags: u8, length: u32) -> Cdb {
    let mut cdb = [0; 12];
    cdb[..3].copy_from_slice(&[opcode, action, flags]);
    cdb[6..10].copy_from_slice(&length.to_be_bytes());
    Cdb::new(&cdb)
}

/// Returns a CDB of MAINTENANCE IN or MAINTENANCE OUT with an identifying information type.
fn identifying(opcode: u8, action: u8, kind: u8, length: u32) -> Cdb {
    let mut cdb = [0; 12];
    (cdb[0], cdb[1], cdb[10]) = (opcode, action, kind << 1);
    cdb[6..10].copy_from_slice(&length.to_be_bytes());
    Cdb::new(&cdb)
}
