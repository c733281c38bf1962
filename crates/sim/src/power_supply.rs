//! The power supply of simulated disks: counts their operations and fails during a chosen one.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

/// The power supply of one or more disks, which fail together.
///
/// Every write, flush and discard of a disk on this supply is one *operation*. A test runs a script once, reads the
/// number of its operations from [`Power::operations`], and then runs it again for every smaller number with
/// [`Power::fail_after`].
#[derive(Debug)]
pub struct Power {
    operations: AtomicU64,
    last: AtomicU64,
    off: AtomicBool,
}

impl Power {
    /// Creates a power supply that works until a test makes it fail.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            operations: AtomicU64::new(0),
            last: AtomicU64::new(u64::MAX),
            off: AtomicBool::new(false),
        })
    }

    /// Makes the power fail during the operation that follows `operations` complete ones since the start: with 0, the
    /// first operation does not complete.
    pub fn fail_after(&self, operations: u64) {
        self.last.store(operations, Ordering::SeqCst);
    }

    pub fn fail(&self) {
        self.off.store(true, Ordering::SeqCst);
    }

    #[must_use]
    pub fn is_off(&self) -> bool {
        self.off.load(Ordering::SeqCst)
    }

    /// Returns the number of operations that have begun.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.operations.load(Ordering::SeqCst)
    }

    /// Counts an operation of a disk, and makes the power fail if a test has chosen this operation.
    pub(crate) fn begin_operation(&self) {
        if self.operations.fetch_add(1, Ordering::SeqCst) >= self.last.load(Ordering::SeqCst) {
            self.fail();
        }
    }
}
