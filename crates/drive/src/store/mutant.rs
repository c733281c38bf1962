//! Deliberate faults (mutants). A test switches one on and must detect it. They exist only with the feature
//! `mutation`.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// A fault that a test can switch on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum DriveMutant {
    /// The sync before the tables point to new rows and blocks is left out: these may not be stable then.
    FirstSync = 1,
    /// The sync after the tables point to new rows and blocks is left out: the commit may end before they are stable.
    SecondSync,
    /// Blocks are used again before the change that freed them is stable.
    FreedAtOnce,
    /// FLUSH is answered before a commit has made the changes stable.
    FlushAnsweredEarly,
    /// Identifiers are assigned that no stable row has reserved, so that a crash could assign them again.
    IdentifiersNotReserved,
    /// The superblock with the new boot epoch is not stable when the drive opens.
    SuperblockNotStable,
    /// The flush after a record of the log is left out.
    LogSync,
    /// A start does not check that the data of the last record of the log is there.
    DataUnchecked,
    /// A fold leaves the generation of the log as it is.
    GenerationNotAdvanced,
}

/// The deliberate fault that a test has switched on, if any.
#[derive(Debug, Default)]
pub struct DriveMutation {
    mutant: AtomicU8,
    /// The number of records after which the log is folded; zero: when it is full.
    records: AtomicU64,
}

impl DriveMutation {
    /// Switches this fault on, and any other fault off.
    #[cfg(feature = "mutation")]
    #[must_use]
    pub fn of(mutant: DriveMutant) -> Self {
        Self { mutant: AtomicU8::new(mutant as u8), ..Self::default() }
    }

    /// Folds the log after this many records, so that a short test has many folds.
    #[cfg(feature = "mutation")]
    #[must_use]
    pub fn folding_after(self, records: u64) -> Self {
        Self { records: AtomicU64::new(records), ..self }
    }

    /// Folds the log only when it is full, and when the drive is opened and closed, so that a test finds its records.
    #[cfg(feature = "mutation")]
    #[must_use]
    pub fn folding_at_the_end_only(self) -> Self {
        self.folding_after(u64::MAX)
    }

    /// Returns true if an idle drive folds its log.
    pub(crate) fn folds_when_idle(&self) -> bool {
        !cfg!(feature = "mutation") || self.records.load(Ordering::Relaxed) != u64::MAX
    }

    /// Returns true if the log is to be folded before it has more than `records` records.
    pub(crate) fn folds_after(&self, records: u64) -> bool {
        let bound = self.records.load(Ordering::Relaxed);
        cfg!(feature = "mutation") && bound > 0 && records >= bound
    }

    /// Returns true if this fault is switched on. Without the feature `mutation`, every fault is off.
    pub(crate) fn is(&self, mutant: DriveMutant) -> bool {
        cfg!(feature = "mutation") && self.mutant.load(Ordering::Relaxed) == mutant as u8
    }
}
