//! The read tier: clean slots that were evicted from memory, on a local disk. They are written in segments,
//! one behind the other, and the oldest segment is overwritten first. The index is in memory only, so the
//! content of the disk is lost with the process.
//!
//! Invariant, whenever the lock of the cache's state is free: a slot in the index is clean, and its cell
//! holds what the lower volume has. A write removes its slot from the index before the slot is in the log,
//! and a bypassing call before it is acknowledged. No function here does I/O; that is in `tiering`.
//!
//! `docs/formats/read-tier.md` describes the bytes on the disk.

mod index;
mod disk;
pub(crate) mod label;

use std::{collections::VecDeque, ops::Range, sync::Arc};

use bytes::Bytes;
use journal::seal::Which;
use tokio::sync::Notify;
use volume::{Data, Error};

use crate::{
    slots::{sectors::SLOT_BYTES, table::Evicted},
    statistics::TierStatistics,
};

use disk::{Checks, Find, Full, MOST_SEGMENT_SLOTS, TierBlockCheck, WrittenTierSegment};
pub(crate) use disk::{FIRST_BLOCK, Stretch, TierDisk};
use index::TierIndex;

/// The state of a cache's read tier, and its counters.
#[derive(Default)]
pub(crate) struct Tiered {
    standing: TierStatus,
    counts: TierCounts,
    /// Signalled when a segment is full and must be written to the disk.
    pub wake: Arc<Notify>,
    /// True if a test has switched on `Mutant::TierKeepsOverwritten`.
    #[cfg(feature = "mutation")]
    pub is_mutated: bool,
}

#[derive(Default)]
enum TierStatus {
    #[default]
    Without,
    Works(Box<Tier>),
    /// The disk of the tier has failed.
    Failed(Error),
}

/// Counters of the read tier, in slots. See [`TierStatistics`].
#[derive(Clone, Copy, Default)]
struct TierCounts {
    admitted: u64,
    /// Number of slots that were not admitted because the disk was too slow.
    dropped: u64,
    corrupt: u64,
}

struct Tier {
    disk: Arc<TierDisk>,
    index: TierIndex,
    checks: Checks,
    /// Number of segments that fit on the disk of the read tier.
    segments: u64,
    slots: u32,
    /// The segment that is being filled. Segment *n* is at position *n* modulo `segments` on the disk. The
    /// first one has the number `segments`, so that each position has a predecessor.
    number: u64,
    /// The slots that the segment has so far.
    filling: Vec<Bytes>,
    /// Full segments that still have to be written to the disk, oldest first.
    full: VecDeque<Full>,
    /// Maximum number of pages in `filling` and `full` together. At the limit, slots are not admitted.
    most_pages: usize,
}

/// A run of slots that is completely in the tier, or not at all.
pub(crate) struct TierPiece {
    pub first: u64,
    pub count: u32,
    /// The slots of a read that the read tier holds; `None` if it holds none.
    pub stretch: Option<Stretch>,
}

impl TierPiece {
    /// Returns a run of slots that must not be read from the tier.
    pub fn missing(slots: Range<u64>) -> Self {
        Self { first: slots.start, count: (slots.end - slots.start) as u32, stretch: None }
    }
}

impl Tiered {
    /// Begins to use an empty disk as the tier. Call this at most once for a cache.
    pub fn begin(&mut self, disk: TierDisk) {
        // With a second disk, blocks in flight to or from the first one could be mistaken for those of the
        // second.
        assert!(matches!(self.standing, TierStatus::Without), "a cache has one read tier");
        self.standing = TierStatus::Works(Box::new(Tier::new(disk)));
    }

    /// Ends the use of the tier for good. Returns its data structures, if it was in use: the caller drops
    /// them without holding the lock, since releasing much memory takes time.
    pub fn fail(&mut self, error: &Error) -> Option<impl Sized + use<>> {
        if matches!(self.standing, TierStatus::Failed(_)) {
            return None;
        }
        Some(std::mem::replace(&mut self.standing, TierStatus::Failed(error.clone())))
    }

    fn tier(&self) -> Option<&Tier> {
        if let TierStatus::Works(tier) = &self.standing { Some(tier) } else { None }
    }

    fn tier_mut(&mut self) -> Option<&mut Tier> {
        if let TierStatus::Works(tier) = &mut self.standing { Some(tier) } else { None }
    }

