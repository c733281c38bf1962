//! Parses the CDBs of SPC commands, with one table row per operation code and service action.

use super::{
    IdentifyingType, LogSelect, LogSense, ModeSelect, ModeSense, PersistentReserveIn,
    PersistentReserveOut, ReportTargetPortGroups, Reporting,
    command::PrimaryCommand,
    copy::{CopyResults, cdb::parse_out},
    identifying,
    persistent::{ReservationType, ReserveAction, ReserveReport},
};
use crate::{
    Sense,
    field::{be16, be32},
    operation::{
        CdbParser, NACA, OperationCodeEntry, OperationRow, OperationTable, copy_out, quick, slow,
        unknown_operation,
    },
};

impl PrimaryCommand {
    /// Parses a CDB for a unit that has no other commands than these.
    ///
    /// # Errors
    /// The errors of [`Self::parse_known`]; 5/20/00 for an unknown operation code, 5/24/00 for an
    /// unknown service action.
    pub fn parse(cdb: &[u8]) -> Result<Self, Sense> {
        let unknown = || unknown_operation(cdb, Self::has_opcode);
        Self::parse_known(cdb).unwrap_or_else(|| Err(unknown()))
    }

    /// Parses the CDB of a command that any device type may have. The CDB may be longer than its
    /// command requires, because iSCSI always sends 16 bytes. Returns `None` if no such command has
    /// this operation code and service action.
    ///
    /// # Errors
    /// 5/24/00 for a CDB that is too short, and for a field that requests something unsupported:
    /// ACA, reserved values.
    #[must_use]
    pub fn parse_known(cdb: &[u8]) -> Option<Result<Self, Sense>> {
        TABLE.parse(cdb)
    }

    /// Returns true if a command that any device type may have has this operation code.
    #[must_use]
    pub fn has_opcode(opcode: u8) -> bool {
        TABLE.has_opcode(opcode)
    }

    /// Returns the commands that any device type may have, for REPORT SUPPORTED OPERATION CODES,
    /// ascending by operation code and service action.
    pub fn operations() -> impl Iterator<Item = &'static OperationCodeEntry> {
        TABLE.entries()
    }
}

static TABLE: OperationTable<PrimaryCommand> = OperationTable::new(ROWS);

