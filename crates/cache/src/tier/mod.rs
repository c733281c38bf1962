//! The second read tier: clean slots that left memory, in segments that lie on a local disk one behind the
//! other and are written over in that order. All that is known of them is in memory, and void with the process.
//!
//! What holds, whenever the lock of the cache's state is free: a slot that is in the index is clean, and what
//! its cell holds is what the lower volume has. A write takes its slot out before it is in the log, and what
//! goes past the log before it is acknowledged. Nothing here does I/O; that is in `tiering`.
//!
//! The bytes on disk are written down in `docs/formats/read-tier.md`.

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

/// The tier of a cache, if it has one.
#[derive(Default)]
pub(crate) struct Tiered {
    standing: TierStatus,
    counts: TierCounts,
    /// A segment waits for the disk.
    pub wake: Arc<Notify>,
    /// See `Mutant::TierKeepsOverwritten`.
    #[cfg(feature = "mutation")]
    pub is_mutated: bool,
}

#[derive(Default)]
enum TierStatus {
    /// It has none.
    #[default]
    Without,
    Works(Box<Tier>),
    /// It had one, whose disk failed.
    Failed(Error),
}

/// Slots, by what became of them.
#[derive(Clone, Copy, Default)]
struct TierCounts {
    admitted: u64,
    /// Because the disk was behind.
    dropped: u64,
    rotten: u64,
}

/// A tier at work.
struct Tier {
    disk: Arc<TierDisk>,
    index: TierIndex,
    checks: Checks,
    /// Segments that the disk has room for, and slots in one.
    segments: u64,
    slots: u32,
    /// The segment that is being filled; it goes to place `number % segments`. The first is `segments`, so that
    /// each place has had one before.
    number: u64,
    /// The slots of it that are here already.
    filling: Vec<Bytes>,
    /// Filled, not on the disk yet; oldest first.
    full: VecDeque<Full>,
    /// Pages that both may have; what finds no room is not taken in.
    most_pages: usize,
}

/// A run of slots, and what the tier has of it.
pub(crate) struct TierPiece {
    pub first: u64,
    pub count: u32,
    /// All of it, or nothing.
    pub stretch: Option<Stretch>,
}

impl TierPiece {
    /// Nothing of it is to come from here.
    pub fn missing(slots: Range<u64>) -> Self {
        Self { first: slots.start, count: (slots.end - slots.start) as u32, stretch: None }
    }
}

impl Tiered {
    /// Begins, empty: once.
    pub fn begin(&mut self, disk: TierDisk) {
        // What is on its way to or from another disk would be taken for its own.
        assert!(matches!(self.standing, TierStatus::Without), "a cache has one read tier");
        self.standing = TierStatus::Works(Box::new(Tier::new(disk)));
    }

    /// Ends for good, if it has not. What it had is to be dropped without the lock: giving much memory
    /// back takes time.
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

    /// Returns what the tier holds and has done.
    pub fn statistics(&self) -> TierStatistics {
        let tier = self.tier();
        TierStatistics {
            used_bytes: tier.map_or(0, |tier| tier.index.len() * SLOT_BYTES as u64),
            bytes: tier.map_or(0, |tier| u64::from(tier.index.cells()) * SLOT_BYTES as u64),
            admitted_slots: self.counts.admitted,
            dropped_slots: self.counts.dropped,
            rotten_slots: self.counts.rotten,
            error: match &self.standing {
                TierStatus::Failed(error) => Some(error.to_string()),
                _ => None,
            },
        }
    }

    /// Whether there is a tier, and a slot that has left memory is worth a place in it.
    pub fn takes(&self, evicted: &Evicted) -> bool {
        evicted.is_wanted && matches!(self.standing, TierStatus::Works(_))
    }

    /// How many of the [`MOST_BUFFERED`] pages that the memory has for a tier it does not have now.
    pub fn unused_pages(&self) -> usize {
        MOST_BUFFERED as usize - self.tier().map_or(0, Tier::pages)
    }

    /// Takes in a slot that has left memory, with its page: copies would be made under the lock.
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

    /// Forgets a slot that is written.
    pub fn void(&mut self, slot: u64) {
        #[cfg(feature = "mutation")]
        if self.is_mutated {
            return;
        }
        if let Some(tier) = self.tier_mut() {
            tier.void(slot);
        }
    }

    /// Forgets some of a run of slots; `done` begins at 0 and says how far it is. False when all are forgotten.
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

