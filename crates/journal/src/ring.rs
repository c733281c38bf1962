//! The ring of blocks that segments are written to, and the part of it that is live.
//!
//! The ring is a list of *zones*, runs of blocks; the first zone follows the last. A log that was never
//! resized has one zone. When the ring grows while live segments lie across its end, the new zone is inserted
//! where the next segment goes, so that it can be used at once:
//!
//! ```text
//!   before   ├─ newest ─▶ head ╌╌╌ free ╌╌╌ ├─ oldest ──┤ end
//!   after    zone 3: ├─ newest ─┤   zone 2: ╌ free ╌ ├─ oldest ──┤   zone 1: ╌╌╌ new ╌╌╌
//! ```
//!
//! A [`SegmentLayout`] lists the zones. Recovery needs the layouts of all live segments.

use std::collections::VecDeque;

use crate::{
    layout::{SegmentLayout, Zone},
    shape::FIRST_BLOCK,
};

/// The positions of the live segments. A segment is never split: it begins after the one before it or, if
/// fewer blocks than the longest segment needs are left in that zone, at the first block of the next zone.
#[derive(Clone, Debug)]
pub struct SegmentRing {
    /// Number of blocks in the longest segment, header included.
    longest: u32,
    /// The layouts in which the live segments and the next one are written, oldest first.
    layouts: VecDeque<SegmentLayout>,
    /// Index of the layout of the next segment. This is the last layout, except while recovery reads the
    /// segments.
    current: usize,
    /// The block after the newest segment. At the end of a zone this is the first block of the next zone.
    head: u32,
    /// The first blocks of the live segments, oldest first.
    starts: VecDeque<u32>,
    /// Number of the oldest live segment, or of the next segment if none is live.
    tail: u64,
    /// Start of the oldest live segment that lies in the zones of the current layout. The free blocks end
    /// there.
    wall: Option<u32>,
    /// Number of blocks of all segments that were pushed since this ring was made, including freed
    /// ones.
    pushed: u64,
}

impl SegmentRing {
    /// Returns a ring of the blocks `first .. end` without live segments. The next segment has the number
    /// `next`. The segment goes to block `head` or, if too few blocks are left there, to `first`.
    pub fn new(first: u32, end: u32, longest: u32, next: u64, head: u32) -> Self {
        assert!(end - first > 3 * longest && (first..=end).contains(&head), "checked before");
        let head = if head == end { first } else { head };
        Self::with_layouts(vec![SegmentLayout::whole(first, end)], longest, next, head)
    }

    /// Returns an empty ring with the layouts of live segments, oldest first. `head` may lie in the oldest
    /// layout.
    pub(crate) fn with_layouts(
        layouts: Vec<SegmentLayout>,
        longest: u32,
        next: u64,
        head: u32,
    ) -> Self {
        let layouts = VecDeque::from(layouts);
        let starts = VecDeque::new();
        let (tail, wall, pushed) = (next, None, 0);
        let mut ring = Self { longest, layouts, current: 0, head, starts, tail, wall, pushed };
        ring.enter();
        // Recovery reads the head from the disk: it may be the end of a zone, or arbitrary.
        if ring.layout().zone_of(ring.head).is_none() {
            ring.head = ring.layout().zones[0].first;
        }
        ring
    }

    /// Makes the layout of the next segment the current one. If it begins with this segment, moves the head
    /// to its start.
    fn enter(&mut self) {
        let next = self.next();
        let current = self.layouts.iter().rposition(|layout| layout.first <= next).unwrap_or(0);
        let entered = current != self.current || self.starts.is_empty();
        self.current = current;
        if entered && self.layout().first == next {
            self.head = self.layout().start;
        }
        if entered {
            self.find_wall();
        }
    }

    /// Returns the layout of the next segment.
    pub fn layout(&self) -> &SegmentLayout {
        &self.layouts[self.current]
    }

    fn find_wall(&mut self) {
        let layout = &self.layouts[self.current];
        self.wall = self.starts.iter().copied().find(|&start| layout.zone_of(start).is_some());
    }

    /// Returns the number of data blocks in the longest segment: all of its blocks except the header.
    pub fn longest_data(&self) -> u32 {
        self.longest - 1
    }

    pub fn next(&self) -> u64 {
        self.tail + self.starts.len() as u64
    }

    /// Returns true if segment `number` or an older segment is still in the log.
    pub fn reaches_back_to(&self, number: u64) -> bool {
        !self.starts.is_empty() && self.tail <= number
    }

    /// Returns the first block of segment `number`, which must be live or the next one.
    pub fn start(&self, number: u64) -> u32 {
        let index = number.checked_sub(self.tail).expect("only live segments are asked for");
        self.starts.get(index as usize).copied().unwrap_or_else(|| self.position())
    }

