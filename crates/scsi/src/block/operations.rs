//! Parses the CDBs of SBC commands, with one table row per operation code and service action.

use super::{
    BlockTransfer, ByteCheck, Form, ReadDefectData, Sanitize, StartStop, command::BlockCommand,
    transfer::unprotected,
};
use crate::{
    Sense,
    copy::cdb::parse_out,
    field::{be16, be32, be64},
    operation::{
        NACA, OperationCodeEntry, OperationRow, OperationTable, copy_out, long, moving, quick, slow,
    },
};

impl BlockCommand {
    /// Parses the CDB of a block command. The CDB may be longer than its command requires, because
    /// iSCSI always sends 16 bytes. Returns `None` if no such command has this operation code and
    /// service action.
    ///
    /// # Errors
    /// 5/24/00 for a CDB that is too short, and for a field that requests something unsupported:
    /// ACA, protection information, reserved values.
    #[must_use]
    pub fn parse_known(cdb: &[u8]) -> Option<Result<Self, Sense>> {
        TABLE.parse(cdb)
    }

    /// Returns true if `opcode` is the operation code of a block command.
    #[must_use]
    pub fn has_opcode(opcode: u8) -> bool {
        TABLE.has_opcode(opcode)
    }

    /// Returns the block commands for REPORT SUPPORTED OPERATION CODES, ascending by operation code
    /// and service action.
    pub fn operations() -> impl Iterator<Item = &'static OperationCodeEntry> {
        TABLE.entries()
    }
}

static TABLE: OperationTable<BlockCommand> = OperationTable::new(ROWS);

pub(crate) const ROWS: &[OperationRow<BlockCommand>] = &[
    moving(&[0x08, 0x1f, 0xff, 0xff, 0xff, NACA], |cdb| {
        Ok(BlockCommand::Read(BlockTransfer::parse_6(cdb)))
    }),
    moving(&[0x0a, 0x1f, 0xff, 0xff, 0xff, NACA], |cdb| {
        Ok(BlockCommand::Write(BlockTransfer::parse_6(cdb)))
    }),
    slow(&[0x1b, 0x01, 0, 0, 0xf7, NACA], |cdb| Ok(BlockCommand::StartStop(StartStop::parse(cdb)))),
    quick(&[0x1e, 0, 0, 0, 0x03, NACA], prevent_allow),
    quick(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, NACA], |_| Ok(BlockCommand::ReadCapacity10)),
    moving(&ten(0x28, 0xf8), |cdb| Ok(BlockCommand::Read(BlockTransfer::parse(cdb)?))),
    moving(&ten(0x2a, 0xf8), |cdb| Ok(BlockCommand::Write(BlockTransfer::parse(cdb)?))),
    moving(&ten(0x2e, 0xf6), write_and_verify),
    moving(&ten(0x2f, 0xf6), verify),
    slow(&ten(0x34, 0x02), pre_fetch),
    slow(&ten(0x35, 0x02), synchronize_cache),
    quick(&[0x37, 0, 0x1f, 0, 0, 0, 0, 0xff, 0xff, NACA], read_defect_data),
    slow(&ten(0x41, 0xfe), write_same),
    slow(&[0x42, 0x01, 0, 0, 0, 0, 0, 0xff, 0xff, NACA], unmap),
    long(&sanitize(0xbf), |cdb| Ok(BlockCommand::Sanitize(Sanitize::parse(cdb)?)))
        .with_service_action(0x01),
    long(&sanitize(0xbf), |cdb| Ok(BlockCommand::Sanitize(Sanitize::parse(cdb)?)))
        .with_service_action(0x02),
    slow(&sanitize(0xbf), |cdb| Ok(BlockCommand::Sanitize(Sanitize::parse(cdb)?)))
        .with_service_action(0x03),
    quick(&sanitize(0xbf), |cdb| Ok(BlockCommand::Sanitize(Sanitize::parse(cdb)?)))
        .with_service_action(0x1f),
    slow(&copy_out(0xff), |cdb| {
        let (list, parameter_list_length) = parse_out(cdb);
        Ok(BlockCommand::PopulateToken { list, parameter_list_length })
    })
    .with_service_action(0x10),
    slow(&copy_out(0xff), |cdb| {
        let (list, parameter_list_length) = parse_out(cdb);
        Ok(BlockCommand::WriteUsingToken { list, parameter_list_length })
    })
    .with_service_action(0x11),
    moving(&sixteen(0x88, 0xf8), |cdb| Ok(BlockCommand::Read(BlockTransfer::parse(cdb)?))),
    moving(&compare_and_write(), |cdb| {
        let transfer = BlockTransfer { blocks: u32::from(cdb[13]), ..BlockTransfer::parse(cdb)? };
        Ok(BlockCommand::CompareAndWrite(transfer))
    }),
    moving(&sixteen(0x8a, 0xf8), |cdb| Ok(BlockCommand::Write(BlockTransfer::parse(cdb)?))),
    moving(&sixteen(0x8b, 0xf8), |cdb| Ok(BlockCommand::OrWrite(BlockTransfer::parse(cdb)?))),
    moving(&sixteen(0x8e, 0xf6), write_and_verify),
    moving(&sixteen(0x8f, 0xf6), verify),
    slow(&sixteen(0x90, 0x02), pre_fetch),
    slow(&sixteen(0x91, 0x02), synchronize_cache),
    slow(&sixteen(0x93, 0xff), write_same),
    moving(&sixteen(0x9c, 0xf8), write_atomic),
    quick(&[0x9e, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, NACA], |cdb| {
        Ok(BlockCommand::ReadCapacity16 { allocation_length: be32(cdb, 10) })
    })
    .with_service_action(0x10),
    moving(&sixteen(0x9e, 0x1f), |cdb| {
        Ok(BlockCommand::GetLbaStatus { lba: be64(cdb, 2), allocation_length: be32(cdb, 10) })
    })
    .with_service_action(0x12),
    moving(&twelve(0xa8, 0xf8), |cdb| Ok(BlockCommand::Read(BlockTransfer::parse(cdb)?))),
    moving(&twelve(0xaa, 0xf8), |cdb| Ok(BlockCommand::Write(BlockTransfer::parse(cdb)?))),
    moving(&twelve(0xae, 0xf6), write_and_verify),
    moving(&twelve(0xaf, 0xf6), verify),
    quick(&twelve(0xb7, 0x1f), read_defect_data),
];

