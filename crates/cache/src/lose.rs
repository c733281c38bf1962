//! Handles a log whose file was removed, cut short or replaced while it is in use.
//!
//! The open file may still be read and written, but a restart would not find it. From then on, a write is not
//! acknowledged merely because it is in the log. All other work continues: writes that were acknowledged
//! before and wait for the log are written to the open file, and destage sends all that can be read to the
//! lower volume.

use std::{collections::HashMap, task::Waker};

use volume::{Error, Lba};

use crate::{
    core::CacheCore,
    lower::extent::place_of,
    slots::{
        sectors::{SECTORS, runs},
        table::LogAddress,
    },
    state::{CacheState, LostLog},
};

impl CacheCore {
    /// Marks the log as lost: from now on a write is not acknowledged merely because it is in the log, and
    /// destage runs without pauses. Hosts get the reason in the error; only the reason of the first call is
    /// kept.
    pub fn lose_log(&self, reason: &str) {
        let wakers: Vec<Waker> = {
            let mut state = self.state.lock();
            if state.log.lost.is_some() {
                return;
            }
            state.log.lost = Some(LostLog::new(reason));
            state.destage.draining += 1;
            state.commits.take_wakers()
        };
        wakers.into_iter().for_each(Waker::wake);
        self.signals.wake_destage.notify_one();
        self.signals.changed.notify_waiters();
    }

    /// Ends the effect of [`Self::lose_log`]. Call this when the file has its name back and nothing else has
    /// changed it. Returns false if a part of the log could not be read meanwhile: then the log is used again
    /// only after the next start.
    pub fn regain_log(&self) -> bool {
        let mut state = self.state.lock();
        if state.log.lost.as_ref().is_some_and(|lost| lost.all_sent) {
            return false;
        }
        if state.log.lost.take().is_some() {
            state.destage.draining -= 1;
            drop(state);
            self.signals.changed.notify_waiters();
        }
        true
    }

    /// Fails if acknowledged data is in a lost log only.
    pub fn check_log(&self) -> Result<(), Error> {
        self.state.lock().risk().map_or(Ok(()), Err)
    }

    /// Reports once that the lower volume has everything that a lost log held. Call this after a completed
    /// round.
    pub fn tell_when_sent(&self) {
        let is_sent = {
            let mut state = self.state.lock();
            let is_dirty = state.is_dirty();
            let lost = state.log.lost.as_mut().filter(|lost| !is_dirty && !lost.is_reported);
            lost.map(|lost| lost.is_reported = true).is_some()
        };
        if is_sent {
            tracing::warn!(
                remedy = "restart this process: it makes a new log",
                "the far volume has everything that the lost log held"
            );
        }
    }

    /// Names in events the blocks whose newest content cannot be read from a lost log, and waits until there
    /// is more to destage, or the cache stops, or the log is regained. The slots of these blocks stay dirty,
    /// and hosts that read them get an error. All other slots up to the cut become clean: hosts read them
    /// from the lower volume.
    pub async fn rest_without(&self, cut: u64, unreadable: &[(u64, LogAddress)]) {
        let volumes = self.names().await;
        let ranges = self.ranges(unreadable);
        let bytes: u64 = ranges.iter().map(|range| range.bytes).sum();
        for range in ranges.iter().take(MOST_NAMED) {
            let volume = volumes.get(range.place).map_or("", String::as_str);
            tracing::error!(
                volume,
                first_lba = range.first,
                last_lba = range.last,
                "acknowledged writes of these blocks are lost: they cannot be read from the log"
            );
        }
        tracing::error!(
            bytes,
            ranges = ranges.len(),
            unnamed_ranges = ranges.len().saturating_sub(MOST_NAMED),
            remedy = "unmount the volume at every host, stop this process, give the log up \
             (docs/guide/recover.md#give-up-a-log), start again, and restore the blocks that the events name \
             from a backup",
            "the far volume has everything that could be read from the lost log"
        );
        self.clean_sent(cut, unreadable).await;
        self.wait_until(|state| {
            let is_over = state.destage.is_stopping || state.log.lost.is_none();
            (is_over || self.newest_to_send(state) > cut).then_some(())
        })
        .await;
    }