    /// Returns the block where the next segment begins.
    pub fn position(&self) -> u32 {
        let layout = self.layout();
        let zone = layout.zone_of(self.head).expect("the head is in a zone");
        let left = layout.zones[zone].end - self.head;
        if left >= self.longest { self.head } else { layout.next_zone(zone).first }
    }

    /// Returns the block that follows `block` in the ring.
    pub(crate) fn after(&self, block: u32) -> u32 {
        let layout = self.layout();
        match layout.zone_of(block) {
            Some(zone) if layout.zones[zone].end == block + 1 => layout.next_zone(zone).first,
            Some(_) => block + 1,
            None => layout.zones[0].first,
        }
    }

    /// Returns true if the log has space for a next segment of `blocks` blocks.
    pub fn fits(&self, blocks: u32) -> bool {
        let position = self.position();
        let skipped = self.distance(self.head, position);
        // Compare with "less": if a segment filled the last free block, head and tail would be at the same
        // block, as in an empty ring.
        blocks <= self.longest && skipped + blocks < self.free()
    }

    /// Adds the next segment to the ring. Returns its first block.
    ///
    /// # Panics
    /// If the segment does not fit.
    pub fn push(&mut self, blocks: u32) -> u32 {
        assert!(self.fits(blocks), "room was promised before the segment was built");
        let start = self.position();
        self.starts.push_back(start);
        self.pushed += u64::from(blocks);
        self.wall.get_or_insert(start);
        self.head = self.end_of(start, blocks);
        if self.current + 1 < self.layouts.len() {
            self.enter();
        }
        start
    }

    /// Returns the number of blocks of all segments that were pushed since this ring was made, including freed ones.
    pub fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Returns the block after a segment.
    fn end_of(&self, start: u32, blocks: u32) -> u32 {
        if blocks == 0 { start } else { self.after(start + blocks - 1) }
    }

    /// Frees the space of the segments before `number`.
    pub fn release(&mut self, number: u64) {
        while self.tail < number && self.starts.pop_front().is_some() {
            self.tail += 1;
        }
        while self.layouts.get(1).is_some_and(|layout| layout.first <= self.tail) {
            self.layouts.pop_front();
            self.current -= 1;
        }
        self.find_wall();
    }

    /// Removes the segments from `number` on. The next segment gets the number and the position of the first
    /// removed one.
    pub(crate) fn truncate(&mut self, number: u64) {
        let kept = number.checked_sub(self.tail).expect("no older than the oldest") as usize;
        if let Some(&start) = self.starts.get(kept) {
            self.starts.truncate(kept);
            self.current = self.layouts.iter().rposition(|l| l.first <= number).unwrap_or(0);
            self.head = start;
            self.find_wall();
        }
    }

    /// Returns how many blocks segments of any lengths may still take. Blocks that may stay unused at the
    /// ends of zones do not count.
    pub fn room(&self) -> u32 {
        self.free().saturating_sub(self.lost())
    }

    /// Returns what [`Self::room`] returns for the ring without live segments.
    pub fn most_room(&self) -> u32 {
        self.blocks().saturating_sub(self.lost())
    }

    fn lost(&self) -> u32 {
        self.layout().zones.len() as u32 * self.longest + 1
    }

    pub fn blocks(&self) -> u32 {
        self.layout().blocks()
    }

    /// Returns the number of blocks that are not free: those of live segments, and unused ones at the ends of
    /// zones.
    pub fn used(&self) -> u32 {
        self.blocks() - self.free()
    }

    /// Returns the number of blocks that segments of data may not take. They are reserved for records of
    /// bypassed writes.
    pub fn reserve(&self) -> u32 {
        (self.blocks() / 16).clamp(self.longest, MOST_RESERVED)
    }

    pub fn segments(&self) -> usize {
        self.starts.len()
    }

    /// Returns the layouts in which the live segments and the next one are written, oldest first.
    pub fn layouts(&self) -> impl Iterator<Item = &SegmentLayout> {
        self.layouts.iter()
    }

    /// Uses `layout` from the next segment on. The caller makes sure that the blocks at its start are free.
    pub fn set_layout(&mut self, layout: SegmentLayout) {
        assert_eq!(layout.first, self.next(), "it begins with the next segment");
        // Drop layouts that begin with the next segment or later: no segment uses them yet.
        while self.layouts.back().is_some_and(|last| last.first >= layout.first) {
            self.layouts.pop_back();
        }
        self.head = layout.start;
        self.layouts.push_back(layout);
        self.current = self.layouts.len() - 1;
        self.find_wall();
        if self.starts.is_empty() {
            self.layouts.drain(..self.current);
            self.current = 0;
        }
    }

