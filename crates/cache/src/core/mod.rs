//! The core of a cache: its parts, and the one lock over the state that all paths share.
//!
//! A method belongs to the smallest group that has what it needs: [`LowerVolume`], [`CacheLog`], or a group of
//! [`CacheState`]. Methods of [`CacheCore`] are those that touch several of them.

mod lower;
mod log_disk;

use std::{pin::pin, sync::Arc};

use journal::superblock::Superblock;
use parking_lot::Mutex;
use tokio::sync::Notify;
use volume::{ConditionChange, Error, Holding, Volume};

pub(crate) use self::{
    log_disk::{CacheLog, SCRATCH_PAGES, SegmentIdentity, write_copies},
    lower::LowerVolume,
};
use crate::{
    confirmed::Confirming,
    degraded_pair::PairWitness,
    mutant::Mutation,
    nvram::NvramBuffer,
    rules::ModeRules,
    settings::{DestageOrder, LogErrorPolicy, Settings},
    slots::{
        pages::{PageMut, SlotPagePool},
        sectors::WHOLE,
    },
    state::CacheState,
    statistics::{AllTimes, BYPASS_ALLOWED, Counters},
};

/// The parts of a cache.
///
/// Order of locks: the superblock (`log.superblock`), then `state`, then the lock of `pages`. While
/// `log.index` or `lower.link.writes` is locked, no other lock is taken. The locks of `state`, `log.index`
/// and `lower.link.writes` are never held across a wait.
pub(crate) struct CacheCore {
    pub settings: Settings,
    pub rules: ModeRules,
    pub lower: LowerVolume,
    pub log: CacheLog,
    /// Set if the log is a mirror and one of its legs is on the partner gateway of a pair.
    pub pair: Option<PairWitness>,
    pub pages: Arc<SlotPagePool>,
    pub limits: CacheLimits,
    /// Taken before the lock of `pages`; never held across a wait.
    pub state: Mutex<CacheState>,
    pub signals: CacheSignals,
    pub counters: Counters,
    pub times: Arc<AllTimes>,
    /// Passes the number of the newest confirmed write to the places outside of log and NVRAM that keep it.
    pub confirming: Confirming,
    /// The fault that a test has switched on.
    pub mutation: Mutation,
}

/// Limits that do not change while the cache is open.
pub(crate) struct CacheLimits {
    /// Maximum number of slots that may wait for the log.
    pub pending_slots: usize,
    /// Maximum number of slots in an epoch, whatever the order and size of its writes; 0 if writes take effect without
    /// a flush.
    pub epoch_slots: u64,
    /// The slot table may have one entry for each block of the log, and this many more. The older log addresses that
    /// epochs keep count as entries. At this limit discards bypass the log, or wait.
    pub entries_beside_log: usize,
}

#[derive(Default)]
pub(crate) struct CacheSignals {
    /// Notifies calls that something changed that they may wait for: room, a commit, a slot lock, a destage run.
    pub changed: Notify,
    /// Wakes the destage task, since there may be dirty data to send.
    pub wake_destage: Notify,
}

impl CacheCore {
    /// Waits until `check` returns a value. Repeats the check each time that `changed` is notified.
    pub async fn wait_until<T>(&self, mut check: impl FnMut(&mut CacheState) -> Option<T>) -> T {
        loop {
            let mut changed = pin!(self.signals.changed.notified());
            changed.as_mut().enable();
            if let Some(value) = check(&mut self.state.lock()) {
                return value;
            }
            changed.await;
        }
    }

    /// Returns a free page, or the page of a clean slot that is evicted. Returns `None` if all pages are in
    /// use.
    pub fn take_page(&self, state: &mut CacheState) -> Option<PageMut> {
        // A host may still be reading the content of an evicted page, and then the page is not free at once.
        // After several such pages in a row, treat memory as short.
        for _ in 0..8 {
            if let Some(page) = self.pages.take_beyond(state.tier.unused_pages()) {
                return Some(page);
            }
            let evicted = state.table.evict()?;
            if state.tier.takes(&evicted) && self.lower.whole(evicted.slot) == WHOLE {
                state.tier.admit(evicted);
            }
        }
        self.pages.take_beyond(state.tier.unused_pages())
    }

    /// Returns true if memory has room for `more` entries of the slot table.
    pub fn has_entries(&self, state: &CacheState, more: usize) -> bool {
        let limit = self.limits.entries_beside_log + state.log.ring.blocks() as usize;
        state.table.len() + state.epochs.kept() + more <= limit
    }

    /// Returns true if a write must not reach the lower volume before older writes that are still
    /// in the log.
    pub fn is_strict(&self) -> bool {
        self.settings.order == DestageOrder::Strict && self.rules.uses_log
    }

