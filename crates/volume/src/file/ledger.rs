//! What happened behind everybody's back: operations that nobody waits for any more, and writes
//! that the kernel has lost.

use std::{
    io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;

use crate::engine::{IoEngine, Op};

/// Kept by each file.
#[derive(Default)]
pub(super) struct FileOpLedger {
    /// Operations that were under way when their futures were dropped, with the bytes they
    /// change. No later call may touch these bytes before the operation is done: it could undo a
    /// write that was answered. As many as the engine takes at most, since each has its permit.
    abandoned: Mutex<Vec<(Range<u64>, Arc<Op>)>>,
    /// Length of the list, to be looked at without its lock.
    count: AtomicUsize,
    /// A sync has failed. Linux reports that once and then counts the pages as clean, so later
    /// syncs would succeed without the data being anywhere.
    lost: AtomicBool,
}

impl FileOpLedger {
    /// Watches an operation that changes `range`, or syncs, until the guard is dropped.
    pub(super) fn watch(&self, op: &Arc<Op>, range: Range<u64>) -> AbandonedOpGuard<'_> {
        AbandonedOpGuard { ledger: self, op: Arc::clone(op), range }
    }

    /// Waits for abandoned operations that touch `range`.
    pub(super) async fn settle(&self, engine: &IoEngine, range: Range<u64>) {
        while self.count.load(Ordering::Acquire) > 0 {
            let Some(op) = self.find(|bytes| bytes.start < range.end && range.start < bytes.end)
            else {
                break;
            };
            // How it ended is for `find` to see.
            let _ = engine.finish(&op).await;
        }
    }

    /// Waits for all abandoned operations, which a sync could otherwise overtake.
    pub(super) async fn settle_all(&self, engine: &IoEngine) {
        while self.count.load(Ordering::Acquire) > 0 {
            let Some(op) = self.find(|_| true) else { break };
            let _ = engine.finish(&op).await;
        }
    }

    /// The kernel has failed to make something stable.
    pub(super) fn note_sync_failure(&self, error: &io::Error) {
        if !is_passing(error) {
            self.lost.store(true, Ordering::SeqCst);
        }
    }

    /// A stable write has failed. No space is mostly found before anything is to be synced, and
    /// then nothing is lost; where it is found by the sync, the next sync says so too.
    pub(super) fn note_write_failure(&self, error: &io::Error) {
        if !is_no_space(error) {
            self.note_sync_failure(error);
        }
    }

    /// Whether it ever has.
    pub(super) fn has_lost(&self) -> bool {
        self.lost.load(Ordering::SeqCst)
    }

    /// One that is not done; those that are leave the list.
    fn find(&self, wanted: impl Fn(&Range<u64>) -> bool) -> Option<Arc<Op>> {
        let mut abandoned = self.abandoned.lock();
        abandoned.retain(|(_, op)| match op.outcome() {
            None => true,
            Some(Ok(_)) => false,
            Some(Err(error)) => {
                if op.is_sync() {
                    self.note_sync_failure(&error);
                } else if op.is_stable() {
                    self.note_write_failure(&error);
                }
                false
            }
        });
        self.count.store(abandoned.len(), Ordering::Release);
        abandoned.iter().find(|(range, _)| wanted(range)).map(|(_, op)| Arc::clone(op))
    }
}

/// Interrupted, out of memory for the moment, or cancelled since the thread that submitted it
/// has ended: worth another try, and nothing is lost.
pub(super) fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::ECANCELED))
}

/// There is no room for what was not written before.
pub(super) fn is_no_space(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

/// Enters an operation in the ledger if it is dropped before the operation is done.
pub(super) struct AbandonedOpGuard<'a> {
    ledger: &'a FileOpLedger,
    op: Arc<Op>,
    range: Range<u64>,
}

impl Drop for AbandonedOpGuard<'_> {
    fn drop(&mut self) {
        // Whoever saw the end has dealt with it; an end that nobody saw counts as none.
        if !self.op.is_seen() {
            let mut abandoned = self.ledger.abandoned.lock();
            abandoned.push((self.range.clone(), Arc::clone(&self.op)));
            self.ledger.count.store(abandoned.len(), Ordering::Release);
        }
    }
}