    /// Returns a layout for the next segments after the end of the ring has moved from `old_end` to `end`.
    pub fn grown(&self, old_end: u32, end: u32) -> SegmentLayout {
        let mut zones = self.layout().zones.clone();
        let head = self.head;
        // If no live segment lies between the head and the end of the ring, just move the end.
        if let Some(whole) = self.straight(end) {
            return whole;
        }
        let at = self.layout().zone_of(head).expect("the head is in a zone");
        let zone = zones[at];
        let added = Zone { first: old_end, end };
        let (before, behind) = (Zone { end: head, ..zone }, Zone { first: head, ..zone });
        // A zone must have room for the longest segment. A shorter part stays unused until the ring is one
        // zone again.
        let parts = [before, added, behind].into_iter().filter(|z| z.blocks() >= self.longest);
        zones.splice(at..=at, parts);
        SegmentLayout { first: self.next(), start: old_end, zones }
    }

    /// Returns a layout for the next segments without the blocks from `end` on; `None` if too few blocks are
    /// left.
    pub fn cut(&self, end: u32) -> Option<SegmentLayout> {
        let layout = self.layout();
        let at = layout.zone_of(self.head).expect("the head is in a zone");
        let kept = |zone: Zone| Zone { end: zone.end.min(end).max(zone.first), ..zone };
        let long = |zone: &Zone| zone.blocks() >= self.longest;
        // Take the zones in the order of the ring, beginning at the head.
        let count = layout.zones.len();
        let rest = (at..at + count).map(|i| kept(layout.zones[i % count]));
        let zones: Vec<_> = rest.filter(long).collect();
        let start = match kept(layout.zones[at]) {
            zone if long(&zone) && zone.contains(self.head) => self.head,
            zone if long(&zone) => zones[1 % zones.len()].first,
            _ => zones.first()?.first,
        };
        let enough = zones.iter().map(|zone| zone.blocks()).sum::<u32>() > 3 * self.longest;
        enough.then(|| SegmentLayout { first: self.next(), start, zones })
    }

    /// Returns a layout for the next segments that has the zones of the current layout.
    pub fn same(&self) -> SegmentLayout {
        SegmentLayout { first: self.next(), start: self.head, zones: self.layout().zones.clone() }
    }

    /// Returns a layout of one zone that ends at `end`, for the next segments. Returns `None` unless the live
    /// segments are in ascending order and the head is behind them.
    pub fn straight(&self, end: u32) -> Option<SegmentLayout> {
        let in_order = self.starts.iter().zip(self.starts.iter().skip(1)).all(|(a, b)| a < b);
        let is_behind = self.starts.back().is_none_or(|&newest| newest < self.head);
        let zones = vec![Zone { first: FIRST_BLOCK, end }];
        let layout = SegmentLayout { first: self.next(), start: self.head, zones };
        (in_order && is_behind && self.head < end).then_some(layout)
    }

    /// Ends recovery: all live segments were found. From the next segment on, the newest layout is used.
    pub(crate) fn end_recovery(&mut self) {
        let next = self.next();
        let newest = self.layouts.len() - 1;
        if newest > self.current {
            // Drop the layouts between the current and the newest one: recovery has not found their segments,
            // or discards them.
            self.layouts.drain(self.current + 1..newest);
            self.layouts[self.current + 1].first = next;
            self.enter();
        }
    }

    fn free(&self) -> u32 {
        match self.wall {
            // A ring with a wall has a live segment. If head and wall are the same block, the ring is
            // therefore full, not empty.
            Some(wall) => self.distance(self.head, wall),
            None => self.blocks(),
        }
    }

    /// Returns the number of blocks from one block forwards to another, across the end of the ring if
    /// necessary.
    fn distance(&self, from: u32, to: u32) -> u32 {
        let layout = self.layout();
        let (from, to) = (layout.offset(from), layout.offset(to));
        if to >= from { to - from } else { to + layout.blocks() - from }
    }
}

