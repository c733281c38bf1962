//! A drive of objects (T10 OSD-2): it checks each command against a capability.
//!
//! | module | contents |
//! |--------|----------|
//! | `backing` | what the other modules need of the store |
//! | `security` | keys, nonces, the drive's clock, the check of a command |

mod backing;
pub mod security;
#[cfg(test)]
mod testing;

pub use backing::{DriveBacking, GuardFacts};
