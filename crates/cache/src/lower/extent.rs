//! How far the volume of a log reaches, or each of several; and which of them has dirty data.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use journal::members::MemberRecord;
use volume::{Dirty, JoinedVolume};

use crate::slots::sectors::SLOT_BYTES;

/// Several volumes that are opened as those of one log.
pub(crate) struct JoinedMembers {
    pub joined: Arc<JoinedVolume>,
    /// As the superblock is to know them from now on.
    pub records: Vec<MemberRecord>,
}

impl JoinedMembers {
    /// The name and number of the first volume that is not among them, though it has some of these slots.
    /// Another one may be in its place. None is of one that was given up.
    pub fn absent(&self, known: &[MemberRecord], slots: &[u64]) -> Option<(String, u64)> {
        let place = |slot: &u64| place_of(*slot);
        let was = |place: usize| known.iter().find(|member| member.place == place);
        let stays = |place: usize| {
            let found = was(place).zip(self.joined.member(place));
            found.is_some_and(|(was, is)| was.name == is.name)
        };
        let absent = slots.iter().map(place).find(|place| !stays(*place))?;
        let name = was(absent).map_or_else(|| format!("number {absent}"), |was| was.name.clone());
        Some((name, slots.iter().filter(|slot| place(slot) == absent).count() as u64))
    }

    /// The name of the first volume that ends before some of these slots, and how many do. They would go
    /// nowhere: destage takes what is behind an end for nothing.
    pub fn beyond(&self, slots: &[u64]) -> Option<(String, u64)> {
        let reach = MemberExtents::of_several(self);
        let is_beyond = |slot: &u64, record: &MemberRecord| {
            let block = slot * (SLOT_BYTES as u64 / u64::from(record.geometry.block_size));
            reach.place(block) == record.place && block >= reach.end(block)
        };
        self.records.iter().find_map(|record| {
            let beyond = slots.iter().filter(|slot| is_beyond(slot, record)).count() as u64;
            (beyond > 0).then(|| (record.name.clone(), beyond))
        })
    }
}

/// The one of several volumes that a slot is of.
pub(crate) fn place_of(slot: u64) -> usize {
    (slot / (JoinedVolume::STRIDE_BYTES / SLOT_BYTES as u64)) as usize
}

/// Where each volume ends.
pub(crate) struct MemberExtents {
    /// Blocks from the beginning of one to that of the next.
    stride: u64,
    /// That are used: as many as the superblock says, or fewer.
    blocks: Vec<AtomicU64>,
    /// Those of which it was said that they have outgrown their places, a bit for each.
    outgrown: AtomicU64,
}

impl MemberExtents {
    /// There is one.
    pub fn of_one(blocks: u64) -> Self {
        Self { stride: u64::MAX, blocks: vec![blocks.into()], outgrown: 0.into() }
    }

    /// There are several; where there is none, there are no blocks.
    pub fn of_several(joining: &JoinedMembers) -> Self {
        let blocks: Vec<_> = (0..JoinedVolume::PLACES).map(|_| AtomicU64::new(0)).collect();
        for record in &joining.records {
            blocks[record.place].store(record.geometry.blocks, Ordering::Relaxed);
        }
        Self { stride: joining.joined.stride(), blocks, outgrown: 0.into() }
    }

    /// How many there can be.
    pub fn places(&self) -> usize {
        self.blocks.len()
    }

    /// The one that a block is of.
    pub fn place(&self, block: u64) -> usize {
        // One needs no division, for every request.
        if self.blocks.len() == 1 { 0 } else { (block / self.stride) as usize }
    }

    /// Blocks of one.
    pub fn blocks(&self, place: usize) -> u64 {
        self.blocks.get(place).map_or(0, |blocks| blocks.load(Ordering::Acquire))
    }

    /// It has so many now.
    pub fn grow(&self, place: usize, blocks: u64) {
        self.blocks[place].fetch_max(blocks, Ordering::AcqRel);
    }

    /// It has more than there is room for where it lies. Whether that is heard for the first time.
    pub fn outgrow(&self, place: usize) -> bool {
        self.outgrown.fetch_or(1 << place, Ordering::Relaxed) & (1 << place) == 0
    }

    /// Returns the first block, in the joined address space, of the volume at a place.
    pub fn place_start(&self, place: usize) -> u64 {
        if place == 0 { 0 } else { place as u64 * self.stride }
    }

    /// The last block of one, if it has any.
    pub fn last(&self, place: usize) -> Option<u64> {
        self.blocks(place).checked_sub(1).map(|last| self.place_start(place) + last)
    }

    /// The block after the last of the one that a block is of, or would be.
    pub fn end(&self, block: u64) -> u64 {
        let place = self.place(block);
        place as u64 * self.stride + self.blocks(place)
    }
}

/// Which volumes the log has, or is about to have, something of that they lack.
pub(crate) struct DirtyFlags {
    slots_per_place: u64,
    /// One, or one for each place.
    flags: Vec<Dirty>,
}

impl DirtyFlags {
    pub fn of_one() -> Self {
        Self { slots_per_place: u64::MAX, flags: vec![Dirty::default()] }
    }

    pub fn of_several(joined: &JoinedVolume) -> Self {
        let flag = |place| joined.member(place).map_or_else(Dirty::default, |m| m.is_dirty.clone());
        Self {
            slots_per_place: JoinedVolume::STRIDE_BYTES / SLOT_BYTES as u64,
            flags: (0..JoinedVolume::PLACES).map(flag).collect(),
        }
    }

    /// There is something of a slot.
    pub fn set(&self, slot: u64) {
        let place = if self.flags.len() == 1 { 0 } else { slot / self.slots_per_place };
        self.flags[place as usize].set(true);
    }

    /// There is nothing of any.
    pub fn clear(&self) {
        self.flags.iter().for_each(|flag| flag.set(false));
    }

    /// Of the first.
    pub fn first(&self) -> Dirty {
        self.flags[0].clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_volume_reaches_as_far_as_it_says() {
        let reach = MemberExtents::of_one(100);
        assert_eq!([0, 99, 100, u64::MAX].map(|block| reach.end(block)), [100; 4]);
        reach.grow(0, 120);
        assert_eq!(reach.end(7), 120);
    }
}
