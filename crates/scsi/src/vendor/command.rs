//! The commands that only Forebay has. `docs/protocols.md` has their bytes.

use crate::{Cdb, vendor::ClaimAction};

/// A vendor specific command of Forebay: what its CDB says, nothing about its data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum VendorCommand {
    /// CLAIM IN: reports the claim of the exclusive writer of the unit.
    ClaimIn {
        /// At most this many bytes come back.
        allocation_length: u16,
    },
    /// CLAIM OUT: claims the unit for an exclusive writer, gives the claim back, or saves how far its log is confirmed.
    ClaimOut {
        /// What becomes of the claim.
        action: ClaimAction,
        /// Bytes of parameter list that come with it.
        parameter_list_length: u16,
    },
    /// TOKEN IN: returns messages of the unit for a gateway that shares it with others.
    TokenIn {
        /// How long to wait for a message, in milliseconds.
        wait_ms: u16,
        /// At most this many bytes come back.
        allocation_length: u32,
    },
    /// TOKEN OUT: requests of a gateway to a unit that it shares with others.
    TokenOut {
        /// Bytes of parameter list that come with it.
        parameter_list_length: u32,
    },
    /// ROLL BACK: gives up all writes that no SYNCHRONIZE CACHE has followed.
    RollBack,
}

impl VendorCommand {
    /// The command's CDB, CONTROL byte zero.
    #[must_use]
    pub fn encode(&self) -> Cdb {
        match *self {
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
        }
    }
}

/// TOKEN IN and TOKEN OUT.
fn token(opcode: u8, wait_ms: u16, length: u32) -> Cdb {
    let [high, low] = wait_ms.to_be_bytes();
    let [a, b, c, d] = length.to_be_bytes();
    Cdb::new(&[opcode, 0, 0, high, low, a, b, c, d, 0])
}
