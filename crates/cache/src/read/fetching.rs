//! Fetches from the read tier and the lower volume, and read-ahead.

use std::sync::{Arc, atomic::Ordering};

use tokio::time::Instant;
use volume::{Data, Error, Extent, Volume};

use crate::{
    core::CacheCore,
    fetch::{FetchResult, Origin, SlotFetch},
    lower::flow::ReadPurpose,
    slots::{
        sectors::{SECTOR_BYTES, SECTORS, SLOT_BYTES, WHOLE, copy_sectors, mask},
        table::Came,
    },
    state::{CacheState, Fetches},
    tier,
};

impl CacheCore {
    /// Runs a fetch: reads its slots, puts them into memory, and passes them to the readers that wait for it.
    pub(super) async fn run_fetch(self: &Arc<Self>, fetch: &Arc<SlotFetch>, purpose: ReadPurpose) {
        let host = purpose.is_of_host();
        let guard = FetchGuard { shared: self, fetch, host };
        if host {
            self.lower.link.host_fetches.fetch_add(1, Ordering::Relaxed);
        }
        let found = self.read_tier(fetch).await;
        let (origin, result) = match found {
            Some(data) => (Origin::Tier, Ok(data)),
            None => (Origin::Lower, self.read_lower(fetch, purpose).await),
        };
        if let Ok(data) = &result {
            self.keep_fetched(fetch, data, host);
        }
        fetch.finish(FetchResult::Done(origin, result));
        drop(guard);
    }

    async fn read_lower(&self, fetch: &SlotFetch, purpose: ReadPurpose) -> Result<Data, Error> {
        let sectors = self.lower.end_of(fetch.first);
        let first = fetch.first * u64::from(SECTORS);
        let count = (u64::from(fetch.count) * u64::from(SECTORS)).min(sectors - first);
        let blocks = (count / self.lower.sectors_per_block()) as u32;
        let result = match self.make_lower_stable().await {
            Ok(()) => {
                let extent = Extent { lba: self.lower.lba(first), blocks };
                let bytes = count * SECTOR_BYTES as u64;
                self.read_when_admitted(fetch.id, purpose, extent, bytes).await
            }
            Err(error) => Err(error),
        };
        self.note_lower(&result);
        result
    }

    /// Waits for admission to the link, then reads `extent`, which has `bytes` bytes, from the lower volume.
    async fn read_when_admitted(
        &self,
        fetch: u32,
        purpose: ReadPurpose,
        extent: Extent,
        bytes: u64,
    ) -> Result<Data, Error> {
        if purpose == ReadPurpose::Random {
            self.lower.link.writes.lock().note_short(Instant::now());
        }
        let passage = self.lower.link.reads.admit(purpose, fetch, bytes).await;
        let begun = Instant::now();
        let data = self.lower.volume.read(extent).await?;
        if data.len() as u64 != bytes {
            return Err(Error::Device("the lower volume returned fewer bytes".into()));
        }
        passage.answered();
        self.counters.hits.fetched_bytes.add(bytes);
        let most_piece = self.lower.link.reads.longest_burst() / SLOT_BYTES as u64;
        self.state.lock().fetches.streams.fetched_in(begun.elapsed(), most_piece);
        Ok(data)
    }

    /// Puts fetched content into the table, except where a slot has got newer content meanwhile.
    fn keep_fetched(&self, fetch: &SlotFetch, data: &Data, host: bool) {
        let came = if host { Came::Wanted } else { Came::Ahead };
        let mut slot = fetch.first;
        let end = fetch.first + u64::from(fetch.count);
        while slot < end {
            // First take pages, then copy without the lock, then put all pages into the table.
            let mut pages = Vec::new();
            {
                let mut state = self.state.lock();
                let wanted = (end - slot).min(COPIED_AT_ONCE) as usize;
                while pages.len() < wanted
                    && let Some(page) = self.take_page(&mut state)
                {
                    pages.push(page);
                }
            }
            if pages.is_empty() {
                return;
            }
            let start = slot;
            for page in &mut pages {
                let at = (slot - fetch.first) as usize * SLOT_BYTES;
                let length = SLOT_BYTES.min(data.len() - at);
                data.slice(at, length).copy_to_slice(&mut page[..length]);
                page[length..].fill(0);
                slot += 1;
            }
            // If the end of the volume cuts the last slot short, only its first sectors are valid: the volume
            // may grow later.
            let last = data.len().div_ceil(SLOT_BYTES) as u64 + fetch.first - 1;
            let short = mask(0, (data.len() % SLOT_BYTES / SECTOR_BYTES) as u32);
            let mut state = self.state.lock();
            for (slot, mut page) in (start..).zip(pages) {
                let Some(index) = state.table.find(slot) else { continue };
                let entry = state.table.entry(index);
                // The slot has changed since the fetch began, so the fetched content is old, at least in
                // part.
                if entry.fetch != fetch.id || entry.pending() {
                    continue;
                }
                let valid = entry.valid;
                match state.table.page(index) {
                    Some(newer) => copy_sectors(newer, &mut page, valid),
                    // The newer sectors of this slot are only in the log. Do not keep the fetched page: the
                    // next read merges both again.
                    None if entry.place.is_some() => continue,
                    None => {}
                }
                let fetched = if slot == last && short != 0 { short } else { WHOLE };
                state.table.set_page(index, page.freeze(), fetched | valid, came);
            }
        }
    }