    pub fn statistics(&self) -> TierStatistics {
        let tier = self.tier();
        TierStatistics {
            used_bytes: tier.map_or(0, |tier| tier.index.len() * SLOT_BYTES as u64),
            bytes: tier.map_or(0, |tier| u64::from(tier.index.cells()) * SLOT_BYTES as u64),
            admitted_slots: self.counts.admitted,
            dropped_slots: self.counts.dropped,
            rotten_slots: self.counts.corrupt,
            error: match &self.standing {
                TierStatus::Failed(error) => Some(error.to_string()),
                _ => None,
            },
        }
    }

    /// Returns true if the read tier works and should store the evicted slot.
    pub fn takes(&self, evicted: &Evicted) -> bool {
        evicted.is_wanted && matches!(self.standing, TierStatus::Works(_))
    }

    /// Returns how many of the [`MOST_BUFFERED`] pages for the tier are not used by it now.
    pub fn unused_pages(&self) -> usize {
        MOST_BUFFERED as usize - self.tier().map_or(0, Tier::pages)
    }

    /// Admits an evicted slot. Takes over its page, since a copy would be made while the lock is held.
    pub fn admit(&mut self, evicted: Evicted) {
        let TierStatus::Works(tier) = &mut self.standing else { return };
        match tier.admit(evicted.slot, evicted.page) {
            TierAdmission::Known => {}
            TierAdmission::Behind => self.counts.dropped += 1,
            TierAdmission::Taken { is_full } => {
                self.counts.admitted += 1;
                if is_full {
                    self.wake.notify_one();
                }
            }
        }
    }

    /// Removes a slot that is being written from the index.
    pub fn void(&mut self, slot: u64) {
        #[cfg(feature = "mutation")]
        if self.is_mutated {
            return;
        }
        if let Some(tier) = self.tier_mut() {
            tier.void(slot);
        }
    }

    /// Removes some of the slots in a run from the index. `done` is the progress of the caller and begins at
    /// 0. Returns false when all of them are removed.
    pub fn void_some(&mut self, slots: &Range<u64>, done: &mut u64) -> bool {
        #[cfg(feature = "mutation")]
        if self.is_mutated {
            return false;
        }
        let Some(tier) = self.tier_mut() else { return false };
        let (length, cells) = (slots.end - slots.start, u64::from(tier.index.cells()));
        let by_slot = length <= cells;
        let end = length.min(cells);
        let step = *done..end.min(*done + STEP);
        *done = step.end;
        for at in step {
            if by_slot {
                tier.void(slots.start + at);
            } else if tier.index.slot(at as u32).is_some_and(|slot| slots.contains(&slot)) {
                tier.index.clear(at as u32);
            }
        }
        *done < end
    }

    /// Cuts a run of slots into pieces that are in the tier and pieces that are not. If only a few slots
    /// between others are in the tier, they are read from the lower volume together with the others: one
    /// longer call costs less than a call to the tier would save.
    pub fn cut(&self, first: u64, count: u32) -> Vec<TierPiece> {
        let Some(tier) = self.tier().filter(|tier| tier.index.len() > 0) else {
            return vec![TierPiece::missing(first..first + u64::from(count))];
        };
        let mut pieces = Vec::new();
        let (mut slot, end) = (first, first + u64::from(count));
        let mut missing = first;
        while slot < end {
            let finds: Vec<Find> = (slot..end).map_while(|slot| tier.find(slot)).collect();
            let found = finds.len() as u64;
            let is_all = slot == missing && slot + found == end;
            if is_all || found >= LEAST_STRETCH {
                if missing < slot {
                    pieces.push(TierPiece::missing(missing..slot));
                }
                let stretch = Some(Stretch { disk: Arc::clone(&tier.disk), finds });
                pieces.push(TierPiece { first: slot, count: found as u32, stretch });
                missing = slot + found;
            }
            // The next slot is not in the tier.
            slot += found + 1;
        }
        if missing < end {
            pieces.push(TierPiece::missing(missing..end));
        }
        pieces
    }

