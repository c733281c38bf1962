//! `VendorCommand`: the vendor specific commands of Forebay. `docs/protocols.md` describes their
//! bytes.

use crate::{Cdb, vendor::ClaimAction};

/// A vendor specific command of Forebay: the fields of its CDB, without its data. The comment of
/// each variant is its row in `docs/protocols.md`: operation codes, name and purpose.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum VendorCommand {
    /// C0: CLAIM IN (ours). With `state`: reports the claim of the exclusive writer of the unit.
    ClaimIn { allocation_length: u16 },
    /// C1/00-02: CLAIM OUT: CLAIM, RELEASE, ADVANCE (ours). With `state`: claims the unit for an
    /// exclusive writer, gives the claim back, or saves the newest confirmed write of the owner's
    /// log.
    ClaimOut { action: ClaimAction, parameter_list_length: u16 },
    /// C3: TOKEN IN (ours). Returns messages from a unit to a gateway that shares the unit with
    /// other gateways.
    TokenIn {
        /// The longest wait for a message, in milliseconds.
        wait_ms: u16,
        allocation_length: u32,
    },
    /// C4: TOKEN OUT (ours). Sends requests from a gateway to a unit that it shares with other
    /// gateways.
    TokenOut { parameter_list_length: u32 },
    /// C2: ROLL BACK (ours). Discards all writes since the last SYNCHRONIZE CACHE.
    RollBack,
}

impl VendorCommand {
    /// Returns the CDB of the command, with a CONTROL byte of zero.
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

/// Encodes the CDB of TOKEN IN or TOKEN OUT.
fn token(opcode: u8, wait_ms: u16, length: u32) -> Cdb {
    let [high, low] = wait_ms.to_be_bytes();
    let [a, b, c, d] = length.to_be_bytes();
    Cdb::new(&[opcode, 0, 0, high, low, a, b, c, d, 0])
}