    /// Records a read among the sequential streams. Returns its purpose, and the read-ahead to be started.
    pub(super) fn note_read(
        &self,
        state: &mut CacheState,
        sector: u64,
        sectors: u64,
        waits: bool,
    ) -> (ReadPurpose, Vec<Arc<SlotFetch>>) {
        let pages = self.settings.dram_bytes / SLOT_BYTES as u64 / AHEAD_SHARE;
        let most = (u64::from(self.settings.read_ahead_bytes) / SLOT_BYTES as u64).min(pages);
        if most == 0 {
            return (ReadPurpose::Random, Vec::new());
        }
        let CacheState { fetches: Fetches { running, streams, .. }, table, lower, .. } =
            &mut *state;
        // Do not read ahead while the far volume cannot be read, while many fetches are in progress, or while
        // much of the earlier read-ahead has not been used yet.
        let is_vain = lower.error.is_some()
            || running.len() >= MOST_FETCHES
            || u64::from(table.ahead().unused) >= pages;
        let most = if is_vain { 0 } else { most };
        let noted = streams.note(sector..sector + sectors, waits, most, || table.ahead());
        let purpose = if noted.continues { ReadPurpose::Stream } else { ReadPurpose::Random };
        let Some(range) = noted.ahead else { return (purpose, Vec::new()) };
        let end = self.lower.end_of(sector / u64::from(SECTORS)).div_ceil(u64::from(SECTORS));
        let longest = self.longest_of_stream() as u64;
        (purpose, missing_runs(state, range.start, range.end.min(end), longest))
    }

    /// Returns the number of slots in the longest fetch for a sequential reader.
    pub(super) fn longest_of_stream(&self) -> usize {
        let slots = self.lower.link.reads.longest_request() / SLOT_BYTES as u64;
        (slots as usize).clamp(1, MOST_FETCHED)
    }
}

/// Ends a fetch when it is dropped: also if the task that runs the fetch is dropped in the middle.
struct FetchGuard<'a> {
    shared: &'a CacheCore,
    fetch: &'a SlotFetch,
    host: bool,
}

impl Drop for FetchGuard<'_> {
    fn drop(&mut self) {
        let fetch = self.fetch;
        let mut state = self.shared.state.lock();
        state.fetches.running.remove(&fetch.id);
        for slot in fetch.first..fetch.first + u64::from(fetch.count) {
            let Some(index) = state.table.find(slot) else { continue };
            let entry = state.table.entry_mut(index);
            if entry.fetch == fetch.id {
                entry.fetch = 0;
                state.table.remove_if_empty(index);
            }
        }
        drop(state);
        if self.host {
            self.shared.lower.link.host_fetches.fetch_sub(1, Ordering::Relaxed);
        }
        fetch.finish(FetchResult::Abandoned);
        // Wake calls that wait for a page: the pages of the fetched slots may be evicted now.
        self.shared.signals.changed.notify_waiters();
    }
}

/// Cuts a run of slots into pieces. Each piece is either completely in the read tier, or is fetched from the
/// lower volume.
pub(super) fn runs_to_fetch(state: &CacheState, first: u64, count: u32) -> Vec<tier::TierPiece> {
    let slots = first..first + u64::from(count);
    // A bypassing write removes its slots from memory before it removes them from the tier. In between, a
    // fetch from the tier would load the old content into memory, where it would stay.
    if state.slot_locks.overlap(slots.start, slots.end) {
        return vec![tier::TierPiece::missing(slots)];
    }
    state.tier.cut(first, count)
}

/// Begins fetches of the slots of `first .. end` that are not in the table. Each fetch has at most `longest`
/// slots.
fn missing_runs(state: &mut CacheState, first: u64, end: u64, longest: u64) -> Vec<Arc<SlotFetch>> {
    let mut fetches = Vec::new();
    let mut slot = first;
    while slot < end {
        let start = slot;
        while slot < end && slot - start < longest && state.table.find(slot).is_none() {
            slot += 1;
        }
        if slot > start {
            for run in runs_to_fetch(state, start, (slot - start) as u32) {
                let fetch = state.fetches.begin(run);
                for slot in fetch.first..fetch.first + u64::from(fetch.count) {
                    let index = state.table.find_or_insert(slot);
                    state.table.entry_mut(index).fetch = fetch.id;
                }
                fetches.push(fetch);
            }
        } else {
            slot += 1;
        }
    }
    fetches
}

/// The maximum number of slots in one fetch, 256 KiB. A long run is fetched in pieces at the same time, so that a
/// reader of one piece does not wait for the others.
pub(super) const MOST_FETCHED: usize = 64;
/// At most 1/8 of all pages may have been read ahead and not used yet.
const AHEAD_SHARE: u64 = 8;
/// The cache starts no read-ahead while this many fetches are in flight or wait. Their bookkeeping takes less
/// than 1 MiB.
const MOST_FETCHES: usize = 1024;
/// Number of slots that are copied between two uses of the lock: some ten microseconds.
const COPIED_AT_ONCE: u64 = 32;
