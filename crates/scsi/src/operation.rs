//! The operation codes we know: one table that reads CDBs and answers REPORT SUPPORTED OPERATION
//! CODES, so that what is reported is what is served.

use crate::{
    BlockTransfer, ByteCheck, ClaimAction, Command, Form, IdentifyingType, LogSelect, LogSense,
    ModeSelect, ModeSense, PersistentReserveIn, PersistentReserveOut, ReadDefectData,
    ReportTargetPortGroups, Reporting, Sanitize, Sense, StartStop,
    block::unprotected,
    copy::{CopyResults, cdb::parse_out},
    field::{be16, be32, be64},
    persistent::{ReservationType, ReserveAction, ReserveReport},
    primary::identifying,
};

/// One command of the table.
#[derive(Debug)]
pub struct OperationCodeEntry {
    /// Byte 0 of the CDB.
    pub opcode: u8,
    /// The service action in bits 4-0 of byte 1, for the opcodes that have some.
    pub service_action: Option<u16>,
    /// How long it takes as a rule, in seconds.
    pub nominal_s: u32,
    /// How long to wait before giving up, in seconds: an initiator's time-out.
    pub recommended_s: u32,
    /// Only the first `length` bytes count.
    usage: [u8; 16],
    length: u8,
    parse: fn(&[u8]) -> Result<Command, Sense>,
}

impl Command {
    /// What a CDB asks for. A CDB longer than the command's (iSCSI always sends 16 bytes) is fine.
    ///
    /// # Errors
    /// 5/20/00 for what is not in [`OPERATIONS`], 5/24/00 for an unknown service action of what is,
    /// or a field that asks for what nobody
    /// here has: protection information, ACA, reserved values.
    pub fn parse(cdb: &[u8]) -> Result<Self, Sense> {
        let opcode = *cdb.first().ok_or(Sense::INVALID_COMMAND_OPERATION_CODE)?;
        let first = usize::from(FIRST[usize::from(opcode)]);
        let mut operation = OPERATIONS.get(first).ok_or(Sense::INVALID_COMMAND_OPERATION_CODE)?;
        if operation.service_action.is_some() {
            let asked = cdb.get(1).map(|byte| u16::from(byte & 0x1f));
            // The operation code is known, its service action is not (SPC-4, 4.2.5.2).
            operation =
                OperationCodeEntry::find(opcode, asked).ok_or(Sense::invalid_bit_in_cdb(1, 4))?;
        }
        let length = usize::from(operation.length);
        let Some(cdb) = cdb.get(..length) else {
            return Err(Sense::invalid_field_in_cdb(cdb.len() as u16));
        };
        // NACA: auto contingent allegiance, which standard INQUIRY data denies (NORMACA=0).
        if cdb[length - 1] & NACA != 0 {
            return Err(Sense::invalid_bit_in_cdb(length as u16 - 1, 2));
        }
        (operation.parse)(cdb)
    }
}

impl OperationCodeEntry {
    /// The command that these two name.
    #[must_use]
    pub fn find(opcode: u8, service_action: Option<u16>) -> Option<&'static Self> {
        OPERATIONS.iter().find(|o| o.opcode == opcode && o.service_action == service_action)
    }

    /// CDB usage data (SPC-4, 6.35.3): the opcode, then a one for every bit that is looked at; as
    /// long as the CDB.
    #[must_use]
    pub fn usage(&self) -> &[u8] {
        &self.usage[..usize::from(self.length)]
    }
}

/// Every command that [`Command::parse`] takes, by opcode.
pub static OPERATIONS: &[OperationCodeEntry] = TABLE;

