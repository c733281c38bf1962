//! The end of each volume of a log, and flags that say which of the volumes have dirty data.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use journal::members::MemberRecord;
use volume::{Dirty, JoinedVolume};

use crate::slots::sectors::SLOT_BYTES;

/// The volumes that share one log, opened together.
pub(crate) struct JoinedMembers {
    pub joined: Arc<JoinedVolume>,
    /// The records of these volumes, which are written into the superblock when the log is opened.
    pub records: Vec<MemberRecord>,
}

impl JoinedMembers {
    /// Returns the name of the first volume that is missing although `slots` has slots of it, and the number
    /// of these slots. A volume of another name in its region does not count as present. The caller leaves
    /// out slots of volumes that were removed.
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

    /// Returns the name of the first volume that ends before some of these slots, and the number of these
    /// slots. They must not be lost silently: destage ignores slots behind the end of a volume.
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

/// Returns the index of the region in which a slot lies. The volume that has this region has the
/// same number.
pub(crate) fn place_of(slot: u64) -> usize {
    (slot / (JoinedVolume::STRIDE_BYTES / SLOT_BYTES as u64)) as usize
}

/// The sizes of the volumes that share a log. Each has a region of the joined address space.
pub(crate) struct MemberExtents {
    /// Number of blocks from the first block of a region to that of the next region.
    stride: u64,
    /// Number of blocks of each volume that are used: as many as the superblock has, or fewer.
    blocks: Vec<AtomicU64>,
    /// Bit n is set when an event has reported that volume n is larger than its region.
    outgrown: AtomicU64,
}

impl MemberExtents {
    /// Creates the table for a log that serves one volume.
    pub fn of_one(blocks: u64) -> Self {
        Self { stride: u64::MAX, blocks: vec![blocks.into()], outgrown: 0.into() }
    }

    /// Creates the table for a log of several volumes. Unused regions have no blocks.
    pub fn of_several(joining: &JoinedMembers) -> Self {
        let blocks: Vec<_> = (0..JoinedVolume::PLACES).map(|_| AtomicU64::new(0)).collect();
        for record in &joining.records {
            blocks[record.place].store(record.geometry.blocks, Ordering::Relaxed);
        }
        Self { stride: joining.joined.stride(), blocks, outgrown: 0.into() }
    }

    pub fn places(&self) -> usize {
        self.blocks.len()
    }

    pub fn place(&self, block: u64) -> usize {
        // Every request comes here: avoid the division if the log serves only one volume.
        if self.blocks.len() == 1 { 0 } else { (block / self.stride) as usize }
    }

    /// Returns the number of blocks of the volume in a region.
    pub fn blocks(&self, place: usize) -> u64 {
        self.blocks.get(place).map_or(0, |blocks| blocks.load(Ordering::Acquire))
    }

    pub fn grow(&self, place: usize, blocks: u64) {
        self.blocks[place].fetch_max(blocks, Ordering::AcqRel);
    }

    /// Marks the volume in a region as larger than its region. Returns true on the first call only, so that
    /// the caller warns once.
    pub fn outgrow(&self, place: usize) -> bool {
        self.outgrown.fetch_or(1 << place, Ordering::Relaxed) & (1 << place) == 0
    }

    /// Returns the first block of a region in the joined address space.
    pub fn place_start(&self, place: usize) -> u64 {
        if place == 0 { 0 } else { place as u64 * self.stride }
    }

    /// Returns the joined address of the last block of the volume in region `place`; `None` if it has no blocks.
    pub fn last(&self, place: usize) -> Option<u64> {
        self.blocks(place).checked_sub(1).map(|last| self.place_start(place) + last)
    }

    /// Returns the block after the last one of the volume in whose region `block` lies.
    pub fn end(&self, block: u64) -> u64 {
        let place = self.place(block);
        place as u64 * self.stride + self.blocks(place)
    }
}

/// Flags that say for which volumes the log has dirty data, or is about to have some.
pub(crate) struct DirtyFlags {
    slots_per_place: u64,
    /// One entry for each region; only one if the log serves one volume.
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

    pub fn set(&self, slot: u64) {
        let place = if self.flags.len() == 1 { 0 } else { slot / self.slots_per_place };
        self.flags[place as usize].set(true);
    }

    pub fn clear(&self) {
        self.flags.iter().for_each(|flag| flag.set(false));
    }

    /// Returns the flag of the first volume; a log of one volume has no other.
    pub fn first(&self) -> Dirty {
        self.flags[0].clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extent_of_a_single_volume_ends_at_its_size() {
        let reach = MemberExtents::of_one(100);
        assert_eq!([0, 99, 100, u64::MAX].map(|block| reach.end(block)), [100; 4]);
        reach.grow(0, 120);
        assert_eq!(reach.end(7), 120);
    }
}
