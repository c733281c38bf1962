//! The free space of the drive: one bitmap for each group of 32,768 blocks (128 MiB), loaded when it is needed.
//!
//! A group in memory has two bitmaps. `stored` is the content of its row: blocks that rows of objects refer to.
//! `busy` also has blocks that are reserved for data on its way, and freed blocks that may not be used again yet:
//! until the change that freed them is stable, and until no reader that found them is at work.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use smallvec::SmallVec;

use super::key::{self, Key};

/// Number of blocks in a group.
pub(crate) const GROUP_BLOCKS: u64 = 32768;
const WORDS: usize = (GROUP_BLOCKS / 64) as usize;
/// A reservation of at least this many blocks first looks for runs of this length, so that long reads and writes stay
/// fast.
const LONG_RUN: u64 = 32;

/// Adjacent blocks of one group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct BlockRun {
    pub(crate) start: u64,
    pub(crate) count: u64,
}

pub(crate) type BlockRuns = SmallVec<[BlockRun; 2]>;

/// The reason why blocks could not be reserved.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum NoBlocks {
    /// The bitmap of this group must be loaded first.
    Load(u64),
    Full,
}

pub(crate) struct Groups {
    blocks: u64,
    loaded: HashMap<u64, Group>,
    /// True for a group that had no free block when it was last searched, and in which no block was freed since.
    full: Vec<bool>,
    cursor: u64,
    /// Number of blocks to which rows of objects refer.
    pub(crate) used: u64,
    reserved: u64,
    freed: BlockRuns,
    pending: Vec<PendingFree>,
    pending_blocks: u64,
}

struct PendingFree {
    epoch: u64,
    runs: BlockRuns,
}

struct Group {
    stored: Box<[u64; WORDS]>,
    busy: Box<[u64; WORDS]>,
    is_changed: bool,
}

