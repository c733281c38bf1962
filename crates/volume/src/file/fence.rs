//! Refuses writes after another program has changed, renamed or removed the file.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::Error;

/// Refuses all writes to a volume while its file is truncated, renamed or removed.
#[derive(Default)]
pub(super) struct Fence {
    /// True while the fence is up. Every write reads this flag, and locks `why` only if the flag is set.
    is_up: AtomicBool,
    why: Mutex<String>,
}

impl Fence {
    /// Makes all writes fail from now on, with the reason `why`.
    pub(super) fn raise(&self, why: &str) {
        why.clone_into(&mut self.why.lock());
        self.is_up.store(true, Ordering::Release);
    }

    pub(super) fn lower(&self) {
        self.is_up.store(false, Ordering::Release);
    }

    /// Checks that writes are allowed.
    ///
    /// # Errors
    /// [`Error::Device`] with the reason while the fence is up.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.is_up.load(Ordering::Acquire) {
            return Err(Error::Device(self.why.lock().as_str().into()));
        }
        Ok(())
    }
}
