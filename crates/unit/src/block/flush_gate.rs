//! Makes the writes of a claim's owner wait for a flush that the owner has sent earlier.
//!
//! A gateway sends the first writes of its next epoch while the flush that ends the previous epoch is still running. A
//! delayed flush must not make these writes stable, since they belong to the next epoch. Therefore each write waits
//! until the flush has ended.

use std::{
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering},
};

use tokio::sync::Notify;

/// Closed while the exclusive writer (claim owner) is flushing: its new writes wait, since they belong to the next
/// epoch.
#[derive(Debug, Default)]
pub(crate) struct FlushGate {
    flushes: AtomicUsize,
    opened: Notify,
}

/// Makes new writes of the claim's owner wait during one flush. Drop it when the flush has been answered or aborted.
pub(crate) struct Flushing<'a>(&'a FlushGate);

impl FlushGate {
    /// Makes new writes of the claim's owner wait, because a flush has arrived.
    pub(crate) fn close(&self) -> Flushing<'_> {
        self.flushes.fetch_add(1, Ordering::AcqRel);
        Flushing(self)
    }

    /// Returns true if no flush is running.
    pub(crate) fn is_open(&self) -> bool {
        self.flushes.load(Ordering::Acquire) == 0
    }

    /// Waits until no flush is running. Each flush ends when it is answered or aborted, so the wait lasts no longer
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