    /// Returns the data of a stretch that was read from the disk. If a block is corrupt or was overwritten,
    /// returns `None`. Corrupt blocks are removed from the index.
    pub fn judge(&mut self, stretch: &Stretch, blocks: Vec<Option<Data>>) -> Option<Data> {
        let tier =
            if let TierStatus::Works(tier) = &mut self.standing { tier } else { return None };
        let mut data = Data::with_parts(blocks.len());
        let mut is_whole = true;
        for (find, block) in stretch.finds.iter().zip(blocks) {
            let is_current = find.page.is_some() || tier.is_current(find);
            match block {
                Some(block) if is_current => data.append(block),
                // The cell has been given to another segment during the read, so its content may have been
                // overwritten.
                _ if !is_current => is_whole = false,
                _ => {
                    self.counts.corrupt += 1;
                    is_whole = false;
                    if self.counts.corrupt == 1 {
                        tracing::warn!(
                            slot = find.slot,
                            remedy = "nothing is lost; replace the disk of `read_tier` if \
                             `tier_rotten_slots` of `forebay status --json` grows",
                            "read tier: checksum mismatch, read from the far volume instead; further \
                             mismatches are only counted"
                        );
                    }
                    if tier.index.find(find.slot) == Some(find.cell) {
                        tier.index.clear(find.cell);
                    }
                }
            }
        }
        is_whole.then_some(data)
    }

    /// Returns the oldest segment that waits for the disk, and the disk. The segment stays in the queue until
    /// [`Self::note_written`].
    pub fn next_full(&self) -> Option<(Arc<TierDisk>, Full)> {
        let tier = self.tier()?;
        Some((Arc::clone(&tier.disk), tier.full.front()?.clone()))
    }

    /// Records that the oldest waiting segment is on the disk, with the checksums or tags of its blocks.
    pub fn note_written(&mut self, written: &WrittenTierSegment) {
        let Some(tier) = self.tier_mut() else { return };
        let first = written.first as usize;
        let cells = first..first + tier.slots as usize;
        match (&mut tier.checks, &written.checks) {
            (Checks::Sums(all), Checks::Sums(new)) => all[cells].copy_from_slice(new),
            (Checks::Tags(all), Checks::Tags(new)) => all[cells].copy_from_slice(new),
            _ => unreachable!("a disk is sealed or not"),
        }
        let front = tier.full.pop_front();
        assert!(front.is_some_and(|full| full.number == written.number), "one at a time");
    }
}

enum TierAdmission {
    /// The read tier holds the slot already.
    Known,
    /// The disk is too slow, so the slot was not admitted.
    Behind,
    /// The slot was admitted. `is_full` says that it has filled a segment, which is to be written now.
    Taken { is_full: bool },
}

impl Tier {
    fn new(disk: TierDisk) -> Self {
        let blocks = disk.blocks();
        let slots = (blocks / LEAST_SEGMENTS).min(MOST_SEGMENT_SLOTS) as u32;
        // Cells are counted in 32 bits, which is enough for 16 TiB.
        let most = u64::from(u32::MAX / slots.max(1));
        let segments = (blocks / u64::from(slots.max(1))).min(most);
        let cells = segments as u32 * slots;
        let checks = match disk.is_sealed() {
            false => Checks::Sums(vec![0; cells as usize]),
            true => Checks::Tags(vec![[0; 16]; cells as usize]),
        };
        Self {
            disk: Arc::new(disk),
            index: TierIndex::new(cells),
            checks,
            segments,
            slots,
            number: segments,
            filling: Vec::with_capacity(slots as usize),
            full: VecDeque::new(),
            most_pages: MOST_BUFFERED.min(cells / 4) as usize,
        }
    }

    /// Returns the number of pages that wait in memory for the disk of the tier.
    fn pages(&self) -> usize {
        self.filling.len() + self.full.len() * self.slots as usize
    }

    fn admit(&mut self, slot: u64, page: Bytes) -> TierAdmission {
        let found = self.index.find(slot);
        if found.is_some_and(|cell| !self.is_old(cell)) {
            return TierAdmission::Known;
        }
        if self.pages() >= self.most_pages {
            return TierAdmission::Behind;
        }
        if let Some(cell) = found {
            self.index.clear(cell);
        }
        let first = (self.number % self.segments) as u32 * self.slots;
        let cell = first + self.filling.len() as u32;
        self.index.clear(cell);
        self.index.insert(slot, cell);
        self.filling.push(page);
        let is_full = self.filling.len() == self.slots as usize;
        if is_full {
            let pages = self.filling.drain(..).collect();
            self.full.push_back(Full { number: self.number, first, pages });
            self.number += 1;
        }
        TierAdmission::Taken { is_full }
    }

