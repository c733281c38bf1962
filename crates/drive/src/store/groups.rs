//! The free space of the drive: one bitmap for each group of 32,768 blocks (128 MiB), loaded when it is needed.
//!
//! A group in memory has two bitmaps. `stored` is the content of its row: blocks that rows of objects refer to.
//! `busy` also has blocks that are reserved for data on its way, and freed blocks that may not be used again yet:
//! until the change that freed them is stable, and until no reader that found them is at work.
//!
//! A group without blocks that are reserved or freed is dropped from memory when it was not used since the commit before
//! the last one, so memory does not grow with the drive. Summary rows have the number of used blocks of each group (2
//! bytes, little-endian; 1,024 groups in a row), so that a search does not read groups without free blocks.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use bytes::Bytes;
use smallvec::SmallVec;

use super::key::{self, Key};

/// Number of blocks in a group.
pub(crate) const GROUP_BLOCKS: u64 = 32768;
const WORDS: usize = (GROUP_BLOCKS / 64) as usize;
/// A reservation of at least this many blocks first looks for runs of this length, so that long reads and writes stay
/// fast.
const LONG_RUN: u64 = 32;
/// Groups in which long runs are looked for, so that a drive with scattered free blocks does not read all of them.
const LONG_SEARCH: u64 = 32;
/// Groups (8 KiB each, so 8 MiB) above which those that are not in use are dropped from memory.
const MOST_LOADED: usize = 1024;
/// Groups in a summary row.
pub(crate) const SUMMARY_GROUPS: usize = 1024;

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
    /// Blocks of each group that rows refer to, as in the summary rows: 16 KiB for each TiB.
    used_in: Vec<u16>,
    /// Commits so far.
    commits: u64,
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
    /// Blocks that are reserved, or freed and not usable yet.
    held: u64,
    /// The number of commits when the group was last used.
    last_use: u64,
}

impl Groups {
    pub(crate) fn new(blocks: u64, used: u64) -> Self {
        let count = blocks.div_ceil(GROUP_BLOCKS) as usize;
        Self {
            blocks,
            loaded: HashMap::new(),
            full: vec![false; count],
            used_in: vec![0; count],
            commits: 0,
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
        let groups = blocks.div_ceil(GROUP_BLOCKS) as usize;
        self.full.resize(groups, false);
        self.used_in.resize(groups, 0);
        if let Some(full) = self.full.get_mut(last as usize) {
            *full = false;
        }
        self.blocks = blocks;
    }

    /// Returns true if the group is in memory, and keeps it there for now.
    pub(crate) fn touch(&mut self, group: u64) -> bool {
        let commits = self.commits;
        self.loaded.get_mut(&group).map(|group| group.last_use = commits).is_some()
    }

    /// Returns the number of groups in memory.
    #[cfg(test)]
    fn in_memory(&self) -> usize {
        self.loaded.len()
    }

    /// Takes a summary row.
    pub(crate) fn load_summary(&mut self, first: u64, row: &[u8]) {
        let first = usize::try_from(first).unwrap_or(usize::MAX).saturating_mul(SUMMARY_GROUPS);
        for (group, bytes) in row.chunks_exact(2).take(SUMMARY_GROUPS).enumerate() {
            let group = first.saturating_add(group);
            let used = u16::from_le_bytes([bytes[0], bytes[1]]);
            if let Some(known) = self.used_in.get_mut(group) {
                *known = used;
                self.full[group] = u64::from(used) >= self.blocks_in(group as u64);
            }
        }
    }

    /// Returns the number of blocks in a group.
    fn blocks_in(&self, group: u64) -> u64 {
        self.blocks.saturating_sub(group * GROUP_BLOCKS).min(GROUP_BLOCKS)
    }

    /// Takes over the row of a group that is not loaded yet. Without a row, no block of the group is in use.
    pub(crate) fn load(&mut self, group: u64, row: Option<&Bytes>) {
        if self.touch(group) {
            return;
        }
        let mut stored = Box::new([0_u64; WORDS]);
        for (word, bytes) in stored.iter_mut().zip(row.map_or(&[][..], |row| row).chunks(8)) {
            let mut eight = [0; 8];
            eight[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(eight);
        }
        let mut busy = stored.clone();
        for block in self.blocks_in(group)..GROUP_BLOCKS {
            busy[(block / 64) as usize] |= 1 << (block % 64);
        }
        if let Some(used) = self.used_in.get_mut(group as usize) {
            *used = count(&stored);
        }
        let last_use = self.commits;
        self.loaded.insert(group, Group { stored, busy, is_changed: false, held: 0, last_use });
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
        let mut searched = 0;
        for step in 0..=groups {
            if *left == 0 {
                return Ok(());
            }
            let number = (first + step) % groups;
            if self.full[number as usize] {
                continue;
            }
            searched += 1;
            if least > 1 && searched > LONG_SEARCH {
                break;
            }
            let commits = self.commits;
            let Some(group) = self.loaded.get_mut(&number) else {
                return Err(NoBlocks::Load(number));
            };
            group.last_use = commits;
            let base = number * GROUP_BLOCKS;
            let mut at = if step == 0 { self.cursor % GROUP_BLOCKS } else { 0 };
            let begins_at = at;
            while *left > 0 {
                let Some(found) = group.find_free(at, (*left).min(least), *left) else { break };
                set(&mut group.busy, found);
                group.held += found.count;
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
            group.held -= run.count;
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
            group.held += run.count;
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
        let mut rows = Vec::new();
        let mut summaries = BTreeSet::new();
        for (number, group) in self.loaded.iter_mut().filter(|(_, group)| group.is_changed) {
            group.is_changed = false;
            rows.push((key::group(*number), group.row()));
            self.used_in[*number as usize] = count(&group.stored);
            summaries.insert(*number as usize / SUMMARY_GROUPS);
        }
        rows.extend(
            summaries.into_iter().map(|part| (key::summary(part as u64), self.summary(part))),
        );
        self.commits += 1;
        self.drop_unused();
        rows
    }

    /// Returns a summary row, without zeros at its end.
    fn summary(&self, part: usize) -> Option<Bytes> {
        let first = part * SUMMARY_GROUPS;
        let own = &self.used_in[first..self.used_in.len().min(first + SUMMARY_GROUPS)];
        let groups = own.iter().rposition(|used| *used != 0)? + 1;
        Some(own[..groups].iter().flat_map(|used| used.to_le_bytes()).collect())
    }

    /// Drops groups from memory that were not used lately and have no state that is not in their rows.
    fn drop_unused(&mut self) {
        if self.loaded.len() <= MOST_LOADED {
            return;
        }
        let is_kept =
            |group: &Group| group.is_changed || group.held > 0 || group.last_use + 2 > self.commits;
        let dropped = self.loaded.iter().filter(|(_, group)| !is_kept(group));
        for number in dropped.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.loaded.remove(&number);
            self.full[number as usize] =
                u64::from(self.used_in[number as usize]) >= self.blocks_in(number);
        }
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
            group.held = group.held.saturating_sub(run.count);
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

/// Returns the number of blocks in use.
fn count(bits: &[u64; WORDS]) -> u16 {
    bits.iter().map(|word| word.count_ones() as u16).sum()
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
mod tests;
