//! The blocks of the volume that the commands read or write.

use std::cell::{Cell, RefCell};

use futures_util::future::try_join_all;
use volume::{Data, Durability, Extent, Lba, Volume};

use super::block_pattern::CommandBlockPattern;
use crate::{Error, WorkloadRun, remote_unit::failed};

/// The part of the volume that the workload uses, in blocks of one command each. Counts the writes to each block, so
/// that the content of a block can be verified.
pub(super) struct CommandBlocks<'a> {
    volume: &'a dyn Volume,
    block: u32,
    count: u64,
    /// The block at which the search for the next free block begins.
    next: Cell<u64>,
    /// True for each block with a command in flight.
    taken: RefCell<Vec<bool>>,
    content: CommandBlockPattern,
    /// The number of writes to each block; 0: never written.
    written: RefCell<Vec<u32>>,
}

impl<'a> CommandBlocks<'a> {
    pub(super) fn new(
        volume: &'a dyn Volume,
        block: u32,
        count: u64,
        content: CommandBlockPattern,
    ) -> Result<Self, Error> {
        let geometry = volume.geometry();
        let (needed, free) = (
            count * u64::from(block),
            geometry.blocks.saturating_mul(u64::from(geometry.block_size)),
        );
        if needed > free {
            return Err(Error::Space { needed, free });
        }
        if !block.is_multiple_of(geometry.block_size) {
            let size = geometry.block_size;
            return Err(Error::Settings(format!("the unit has blocks of {size} bytes")));
        }
        let written = RefCell::new(vec![0; count as usize]);
        let taken = RefCell::new(vec![false; count as usize]);
        Ok(Self { volume, block, count, next: Cell::new(0), taken, content, written })
    }

    /// Reserves the next block without a command in flight, and returns its number. Two commands
    /// for one block must not overlap: a command may be delayed on its connection, and the result
    /// of two overlapping writes is undefined.
    pub(super) fn take(&self) -> u64 {
        let mut taken = self.taken.borrow_mut();
        loop {
            let slot = self.next.replace((self.next.get() + 1) % self.count);
            if !std::mem::replace(&mut taken[slot as usize], true) {
                return slot;
            }
        }
    }

    pub(super) fn give_back(&self, slot: u64) {
        self.taken.borrow_mut()[slot as usize] = false;
    }

    fn extent(&self, slot: u64) -> Extent {
        let blocks = self.block / self.volume.geometry().block_size;
        Extent { lba: Lba(slot * u64::from(blocks)), blocks }
    }

    pub(super) async fn write(&self, slot: u64) -> Result<(), Error> {
        let round = self.written.borrow()[slot as usize].wrapping_add(1);
        let data = Data::from(self.content.make(slot, round));
        let lba = self.extent(slot).lba;
        let written = self.volume.write(lba, data, Durability::Volatile).await;
        written.map_err(failed("write"))?;
        self.written.borrow_mut()[slot as usize] = round;
        Ok(())
    }

    pub(super) async fn read(&self, slot: u64) -> Result<(), Error> {
        let data = self.volume.read(self.extent(slot)).await.map_err(failed("read"))?;
        let round = self.written.borrow()[slot as usize];
        if self.content.is(slot, round, &data) {
            return Ok(());
        }
        let at = slot * u64::from(self.block);
        Err(Error::Wrong(format!(
            "the {} bytes at offset {at} differ from the data that was written",
            self.block
        )))
    }

    /// Writes all blocks once, with `depth` commands in flight.
    pub(super) async fn fill(&self, depth: u16, run: &WorkloadRun<'_>) -> Result<(), Error> {
        let next = Cell::new(0);
        let one_after_another = async || {
            while next.get() < self.count {
                self.write(next.replace(next.get() + 1)).await?;
                (run.progress)(0.0);
            }
            Ok::<(), Error>(())
        };
        try_join_all((0..depth).map(|_| one_after_another())).await?;
        self.volume.flush().await.map_err(failed("flush"))
    }

    /// Reads up to `most` of the written blocks, evenly distributed, and compares them with the
    /// data that was written. Returns the number of blocks read.
    pub(super) async fn read_back(&self, most: u32) -> Result<usize, Error> {
        let written = self.written.borrow().clone();
        let all: Vec<u64> = (0..self.count).filter(|&slot| written[slot as usize] > 0).collect();
        let step = all.len().div_ceil((most as usize).max(1)).max(1);
        let sample: Vec<u64> = all.into_iter().step_by(step).take(most as usize).collect();
        for slot in &sample {
            self.read(*slot).await?;
        }
        Ok(sample.len())
    }
}
