//! The slot table: it has an entry for every slot of 4096 bytes that the cache has content of, and the entry
//! gives the address of the newest content.
//!
//! A slot has an entry while it has a page, an address in the log, content on its way to the log, or a fetch
//! in progress. No function here waits or does I/O. The table is protected by the lock of the cache's state.

use std::{collections::HashMap, hash::BuildHasherDefault};

use bytes::Bytes;
use journal::segment::LogRecordKind;

use crate::slots::{
    hash::SlotHasher,
    replacement::{Ahead, EvictedPage, Replacement},
    sectors::WHOLE,
};

/// The index that stands for no entry, no page or no NVRAM slot.
pub(crate) const NONE: u32 = u32::MAX;

/// The address in the log of the newest logged content of a slot.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct LogAddress {
    pub segment: u64,
    /// The block of the log that holds the data; for zeros, the header of the segment.
    pub block: u32,
    /// CRC32C of the data block as the log stores it, encrypted if the log has a key.
    pub checksum: u32,
    /// The sectors that the record holds, the first in bit 0.
    pub mask: u8,
    pub kind: LogRecordKind,
}

/// The state of one slot.
///
/// | state | page | place | queued or in flight | evictable |
/// |---|---|---|---|---|
/// | clean | yes | no | no | page and entry |
/// | dirty | maybe | yes | no | page only |
/// | pending (newer than the log) | yes, or zeros | maybe an older one | yes | nothing |
/// | fetch in progress | maybe | maybe | no | nothing |
#[derive(Debug)]
pub(crate) struct SlotEntry {
    /// Number of the slot: the byte offset of its start in the volume, divided by 4096.
    pub slot: u64,
    /// Serial of the newest write to the slot; 0 if there was none since the entry was made.
    pub version: u64,
    /// The address of the newest version that is in the log, until the lower volume has this version.
    pub place: Option<LogAddress>,
    /// The position of the entry in the order of all queued entries, modulo 2^32. Only valid while `queued`.
    pub turn: u32,
    /// CRC32C of the page, while the entry is pending.
    pub checksum: u32,
    /// The id of the fetch from the lower volume that will fill the slot; 0 if there is none.
    pub fetch: u32,
    /// The NVRAM slot that holds the newest version, or [`NONE`].
    pub nvram: u32,
    /// Counts how often this index was reused. A destage round compares it to detect that its slot was
    /// removed.
    pub incarnation: u32,
    /// A bit for each sector of the page whose content is valid; 0 without a page.
    pub valid: u8,
    /// True if the newest content is zeros, and the entry has no page.
    pub zero: bool,
    /// True if the content waits for a segment.
    pub queued: bool,
    /// True if the content is in the segment that is being written.
    pub in_flight: bool,
    /// True if the entry holds no slot, and its index is in `SlotTable::free`.
    free: bool,
    frame: u32,
    dirty: DirtyNeighbours,
}

/// The neighbours of an entry in the list of dirty entries, or [`NONE`].
#[derive(Debug)]
struct DirtyNeighbours {
    previous: u32,
    next: u32,
}

impl SlotEntry {
    /// Returns true if the log does not hold the newest content of the slot yet.
    pub fn pending(&self) -> bool {
        self.queued || self.in_flight
    }
}

/// A slot page in memory, and the index of its entry in the slot table.
struct PageFrame {
    page: Bytes,
    entry: u32,
}

/// The reason why a page was loaded or written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Came {
    /// A host has read or written the page.
    Wanted,
    /// The cache has read the page ahead.
    Ahead,
}

/// A page that was evicted from memory.
pub(crate) struct Evicted {
    pub slot: u64,
    pub page: Bytes,
    /// True if the page is clean and whole, and was not only read ahead and used once. Such a page is worth keeping in
    /// the read tier.
    pub is_wanted: bool,
}