    /// Marks all slots up to the cut as clean, except the unreadable ones. Adds each to [`LostLog::sent`],
    /// since the lost log still has a record of it.
    async fn clean_sent(&self, cut: u64, unreadable: &[(u64, LogAddress)]) {
        let unreadable: HashMap<u64, LogAddress> = unreadable.iter().copied().collect();
        let indices = {
            let mut state = self.state.lock();
            if let Some(lost) = &mut state.log.lost {
                lost.all_sent = true;
            }
            state.table.indices()
        };
        let mut next = 0;
        while next < indices {
            let step = next..indices.min(next + STEP);
            next = step.end;
            {
                let mut state = self.state.lock();
                let state = &mut *state;
                let Some(lost) = &mut state.log.lost else { return };
                for index in step {
                    if !state.table.is_used(index) {
                        continue;
                    }
                    let entry = state.table.entry(index);
                    let slot = entry.slot;
                    let is_sent = |place: LogAddress| {
                        place.segment <= cut && unreadable.get(&slot) != Some(&place)
                    };
                    if entry.place.is_some_and(is_sent) {
                        state.table.clean(index);
                        lost.sent.insert(slot);
                    }
                }
            }
            tokio::task::yield_now().await;
        }
        self.signals.changed.notify_waiters();
    }

    /// Names, in one event, blocks that cannot be read from the log disk and that the lower volume lacks.
    pub async fn name_unreadable(&self, unreadable: &[(u64, LogAddress)]) {
        let volumes = self.names().await;
        let ranges = self.ranges(unreadable);
        let bytes: u64 = ranges.iter().map(|range| range.bytes).sum();
        let listed = ranges.iter().take(MOST_LISTED).map(|range| {
            let volume = volumes.get(range.place).map_or("", String::as_str);
            format!("{volume} LBA {}-{}", range.first, range.last)
        });
        tracing::error!(
            bytes,
            blocks = listed.collect::<Vec<_>>().join(", "),
            unnamed_ranges = ranges.len().saturating_sub(MOST_LISTED),
            remedy = "write these blocks again from a host, or restore them from a backup; destage \
             then continues",
            "acknowledged writes of these blocks cannot be read from the log disk: the far volume \
             lacks them until they are written again"
        );
    }

    /// Returns the newest segment that may be destaged. Where only a flush ends an epoch, it is the segment
    /// of the last flush.
    pub fn newest_to_send(&self, state: &CacheState) -> u64 {
        if self.rules.epochs_end_by_flush { state.epochs.end() } else { state.log.ring.next() - 1 }
    }

    /// Returns the names of the cached volumes, indexed by the number of their region in the joined address space.
    async fn names(&self) -> Vec<String> {
        match &self.lower.joined {
            Some(joined) => (0..self.lower.extents.places())
                .map(|place| joined.member(place).map_or_else(String::new, |it| it.name.clone()))
                .collect(),
            None => vec![self.log.superblock.lock().await.identity.name.clone()],
        }
    }

    /// Returns the blocks that these lost slots cover, as ranges in ascending order.
    fn ranges(&self, places: &[(u64, LogAddress)]) -> Vec<LostRange> {
        let mut places = places.to_vec();
        places.sort_unstable_by_key(|(slot, _)| *slot);
        let per_block = self.lower.sectors_per_block();
        let mut ranges: Vec<LostRange> = Vec::new();
        for (slot, place) in places {
            for (first, count) in runs(place.mask & self.lower.whole(slot)) {
                let Lba(lba) = self.lower.lba(slot * u64::from(SECTORS) + u64::from(first));
                let blocks = (u64::from(count) / per_block).max(1);
                let bytes = u64::from(count) * 512;
                let member = place_of(slot).min(self.lower.extents.places() - 1);
                let start = self.lower.extents.place_start(member);
                let (first, last) = (lba - start, lba - start + blocks - 1);
                match ranges.last_mut() {
                    // `places` may name a slot twice, since several epochs of the log may hold it.
                    Some(range) if range.place == member && first <= range.last + 1 => {
                        if last > range.last {
                            range.bytes += (last - range.last) * per_block * 512;
                            range.last = last;
                        }
                    }
                    _ => ranges.push(LostRange { place: member, first, last, bytes }),
                }
            }
        }
        ranges
    }
}

/// Adjacent blocks of one volume whose data is lost.
struct LostRange {
    place: usize,
    first: u64,
    last: u64,
    bytes: u64,
}

/// The maximum number of ranges that get an event of their own, since a log that was cut short may lack thousands.
const MOST_NAMED: usize = 256;
/// Maximum number of lost ranges that one event lists.
const MOST_LISTED: usize = 16;
/// The number of entries checked while the lock is held once: some tens of microseconds.
const STEP: u32 = 1024;