    /// Returns true if the writes of a destage round take effect as a whole or not at all, as one epoch of
    /// the lower volume.
    pub fn is_atomic_below(&self) -> bool {
        self.is_strict() && self.lower.volume.geometry().epoch_blocks > 0
    }

    /// Returns true if a running round must not continue, in one of these cases:
    ///
    /// - The cache stops.
    /// - The flush of the previous round has failed.
    /// - Destage is held, the log disk fails, and the lower volume has atomic epochs. Writes that bypass the log
    ///   would otherwise wait for the end of the round.
    pub fn ends_round(&self, state: &CacheState) -> bool {
        let destage = &state.destage;
        let is_held = destage.round.is_some() && destage.orders.hold().is_some();
        let is_void = destage.round.as_ref().is_some_and(|round| round.is_void);
        is_void
            || destage.is_stopping
            || (is_held && state.log_error().is_some() && self.is_atomic_below())
    }

    /// Returns a description of the consistency of the lower volume if this cache is lost.
    pub fn promise(&self) -> &'static str {
        if !self.rules.uses_log {
            // The log may still hold writes from an earlier mode. These are lost with the cache.
            if self.state.lock().is_dirty() { EMPTYING } else { "every write that was answered" }
        } else if !self.is_strict() {
            BYPASS_ALLOWED
        } else if self.lower.joined.is_some() && self.lower.has_atomic_epochs() {
            "epochs, atomic in each volume"
        } else if self.lower.has_atomic_epochs() {
            "epochs, atomic"
        } else {
            "epochs, flush between"
        }
    }

    /// Writes both copies of the superblock, after updating its numbers and calling `change`.
    ///
    /// The copies are written one after the other, so that one of them is whole whatever happens to a write.
    /// The log may overwrite blocks that the new superblock frees only after this has returned.
    pub async fn write_superblock(
        &self,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<(), Error> {
        let mut superblock = self.log.superblock.lock().await;
        {
            let state = self.state.lock();
            superblock.committed = state.log.ring.next() - 1;
            superblock.serial = state.commits.serial;
            superblock.complete = state.commits.durable;
            superblock.noted = self.rules.keeps_in_nvram
                && state.nvram.as_ref().is_some_and(NvramBuffer::is_sound);
        }
        // Never reuse the number of a superblock whose write has failed: that superblock may be on the disk.
        superblock.sequence += 1;
        let mut next = superblock.clone();
        change(&mut next);
        let is_this_opening = self.pair.as_ref().is_none_or(|pair| !pair.has_question());
        if is_this_opening
            && next.granted < next.generation
            && self.lower.volume.holding() == Holding::Held
        {
            next.note_grant();
        }
        if let Some(joined) = &self.lower.joined {
            next.note_members(joined);
        }
        let moves = next.log_blocks != superblock.log_blocks;
        if !moves {
            next.index_tail = self.log.index.lock().oldest_for(next.tail);
        }
        let layouts = std::mem::take(&mut next.layouts);
        next.keep_layouts(layouts.into_iter());
        let written = self.log.write_superblock_copies(&next).await;
        self.report_superblock(&written);
        written?;
        if !moves {
            self.log.index.lock().release(next.index_tail);
        }
        *superblock = next;
        Ok(())
    }

    /// Logs one event when the superblock cannot be written, and one when that works again.
    fn report_superblock(&self, written: &Result<(), Error>) {
        let change = self.state.lock().log.superblock_fails.turn(written.is_err());
        match (change, written) {
            (Some(ConditionChange::Ends(lasted)), _) => tracing::info!(
                lasted_s = lasted.as_secs(),
                "the superblock of the log can be written again"
            ),
            (Some(ConditionChange::Begins), Err(error)) => tracing::warn!(
                %error,
                remedy = "nothing has to be done unless it lasts: then check the disk of the log \
                 (`dmesg -T`)",
                "cannot write the superblock of the log: the write is repeated until it succeeds"
            ),
            _ => {}
        }
    }

    /// Returns the error with which new writes are refused now; `None` if they are accepted.
    pub fn refusal(&self, state: &CacheState) -> Option<Error> {
        if state.destage.is_stopping {
            return Some(Error::Busy("the cache is stopping"));
        }
        // A write that bypasses an empty log does not need the log.
        let needs_log = self.rules.uses_log || state.is_dirty();
        let stops = self.settings.on_log_error == LogErrorPolicy::StopWrites;
        state.log_error().filter(|_| stops && needs_log)
    }
}

/// The consistency of the lower volume in a mode that does not use the log, while the log still holds older
/// writes.
const EMPTYING: &str = "none (the log holds older writes)";