/// The table with its three orders: by slot, by use, and by the age of dirty entries in the log.
pub(crate) struct SlotTable {
    /// Many small maps instead of one large map: while a map grows, the lock is held until everything has
    /// been moved.
    maps: Vec<HashMap<u64, u32, BuildHasherDefault<SlotHasher>>>,
    /// The entries, in pieces of fixed size, so that entries are not moved when the table grows.
    pieces: Vec<Vec<SlotEntry>>,
    /// Number of entries that were ever created, including those in `free`.
    indices: u32,
    free: Vec<u32>,
    length: usize,
    pages: Replacement<PageFrame>,
    /// The first and the last entry of the list of dirty entries, which is in the order of `place.segment`: the entries
    /// with the oldest and the newest content in the log.
    dirty_first: u32,
    dirty_last: u32,
    dirty: usize,
    /// The next entry that a destage round looks at.
    cursor: u32,
}

impl SlotTable {
    /// Creates a table with at most `pages` pages in memory.
    pub fn new(pages: usize) -> Self {
        Self {
            maps: (0..MAPS).map(|_| HashMap::default()).collect(),
            pieces: Vec::new(),
            indices: 0,
            free: Vec::new(),
            length: 0,
            pages: Replacement::new(pages),
            dirty_first: NONE,
            dirty_last: NONE,
            dirty: 0,
            cursor: NONE,
        }
    }

    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns the number of entries whose content is in the log and not yet in the lower volume.
    pub fn dirty(&self) -> usize {
        self.dirty
    }

    /// Returns the number of entries with a page.
    pub fn resident(&self) -> usize {
        self.pages.len()
    }

    /// Returns the index of a slot's entry.
    pub fn find(&self, slot: u64) -> Option<u32> {
        self.maps[map_of(slot)].get(&slot).copied()
    }

    /// Returns the index of the entry for `slot`; creates the entry if there is none.
    pub fn find_or_insert(&mut self, slot: u64) -> u32 {
        if let Some(index) = self.find(slot) {
            return index;
        }
        let index = self.free.pop().unwrap_or_else(|| self.grow());
        let entry = self.entry_mut(index);
        entry.slot = slot;
        entry.free = false;
        self.maps[map_of(slot)].insert(slot, index);
        self.length += 1;
        index
    }

    fn grow(&mut self) -> u32 {
        let index = self.indices;
        self.indices += 1;
        if self.pieces.last().is_none_or(|piece| piece.len() == PIECE) {
            self.pieces.push(Vec::with_capacity(PIECE));
        }
        let piece = self.pieces.last_mut().expect("one was added if there was none");
        piece.push(SlotEntry {
            slot: 0,
            version: 0,
            place: None,
            turn: 0,
            checksum: 0,
            fetch: 0,
            nvram: NONE,
            incarnation: 0,
            valid: 0,
            zero: false,
            queued: false,
            in_flight: false,
            free: true,
            frame: NONE,
            dirty: DirtyNeighbours { previous: NONE, next: NONE },
        });
        index
    }

    pub fn entry(&self, index: u32) -> &SlotEntry {
        &self.pieces[index as usize / PIECE][index as usize % PIECE]
    }

    pub fn entry_mut(&mut self, index: u32) -> &mut SlotEntry {
        &mut self.pieces[index as usize / PIECE][index as usize % PIECE]
    }

    /// Returns true if `index` still belongs to the slot that it had when `incarnation` was read.
    pub fn is_alive(&self, index: u32, incarnation: u32) -> bool {
        let entry = self.entry(index);
        !entry.free && entry.incarnation == incarnation
    }

    /// Returns the page of an entry, without counting a use.
    pub fn page(&self, index: u32) -> Option<&Bytes> {
        match self.entry(index).frame {
            NONE => None,
            frame => Some(&self.pages.get(frame).page),
        }
    }

    /// Returns the page of an entry and counts a use.
    pub fn touch(&mut self, index: u32) -> Option<&Bytes> {
        match self.entry(index).frame {
            NONE => None,
            frame => Some(&self.pages.touch(frame).page),
        }
    }

    /// Counts a use of the page of an entry, if the page was read ahead and is not used yet.
    pub fn use_ahead(&mut self, index: u32) {
        let frame = self.entry(index).frame;
        if frame != NONE && self.pages.is_ahead(frame) {
            self.pages.touch(frame);
        }
    }