const TABLE: &[OperationCodeEntry] = &[
    quick(&[0x00, 0, 0, 0, 0, NACA], |_| Ok(Command::TestUnitReady)),
    quick(&[0x03, 0x01, 0, 0, 0xff, NACA], request_sense),
    moving(&[0x08, 0x1f, 0xff, 0xff, 0xff, NACA], |cdb| {
        Ok(Command::Read(BlockTransfer::parse_6(cdb)))
    }),
    moving(&[0x0a, 0x1f, 0xff, 0xff, 0xff, NACA], |cdb| {
        Ok(Command::Write(BlockTransfer::parse_6(cdb)))
    }),
    quick(&[0x12, 0x03, 0xff, 0xff, 0xff, NACA], inquiry),
    quick(&[0x15, 0x13, 0, 0, 0xff, NACA], |cdb| Ok(Command::ModeSelect(ModeSelect::parse(cdb)))),
    quick(&[0x16, 0x11, 0, 0, 0, NACA], |cdb| whole_unit(cdb, Command::Reserve { ten: false })),
    quick(&[0x17, 0x11, 0, 0, 0, NACA], |cdb| whole_unit(cdb, Command::Release { ten: false })),
    quick(&[0x1a, 0x08, 0xff, 0xff, 0xff, NACA], |cdb| {
        Ok(Command::ModeSense(ModeSense::parse(cdb)))
    }),
    slow(&[0x1b, 0x01, 0, 0, 0xf7, NACA], |cdb| Ok(Command::StartStop(StartStop::parse(cdb)))),
    quick(&[0x1e, 0, 0, 0, 0x03, NACA], prevent_allow),
    quick(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, NACA], |_| Ok(Command::ReadCapacity10)),
    moving(&ten(0x28, 0xf8), |cdb| Ok(Command::Read(BlockTransfer::parse(cdb)?))),
    moving(&ten(0x2a, 0xf8), |cdb| Ok(Command::Write(BlockTransfer::parse(cdb)?))),
    moving(&ten(0x2e, 0xf6), write_and_verify),
    moving(&ten(0x2f, 0xf6), verify),
    slow(&ten(0x34, 0x02), pre_fetch),
    slow(&ten(0x35, 0x02), synchronize_cache),
    quick(&[0x37, 0, 0x1f, 0, 0, 0, 0, 0xff, 0xff, NACA], read_defect_data),
    slow(&ten(0x41, 0xfe), write_same),
    slow(&[0x42, 0x01, 0, 0, 0, 0, 0, 0xff, 0xff, NACA], unmap),
    long(&sanitize(0xbf), |cdb| Ok(Command::Sanitize(Sanitize::parse(cdb)?)))
        .with_service_action(0x01),
    long(&sanitize(0xbf), |cdb| Ok(Command::Sanitize(Sanitize::parse(cdb)?)))
        .with_service_action(0x02),
    slow(&sanitize(0xbf), |cdb| Ok(Command::Sanitize(Sanitize::parse(cdb)?)))
        .with_service_action(0x03),
    quick(&sanitize(0xbf), |cdb| Ok(Command::Sanitize(Sanitize::parse(cdb)?)))
        .with_service_action(0x1f),
    quick(&[0x4c, 0x03, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, NACA], |cdb| {
        Ok(Command::LogSelect(LogSelect::parse(cdb)))
    }),
    quick(&[0x4d, 0x01, 0xff, 0xff, 0, 0xff, 0xff, 0xff, 0xff, NACA], |cdb| {
        Ok(Command::LogSense(LogSense::parse(cdb)))
    }),
    quick(&[0x55, 0x13, 0, 0, 0, 0, 0, 0xff, 0xff, NACA], |cdb| {
        Ok(Command::ModeSelect(ModeSelect::parse(cdb)))
    }),
    quick(&[0x56, 0x13, 0, 0, 0, 0, 0, 0, 0, NACA], |cdb| {
        whole_unit(cdb, Command::Reserve { ten: true })
    }),
    quick(&[0x57, 0x13, 0, 0, 0, 0, 0, 0, 0, NACA], |cdb| {
        whole_unit(cdb, Command::Release { ten: true })
    }),
    quick(&[0x5a, 0x18, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, NACA], |cdb| {
        Ok(Command::ModeSense(ModeSense::parse(cdb)))
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
        Ok(Command::ExtendedCopy { long: false, parameter_list_length: parse_out(cdb).1 })
    })
    .with_service_action(0x00),
    slow(&copy_out(0), |cdb| {
        Ok(Command::ExtendedCopy { long: true, parameter_list_length: parse_out(cdb).1 })
    })
    .with_service_action(0x01),
    slow(&copy_out(0xff), |cdb| {
        let (list, parameter_list_length) = parse_out(cdb);
        Ok(Command::PopulateToken { list, parameter_list_length })
    })
    .with_service_action(0x10),
    slow(&copy_out(0xff), |cdb| {
        let (list, parameter_list_length) = parse_out(cdb);
        Ok(Command::WriteUsingToken { list, parameter_list_length })
    })
    .with_service_action(0x11),
    quick(&[0x83, 0x1f, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, NACA], |cdb| {
        Ok(Command::CopyOperationAbort { list: be32(cdb, 2) })
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
    moving(&sixteen(0x88, 0xf8), |cdb| Ok(Command::Read(BlockTransfer::parse(cdb)?))),
    moving(&compare_and_write(), |cdb| {
        let transfer = BlockTransfer { blocks: u32::from(cdb[13]), ..BlockTransfer::parse(cdb)? };
        Ok(Command::CompareAndWrite(transfer))
    }),
    moving(&sixteen(0x8a, 0xf8), |cdb| Ok(Command::Write(BlockTransfer::parse(cdb)?))),
    moving(&sixteen(0x8b, 0xf8), |cdb| Ok(Command::OrWrite(BlockTransfer::parse(cdb)?))),
    moving(&sixteen(0x8e, 0xf6), write_and_verify),
    moving(&sixteen(0x8f, 0xf6), verify),
    slow(&sixteen(0x90, 0x02), pre_fetch),
    slow(&sixteen(0x91, 0x02), synchronize_cache),
    slow(&sixteen(0x93, 0xff), write_same),
    moving(&sixteen(0x9c, 0xf8), write_atomic),
    quick(&[0x9e, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, NACA], |cdb| {
        Ok(Command::ReadCapacity16 { allocation_length: be32(cdb, 10) })
    })
    .with_service_action(0x10),
    moving(&sixteen(0x9e, 0x1f), |cdb| {
        Ok(Command::GetLbaStatus { lba: be64(cdb, 2), allocation_length: be32(cdb, 10) })
    })
    .with_service_action(0x12),
    quick(&[0xa0, 0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, NACA], report_luns),
    quick(&maintenance(0xa3, 0xfe), |cdb| {
        let kind = match cdb[10] >> 1 {
            identifying::SUPPORTED => None,
            _ => Some(IdentifyingType::parse(cdb)?),
        };
        Ok(Command::ReportIdentifying { kind, allocation_length: be32(cdb, 6) })
    })
    .with_service_action(0x05),
    quick(&[0xa3, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, NACA], |cdb| {
        Ok(Command::ReportTargetPortGroups(ReportTargetPortGroups::parse(cdb)?))
    })
    .with_service_action(0x0a),
    quick(&[0xa3, 0x1f, 0x87, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, NACA], |cdb| {
        Ok(Command::ReportSupportedOperationCodes {
            reporting: Reporting::parse(cdb)?,
            timeouts: cdb[2] & 0x80 != 0,
            allocation_length: be32(cdb, 6),
        })
    })
    .with_service_action(0x0c),
    quick(&[0xa3, 0x1f, 0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, NACA], |cdb| {
        Ok(Command::ReportTaskFunctions {
            extended: cdb[2] & 0x80 != 0,
            allocation_length: be32(cdb, 6),
        })
    })
    .with_service_action(0x0d),
    quick(&maintenance(0xa3, 0), |cdb| {
        Ok(Command::ReportTimestamp { allocation_length: be32(cdb, 6) })
    })
    .with_service_action(0x0f),
    slow(&maintenance(0xa4, 0xfe), set_identifying).with_service_action(0x06),
    quick(&maintenance(0xa4, 0), |cdb| {
        Ok(Command::SetTargetPortGroups { parameter_list_length: be32(cdb, 6) })
    })
    .with_service_action(0x0a),
    quick(&maintenance(0xa4, 0), |cdb| {
        Ok(Command::SetTimestamp { parameter_list_length: be32(cdb, 6) })
    })
    .with_service_action(0x0f),
    moving(&twelve(0xa8, 0xf8), |cdb| Ok(Command::Read(BlockTransfer::parse(cdb)?))),
    moving(&twelve(0xaa, 0xf8), |cdb| Ok(Command::Write(BlockTransfer::parse(cdb)?))),
    moving(&twelve(0xae, 0xf6), write_and_verify),
    moving(&twelve(0xaf, 0xf6), verify),
    quick(&twelve(0xb7, 0x1f), read_defect_data),
    quick(&[0xc0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, NACA], |cdb| {
        Ok(Command::ClaimIn { allocation_length: be16(cdb, 7) })
    }),
    claim_out(0x00, |cdb| Ok(claim(ClaimAction::Claim, cdb))),
    claim_out(0x01, |cdb| Ok(claim(ClaimAction::Release, cdb))),
    claim_out(0x02, |cdb| Ok(claim(ClaimAction::Advance, cdb))),
    slow(&[0xc2, 0, 0, 0, 0, 0, 0, 0, 0, NACA], |_| Ok(Command::RollBack)),
    slow(&[0xc3, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, NACA], |cdb| {
        Ok(Command::TokenIn { wait_ms: be16(cdb, 3), allocation_length: be32(cdb, 5) })
    }),
    quick(&[0xc4, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, NACA], |cdb| {
        Ok(Command::TokenOut { parameter_list_length: be32(cdb, 5) })
    }),
];

/// For every opcode where its rows begin in the table; the table's length for the rest.
static FIRST: [u8; 256] = {
    let mut first = [TABLE.len() as u8; 256];
    let mut row = TABLE.len();
    while row > 0 {
        row -= 1;
        first[TABLE[row].opcode as usize] = row as u8;
    }
    first
};

/// The bit of the CONTROL byte that asks for auto contingent allegiance (SAM-5, 5.2).
const NACA: u8 = 0x04;

type Parse = fn(&[u8]) -> Result<Command, Sense>;

/// A row whose command touches no block: nominally done at once; 10 s is what the Linux initiator
/// gives its inquiries.
const fn quick(usage: &[u8], parse: Parse) -> OperationCodeEntry {
    row(usage, 1, 10, parse)
}

/// A row of PERSISTENT RESERVE IN.
const fn reserve_in(action: u16, parse: Parse) -> OperationCodeEntry {
    quick(&[0x5e, 0x1f, 0, 0, 0, 0, 0, 0xff, 0xff, NACA], parse).with_service_action(action)
}

/// A row of PERSISTENT RESERVE OUT; `kind`: the bits of scope and type, if they are looked at. It
/// may have to wait for tasks that are aborted, and for what is saved.
const fn reserve_out(action: u16, kind: u8, parse: Parse) -> OperationCodeEntry {
    slow(&[0x5f, 0x1f, kind, 0, 0, 0xff, 0xff, 0xff, 0xff, NACA], parse).with_service_action(action)
}

/// A row of CLAIM OUT, which waits for tasks of others and for what is saved.
const fn claim_out(action: u16, parse: Parse) -> OperationCodeEntry {
    slow(&[0xc1, 0x1f, 0, 0, 0, 0, 0, 0xff, 0xff, NACA], parse).with_service_action(action)
}

/// A row whose command moves blocks: 30 s is the SCSI disk time-out of Linux.
const fn moving(usage: &[u8], parse: Parse) -> OperationCodeEntry {
    row(usage, 1, 30, parse)
}

/// A row whose command may have much to do below: 60 s is Linux's time-out for a flush.
const fn slow(usage: &[u8], parse: Parse) -> OperationCodeEntry {
    row(usage, 5, 60, parse)
}

/// A row whose command goes through the whole unit when it does not answer at once (IMMED).
const fn long(usage: &[u8], parse: Parse) -> OperationCodeEntry {
    row(usage, 60, 24 * 3600, parse)
}

const fn row(bytes: &[u8], nominal_s: u32, recommended_s: u32, parse: Parse) -> OperationCodeEntry {
    let mut usage = [0; 16];
    let mut at = 0;
    while at < bytes.len() {
        usage[at] = bytes[at];
        at += 1;
    }
    let length = bytes.len() as u8;
    OperationCodeEntry {
        opcode: bytes[0],
        service_action: None,
        nominal_s,
        recommended_s,
        usage,
        length,
        parse,
    }
}

impl OperationCodeEntry {
    const fn with_service_action(mut self, action: u16) -> Self {
        self.service_action = Some(action);
        self
    }
}

/// Usage data of a 10-byte CDB with LBA and transfer length.
const fn ten(opcode: u8, flags: u8) -> [u8; 10] {
    [opcode, flags, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, NACA]
}

/// Usage data of a 12-byte CDB with LBA and transfer length.
const fn twelve(opcode: u8, flags: u8) -> [u8; 12] {
    [opcode, flags, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, NACA]
}

/// Usage data of a 16-byte CDB with LBA and transfer length.
const fn sixteen(opcode: u8, flags: u8) -> [u8; 16] {
    let f = 0xff;
    [opcode, flags, f, f, f, f, f, f, f, f, f, f, f, f, 0, NACA]
}

/// Usage data of COMPARE AND WRITE, whose length is one byte.
const fn compare_and_write() -> [u8; 16] {
    let mut usage = sixteen(0x89, 0xf8);
    (usage[10], usage[11], usage[12]) = (0, 0, 0);
    usage
}

/// Usage data of SANITIZE. Reserved bytes are looked at, but nothing may be in them.
const fn sanitize(flags: u8) -> [u8; 10] {
    [0x48, flags, 0, 0, 0, 0, 0, 0xff, 0xff, NACA]
}

/// Usage data of THIRD-PARTY COPY OUT; `list`: 0xff with a list identifier.
const fn copy_out(list: u8) -> [u8; 16] {
    let f = 0xff;
    [0x83, 0x1f, 0, 0, 0, 0, list, list, list, list, f, f, f, f, 0, NACA]
}

/// Usage data of THIRD-PARTY COPY IN; a list identifier of one byte, and of three more.
const fn copy_in(first: u8, more: u8) -> [u8; 16] {
    let f = 0xff;
    [0x84, 0x1f, first, more, more, more, 0, 0, 0, 0, f, f, f, f, 0, NACA]
}

/// Usage data of MAINTENANCE IN and OUT with a length; `kind`: the bits of byte 10.
const fn maintenance(opcode: u8, kind: u8) -> [u8; 12] {
    [opcode, 0x1f, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, kind, NACA]
}

// The parsers below get a CDB of exactly its command's length.

fn reported(report: ReserveReport, cdb: &[u8]) -> Result<Command, Sense> {
    Ok(Command::PersistentReserveIn(PersistentReserveIn::parse(report, cdb)))
}

fn untyped(action: ReserveAction, cdb: &[u8]) -> Result<Command, Sense> {
    Ok(Command::PersistentReserveOut(PersistentReserveOut::parse(action, cdb)))
}

fn typed(action: fn(ReservationType) -> ReserveAction, cdb: &[u8]) -> Result<Command, Sense> {
    Ok(Command::PersistentReserveOut(PersistentReserveOut::parse_typed(action, cdb)?))
}

/// RESERVE or RELEASE without what SPC-2 made obsolete: extents, reservations for third parties.
fn whole_unit(cdb: &[u8], command: Command) -> Result<Command, Sense> {
    let asked = cdb[1] & if cdb.len() == 10 { 0x13 } else { 0x11 };
    if asked == 0 { Ok(command) } else { Err(Sense::invalid_field_in_cdb(1)) }
}

fn claim(action: ClaimAction, cdb: &[u8]) -> Command {
    Command::ClaimOut { action, parameter_list_length: be16(cdb, 7) }
}

fn prevent_allow(cdb: &[u8]) -> Result<Command, Sense> {
    match cdb[4] & 0x03 {
        prevent @ 0..=1 => Ok(Command::PreventAllow { prevent: prevent == 1 }),
        // 10b and 11b are obsolete: a changer's.
        _ => Err(Sense::invalid_bit_in_cdb(4, 1)),
    }
}

fn verify(cdb: &[u8]) -> Result<Command, Sense> {
    let (transfer, byte_check) = BlockTransfer::parse_checked(cdb)?;
    Ok(Command::Verify { transfer, byte_check })
}

fn write_and_verify(cdb: &[u8]) -> Result<Command, Sense> {
    let (transfer, byte_check) = BlockTransfer::parse_checked(cdb)?;
    if byte_check == ByteCheck::Block {
        return Err(Sense::invalid_bit_in_cdb(1, 2));
    }
    Ok(Command::WriteAndVerify { transfer, byte_check })
}

fn synchronize_cache(cdb: &[u8]) -> Result<Command, Sense> {
    Ok(Command::SynchronizeCache {
        transfer: BlockTransfer::parse_plain(cdb),
        immediate: cdb[1] & 0x02 != 0,
    })
}

fn pre_fetch(cdb: &[u8]) -> Result<Command, Sense> {
    Ok(Command::PreFetch {
        transfer: BlockTransfer::parse_plain(cdb),
        immediate: cdb[1] & 0x02 != 0,
    })
}

fn write_atomic(cdb: &[u8]) -> Result<Command, Sense> {
    let blocks = u32::from(be16(cdb, 12));
    let transfer = BlockTransfer { blocks, form: Form::Sixteen, ..BlockTransfer::parse(cdb)? };
    Ok(Command::WriteAtomic { transfer, boundary: be16(cdb, 10) })
}

fn read_defect_data(cdb: &[u8]) -> Result<Command, Sense> {
    Ok(Command::ReadDefectData(ReadDefectData::parse(cdb)))
}

fn copy_results(results: CopyResults, cdb: &[u8]) -> Result<Command, Sense> {
    Ok(Command::ReceiveCopyResults { results, allocation_length: be32(cdb, 10) })
}

fn write_same(cdb: &[u8]) -> Result<Command, Sense> {
    unprotected(cdb)?;
    // PBDATA and LBDATA of older standards: blocks that differ in their first bytes.
    if cdb[1] & 0x06 != 0 {
        return Err(Sense::invalid_bit_in_cdb(1, 2));
    }
    let (anchor, unmap) = (cdb[1] & 0x10 != 0, cdb[1] & 0x08 != 0);
    if anchor && !unmap {
        return Err(Sense::invalid_bit_in_cdb(1, 4));
    }
    let no_data_out = cdb.len() == 16 && cdb[1] & 0x01 != 0;
    Ok(Command::WriteSame { transfer: BlockTransfer::parse_plain(cdb), unmap, anchor, no_data_out })
}

fn unmap(cdb: &[u8]) -> Result<Command, Sense> {
    Ok(Command::Unmap { anchor: cdb[1] & 0x01 != 0, parameter_list_length: be16(cdb, 7) })
}

fn set_identifying(cdb: &[u8]) -> Result<Command, Sense> {
    let (kind, parameter_list_length) = (IdentifyingType::parse(cdb)?, be32(cdb, 6));
    if parameter_list_length > u32::from(kind.most()) {
        return Err(Sense::invalid_field_in_cdb(6));
    }
    Ok(Command::SetIdentifying { kind, parameter_list_length })
}

fn request_sense(cdb: &[u8]) -> Result<Command, Sense> {
    Ok(Command::RequestSense { descriptor_format: cdb[1] & 0x01 != 0, allocation_length: cdb[4] })
}

fn inquiry(cdb: &[u8]) -> Result<Command, Sense> {
    let vital_product_data = cdb[1] & 0x01 != 0;
    // CMDDT of SPC-2.
    if cdb[1] & 0x02 != 0 {
        return Err(Sense::invalid_bit_in_cdb(1, 1));
    }
    if !vital_product_data && cdb[2] != 0 {
        return Err(Sense::invalid_field_in_cdb(2));
    }
    let page = vital_product_data.then_some(cdb[2]);
    Ok(Command::Inquiry { page, allocation_length: be16(cdb, 3) })
}

fn report_luns(cdb: &[u8]) -> Result<Command, Sense> {
    match cdb[2] {
        select_report @ 0..=2 => {
            Ok(Command::ReportLuns { select_report, allocation_length: be32(cdb, 6) })
        }
        _ => Err(Sense::invalid_field_in_cdb(2)),
    }
}
