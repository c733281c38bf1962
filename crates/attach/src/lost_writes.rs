//! Counts writes that have failed. The kernel reports the failure of a write once and drops its data. This count
//! remains, so that everyone who asks later learns that not all data is on the volume.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

/// Changes that are not on the volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LostWrites {
    pub writes: u64,
    pub since: SystemTime,
}

/// Counts failed changes. The count never decreases.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    writes: AtomicU64,
    /// Time of the first failure. The time is set before the failure is counted, so that a reader that sees a count
    /// above zero finds the time.
    first: OnceLock<SystemTime>,
}

impl Losses {
    /// Counts a failure. Call this before the kernel gets the error: a program that has seen the error must find it in
    /// the count.
    pub(crate) fn note(&self) {
        self.first.get_or_init(SystemTime::now);
        self.writes.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn lost(&self) -> Option<LostWrites> {
        let writes = self.writes.load(Ordering::Acquire);
        self.first.get().filter(|_| writes > 0).map(|since| LostWrites { writes, since: *since })
    }
}
