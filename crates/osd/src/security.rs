//! Proofs that a command was permitted by the drive's owner (OSD-2, 4.11; NASD).
//!
//! A manager and the drive share keys. The manager signs a [`Capability`](crate::Capability) with a
//! key, which gives the *capability key*, and hands both to the client. The client proves with the
//! capability key that it has the capability. The drive computes the capability key from the
//! capability in the CDB, and needs to know nothing about the client.
//!
//! | method | the client proves | the drive detects |
//! |--------|-------------------|-------------------|
//! | NOSEC | nothing | nothing |
//! | CAPKEY | that it has the capability key, once for each session | a stolen capability |
//! | CMDRSP | the CDB | altered and repeated commands; the client: altered statuses |
//! | ALLDATA | the CDB and the data | altered data, in both directions |
//!
//! The T10 text leaves the formats below to the reader in places. Our definitions are on the page
//! `docs/protocols.md`, "Objects".

mod mac;
mod key;
mod master_key;
mod nonce;
mod request;
mod response;
mod data_integrity;
mod level;

pub use data_integrity::{
    DATA_IN_INTEGRITY_BYTES, DATA_OUT_INTEGRITY_BYTES, DataInIntegrity, DataOutIntegrity,
};
pub use key::{KEY_BYTES, Key, KeyPair, SEED_BYTES};
pub use level::SigningKey;
pub use mac::{Algorithm, CODE_BYTES, IntegrityCheckValue, Mac};
pub use master_key::{MasterKeyError, parse_master_key};
pub use nonce::{NONCE_BYTES, Nonce};
pub use request::{CapabilityKey, SYSTEM_ID_BYTES, SystemId};
pub use response::{response_of_page, response_of_sense, response_of_zeroed_sense};

/// SECURITY METHOD. A later method protects more than an earlier one.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[repr(u8)]
pub enum SecurityMethod {
    NoSec = 0,
    CapKey = 1,
    CmdRsp = 2,
    AllData = 3,
}

impl SecurityMethod {
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::NoSec,
            1 => Self::CapKey,
            2 => Self::CmdRsp,
            3 => Self::AllData,
            _ => return None,
        })
    }
}
