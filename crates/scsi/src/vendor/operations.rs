//! Parses the CDBs of the vendor specific commands, with one table row per operation code and
//! service action.

use super::{ClaimAction, command::VendorCommand};
use crate::{
    Sense,
    field::{be16, be32},
    operation::{CdbParser, NACA, OperationCodeEntry, OperationRow, OperationTable, quick, slow},
};

impl VendorCommand {
    /// Parses the CDB of a vendor specific command. The CDB may be longer than its command
    /// requires, because iSCSI always sends 16 bytes. Returns `None` if no such command has this
    /// operation code and service action.
    ///
    /// # Errors
    /// 5/24/00 for a CDB that is too short, and for a field that requests something unsupported:
    /// ACA.
    #[must_use]
    pub fn parse_known(cdb: &[u8]) -> Option<Result<Self, Sense>> {
        TABLE.parse(cdb)
    }

    /// Returns true if `opcode` is the operation code of a vendor specific command of Forebay.
    #[must_use]
    pub fn has_opcode(opcode: u8) -> bool {
        TABLE.has_opcode(opcode)
    }

    /// Returns the vendor specific commands for REPORT SUPPORTED OPERATION CODES, ascending by
    /// operation code and service action.
    pub fn operations() -> impl Iterator<Item = &'static OperationCodeEntry> {
        TABLE.entries()
    }
}

static TABLE: OperationTable<VendorCommand> = OperationTable::new(ROWS);

pub(crate) const ROWS: &[OperationRow<VendorCommand>] = &[
    quick(&[0xc0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, NACA], |cdb| {
        Ok(VendorCommand::ClaimIn { allocation_length: be16(cdb, 7) })
    }),
    claim_out(0x00, |cdb| Ok(claim(ClaimAction::Claim, cdb))),
    claim_out(0x01, |cdb| Ok(claim(ClaimAction::Release, cdb))),
    claim_out(0x02, |cdb| Ok(claim(ClaimAction::Advance, cdb))),
    slow(&[0xc2, 0, 0, 0, 0, 0, 0, 0, 0, NACA], |_| Ok(VendorCommand::RollBack)),
    slow(&[0xc3, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, NACA], |cdb| {
        Ok(VendorCommand::TokenIn { wait_ms: be16(cdb, 3), allocation_length: be32(cdb, 5) })
    }),
    quick(&[0xc4, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, NACA], |cdb| {
        Ok(VendorCommand::TokenOut { parameter_list_length: be32(cdb, 5) })
    }),
];

/// Makes the table row of one service action of CLAIM OUT. The command may take long, because it
/// waits for tasks of other sessions and until the claim is saved.
const fn claim_out(action: u16, parse: CdbParser<VendorCommand>) -> OperationRow<VendorCommand> {
    slow(&[0xc1, 0x1f, 0, 0, 0, 0, 0, 0xff, 0xff, NACA], parse).with_service_action(action)
}

fn claim(action: ClaimAction, cdb: &[u8]) -> VendorCommand {
    VendorCommand::ClaimOut { action, parameter_list_length: be16(cdb, 7) }
}
