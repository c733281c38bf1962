//! Rolls back unflushed writes, in the mode in which writes become stable with the next flush.
//!
//! A gateway that was disconnected in the middle of a destage round sends the whole round again. Without a
//! rollback, the first attempt would take room in the log, and would become visible if the gateway does
//! not return.

use std::sync::Arc;

use journal::segment::LogRecordKind;
use volume::Error;

use crate::{core::CacheCore, state::CacheState};

impl CacheCore {
    /// Rolls the volume back to its last flush. The rollback is stable when this returns.
    pub async fn roll_back(self: &Arc<Self>) -> Result<(), Error> {
        if !self.rules.epochs_end_by_flush {
            return Err(Error::Device("writes of this cache take effect without a flush".into()));
        }
        let _turn = self.log.rollback_turn.lock().await;
        // Let writes with a reservation finish, and let no other write begin: otherwise only a part of a
        // write in progress would be rolled back.
        let stopped = RollingBack::begin(self)?;
        let given_up = self.wait_until(|state| {
            if let Some((_, error)) = &state.commits.failure {
                return Some(Err(error.clone()));
            }
            // Roll back under the lock of this check: a flush in between would acknowledge writes that are
            // then lost.
            (state.room.reserved.live == 0 && state.queue.is_settled())
                .then(|| Ok(self.give_up_open(state)))
        });
        let serial = given_up.await?;
        drop(stopped);
        self.committed(serial).await
    }

    /// Discards the open epoch. No entry may be waiting for the log. When the returned serial is durable,
    /// the log holds the record of this rollback.
    fn give_up_open(self: &Arc<Self>, state: &mut CacheState) -> u64 {
        state.queue.ends.is_due = false;
        state.forget_open();
        if state.log.ring.next() == state.epochs.end() + 1 {
            return state.queue.ends.last_serial;
        }
        self.counters.order.rolled_back.add(1);
        let serial = state.queue_end(true);
        self.start_commit(state);
        serial
    }
}

/// A roll-back to the last flush is running. New writes wait until this is dropped.
struct RollingBack<'a>(&'a CacheCore);

impl<'a> RollingBack<'a> {
    fn begin(shared: &'a CacheCore) -> Result<Self, Error> {
        let mut state = shared.state.lock();
        if let Some(error) = shared.refusal(&state) {
            return Err(error);
        }
        state.room.is_rolling_back = true;
        Ok(Self(shared))
    }
}

impl Drop for RollingBack<'_> {
    fn drop(&mut self) {
        self.0.state.lock().room.is_rolling_back = false;
        self.0.signals.changed.notify_waiters();
    }
}

impl CacheState {
    /// Removes everything after the last end of an epoch from the table, and restores the older content of
    /// these slots.
    fn forget_open(&mut self) {
        let older = self.epochs.void_open();
        let back = self.table.roll_back(self.epochs.end(), &older);
        for &index in &back {
            self.table.drop_page(index);
            let entry = self.table.entry_mut(index);
            entry.zero = entry.place.is_some_and(|place| place.kind == LogRecordKind::Zero);
            // A fetch in progress may have merged its data with the content that is discarded here: do not cache its
            // result.
            entry.fetch = 0;
            self.table.remove_if_empty(index);
        }
    }
}