/// Returns the CDB usage data of a 10-byte CDB with LBA and transfer length. `flags` holds the bits
/// of byte 1 that the parser evaluates.
const fn ten(opcode: u8, flags: u8) -> [u8; 10] {
    [opcode, flags, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, NACA]
}

/// Returns the CDB usage data of a 12-byte CDB with LBA and transfer length. `flags` holds the bits
/// of byte 1 that the parser evaluates.
const fn twelve(opcode: u8, flags: u8) -> [u8; 12] {
    [opcode, flags, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, NACA]
}

/// Returns the CDB usage data of a 16-byte CDB with LBA and transfer length. `flags` holds the bits
/// of byte 1 that the parser evaluates.
const fn sixteen(opcode: u8, flags: u8) -> [u8; 16] {
    let f = 0xff;
    [opcode, flags, f, f, f, f, f, f, f, f, f, f, f, f, 0, NACA]
}

/// Returns the CDB usage data of COMPARE AND WRITE, whose length field is one byte.
const fn compare_and_write() -> [u8; 16] {
    let mut usage = sixteen(0x89, 0xf8);
    (usage[10], usage[11], usage[12]) = (0, 0, 0);
    usage
}

/// Returns the CDB usage data of SANITIZE. It has zeros for the reserved bytes, although the parser
/// checks them: it refuses a CDB in which one of them is not zero.
const fn sanitize(flags: u8) -> [u8; 10] {
    [0x48, flags, 0, 0, 0, 0, 0, 0xff, 0xff, NACA]
}

// The functions below parse a CDB that has exactly the length of the command.

fn prevent_allow(cdb: &[u8]) -> Result<BlockCommand, Sense> {
    match cdb[4] & 0x03 {
        prevent @ 0..=1 => Ok(BlockCommand::PreventAllow { prevent: prevent == 1 }),
        // The PREVENT values 10b and 11b were for medium changers and are obsolete.
        _ => Err(Sense::invalid_bit_in_cdb(4, 1)),
    }
}

fn verify(cdb: &[u8]) -> Result<BlockCommand, Sense> {
    let (transfer, byte_check) = BlockTransfer::parse_checked(cdb)?;
    Ok(BlockCommand::Verify { transfer, byte_check })
}

fn write_and_verify(cdb: &[u8]) -> Result<BlockCommand, Sense> {
    let (transfer, byte_check) = BlockTransfer::parse_checked(cdb)?;
    if byte_check == ByteCheck::Block {
        return Err(Sense::invalid_bit_in_cdb(1, 2));
    }
    Ok(BlockCommand::WriteAndVerify { transfer, byte_check })
}

fn synchronize_cache(cdb: &[u8]) -> Result<BlockCommand, Sense> {
    Ok(BlockCommand::SynchronizeCache {
        transfer: BlockTransfer::parse_plain(cdb),
        immediate: cdb[1] & 0x02 != 0,
    })
}

fn pre_fetch(cdb: &[u8]) -> Result<BlockCommand, Sense> {
    Ok(BlockCommand::PreFetch {
        transfer: BlockTransfer::parse_plain(cdb),
        immediate: cdb[1] & 0x02 != 0,
    })
}

fn write_atomic(cdb: &[u8]) -> Result<BlockCommand, Sense> {
    let blocks = u32::from(be16(cdb, 12));
    let transfer = BlockTransfer { blocks, form: Form::Sixteen, ..BlockTransfer::parse(cdb)? };
    Ok(BlockCommand::WriteAtomic { transfer, boundary: be16(cdb, 10) })
}

fn read_defect_data(cdb: &[u8]) -> Result<BlockCommand, Sense> {
    Ok(BlockCommand::ReadDefectData(ReadDefectData::parse(cdb)))
}

fn write_same(cdb: &[u8]) -> Result<BlockCommand, Sense> {
    unprotected(cdb)?;
    // Refuse PBDATA and LBDATA of older standards: with these bits, the unit would write the number
    // of each block into its first bytes.
    if cdb[1] & 0x06 != 0 {
        return Err(Sense::invalid_bit_in_cdb(1, 2));
    }
    let (anchor, unmap) = (cdb[1] & 0x10 != 0, cdb[1] & 0x08 != 0);
    if anchor && !unmap {
        return Err(Sense::invalid_bit_in_cdb(1, 4));
    }
    let no_data_out = cdb.len() == 16 && cdb[1] & 0x01 != 0;
    Ok(BlockCommand::WriteSame {
        transfer: BlockTransfer::parse_plain(cdb),
        unmap,
        anchor,
        no_data_out,
    })
}

fn unmap(cdb: &[u8]) -> Result<BlockCommand, Sense> {
    Ok(BlockCommand::Unmap { anchor: cdb[1] & 0x01 != 0, parameter_list_length: be16(cdb, 7) })
}
