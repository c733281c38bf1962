//! Checks every command against its capability, with the drive's keys, nonces and clock.
//!
//! A command is checked in four steps. A command that one step refuses causes no cost of the next:
//!
//! 1. [`Security::prove`]: the method suffices, and the client has the capability key.
//! 2. [`Security::judge`]: the capability is valid now, and permits this command on this object.
//! 3. When the data has come, [`Security::check_lists`] and [`Security::check_continuation`]: the
//!    capability permits the attributes lists and the ranges in the data.
//! 4. [`Security::use_nonce`]: the command was not performed before.
//!
//! Steps 1 and 2 are made before the drive asks for the command's data, and again when the data has come: step 1 only
//! if keys have changed in between.

mod clock;
mod nonces;
mod sealed;
mod key_records;
mod key_store;
mod replacing;
mod capability_keys;
mod work;
mod refused;
mod lists;
mod check;

pub use check::{Proof, Security, SecuritySettings, SignedProof, guarded_object};
pub use clock::{DriveClock, HostTime, TimeSource};
pub use key_store::{FROZEN_AUDITS, FROZEN_KEYS, KeyStore, KeyStoreError, SetKeyError};
pub use nonces::{KeySlot, NonceTable, NonceWindow};
pub use refused::{Refused, RefusedCounters, RefusedReason};
pub use replacing::replace_master_key;
pub use work::{WorkGate, WorkPass};
