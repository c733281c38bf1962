//! Records operations that no caller waits for any more, and writes that the kernel has lost.

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

/// The operations on one file that no caller waits for any more, and whether the kernel has lost writes of the file.
#[derive(Default)]
pub(super) struct FileOpLedger {
    /// Operations that were in progress when their futures were dropped, with the bytes that they
    /// change. A later call that touches these bytes has to wait for them: otherwise the old
    /// operation could undo a later write that was acknowledged. The list is bounded by the number
    /// of the engine's permits.
    abandoned: Mutex<Vec<(Range<u64>, Arc<Op>)>>,
    /// Length of `abandoned`, readable without the lock of that list.
    count: AtomicUsize,
    /// True after a sync has failed. Linux reports a lost write once and then counts its pages as clean, so later syncs
    /// would succeed although the data is nowhere.
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
            // Ignore the result here: the next call of `find` checks it, and records lost writes.
            let _ = engine.finish(&op).await;
        }
    }

    /// Waits for all abandoned operations, which a sync might otherwise not cover.
    pub(super) async fn settle_all(&self, engine: &IoEngine) {
        while self.count.load(Ordering::Acquire) > 0 {
            let Some(op) = self.find(|_| true) else { break };
            let _ = engine.finish(&op).await;
        }
    }

    /// Records that the kernel failed to make data stable, unless the error is temporary.
    pub(super) fn note_sync_failure(&self, error: &io::Error) {
        if !is_passing(error) {
            self.lost.store(true, Ordering::SeqCst);
        }
    }

    /// Records that a stable write failed. A lack of space is usually found before the sync of the
    /// write, and then no data is lost; if the sync itself finds it, the next sync fails, too.
    pub(super) fn note_write_failure(&self, error: &io::Error) {
        if !is_no_space(error) {
            self.note_sync_failure(error);
        }
    }

    /// Returns true if the kernel has lost writes to this file since it was opened.
    pub(super) fn has_lost(&self) -> bool {
        self.lost.load(Ordering::SeqCst)
    }

    /// Returns an abandoned operation that is in progress and for whose range `wanted` returns true. Removes completed
    /// operations from the list, and records the errors of those whose writes are lost.
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

/// Returns true for errors after which the operation can be repeated and no data is lost:
/// interrupted, temporarily out of memory, or cancelled because the thread that submitted it has
/// ended.
pub(super) fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::ECANCELED))
}

/// Returns true if the file system or the quota has no room for a new block.
pub(super) fn is_no_space(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

/// Adds an operation to the ledger if the guard is dropped before the caller has seen the result.
pub(super) struct AbandonedOpGuard<'a> {
    ledger: &'a FileOpLedger,
    op: Arc<Op>,
    range: Range<u64>,
}

impl Drop for AbandonedOpGuard<'_> {
    fn drop(&mut self) {
        // If a caller has received the result, the caller handles it. Otherwise the ledger keeps the operation.
        if !self.op.is_seen() {
            let mut abandoned = self.ledger.abandoned.lock();
            abandoned.push((self.range.clone(), Arc::clone(&self.op)));
            self.ledger.count.store(abandoned.len(), Ordering::Release);
        }
    }
}
