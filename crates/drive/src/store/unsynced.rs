//! The data blocks that a record of the log vouches for.

use std::collections::BTreeMap;

use super::{chunk::BlockEntry, groups::BlockRun};

/// The blocks that were written since the last record of the log and to which rows refer, with their checksums.
#[derive(Debug, Default)]
pub(crate) struct UnsyncedBlocks {
    crcs: BTreeMap<u64, u32>,
    /// There were more blocks than a record lists.
    is_bulk: bool,
}

impl UnsyncedBlocks {
    /// Adds blocks that were written, and to which rows refer from now on.
    pub(crate) fn add(&mut self, entries: impl Iterator<Item = BlockEntry>) {
        if self.is_bulk {
            return;
        }
        self.crcs.extend(entries.map(|entry| (entry.block, entry.crc)));
        if self.crcs.len() > MOST_LISTED {
            (self.is_bulk, self.crcs) = (true, BTreeMap::new());
        }
    }

    /// Removes blocks to which no row refers any more.
    pub(crate) fn remove(&mut self, run: BlockRun) {
        if self.crcs.is_empty() {
            return;
        }
        for block in run.start..run.start + run.count {
            self.crcs.remove(&block);
        }
    }

    /// Returns the blocks in ascending order, and begins with none. `None`: there were too many to list, so a flush has
    /// to make them stable before the record is written.
    pub(crate) fn take(&mut self) -> Option<Vec<BlockEntry>> {
        let Self { crcs, is_bulk } = std::mem::take(self);
        let entries = crcs.into_iter().map(|(block, crc)| BlockEntry { block, crc });
        (!is_bulk).then(|| entries.collect())
    }
}

/// Most blocks in the list of a record. A start reads the blocks of one list: 4 MiB take some 10 ms. More data than that
/// takes much longer to write than the second flush.
pub(crate) const MOST_LISTED: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(blocks: std::ops::Range<u64>) -> impl Iterator<Item = BlockEntry> {
        blocks.map(|block| BlockEntry { block, crc: block as u32 })
    }

    #[test]
    fn blocks_that_were_freed_again_are_not_listed() {
        let mut blocks = UnsyncedBlocks::default();
        blocks.add(entries(10..20));
        blocks.remove(BlockRun { start: 12, count: 100 });
        assert_eq!(blocks.take(), Some(entries(10..12).collect()));
        assert_eq!(blocks.take(), Some(Vec::new()));
    }

    #[test]
    fn more_blocks_than_a_record_lists_need_a_flush_of_their_own() {
        let mut blocks = UnsyncedBlocks::default();
        blocks.add(entries(0..1025));
        blocks.remove(BlockRun { start: 0, count: 1025 });
        blocks.add(entries(5..6));
        assert_eq!(blocks.take(), None);
        assert_eq!(blocks.take(), Some(Vec::new()));
    }
}