/// Maximum reserve for bypassing writes: 16 MiB in the largest logs, with one block for each write.
const MOST_RESERVED: u32 = 4096;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_segment_that_might_not_fit_before_the_end_begins_at_the_first_block() {
        let mut ring = SegmentRing::new(2, 22, 5, 1, 2);
        assert_eq!(ring.push(5), 2);
        assert_eq!(ring.push(5), 7);
        ring.release(3);
        assert_eq!(ring.push(2), 12);
        assert_eq!(ring.push(4), 14);
        assert_eq!(ring.position(), 2, "18 and five blocks would end at 23");
        assert_eq!(ring.push(2), 2);
        assert_eq!((ring.next(), ring.start(3), ring.start(6)), (6, 12, 4));
        ring.truncate(5);
        assert_eq!((ring.next(), ring.position()), (5, 2));
        assert_eq!(ring.push(3), 2);
    }

    /// Rebuilds the ring as recovery does after a crash.
    fn found_again(ring: &SegmentRing, sizes: &VecDeque<u32>) -> SegmentRing {
        let layouts = ring.layouts().cloned().collect();
        let mut found =
            SegmentRing::with_layouts(layouts, ring.longest, ring.tail, ring.start(ring.tail));
        sizes.iter().for_each(|&blocks| _ = found.push(blocks));
        found.end_recovery();
        found
    }

    #[test]
    fn a_full_ring_that_grows_has_room_at_once() {
        let mut ring = SegmentRing::new(2, 40, 5, 1, 20);
        (0..4).for_each(|_| _ = ring.push(5));
        ring.release(3);
        while ring.fits(5) {
            ring.push(5);
        }
        let (room, used) = (ring.room(), ring.used());
        assert_eq!((room, ring.position()), (0, 27));
        let layout = ring.grown(40, 60);
        assert_eq!((layout.start, layout.zones.len()), (40, 3));
        ring.set_layout(layout);
        assert_eq!((ring.blocks(), ring.used()), (58, used));
        assert_eq!((ring.push(5), ring.push(5), ring.push(5)), (40, 45, 50));
    }

    #[test]
    fn a_ring_is_one_zone_again_when_its_segments_lie_in_order() {
        let mut ring = SegmentRing::new(2, 40, 5, 1, 20);
        (0..6).for_each(|_| _ = ring.push(5));
        ring.set_layout(ring.grown(40, 60));
        assert_eq!(ring.push(3), 40);
        assert_eq!(ring.straight(60), None);
        ring.release(7);
        let layout = ring.straight(60).expect("only the newest is left");
        assert_eq!((layout.start, layout.zones.len()), (43, 1));
        ring.set_layout(layout);
        assert_eq!((ring.layouts().count(), ring.blocks()), (2, 58));
        assert_eq!(ring.push(5), 43);
        ring.release(8);
        assert_eq!(ring.layouts().count(), 1);
    }

    proptest! {
        #[test]
        fn resizing_moves_no_live_segment(
            steps in prop::collection::vec((1..9u32, 0..4u64, 0..12u32), 1..200),
        ) {
            let mut ring = SegmentRing::new(2, 50, 8, 10, 33);
            let mut live: VecDeque<(u32, u32)> = VecDeque::new();
            let mut end = 50;
            for (blocks, released, resize) in steps {
                let layout = match resize {
                    0 if ring.layouts().count() < 6 && ring.layout().zones.len() < 6 => {
                        end += 20;
                        Some(ring.grown(end - 20, end))
                    }
                    1 if ring.layouts().count() < 6 && end > 60 => ring.cut(end - 15),
                    2 if ring.layouts().count() < 6 => ring.straight(end),
                    _ => None,
                };
                if let Some(layout) = layout {
                    let zone = Zone { first: 2, end };
                    prop_assert!(layout.makes_sense(zone, 8), "{:?}", layout);
                    ring.set_layout(layout);
                }
                let room = ring.room();
                if ring.fits(blocks) {
                    let start = ring.push(blocks);
                    prop_assert!(start >= 2 && start + blocks <= end);
                    for &(other, length) in &live {
                        prop_assert!(start + blocks <= other || other + length <= start);
                    }
                    live.push_back((start, blocks));
                } else {
                    prop_assert!(blocks > room, "room is a promise");
                }
                for _ in 0..released.min(live.len() as u64) {
                    live.pop_front();
                    ring.release(ring.tail + 1);
                }
                let sizes = live.iter().map(|&(_, blocks)| blocks).collect();
                let found = found_again(&ring, &sizes);
                prop_assert_eq!(&found.starts, &ring.starts);
                prop_assert_eq!(found.position(), ring.position());
                prop_assert_eq!((found.free(), found.wall), (ring.free(), ring.wall));
            }
        }

        #[test]
        fn live_segments_never_overlap(steps in prop::collection::vec((1..9u32, 0..4u64), 1..200)) {
            let mut ring = SegmentRing::new(2, 50, 8, 10, 33);
            let mut live: VecDeque<(u32, u32)> = VecDeque::new();
            for (blocks, released) in steps {
                let room = ring.room();
                if ring.fits(blocks) {
                    let start = ring.push(blocks);
                    prop_assert!(start >= 2 && start + blocks <= 50);
                    for &(other, length) in &live {
                        prop_assert!(start + blocks <= other || other + length <= start);
                    }
                    live.push_back((start, blocks));
                    prop_assert!(ring.room() + blocks + 8 >= room);
                } else {
                    prop_assert!(blocks > room, "room is a promise");
                }
                for _ in 0..released.min(live.len() as u64) {
                    live.pop_front();
                    ring.release(ring.tail + 1);
                }
                prop_assert_eq!(live.len(), ring.segments());
                if let Some(&(start, _)) = live.front() {
                    prop_assert_eq!(ring.start(ring.tail), start);
                }
            }
        }
    }
}