impl Groups {
    pub(crate) fn new(blocks: u64, used: u64) -> Self {
        let count = blocks.div_ceil(GROUP_BLOCKS) as usize;
        Self {
            blocks,
            loaded: HashMap::new(),
            full: vec![false; count],
            cursor: 0,
            used,
            reserved: 0,
            freed: SmallVec::new(),
            pending: Vec::new(),
            pending_blocks: 0,
        }
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Adds the blocks behind the last one, up to `blocks` of them. The superblock that has them is stable.
    pub(crate) fn grow(&mut self, blocks: u64) {
        let last = self.blocks / GROUP_BLOCKS;
        if let Some(group) = self.loaded.get_mut(&last) {
            let start = self.blocks % GROUP_BLOCKS;
            let end = (blocks - last * GROUP_BLOCKS).min(GROUP_BLOCKS);
            clear(&mut group.busy, BlockRun { start, count: end - start });
        }
        self.full.resize(blocks.div_ceil(GROUP_BLOCKS) as usize, false);
        if let Some(full) = self.full.get_mut(last as usize) {
            *full = false;
        }
        self.blocks = blocks;
    }

    pub(crate) fn is_loaded(&self, group: u64) -> bool {
        self.loaded.contains_key(&group)
    }

    /// Takes over the row of a group that is not loaded yet. Without a row, no block of the group is in use.
    pub(crate) fn load(&mut self, group: u64, row: Option<&Bytes>) {
        if self.is_loaded(group) {
            return;
        }
        let mut stored = Box::new([0_u64; WORDS]);
        for (word, bytes) in stored.iter_mut().zip(row.map_or(&[][..], |row| row).chunks(8)) {
            let mut eight = [0; 8];
            eight[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(eight);
        }
        let mut busy = stored.clone();
        let first = group * GROUP_BLOCKS;
        for block in self.blocks.saturating_sub(first).min(GROUP_BLOCKS)..GROUP_BLOCKS {
            busy[(block / 64) as usize] |= 1 << (block % 64);
        }
        self.loaded.insert(group, Group { stored, busy, is_changed: false });
    }

    /// Returns the number of blocks that are reserved for data on its way to the volume.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Returns the number of blocks that can be reserved now, or after the next commit.
    pub(crate) fn free(&self) -> u64 {
        self.blocks.saturating_sub(self.used + self.reserved)
    }

    /// Reserves `count` blocks for data on its way to the volume, in one or several runs.
    pub(crate) fn reserve(&mut self, count: u64) -> Result<BlockRuns, NoBlocks> {
        if count > self.free().saturating_sub(self.pending_blocks) {
            return Err(NoBlocks::Full);
        }
        let mut runs = SmallVec::new();
        let mut left = count;
        let least = if count >= LONG_RUN { LONG_RUN } else { 1 };
        let mut result = self.collect(&mut runs, &mut left, least);
        if result == Err(NoBlocks::Full) && least > 1 {
            result = self.collect(&mut runs, &mut left, 1);
        }
        self.reserved += count - left;
        if let Err(reason) = result {
            self.unreserve(&runs);
            return Err(reason);
        }
        Ok(runs)
    }

    fn collect(
        &mut self,
        runs: &mut BlockRuns,
        left: &mut u64,
        least: u64,
    ) -> Result<(), NoBlocks> {
        let groups = self.full.len() as u64;
        let first = self.cursor / GROUP_BLOCKS;
        for step in 0..=groups {
            if *left == 0 {
                return Ok(());
            }
            let number = (first + step) % groups;
            if self.full[number as usize] {
                continue;
            }
            let Some(group) = self.loaded.get_mut(&number) else {
                return Err(NoBlocks::Load(number));
            };
            let base = number * GROUP_BLOCKS;
            let mut at = if step == 0 { self.cursor % GROUP_BLOCKS } else { 0 };
            let begins_at = at;
            while *left > 0 {
                let Some(found) = group.find_free(at, (*left).min(least), *left) else { break };
                set(&mut group.busy, found);
                at = found.start + found.count;
                *left -= found.count;
                self.cursor = base + at;
                runs.push(BlockRun { start: base + found.start, count: found.count });
            }
            if *left > 0 && begins_at == 0 && least == 1 {
                self.full[number as usize] = true;
            }
        }
        if *left == 0 { Ok(()) } else { Err(NoBlocks::Full) }
    }

    /// Frees reserved blocks to which no row refers.
    pub(crate) fn unreserve(&mut self, runs: &[BlockRun]) {
        for run in runs {
            self.reserved -= run.count;
            self.set_free(*run);
        }
    }

    /// Counts reserved blocks as used, because rows of an object refer to them now.
    pub(crate) fn confirm(&mut self, runs: &[BlockRun]) {
        for run in runs {
            let (group, local) = split(*run);
            let group = self.loaded.get_mut(&group).expect("blocks of it are reserved");
            set(&mut group.stored, local);
            group.is_changed = true;
            self.reserved -= run.count;
            self.used += run.count;
        }
    }

    /// Frees blocks to which no row refers any more. Their groups must be loaded. `at_once` lets them be used again
    /// before a commit, which only a test may do.
    pub(crate) fn release(&mut self, runs: &[BlockRun], at_once: bool) {
        for run in runs {
            let (group, local) = split(*run);
            let group = self.loaded.get_mut(&group).expect("the caller loaded it");
            clear(&mut group.stored, local);
            group.is_changed = true;
            self.used = self.used.saturating_sub(run.count);
            if at_once {
                self.set_free(*run);
            } else {
                self.pending_blocks += run.count;
                self.freed.push(*run);
            }
        }
    }

    /// Returns the rows of all groups that have changed since the last call. [`Groups::settle`] returns the blocks that
    /// were freed since then when `epoch` is stable.
    pub(crate) fn freeze(&mut self, epoch: u64) -> Vec<(Key, Option<Bytes>)> {
        if !self.freed.is_empty() {
            let runs = std::mem::take(&mut self.freed);
            self.pending.push(PendingFree { epoch, runs });
        }
        let changed = self.loaded.iter_mut().filter(|(_, group)| group.is_changed);
        changed
            .map(|(number, group)| {
                group.is_changed = false;
                (key::group(*number), group.row())
            })
            .collect()
    }

    /// Returns the blocks that were freed up to epoch `upto`. They stay busy until [`Groups::finish`] is called.
    pub(crate) fn settle(&mut self, upto: u64) -> BlockRuns {
        let mut all = BlockRuns::new();
        for settled in self.pending.extract_if(.., |pending| pending.epoch <= upto) {
            all.extend(settled.runs);
        }
        all
    }

    /// Makes blocks that [`Groups::settle`] returned usable again.
    pub(crate) fn finish(&mut self, runs: &[BlockRun]) {
        for run in runs {
            self.pending_blocks -= run.count;
            self.set_free(*run);
        }
    }

    /// Returns the number of freed blocks that must not be used again yet.
    pub(crate) fn pending(&self) -> u64 {
        self.pending_blocks
    }

    fn set_free(&mut self, run: BlockRun) {
        let (number, local) = split(run);
        if let Some(group) = self.loaded.get_mut(&number) {
            clear(&mut group.busy, local);
        }
        self.full[number as usize] = false;
    }
}

impl Group {
    /// Returns the first run of `least` to `most` free blocks from `at` on.
    fn find_free(&self, at: u64, least: u64, most: u64) -> Option<BlockRun> {
        let mut at = at;
        loop {
            let start = self.next(at, false)?;
            let end = self.next(start, true).unwrap_or(GROUP_BLOCKS).min(start + most);
            if end - start >= least {
                return Some(BlockRun { start, count: end - start });
            }
            at = end;
        }
    }

    /// Returns the first block from `at` on that is busy, or that is free if `busy` is false.
    fn next(&self, at: u64, busy: bool) -> Option<u64> {
        if at >= GROUP_BLOCKS {
            return None;
        }
        let mut word = (at / 64) as usize;
        let mut mask = u64::MAX << (at % 64);
        loop {
            let bits = if busy { self.busy[word] } else { !self.busy[word] } & mask;
            if bits != 0 {
                return Some(word as u64 * 64 + u64::from(bits.trailing_zeros()));
            }
            (word, mask) = (word + 1, u64::MAX);
            if word == WORDS {
                return None;
            }
        }
    }

    /// Encodes the bitmap of stored blocks, without zeros at the end; `None` if no block is in use.
    fn row(&self) -> Option<Bytes> {
        let words = self.stored.iter().rposition(|word| *word != 0)? + 1;
        Some(self.stored[..words].iter().flat_map(|word| word.to_le_bytes()).collect())
    }
}

/// Returns the group of a run, and the run in it.
fn split(run: BlockRun) -> (u64, BlockRun) {
    let local = BlockRun { start: run.start % GROUP_BLOCKS, count: run.count };
    (run.start / GROUP_BLOCKS, local)
}

fn masks(run: BlockRun) -> impl Iterator<Item = (usize, u64)> {
    let (mut at, end) = (run.start, run.start + run.count);
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let (word, bit) = ((at / 64) as usize, at % 64);
            let n = (64 - bit).min(end - at);
            at += n;
            (word, (u64::MAX >> (64 - n)) << bit)
        })
    })
}