    /// Cuts a run of slots into what is here and what is not. A few slots between others that are not
    /// here stay with them: one call for all costs less than what it saves.
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
            // The next one is not here.
            slot += found + 1;
        }
        if missing < end {
            pieces.push(TierPiece::missing(missing..end));
        }
        pieces
    }

    /// Which slots of a stretch that was read are what they should be: all of them, or those that are
    /// not are forgotten and nothing was read.
    pub fn judge(&mut self, stretch: &Stretch, blocks: Vec<Option<Data>>) -> Option<Data> {
        let tier =
            if let TierStatus::Works(tier) = &mut self.standing { tier } else { return None };
        let mut data = Data::with_parts(blocks.len());
        let mut is_whole = true;
        for (find, block) in stretch.finds.iter().zip(blocks) {
            let is_current = find.page.is_some() || tier.is_current(find);
            match block {
                Some(block) if is_current => data.append(block),
                // It was written over while it was read, or may have been.
                _ if !is_current => is_whole = false,
                _ => {
                    self.counts.rotten += 1;
                    is_whole = false;
                    if self.counts.rotten == 1 {
                        tracing::warn!(
                            slot = find.slot,
                            "a block of the read tier is not what was written; more are only counted"
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

    /// The oldest segment that waits for the disk, with the disk. It waits on until [`Self::note_written`].
    pub fn next_full(&self) -> Option<(Arc<TierDisk>, Full)> {
        let tier = self.tier()?;
        Some((Arc::clone(&tier.disk), tier.full.front()?.clone()))
    }

    /// It is on the disk.
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
    /// It is here already.
    Known,
    /// The disk does not keep up.
    Behind,
    /// `is_full`: with it the segment is.
    Taken { is_full: bool },
}

impl Tier {
    fn new(disk: TierDisk) -> Self {
        let blocks = disk.blocks();
        let slots = (blocks / LEAST_SEGMENTS).min(MOST_SEGMENT_SLOTS) as u32;
        // Cells are counted in 32 bits: 16 TiB.
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

    /// How many it has.
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

    /// The number of the segment that the content of a cell came with.
    fn segment_of(&self, cell: u32) -> u64 {
        let place = u64::from(cell / self.slots);
        let here = self.number % self.segments;
        let back = (here + self.segments - place) % self.segments;
        let is_to_come = back == 0 && cell % self.slots >= self.filling.len() as u32;
        self.number - if is_to_come { self.segments } else { back }
    }

    /// Half of all that is here came later: it is worth to be written once more.
    fn is_old(&self, cell: u32) -> bool {
        (self.number - self.segment_of(cell)) * 2 >= self.segments
    }

    /// Whether the place of a block has not been given to another segment since it was found.
    fn is_current(&self, find: &Find) -> bool {
        self.segment_of(find.cell) == find.which.0
    }
}

/// The smallest disk, 384 KiB: one slot in each segment.
pub(crate) const LEAST_BLOCKS: u64 = FIRST_BLOCK + LEAST_SEGMENTS;
/// A segment is a 64th of the disk at most, so that what is given up at once is little of it, and has no
/// more than [`MOST_SEGMENT_SLOTS`].
const LEAST_SEGMENTS: u64 = 64;
/// Slots in memory, 2 MiB: a segment that is filled, one that is written, and two for a disk that is slower
/// for a moment. A quarter of a small disk, so that no segment is written over before it is written.
pub(crate) const MOST_BUFFERED: u32 = 4 * MOST_SEGMENT_SLOTS as u32;
/// Fewer slots than this, 32 KiB, between others that come from the lower volume come from there, too.
const LEAST_STRETCH: u64 = 8;
/// Slots or cells looked at under the lock at once: some tens of microseconds.
const STEP: u64 = 1024;

#[cfg(test)]
mod tests {
    use volume::{Geometry, MemVolume};

    use super::*;

    fn evicted(slot: u64) -> Evicted {
        Evicted { slot, page: vec![slot as u8; SLOT_BYTES].into(), is_wanted: true }
    }

    #[test]
    fn a_slot_is_taken_in_with_its_page_as_long_as_there_is_room() {
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
        // A quarter of 640; its disk takes nothing yet.
        (1..200).for_each(|slot| tiered.admit(evicted(slot)));
        assert_eq!((tiered.counts.admitted, tiered.counts.dropped), (160, 40));
        assert_eq!(tiered.unused_pages(), MOST_BUFFERED as usize - 160);
        drop(tiered.fail(&Error::Device("broken".into())));
        assert_eq!(tiered.unused_pages(), MOST_BUFFERED as usize);
    }
}
