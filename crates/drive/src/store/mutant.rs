//! Deliberate faults (mutants). A test switches one on and must detect it. They exist only with the feature
//! `mutation`.

use std::sync::atomic::{AtomicU8, Ordering};

/// A fault that a test can switch on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum DriveMutant {
    /// The sync before the tables point to new rows and blocks is left out.
    FirstSync = 1,
    /// The sync after the tables point to new rows and blocks is left out.
    SecondSync,
    /// Blocks are used again before the change that freed them is stable.
    FreedAtOnce,
    /// FLUSH is answered before anything is stable.
    FlushAnsweredEarly,
    /// Identifiers are given out that were not reserved in stable rows.
    IdentifiersNotReserved,
    /// The superblock with the new boot epoch is not stable when the drive is open.
    SuperblockNotStable,
}

/// The deliberate fault that is switched on, if any.
#[derive(Debug, Default)]
pub struct DriveMutation(AtomicU8);

impl DriveMutation {
    /// Switches a fault on, and any other one off.
    #[cfg(feature = "mutation")]
    #[must_use]
    pub fn of(mutant: DriveMutant) -> Self {
        Self(AtomicU8::new(mutant as u8))
    }

    /// Returns true if this fault is switched on. Without the feature `mutation` no fault is.
    pub(crate) fn is(&self, mutant: DriveMutant) -> bool {
        cfg!(feature = "mutation") && self.0.load(Ordering::Relaxed) == mutant as u8
    }
}