fn set(bits: &mut [u64; WORDS], run: BlockRun) {
    masks(run).for_each(|(word, mask)| bits[word] |= mask);
}

fn clear(bits: &mut [u64; WORDS], run: BlockRun) {
    masks(run).for_each(|(word, mask)| bits[word] &= !mask);
}

/// Appends a block to a list of runs; joins it with the last run if it is adjacent.
pub(crate) fn push_block(runs: &mut BlockRuns, block: u64) {
    match runs.last_mut() {
        Some(last) if last.start + last.count == block && !block.is_multiple_of(GROUP_BLOCKS) => {
            last.count += 1;
        }
        _ => runs.push(BlockRun { start: block, count: 1 }),
    }
}

/// Knows which epochs have readers. A reader holds a clone of the token of the epoch in which it looked up its blocks,
/// and these blocks must not be used again before it drops the token.
pub(crate) struct ReaderEpochs {
    tokens: std::collections::VecDeque<(u64, Arc<()>)>,
}

impl ReaderEpochs {
    pub(crate) fn new() -> Self {
        Self { tokens: [(1, Arc::new(()))].into() }
    }

    /// Returns the number of the present epoch. Each commit ends one.
    pub(crate) fn epoch(&self) -> u64 {
        self.tokens.back().expect("never empty").0
    }

    pub(crate) fn enter(&self) -> Arc<()> {
        Arc::clone(&self.tokens.back().expect("never empty").1)
    }