    /// Sets the page of an entry, in which the sectors of `valid` are valid.
    pub fn set_page(&mut self, index: u32, page: Bytes, valid: u8, why: Came) {
        let entry = self.entry_mut(index);
        entry.valid = valid;
        entry.zero = false;
        match (entry.frame, entry.slot) {
            (NONE, slot) => {
                let frame = PageFrame { page, entry: index };
                self.entry_mut(index).frame = self.pages.insert(slot, frame, why == Came::Ahead);
            }
            (frame, _) => {
                self.pages.get_mut(frame).page = page;
                if why == Came::Wanted {
                    self.pages.touch(frame);
                }
            }
        }
    }

    /// Removes the page of an entry from memory.
    pub fn drop_page(&mut self, index: u32) {
        let entry = self.entry_mut(index);
        entry.valid = 0;
        let frame = std::mem::replace(&mut entry.frame, NONE);
        if frame != NONE {
            self.pages.remove(frame);
        }
    }

    /// Evicts one page that neither waits for the log nor takes part in a fetch; `None` if there is no such page.
    pub fn evict(&mut self) -> Option<Evicted> {
        let pieces = &self.pieces;
        let evicted = self.pages.evict(|frame| {
            let entry = &pieces[frame.entry as usize / PIECE][frame.entry as usize % PIECE];
            // Keep the page while a fetch is in progress. The fetch merges its data into the page; without
            // the page, it would mistake older sectors of the lower volume for current ones.
            (!entry.pending() && entry.fetch == 0).then_some(entry.slot)
        });
        let EvictedPage { value: PageFrame { page, entry: index }, is_passing } = evicted?;
        let entry = self.entry_mut(index);
        let is_clean = entry.valid == WHOLE && entry.place.is_none();
        (entry.valid, entry.frame) = (0, NONE);
        let slot = entry.slot;
        self.remove_if_empty(index);
        Some(Evicted { slot, page, is_wanted: is_clean && !is_passing })
    }

    /// Returns what happened to the pages that were read ahead.
    pub fn ahead(&self) -> Ahead {
        self.pages.ahead()
    }

    /// Records the address in the log of the newest content. The entry is now the newest of the dirty ones.
    pub fn set_place(&mut self, index: u32, place: LogAddress) {
        self.unlink(index);
        self.entry_mut(index).place = Some(place);
        let last = std::mem::replace(&mut self.dirty_last, index);
        self.entry_mut(index).dirty.previous = last;
        match last {
            NONE => self.dirty_first = index,
            last => self.entry_mut(last).dirty.next = index,
        }
        self.dirty += 1;
    }

    /// Forgets the place of an entry in the log. Call this when the lower volume has the content, or newer
    /// content.
    pub fn clear_place(&mut self, index: u32) {
        self.unlink(index);
        let entry = self.entry_mut(index);
        entry.place = None;
    }

    /// Makes an entry clean. Call this when the lower volume has its content and has made it stable.
    pub fn clean(&mut self, index: u32) {
        self.clear_place(index);
        let resident = self.page(index).is_some();
        let entry = self.entry_mut(index);
        if !resident {
            // A fetch in progress may have read the lower volume before destage wrote this content there: do not cache
            // its result.
            entry.fetch = 0;
        }
        if !entry.pending() {
            entry.zero = false;
        }
        self.remove_if_empty(index);
    }