pub(crate) const ROWS: &[OperationRow<PrimaryCommand>] = &[
    quick(&[0x00, 0, 0, 0, 0, NACA], |_| Ok(PrimaryCommand::TestUnitReady)),
    quick(&[0x03, 0x01, 0, 0, 0xff, NACA], request_sense),
    quick(&[0x12, 0x03, 0xff, 0xff, 0xff, NACA], inquiry),
    quick(&[0x15, 0x13, 0, 0, 0xff, NACA], |cdb| {
        Ok(PrimaryCommand::ModeSelect(ModeSelect::parse(cdb)))
    }),
    quick(&[0x16, 0x11, 0, 0, 0, NACA], |cdb| {
        whole_unit(cdb, PrimaryCommand::Reserve { ten: false })
    }),
    quick(&[0x17, 0x11, 0, 0, 0, NACA], |cdb| {
        whole_unit(cdb, PrimaryCommand::Release { ten: false })
    }),
    quick(&[0x1a, 0x08, 0xff, 0xff, 0xff, NACA], |cdb| {
        Ok(PrimaryCommand::ModeSense(ModeSense::parse(cdb)))
    }),
    quick(&[0x4c, 0x03, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, NACA], |cdb| {
        Ok(PrimaryCommand::LogSelect(LogSelect::parse(cdb)))
    }),
    quick(&[0x4d, 0x01, 0xff, 0xff, 0, 0xff, 0xff, 0xff, 0xff, NACA], |cdb| {
        Ok(PrimaryCommand::LogSense(LogSense::parse(cdb)))
    }),
    quick(&[0x55, 0x13, 0, 0, 0, 0, 0, 0xff, 0xff, NACA], |cdb| {
        Ok(PrimaryCommand::ModeSelect(ModeSelect::parse(cdb)))
    }),
    quick(&[0x56, 0x13, 0, 0, 0, 0, 0, 0, 0, NACA], |cdb| {
        whole_unit(cdb, PrimaryCommand::Reserve { ten: true })
    }),
    quick(&[0x57, 0x13, 0, 0, 0, 0, 0, 0, 0, NACA], |cdb| {
        whole_unit(cdb, PrimaryCommand::Release { ten: true })
    }),
    quick(&[0x5a, 0x18, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, NACA], |cdb| {
        Ok(PrimaryCommand::ModeSense(ModeSense::parse(cdb)))
    }),
    reserve_in(0, |cdb| reported(ReserveReport::Keys, cdb)),
    reserve_in(1, |cdb| reported(ReserveReport::Reservation, cdb)),
    reserve_in(2, |cdb| reported(ReserveReport::Capabilities, cdb)),
    reserve_in(3, |cdb| reported(ReserveReport::FullStatus, cdb)),
    reserve_out(0, 0, |cdb| untyped(ReserveAction::Register, cdb)),
    reserve_out(1, 0xff, |cdb| typed(ReserveAction::Reserve, cdb)),
    reserve_out(2, 0xff, |cdb| typed(ReserveAction::Release, cdb)),
    reserve_out(3, 0, |cdb| untyped(ReserveAction::Clear, cdb)),
    reserve_out(4, 0xff, |cdb| typed(ReserveAction::Preempt, cdb)),
    reserve_out(5, 0xff, |cdb| typed(ReserveAction::PreemptAndAbort, cdb)),
    reserve_out(6, 0, |cdb| untyped(ReserveAction::RegisterAndIgnoreExistingKey, cdb)),
    reserve_out(7, 0, |cdb| untyped(ReserveAction::RegisterAndMove, cdb)),
    slow(&copy_out(0), |cdb| {
        Ok(PrimaryCommand::ExtendedCopy { long: false, parameter_list_length: parse_out(cdb).1 })
    })
    .with_service_action(0x00),
    slow(&copy_out(0), |cdb| {
        Ok(PrimaryCommand::ExtendedCopy { long: true, parameter_list_length: parse_out(cdb).1 })
    })
    .with_service_action(0x01),
    quick(&[0x83, 0x1f, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, NACA], |cdb| {
        Ok(PrimaryCommand::CopyOperationAbort { list: be32(cdb, 2) })
    })
    .with_service_action(0x1c),
    quick(&copy_in(0xff, 0), |cdb| copy_results(CopyResults::Status1(cdb[2]), cdb))
        .with_service_action(0x00),
    quick(&copy_in(0, 0), |cdb| copy_results(CopyResults::OperatingParameters, cdb))
        .with_service_action(0x03),
    quick(&copy_in(0xff, 0), |cdb| copy_results(CopyResults::FailedSegment1(cdb[2]), cdb))
        .with_service_action(0x04),
    quick(&copy_in(0xff, 0xff), |cdb| copy_results(CopyResults::Status4(be32(cdb, 2)), cdb))
        .with_service_action(0x05),
    quick(&copy_in(0xff, 0xff), |cdb| copy_results(CopyResults::RodTokens(be32(cdb, 2)), cdb))
        .with_service_action(0x07),
    quick(&[0xa0, 0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, NACA], report_luns),
    quick(&maintenance(0xa3, 0xfe), |cdb| {
        let kind = match cdb[10] >> 1 {
            identifying::SUPPORTED => None,
            _ => Some(IdentifyingType::parse(cdb)?),
        };
        Ok(PrimaryCommand::ReportIdentifying { kind, allocation_length: be32(cdb, 6) })
    })
    .with_service_action(0x05),
    quick(&[0xa3, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, NACA], |cdb| {
        Ok(PrimaryCommand::ReportTargetPortGroups(ReportTargetPortGroups::parse(cdb)?))
    })
    .with_service_action(0x0a),
    quick(&[0xa3, 0x1f, 0x87, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, NACA], |cdb| {
        Ok(PrimaryCommand::ReportSupportedOperationCodes {
            reporting: Reporting::parse(cdb)?,
            timeouts: cdb[2] & 0x80 != 0,
            allocation_length: be32(cdb, 6),
        })
    })
    .with_service_action(0x0c),
    quick(&[0xa3, 0x1f, 0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, NACA], |cdb| {
        Ok(PrimaryCommand::ReportTaskFunctions {
            extended: cdb[2] & 0x80 != 0,
            allocation_length: be32(cdb, 6),
        })
    })
    .with_service_action(0x0d),
    quick(&maintenance(0xa3, 0), |cdb| {
        Ok(PrimaryCommand::ReportTimestamp { allocation_length: be32(cdb, 6) })
    })
    .with_service_action(0x0f),
    slow(&maintenance(0xa4, 0xfe), set_identifying).with_service_action(0x06),
    quick(&maintenance(0xa4, 0), |cdb| {
        Ok(PrimaryCommand::SetTargetPortGroups { parameter_list_length: be32(cdb, 6) })
    })
    .with_service_action(0x0a),
    quick(&maintenance(0xa4, 0), |cdb| {
        Ok(PrimaryCommand::SetTimestamp { parameter_list_length: be32(cdb, 6) })
    })
    .with_service_action(0x0f),
];

type Parse = CdbParser<PrimaryCommand>;

