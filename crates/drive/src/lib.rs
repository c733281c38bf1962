//! A drive of objects (T10 OSD-2): it checks each command against a capability.
//!
//! | module | contents |
//! |--------|----------|
//! | `backing` | what the other modules need of the store |
//! | `security` | keys, nonces, the drive's clock, the check of a command |
//! | `unit` | the logical unit of type 11h: CDBs, lists, answers |

mod backing;
pub mod security;
pub mod unit;
#[cfg(test)]
mod testing;

pub use self::unit::{ListLimits, ObjectUnit};
pub use backing::{DriveBacking, GuardFacts};
