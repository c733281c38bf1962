//! The end of a destage round: its slots become clean, and its segments are freed.

use tokio::time::Instant;

use crate::{core::CacheCore, state::CacheState};

/// Marks the slots that a completed round has sent as clean, and frees the segments up to `cut`.
pub(super) async fn clean(shared: &CacheCore, cut: u64, started: Instant) {
    while shared.state.lock().clean_some(cut, started) {
        tokio::task::yield_now().await;
    }
    shared.signals.changed.notify_waiters();
}

impl CacheState {
    /// Marks some slots as clean. Returns false when none is left, and ends the round in the same step.
    /// Otherwise a rollback in between would restore places in the log that are about to be freed.
    pub(super) fn clean_some(&mut self, cut: u64, started: Instant) -> bool {
        for _ in 0..STEP {
            let table = &mut self.table;
            let oldest = table.oldest_dirty().filter(|&index| {
                table.entry(index).place.is_some_and(|place| place.segment <= cut)
            });
            let Some(index) = oldest else {
                self.end_round(cut, started);
                return false;
            };
            table.clean(index);
        }
        true
    }

    /// Ends the round, or the round before it if the next one was begun during the flush.
    fn end_round(&mut self, cut: u64, started: Instant) {
        self.log.ring.release(cut + 1);
        self.epochs.complete(cut);
        // If the next round was begun during the flush, `destage.round` is already that next round: keep it.
        if self.destage.flushing.take().is_none() {
            self.destage.round = None;
        }
        self.destage.is_starving = false;
        // The round has cleaned all older slots: the slots that are dirty now were written after the round's cut.
        self.destage.dirty_since = (self.table.dirty() > 0).then_some(started);
        if !self.is_dirty() {
            self.destage.dirty_flags.clear();
        }
    }
}

/// Number of entries that are looked at in one go under the lock: some tens of microseconds.
pub(super) const STEP: usize = 1024;
