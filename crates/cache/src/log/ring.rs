//! The ring of blocks that segments are written to, and which part of it is live.

use std::collections::VecDeque;

/// Where the live segments lie. A segment is never split: it begins after the one before it, or
/// at the first block if fewer blocks than the longest segment needs are left before the end.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    first: u32,
    /// The block after the last.
    end: u32,
    /// Blocks in the longest segment, its header included.
    longest: u32,
    /// The block after the newest segment; `first` rather than `end`.
    head: u32,
    /// Starts of the live segments, oldest first.
    starts: VecDeque<u32>,
    /// Number of the oldest live segment, or of the next if none is live.
    tail: u64,
}

impl Ring {
    /// A ring of the blocks `first .. end` without live segments: number `next` is the next one
    /// and goes to `head` or, if that is too near to the end, to `first`.
    pub fn new(first: u32, end: u32, longest: u32, next: u64, head: u32) -> Self {
        assert!(end - first > 3 * longest && (first..=end).contains(&head), "checked before");
        let head = if head == end { first } else { head };
        Self { first, end, longest, head, starts: VecDeque::new(), tail: next }
    }

    /// Data blocks in the longest segment.
    pub fn longest_data(&self) -> u32 {
        self.longest - 1
    }

    /// Number of the segment that is written next.
    pub fn next(&self) -> u64 {
        self.tail + self.starts.len() as u64
    }

    /// Whether segment `number` or an older one is live.
    pub fn reaches_back_to(&self, number: u64) -> bool {
        !self.starts.is_empty() && self.tail <= number
    }

    /// Where segment `number` begins, or would begin if it is the next.
    pub fn start(&self, number: u64) -> u32 {
        let index = number.checked_sub(self.tail).expect("only live segments are asked for");
        self.starts.get(index as usize).copied().unwrap_or_else(|| self.position())
    }

    /// Where the next segment begins.
    pub fn position(&self) -> u32 {
        if self.head + self.longest <= self.end { self.head } else { self.first }
    }

    /// Whether the next segment may have `blocks` blocks.
    pub fn fits(&self, blocks: u32) -> bool {
        let position = self.position();
        let skipped = self.distance(self.head, position);
        // Strictly less: head and tail meet only in an empty ring.
        blocks <= self.longest && skipped + blocks < self.free()
    }

    /// Takes the next segment into the ring.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn push(&mut self, blocks: u32) -> u32 {
        assert!(self.fits(blocks), "room was promised before the segment was built");
        let start = self.position();
        self.starts.push_back(start);
        self.head = start + blocks;
        if self.head == self.end {
            self.head = self.first;
        }
        start
    }

    /// Gives up the segments before `number`.
    pub fn release(&mut self, number: u64) {
        while self.tail < number && self.starts.pop_front().is_some() {
            self.tail += 1;
        }
    }

    /// Forgets the segments from `number` on: it is the next again, where it was.
    pub fn truncate(&mut self, number: u64) {
        let kept = number.checked_sub(self.tail).expect("no older than the oldest") as usize;
        if let Some(&start) = self.starts.get(kept) {
            self.starts.truncate(kept);
            self.head = start;
        }
    }

    /// Blocks that segments may still take, whatever their lengths: what is lost at the end of the
    /// ring is taken off.
    pub fn room(&self) -> u32 {
        self.free().saturating_sub(self.longest + 1)
    }

    /// Blocks in the ring.
    pub fn blocks(&self) -> u32 {
        self.end - self.first
    }

    /// Blocks of live segments, with what is lost at the end of the ring.
    pub fn used(&self) -> u32 {
        self.blocks() - self.free()
    }

    /// How many segments are live.
    pub fn segments(&self) -> usize {
        self.starts.len()
    }

    fn free(&self) -> u32 {
        match self.starts.front() {
            Some(&start) => self.blocks() - self.distance(start, self.head),
            None => self.blocks(),
        }
    }

    /// Blocks from one place to another, forwards round the ring.
    fn distance(&self, from: u32, to: u32) -> u32 {
        if to >= from { to - from } else { to + self.blocks() - from }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_segment_that_might_not_fit_before_the_end_begins_at_the_first_block() {
        let mut ring = Ring::new(2, 22, 5, 1, 2);
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

    proptest! {
        #[test]
        fn live_segments_never_overlap(steps in prop::collection::vec((1..9u32, 0..4u64), 1..200)) {
            let mut ring = Ring::new(2, 50, 8, 10, 33);
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