/// Creates the table row of a service action of PERSISTENT RESERVE IN.
const fn reserve_in(action: u16, parse: Parse) -> OperationRow<PrimaryCommand> {
    quick(&[0x5e, 0x1f, 0, 0, 0, 0, 0, 0xff, 0xff, NACA], parse).with_service_action(action)
}

/// Makes the table row of one service action of PERSISTENT RESERVE OUT. `kind` holds the bits of
/// SCOPE and TYPE that the parser evaluates. The command may take long, because it waits until
/// tasks are aborted and the reservations are saved.
const fn reserve_out(action: u16, kind: u8, parse: Parse) -> OperationRow<PrimaryCommand> {
    slow(&[0x5f, 0x1f, kind, 0, 0, 0xff, 0xff, 0xff, 0xff, NACA], parse).with_service_action(action)
}

/// Returns the CDB usage data of THIRD-PARTY COPY IN. `first` covers the first byte of the list
/// identifier and `more` the other three: 0xff if the command uses them, otherwise 0.
const fn copy_in(first: u8, more: u8) -> [u8; 16] {
    let f = 0xff;
    [0x84, 0x1f, first, more, more, more, 0, 0, 0, 0, f, f, f, f, 0, NACA]
}

/// Returns the CDB usage data of MAINTENANCE IN and MAINTENANCE OUT with a length field. `kind`
/// holds the bits of byte 10 that the parser evaluates.
const fn maintenance(opcode: u8, kind: u8) -> [u8; 12] {
    [opcode, 0x1f, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, kind, NACA]
}

// The functions below parse a CDB that has exactly the length of the command.

fn reported(report: ReserveReport, cdb: &[u8]) -> Result<PrimaryCommand, Sense> {
    Ok(PrimaryCommand::PersistentReserveIn(PersistentReserveIn::parse(report, cdb)))
}

fn untyped(action: ReserveAction, cdb: &[u8]) -> Result<PrimaryCommand, Sense> {
    Ok(PrimaryCommand::PersistentReserveOut(PersistentReserveOut::parse(action, cdb)))
}

fn typed(
    action: fn(ReservationType) -> ReserveAction,
    cdb: &[u8],
) -> Result<PrimaryCommand, Sense> {
    Ok(PrimaryCommand::PersistentReserveOut(PersistentReserveOut::parse_typed(action, cdb)?))
}

/// Refuses reservations of extents and reservations for third parties, which SPC-2 has made
/// obsolete in RESERVE and RELEASE.
fn whole_unit(cdb: &[u8], command: PrimaryCommand) -> Result<PrimaryCommand, Sense> {
    let asked = cdb[1] & if cdb.len() == 10 { 0x13 } else { 0x11 };
    if asked == 0 { Ok(command) } else { Err(Sense::invalid_field_in_cdb(1)) }
}

fn copy_results(results: CopyResults, cdb: &[u8]) -> Result<PrimaryCommand, Sense> {
    Ok(PrimaryCommand::ReceiveCopyResults { results, allocation_length: be32(cdb, 10) })
}

fn set_identifying(cdb: &[u8]) -> Result<PrimaryCommand, Sense> {
    let (kind, parameter_list_length) = (IdentifyingType::parse(cdb)?, be32(cdb, 6));
    if parameter_list_length > u32::from(kind.most()) {
        return Err(Sense::invalid_field_in_cdb(6));
    }
    Ok(PrimaryCommand::SetIdentifying { kind, parameter_list_length })
}

fn request_sense(cdb: &[u8]) -> Result<PrimaryCommand, Sense> {
    Ok(PrimaryCommand::RequestSense {
        descriptor_format: cdb[1] & 0x01 != 0,
        allocation_length: cdb[4],
    })
}

fn inquiry(cdb: &[u8]) -> Result<PrimaryCommand, Sense> {
    let vital_product_data = cdb[1] & 0x01 != 0;
    // Refuse the obsolete bit CMDDT of SPC-2.
    if cdb[1] & 0x02 != 0 {
        return Err(Sense::invalid_bit_in_cdb(1, 1));
    }
    if !vital_product_data && cdb[2] != 0 {
        return Err(Sense::invalid_field_in_cdb(2));
    }
    let page = vital_product_data.then_some(cdb[2]);
    Ok(PrimaryCommand::Inquiry { page, allocation_length: be16(cdb, 3) })
}

fn report_luns(cdb: &[u8]) -> Result<PrimaryCommand, Sense> {
    match cdb[2] {
        select_report @ 0..=2 => {
            Ok(PrimaryCommand::ReportLuns { select_report, allocation_length: be32(cdb, 6) })
        }
        _ => Err(Sense::invalid_field_in_cdb(2)),
    }
}
