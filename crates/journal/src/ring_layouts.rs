//! The layouts of the ring of segments, as the superblock stores them.

use crate::{
    layout::{SegmentLayout, Zone},
    shape::FIRST_BLOCK,
    superblock::Superblock,
};

impl Superblock {
    /// Returns the block behind the ring of segments, at which the index begins.
    pub fn ring_end(&self) -> u32 {
        self.log_blocks as u32 - self.index_blocks
    }

    /// Returns the layouts of the ring, oldest first.
    pub(crate) fn ring_layouts(&self) -> Vec<SegmentLayout> {
        match self.layouts.is_empty() {
            true => vec![SegmentLayout::whole(FIRST_BLOCK, self.ring_end())],
            false => self.layouts.clone(),
        }
    }

    /// Stores the layouts of the segments from the tail on, and drops older layouts.
    pub fn keep_layouts(&mut self, layouts: impl Iterator<Item = SegmentLayout>) {
        self.layouts = layouts.collect();
        while self.layouts.get(1).is_some_and(|layout| layout.first <= self.tail) {
            self.layouts.remove(0);
        }
        if let Some(oldest) = self.layouts.first()
            && oldest.first == self.tail
        {
            self.tail_block = oldest.start;
        }
        if let [only] = &self.layouts[..]
            && only.zones == SegmentLayout::whole(FIRST_BLOCK, self.ring_end()).zones
        {
            self.layouts.clear();
        }
    }

    /// Checks that the stored layouts are plausible: later arithmetic relies on their numbers.
    pub(crate) fn layouts_make_sense(&self) -> bool {
        let ring = Zone { first: FIRST_BLOCK, end: self.ring_end() };
        let in_order = self.layouts.windows(2).all(|pair| pair[0].first < pair[1].first);
        in_order
            && self.layouts.first().is_none_or(|oldest| oldest.first <= self.tail)
            && self.layouts.iter().all(|layout| {
                layout.first < u64::MAX / 2 && layout.makes_sense(ring, self.segment_slots + 1)
            })
    }
}
