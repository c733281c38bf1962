//! A counter with a limit, for example of open connections. The holder of a [`Permit`] is counted until it drops the
//! permit.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use tokio::sync::Notify;

/// Counts the permits that are held at present. [`Permit::take`] compares their number with a
/// limit.
#[derive(Default)]
pub(crate) struct CountedLimit {
    count: AtomicUsize,
    given_back: AtomicU64,
    closed: Notify,
}

impl CountedLimit {
    pub(crate) fn get(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Returns the number of permits that were given back since the start.
    pub(crate) fn given_back(&self) -> u64 {
        self.given_back.load(Ordering::Relaxed)
    }

    /// Waits until no permit is held.
    pub(crate) async fn empty(&self) {
        loop {
            let mut closed = std::pin::pin!(self.closed.notified());
            closed.as_mut().enable(); // before the check, so that no release is missed
            if self.get() == 0 {
                return;
            }
            closed.await;
        }
    }
}

/// A permit that counts against a [`CountedLimit`] until it is dropped.
pub(crate) struct Permit(Arc<CountedLimit>);

impl Permit {
    /// Takes a permit. Returns `None` if `limit` permits are held.
    pub(crate) fn take(gauge: &Arc<CountedLimit>, limit: usize) -> Option<Self> {
        let one_more = |count: usize| (count < limit).then_some(count + 1);
        gauge.count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).ok()?;
        Some(Self(gauge.clone()))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.given_back.fetch_add(1, Ordering::Relaxed);
        self.0.count.fetch_sub(1, Ordering::SeqCst);
        self.0.closed.notify_waiters();
    }
}
