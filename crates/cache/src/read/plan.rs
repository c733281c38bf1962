//! The plan of a read: the source of each of its slots, at one moment.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    core::CacheCore,
    fetch::{Origin, SlotFetch},
    mutant::Mutant,
    read::fetching::runs_to_fetch,
    slots::{
        sectors::{SECTOR_BYTES, SECTORS, mask},
        table::{LogAddress, NONE, SlotEntry},
    },
    state::CacheState,
};

pub(super) enum SlotReadSource {
    Zeros,
    /// The page has all wanted sectors.
    Page(Bytes),
    /// The log has all wanted sectors.
    Log(LogAddress),
    /// The fetch returns the slot, except for sectors that are newer in the cache.
    Lower {
        fetch: Arc<SlotFetch>,
        newer: NewerSectors,
    },
}

/// Sectors of a slot whose content in memory or log is newer than that in the lower volume.
#[derive(Clone)]
pub(super) enum NewerSectors {
    None,
    Page { page: Bytes, valid: u8 },
    Log(LogAddress),
}

/// Selects which content of acknowledged writes a read may return before that content is in the log.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(super) enum ReadVisibility {
    All,
    /// Content that the NVRAM holds, which is stable. The NVRAM does not hold discards.
    InNvram,
    /// Only content that is in the log.
    Logged,
}

impl ReadVisibility {
    pub fn shows(self, entry: &SlotEntry) -> bool {
        let is_held = || entry.nvram != NONE && !entry.zero;
        !entry.pending() || self == Self::All || (self == Self::InNvram && is_held())
    }
}

/// The part of a read that lies within one slot of 4 KiB.
pub(super) struct SlotReadPiece {
    pub slot: u64,
    pub first: u32,
    pub count: u32,
    pub source: SlotReadSource,
}

pub(super) struct ReadPlan {
    pub pieces: Vec<SlotReadPiece>,
    /// The fetches from the lower volume that this read itself has to run; other reads may wait for them.
    pub own: Vec<Arc<SlotFetch>>,
    /// The serial up to which all writes must be in the log before the read may be answered; 0 if it need not
    /// wait.
    pub unlogged: u64,
}

impl ReadPlan {
    /// Returns the farthest source of the planned data, log or memory; fetches from the lower volume do not count here.
    pub fn origin(&self) -> Origin {
        let is_log = |piece: &SlotReadPiece| {
            matches!(
                piece.source,
                SlotReadSource::Log(_) | SlotReadSource::Lower { newer: NewerSectors::Log(_), .. }
            )
        };
        if self.pieces.iter().any(is_log) { Origin::Log } else { Origin::Memory }
    }
}

impl CacheCore {
    pub(super) fn visibility(&self, state: &CacheState) -> ReadVisibility {
        match self.acknowledges_early(state) {
            _ if self.mutation.is(Mutant::ReadTellsEarly) => ReadVisibility::All,
            true if self.rules.nvram_is_stable => ReadVisibility::InNvram,
            true => ReadVisibility::All,
            false => ReadVisibility::Logged,
        }
    }

    /// Decides the source of each slot, and begins the fetches that are needed, each of at most `longest`
    /// slots.
    pub(super) fn plan(
        &self,
        state: &mut CacheState,
        sector: u64,
        sectors: u64,
        longest: usize,
    ) -> ReadPlan {
        let mut plan = ReadPlan { pieces: Vec::new(), own: Vec::new(), unlogged: 0 };
        let visibility = self.visibility(state);
        // A run of slots that have no fetch yet. They get a common fetch when the run ends.
        let mut missing: Vec<usize> = Vec::new();
        for (slot, first, count) in cut(sector, sectors) {
            let wanted = mask(first, count);
            if visibility != ReadVisibility::All
                && let Some(index) = state.table.find(slot)
            {
                let entry = state.table.entry(index);
                let unlogged = if visibility.shows(entry) { 0 } else { entry.version };
                plan.unlogged = plan.unlogged.max(unlogged);
            }
            let found = self.find(state, slot, wanted);
            let source = match found {
                Ok(source) => source,
                Err((Some(fetch), newer)) => SlotReadSource::Lower { fetch, newer },
                Err((None, newer)) => {
                    missing.push(plan.pieces.len());
                    // This source is replaced by a fetch when the run of missing slots has ended.
                    plan.pieces.push(SlotReadPiece {
                        slot,
                        first,
                        count,
                        source: match newer {
                            NewerSectors::None => SlotReadSource::Zeros,
                            NewerSectors::Page { page, .. } => SlotReadSource::Page(page),
                            NewerSectors::Log(place) => SlotReadSource::Log(place),
                        },
                    });
                    if missing.len() == longest {
                        self.begin(state, &mut plan, &mut missing);
                    }
                    continue;
                }
            };
            self.begin(state, &mut plan, &mut missing);
            plan.pieces.push(SlotReadPiece { slot, first, count, source });
        }
        self.begin(state, &mut plan, &mut missing);
        plan
    }