    /// Restores the dirty entries whose address is in a segment after `end`: each gets its address from
    /// `older`, at its position in the order of segments. Entries without an older address become clean.
    /// Returns the indices of all these entries.
    pub fn roll_back(&mut self, end: u64, older: &HashMap<u32, LogAddress>) -> Vec<u32> {
        let mut back = Vec::new();
        while self.dirty_last != NONE {
            let index = self.dirty_last;
            if self.entry(index).place.is_none_or(|place| place.segment <= end) {
                break;
            }
            self.clear_place(index);
            back.push(index);
        }
        let mut restored: Vec<_> =
            back.iter().filter_map(|index| Some((*index, *older.get(index)?))).collect();
        restored.sort_unstable_by_key(|(_, place)| std::cmp::Reverse(place.segment));
        // Merge both lists from their newest ends: insert each entry behind the newest entry that is not
        // newer than itself.
        let mut behind = self.dirty_last;
        for (index, place) in restored {
            let newer = |table: &Self, at| {
                table.entry(at).place.is_some_and(|other: LogAddress| other.segment > place.segment)
            };
            while behind != NONE && newer(self, behind) {
                behind = self.entry(behind).dirty.previous;
            }
            self.insert_behind(index, place, behind);
        }
        back
    }

    /// Inserts an entry without an address into the list of dirty entries: after `behind`, or as the first
    /// one.
    fn insert_behind(&mut self, index: u32, place: LogAddress, behind: u32) {
        let next = match behind {
            NONE => std::mem::replace(&mut self.dirty_first, index),
            behind => std::mem::replace(&mut self.entry_mut(behind).dirty.next, index),
        };
        match next {
            NONE => self.dirty_last = index,
            next => self.entry_mut(next).dirty.previous = index,
        }
        let entry = self.entry_mut(index);
        entry.place = Some(place);
        (entry.dirty.previous, entry.dirty.next) = (behind, next);
        self.dirty += 1;
    }

    fn unlink(&mut self, index: u32) {
        let entry = self.entry_mut(index);
        if entry.place.is_none() {
            return;
        }
        let previous = std::mem::replace(&mut entry.dirty.previous, NONE);
        let next = std::mem::replace(&mut entry.dirty.next, NONE);
        match previous {
            NONE => self.dirty_first = next,
            previous => self.entry_mut(previous).dirty.next = next,
        }
        match next {
            NONE => self.dirty_last = previous,
            next => self.entry_mut(next).dirty.previous = previous,
        }
        if self.cursor == index {
            self.cursor = next;
        }
        self.dirty -= 1;
    }

    /// Returns the dirty entry whose newest content in the log is the oldest.
    pub fn oldest_dirty(&self) -> Option<u32> {
        (self.dirty_first != NONE).then_some(self.dirty_first)
    }

    /// Sets the cursor to the oldest dirty entry.
    pub fn rewind(&mut self) {
        self.cursor = self.dirty_first;
    }

    /// Returns the dirty entry at the cursor, and moves the cursor to the next one.
    pub fn next_dirty(&mut self) -> Option<u32> {
        let index = self.cursor;
        (index != NONE).then(|| {
            self.cursor = self.entry(index).dirty.next;
            index
        })
    }

    /// Removes an entry if it has no page, no address, no pending content and no fetch.
    pub fn remove_if_empty(&mut self, index: u32) {
        let entry = self.entry_mut(index);
        let used = entry.frame != NONE
            || entry.place.is_some()
            || entry.pending()
            || entry.fetch != 0
            || entry.free;
        if used {
            return;
        }
        assert_eq!(entry.nvram, NONE, "NVRAM holds nothing that is not pending");
        let slot = entry.slot;
        entry.free = true;
        entry.incarnation = entry.incarnation.wrapping_add(1);
        entry.version = 0;
        entry.zero = false;
        self.maps[map_of(slot)].remove(&slot);
        self.free.push(index);
        self.length -= 1;
    }

    /// Returns the highest entry index ever used, plus one.
    pub fn indices(&self) -> u32 {
        self.indices
    }

    /// Returns true if the entry at `index` is in use.
    pub fn is_used(&self, index: u32) -> bool {
        !self.entry(index).free
    }
}

/// Returns the map of a slot. 64 consecutive slots share a map, so that sequential access stays in few cache
/// lines.
fn map_of(slot: u64) -> usize {
    (slot >> 6) as usize % MAPS
}

