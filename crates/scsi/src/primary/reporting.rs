//! The commands that REPORT SUPPORTED OPERATION CODES asks about (SPC-4, 6.35).

use crate::{Sense, field::be16};

/// The field REPORTING OPTIONS, with the command that it selects (SPC-4, table 277).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reporting {
    /// 000b: all commands of the unit.
    All,
    /// 001b: report the command with this operation code, which has no service actions.
    OperationCode(u8),
    /// 010b: report the command with this operation code and service action.
    ServiceAction(u8, u16),
    /// 011b: the command with this operation code and service action; the service action is 0 if
    /// the command has none.
    Either(u8, u16),
}

impl Reporting {
    /// Returns the values of the CDB fields REPORTING OPTIONS, operation code and service action.
    pub(crate) const fn fields(self) -> (u8, u8, u16) {
        match self {
            Self::All => (0, 0, 0),
            Self::OperationCode(opcode) => (1, opcode, 0),
            Self::ServiceAction(opcode, action) => (2, opcode, action),
            Self::Either(opcode, action) => (3, opcode, action),
        }
    }

    pub(crate) fn parse(cdb: &[u8]) -> Result<Self, Sense> {
        let (opcode, action) = (cdb[3], be16(cdb, 4));
        Ok(match cdb[2] & 0x07 {
            0 => Self::All,
            1 => Self::OperationCode(opcode),
            2 => Self::ServiceAction(opcode, action),
            3 => Self::Either(opcode, action),
            _ => return Err(Sense::invalid_bit_in_cdb(2, 2)),
        })
    }
}