    fn void(&mut self, slot: u64) {
        if let Some(cell) = self.index.find(slot) {
            self.index.clear(cell);
        }
    }

    fn find(&self, slot: u64) -> Option<Find> {
        let cell = self.index.find(slot)?;
        let (number, at) = (self.segment_of(cell), cell % self.slots);
        let page = if number == self.number {
            Some(self.filling[at as usize].clone())
        } else {
            let waiting = self.full.iter().find(|full| full.number == number);
            waiting.map(|full| full.pages[at as usize].clone())
        };
        let check = match &self.checks {
            Checks::Sums(sums) => TierBlockCheck::Sum(sums[cell as usize]),
            Checks::Tags(tags) => TierBlockCheck::Tag(tags[cell as usize]),
        };
        Some(Find { slot, cell, which: Which(number, at), check, page })
    }

    /// Returns the number of the segment that the content of a cell belongs to.
    fn segment_of(&self, cell: u32) -> u64 {
        let place = u64::from(cell / self.slots);
        let here = self.number % self.segments;
        let back = (here + self.segments - place) % self.segments;
        let is_to_come = back == 0 && cell % self.slots >= self.filling.len() as u32;
        self.number - if is_to_come { self.segments } else { back }
    }

    /// Returns true if at least half of the segments on the disk are newer than this cell. Then the slot is
    /// worth writing again, so that it stays in the tier.
    fn is_old(&self, cell: u32) -> bool {
        (self.number - self.segment_of(cell)) * 2 >= self.segments
    }

    /// Returns true if the cell has not been given to another segment since it was found.
    fn is_current(&self, find: &Find) -> bool {
        self.segment_of(find.cell) == find.which.0
    }
}

/// Smallest disk for a read tier in blocks (384 KiB): one slot in each segment.
pub(crate) const LEAST_BLOCKS: u64 = FIRST_BLOCK + LEAST_SEGMENTS;
/// A segment is at most 1/64 of the disk, so that little is discarded when a segment is overwritten.
const LEAST_SEGMENTS: u64 = 64;
/// Maximum number of slots in memory, 2 MiB: a segment that is being filled, one that is being written, and two for
/// moments in which the disk is slow. At most a quarter of the cells of a small disk, so that no segment is overwritten
/// before it is written.
pub(crate) const MOST_BUFFERED: u32 = 4 * MOST_SEGMENT_SLOTS as u32;
/// A run of fewer adjacent slots of the tier (32 KiB) is read from the lower volume, together with the slots
/// before and after the run.
const LEAST_STRETCH: u64 = 8;
/// Number of slots or cells that are looked at in one go under the lock: some tens of microseconds.
const STEP: u64 = 1024;

#[cfg(test)]
mod tests {
    use volume::{Geometry, MemVolume};

    use super::*;

    fn evicted(slot: u64) -> Evicted {
        Evicted { slot, page: vec![slot as u8; SLOT_BYTES].into(), is_wanted: true }
    }

    #[test]
    fn an_evicted_slot_is_admitted_with_its_page_while_the_buffer_has_room() {
        let geometry = Geometry { block_size: 4096, ..Geometry::with_blocks(FIRST_BLOCK + 640) };
        let disk = TierDisk::new(Arc::new(MemVolume::new(geometry)), None).expect("memory");
        let mut tiered = Tiered::default();
        assert_eq!(tiered.unused_pages(), MOST_BUFFERED as usize);
        tiered.begin(disk);
        let first = evicted(0);
        let at = first.page.as_ptr();
        tiered.admit(first);
        let find = tiered.tier().and_then(|tier| tier.find(0)).expect("it is here");
        assert_eq!(find.page.map(|page| page.as_ptr()), Some(at), "no copy");
        // A quarter of the 640 cells may be in memory. The disk accepts nothing yet.
        (1..200).for_each(|slot| tiered.admit(evicted(slot)));
        assert_eq!((tiered.counts.admitted, tiered.counts.dropped), (160, 40));
        assert_eq!(tiered.unused_pages(), MOST_BUFFERED as usize - 160);
        drop(tiered.fail(&Error::Device("broken".into())));
        assert_eq!(tiered.unused_pages(), MOST_BUFFERED as usize);
    }
}