/// With a million entries, each map grows by a few thousand entries at a time. This takes some ten
/// microseconds.
const MAPS: usize = 256;
const PIECE: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::sectors::{SLOT_BYTES, mask, runs};

    fn page(byte: u8) -> Bytes {
        vec![byte; SLOT_BYTES].into()
    }

    fn place(segment: u64) -> LogAddress {
        LogAddress { segment, block: 9, checksum: 0, mask: WHOLE, kind: LogRecordKind::Data }
    }

    #[test]
    fn masks_and_runs_agree() {
        assert_eq!(mask(0, 8), 0xff);
        assert_eq!(mask(2, 3), 0b1_1100);
        assert_eq!(runs(0b1011_0110).collect::<Vec<_>>(), [(1, 2), (4, 2), (7, 1)]);
        assert_eq!(runs(0xff).collect::<Vec<_>>(), [(0, 8)]);
        assert_eq!(runs(0).count(), 0);
    }

    #[test]
    fn pinned_entries_are_not_evicted() {
        let mut table = SlotTable::new(64);
        for slot in 0..4 {
            let index = table.find_or_insert(slot);
            table.set_page(index, page(slot as u8), WHOLE, Came::Wanted);
        }
        table.entry_mut(0).queued = true;
        table.entry_mut(2).fetch = 7;
        assert!(table.evict().is_some());
        assert_eq!(table.find(1), None, "the oldest that is not needed");
        assert!(table.evict().is_some());
        assert_eq!(table.find(3), None);
        assert!(table.evict().is_none());
        assert_eq!((table.len(), table.resident()), (2, 2));
    }

    #[test]
    fn a_dirty_page_may_be_evicted_but_its_log_address_stays() {
        let mut table = SlotTable::new(64);
        let index = table.find_or_insert(5);
        table.set_page(index, page(1), WHOLE, Came::Wanted);
        table.set_place(index, place(1));
        assert!(table.evict().is_some());
        assert_eq!(table.find(5), Some(index));
        assert!(table.page(index).is_none());
        table.clear_place(index);
        table.remove_if_empty(index);
        assert_eq!((table.find(5), table.len(), table.dirty()), (None, 0, 0));
        assert!(!table.is_alive(index, 0));
    }

    #[test]
    fn dirty_slots_are_ordered_by_their_newest_log_address() {
        let mut table = SlotTable::new(64);
        for slot in 0..4 {
            let index = table.find_or_insert(slot);
            table.set_place(index, place(slot));
        }
        table.set_place(1, place(4));
        table.rewind();
        assert_eq!(table.next_dirty(), Some(0));
        // The entry at the cursor becomes the newest; the cursor moves to the entry after it.
        table.set_place(2, place(5));
        let rest: Vec<_> = std::iter::from_fn(|| table.next_dirty()).collect();
        assert_eq!(rest, [3, 1, 2]);
        assert_eq!(table.oldest_dirty(), Some(0));
    }

    #[test]
    fn a_rolled_back_slot_returns_to_its_old_position_in_the_dirty_order() {
        let mut table = SlotTable::new(64);
        for slot in 0..5 {
            let index = table.find_or_insert(slot);
            table.set_place(index, place(slot * 2));
        }
        for (index, segment) in [(3, 11), (0, 12), (1, 12)] {
            table.set_place(index, place(segment));
        }
        let older = HashMap::from([(0, place(0)), (3, place(6))]);
        assert_eq!(table.roll_back(10, &older), [1, 0, 3]);
        table.rewind();
        let all: Vec<_> = std::iter::from_fn(|| table.next_dirty()).collect();
        assert_eq!((all, table.dirty()), (vec![0, 2, 3, 4], 4));
        assert_eq!(table.entry(1).place, None);
    }

    #[test]
    fn entries_are_found_after_the_table_has_grown() {
        let mut table = SlotTable::new(64);
        let indices: Vec<_> = (0..5000).map(|slot| table.find_or_insert(slot * 977)).collect();
        assert!((0..5000).all(|slot| table.find(slot * 977) == Some(indices[slot as usize])));
        assert_eq!(table.find(1), None);
    }

    #[test]
    fn an_entry_is_small() {
        assert!(size_of::<SlotEntry>() <= 80, "{}", size_of::<SlotEntry>());
    }
}