    /// Finds the source of a slot. An `Err` says that the slot must be fetched. The `Err` contains the fetch that is
    /// already in progress, if there is one, and the sectors of the slot that are newer in the cache.
    fn find(
        &self,
        state: &mut CacheState,
        slot: u64,
        wanted: u8,
    ) -> Result<SlotReadSource, (Option<Arc<SlotFetch>>, NewerSectors)> {
        let Some(index) = state.table.find(slot) else {
            return Err((None, NewerSectors::None));
        };
        let entry = state.table.entry(index);
        let fetch = entry.fetch;
        let (valid, place, zero, pending) = (entry.valid, entry.place, entry.zero, entry.pending());
        if zero {
            self.counters.hits.hits_dram.add(1);
            return Ok(SlotReadSource::Zeros);
        }
        let newer = match (state.table.touch(index), place) {
            (Some(page), _) if valid & wanted == wanted => {
                let hits = if pending {
                    &self.counters.hits.hits_nvram
                } else {
                    &self.counters.hits.hits_dram
                };
                hits.add(1);
                return Ok(SlotReadSource::Page(page.clone()));
            }
            (Some(page), _) => NewerSectors::Page { page: page.clone(), valid },
            (None, Some(place)) if place.mask & wanted == wanted => {
                self.counters.hits.hits_log.add(1);
                return Ok(SlotReadSource::Log(place));
            }
            (None, Some(place)) => NewerSectors::Log(place),
            (None, None) => NewerSectors::None,
        };
        Err((state.fetches.running.get(&fetch).cloned(), newer))
    }

    /// Begins the fetches of a run of slots, one for each source, and records their ids in the entries of the
    /// slots.
    fn begin(&self, state: &mut CacheState, plan: &mut ReadPlan, missing: &mut Vec<usize>) {
        let (Some(&first), Some(&last)) = (missing.first(), missing.last()) else { return };
        let (first, last) = (plan.pieces[first].slot, plan.pieces[last].slot);
        for run in runs_to_fetch(state, first, (last - first + 1) as u32) {
            let fetch = state.fetches.begin(run);
            for at in missing.drain(..fetch.count as usize) {
                let piece = &mut plan.pieces[at];
                let index = state.table.find_or_insert(piece.slot);
                state.table.entry_mut(index).fetch = fetch.id;
                let valid = state.table.entry(index).valid;
                let newer = match std::mem::replace(&mut piece.source, SlotReadSource::Zeros) {
                    SlotReadSource::Page(page) => NewerSectors::Page { page, valid },
                    SlotReadSource::Log(place) => NewerSectors::Log(place),
                    SlotReadSource::Zeros | SlotReadSource::Lower { .. } => NewerSectors::None,
                };
                piece.source = SlotReadSource::Lower { fetch: Arc::clone(&fetch), newer };
            }
            plan.own.push(fetch);
        }
    }
}

/// Cuts a range of sectors at slots. Each item has the slot, the first sector in the slot and the number of
/// sectors.
pub(crate) fn cut(sector: u64, sectors: u64) -> impl Iterator<Item = (u64, u32, u32)> {
    let end = sector + sectors;
    let mut here = sector;
    std::iter::from_fn(move || {
        (here < end).then(|| {
            let first = (here % u64::from(SECTORS)) as u32;
            let count = u64::from(SECTORS - first).min(end - here) as u32;
            let piece = (here / u64::from(SECTORS), first, count);
            here += u64::from(count);
            piece
        })
    })
}

/// Returns the range of bytes in a slot that sectors take.
pub(crate) fn bytes_of(first: u32, count: u32) -> std::ops::Range<usize> {
    first as usize * SECTOR_BYTES..(first + count) as usize * SECTOR_BYTES
}