    /// Begins the next epoch. New readers belong to it.
    pub(crate) fn advance(&mut self) {
        let next = self.epoch() + 1;
        self.tokens.push_back((next, Arc::new(())));
    }

    /// Returns the newest epoch for which neither it nor an earlier one has readers. Such an epoch cannot get new
    /// readers.
    pub(crate) fn quiet(&mut self) -> u64 {
        while self.tokens.len() > 1 && Arc::strong_count(&self.tokens[0].1) == 1 {
            self.tokens.pop_front();
        }
        self.tokens[0].0 - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(blocks: u64) -> Groups {
        let mut groups = Groups::new(blocks, 0);
        (0..blocks.div_ceil(GROUP_BLOCKS)).for_each(|group| groups.load(group, None));
        groups
    }

    #[test]
    fn a_freed_block_is_not_used_again_before_its_epoch_is_settled() {
        let mut groups = groups(100);
        let runs = groups.reserve(100).unwrap();
        groups.confirm(&runs);
        assert_eq!(groups.reserve(1), Err(NoBlocks::Full));
        let freed = BlockRun { start: 40, count: 3 };
        groups.release(&[freed], false);
        assert_eq!((groups.used, groups.reserve(1)), (97, Err(NoBlocks::Full)));
        assert_eq!(groups.freeze(7).len(), 1);
        assert!(groups.settle(6).is_empty());
        assert_eq!(groups.settle(7).as_slice(), [freed]);
        assert_eq!(groups.reserve(1), Err(NoBlocks::Full));
        groups.finish(&[freed]);
        assert_eq!(groups.reserve(3).unwrap().as_slice(), [freed]);
    }

    #[test]
    fn a_long_reservation_prefers_long_runs_and_takes_short_ones_last() {
        let mut groups = groups(2 * GROUP_BLOCKS);
        let all = groups.reserve(2 * GROUP_BLOCKS).unwrap();
        groups.confirm(&all);
        let holes: Vec<_> = (0..100).map(|i| BlockRun { start: i * 10, count: 2 }).collect();
        let long = BlockRun { start: GROUP_BLOCKS + 64, count: 70 };
        groups.release(&holes, true);
        groups.release(&[long], true);
        assert_eq!(groups.reserve(64).unwrap().as_slice(), [BlockRun { count: 64, ..long }]);
        assert_eq!(groups.reserve(206).unwrap().iter().map(|run| run.count).sum::<u64>(), 206);
        assert_eq!(groups.reserve(1), Err(NoBlocks::Full));
    }

    #[test]
    fn rows_restore_the_bitmap_without_reservations() {
        let mut first = groups(70);
        let kept = first.reserve(5).unwrap();
        first.confirm(&kept);
        let lost = first.reserve(60).unwrap();
        let rows = first.freeze(1);
        let mut second = Groups::new(70, first.used);
        second.load(0, rows[0].1.as_ref());
        assert_eq!(second.reserve(65).unwrap().iter().map(|run| run.count).sum::<u64>(), 65);
        first.unreserve(&lost);
        assert_eq!(first.free(), 65);
    }

    #[test]
    fn blocks_that_were_added_are_free_and_used_ones_stay_used() {
        let mut groups = groups(100);
        let runs = groups.reserve(100).unwrap();
        groups.confirm(&runs);
        assert_eq!(groups.reserve(1), Err(NoBlocks::Full));
        groups.grow(GROUP_BLOCKS + 10);
        assert_eq!(groups.free(), GROUP_BLOCKS - 90);
        let first = groups.reserve(GROUP_BLOCKS - 100).unwrap();
        assert_eq!(first[0].start, 100);
        groups.load(1, None);
        let rest = groups.reserve(10).unwrap();
        assert_eq!(rest.as_slice(), [BlockRun { start: GROUP_BLOCKS, count: 10 }]);
        assert_eq!(groups.reserve(1), Err(NoBlocks::Full));
    }

    #[test]
    fn an_epoch_is_quiet_when_its_last_reader_has_left() {
        let mut epochs = ReaderEpochs::new();
        let reader = epochs.enter();
        epochs.advance();
        assert_eq!(epochs.quiet(), 0);
        drop(reader);
        assert_eq!((epochs.quiet(), epochs.epoch()), (1, 2));
    }
}
