//! Finds out whether a claimed volume holds a consistent prefix of the writes of the claim's owner.
//!
//! A volume without epochs has one version of each block. Such a volume holds a consistent prefix from a
//! flush of the owner until the owner's next change. A volume with epochs needs none of this: there other
//! initiators read the last flushed epoch.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the changes of the claim's owner, and records how many of them the owner's last flush
/// covers.
#[derive(Default)]
pub(crate) struct ConsistentPrefixTracker {
    /// Number of block changes that the claim's owner has begun.
    changes: AtomicU64,
    /// The value of `changes` at the beginning of the newest flush that has succeeded.
    flushed: AtomicU64,
}

impl ConsistentPrefixTracker {
    /// Records that a command is about to change blocks. Call this before the first block changes.
    pub(crate) fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the number of block changes that the claim's owner has begun.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Notes a successful flush. `changes` is the number of changes that had begun when the flush began.
    pub(crate) fn note_flush(&self, changes: u64) {
        self.flushed.fetch_max(changes, Ordering::AcqRel);
    }

    /// Returns the number of changes that have begun, or `None` if no flush has followed the last of them. A
    /// reader that finds the same number after its read has read one consistent prefix.
    pub(crate) fn whole(&self) -> Option<u64> {
        let changes = self.changes();
        (self.flushed.load(Ordering::Acquire) == changes).then_some(changes)
    }
}
