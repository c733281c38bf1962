//! Writes that were answered with an error. The kernel drops the pages of such a write and tells of it
//! once; who asks later whether everything is at the volume is told by this.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

/// What is not at the volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LostWrites {
    /// Writes, zeroes and discards that were answered with an error.
    pub writes: u64,
    /// When the first was.
    pub since: SystemTime,
}

/// Counts them, and forgets none.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    writes: AtomicU64,
    /// Set before the first is counted.
    first: OnceLock<SystemTime>,
}

impl Losses {
    /// One more. Called before the kernel hears of it, so that who has heard of it finds it here.
    pub(crate) fn note(&self) {
        self.first.get_or_init(SystemTime::now);
        self.writes.fetch_add(1, Ordering::Release);
    }

    /// What there was so far.
    pub(crate) fn lost(&self) -> Option<LostWrites> {
        let writes = self.writes.load(Ordering::Acquire);
        self.first.get().filter(|_| writes > 0).map(|since| LostWrites { writes, since: *since })
    }
}
