//! Keeps what the owner of a claim changes behind its flushes.
//!
//! A gateway sends the writes of its next epoch while the flush that ends the one before is under way. None of them may
//! count with that flush, whatever delays it: so each of them waits until the flush has ended.

use std::{
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering},
};

use tokio::sync::Notify;

/// Closed while a flush of the claim's owner is under way.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    flushes: AtomicUsize,
    opened: Notify,
}

/// A flush that keeps the gate closed, until this is dropped: it has been answered or aborted.
pub(crate) struct Flushing<'a>(&'a Gate);

impl Gate {
    /// Closes the gate for a flush that has come.
    pub(crate) fn close(&self) -> Flushing<'_> {
        self.flushes.fetch_add(1, Ordering::AcqRel);
        Flushing(self)
    }

    /// Returns true if no flush is under way.
    pub(crate) fn is_open(&self) -> bool {
        self.flushes.load(Ordering::Acquire) == 0
    }

    /// Waits until no flush is under way. Each flush ends when it is answered or aborted, so the wait lasts no longer
    /// than the flush does.
    pub(crate) async fn opened(&self) {
        loop {
            let mut opened = pin!(self.opened.notified());
            opened.as_mut().enable();
            if self.is_open() {
                return;
            }
            opened.await;
        }
    }
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        if self.0.flushes.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.opened.notify_waiters();
        }
    }
}
