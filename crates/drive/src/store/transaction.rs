//! A transaction on the rows of the tables: it reads rows that are in memory, collects changes, and applies all of them
//! at once.
//!
//! The steps of a command run in a closure. If a row is not in memory, the closure ends with [`Stop::Missing`], the row
//! is loaded without the lock, and the closure runs again from its start.

use std::ops::RangeInclusive;

use bytes::Bytes;
use object::{ObjectAddress, ObjectError};
use smallvec::SmallVec;

use super::{
    chunk::BlockEntry,
    groups::{BlockRun, BlockRuns, GROUP_BLOCKS, Groups, NoBlocks, ReaderEpochs, push_block},
    key::Key,
    mutant::{DriveMutant, DriveMutation},
    row_store::{LoadedRows, Need, RowStore, Rows},
    unsynced::UnsyncedBlocks,
    works::Works,
};

/// The reason why a transaction ended without effect.
#[derive(Debug)]
pub(crate) enum Stop {
    Missing(Need),
    Failed(ObjectError),
    /// No block is free, but a commit may make freed blocks usable.
    Full,
    /// A commit must reserve more identifiers first.
    Identifiers,
    /// Chunks of this content must be freed first.
    Work(u64),
    /// This object must be copied first into the partition that is being made.
    Copy(u64),
}

impl From<ObjectError> for Stop {
    fn from(error: ObjectError) -> Self {
        Self::Failed(error)
    }
}

pub(crate) type Step<T> = Result<T, Stop>;

/// The counters of the drive, which are stored in one row.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Counters {
    /// The next identifier that the drive will assign.
    pub(crate) next_id: u64,
    /// Identifiers below this one are reserved in a stable row: after a crash they count as assigned.
    pub(crate) reserved_id: u64,
    pub(crate) next_content: u64,
    /// Space in bytes of all rows in the tables: the sum of [`space_of_row`].
    pub(crate) row_bytes: u64,
    pub(crate) next_tag: u64,
    pub(crate) oldest_tag: u64,
    /// Number of user objects and collections.
    pub(crate) objects: u64,
    pub(crate) partitions: u64,
    /// The largest request tag whose result the drive has forgotten; zero while it has forgotten none.
    pub(crate) tag_horizon: [u8; TAG_BYTES],
    /// The largest request tag of a command whose result was ever kept.
    pub(crate) largest_tag: [u8; TAG_BYTES],
}

/// The state of the drive in memory, which transactions change under one lock.
pub(crate) struct DriveTables {
    pub(crate) rows: RowStore,
    pub(crate) groups: Groups,
    /// The blocks that the next record of the log lists.
    pub(crate) unsynced: UnsyncedBlocks,
    pub(crate) counters: Counters,
    /// Number of transactions with changes since the drive was opened.
    pub(crate) version: u64,
    pub(crate) epochs: ReaderEpochs,
    /// The newest epoch (span between two commits) whose changes are stable.
    pub(crate) committed_epoch: u64,
    /// FORMAT OSD is at work, or has failed.
    pub(crate) is_formatting: bool,
    /// FORMAT OSD has failed, and may have removed all rows from the tables. Rows in memory may be gone there, so every
    /// command is refused until FORMAT OSD is repeated or the drive starts again.
    pub(crate) has_format_failed: bool,
    /// Space of rows above which nothing is created.
    pub(crate) row_limit: u64,
    /// Chunks that one transaction frees or copies.
    pub(crate) step_chunks: usize,
    /// There may be work rows.
    pub(crate) has_work: bool,
    /// The content whose work row was used last.
    pub(crate) last_work: u64,
    pub(crate) builds: Builds,
    pub(crate) works: Works,
}

/// Partitions that are not visible: one that is being made as a copy, and those whose making has failed.
#[derive(Debug, Default)]
pub(crate) struct Builds {
    pub(crate) active: Option<ActiveBuild>,
    /// Each with the object with which its removal goes on.
    pub(crate) failed: Vec<(u64, u64)>,
    /// A complete copy that takes the place of a partition.
    pub(crate) replacement: Option<Replacement>,
}

/// A partition that gets the objects of a complete copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replacement {
    pub(crate) copy: u64,
    pub(crate) partition: u64,
    /// The object with which the present stage goes on.
    pub(crate) next: u64,
}

/// A partition that is being made as a copy of another one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActiveBuild {
    pub(crate) source: u64,
    pub(crate) target: u64,
    /// Objects with a newer content were created since the begin, and are not copied.
    pub(crate) newest_content: u64,
    pub(crate) is_snapshot: bool,
    /// The command was dropped.
    pub(crate) is_abandoned: bool,
}

/// The change of [`Builds`] that a transaction makes.
pub(crate) enum BuildChange {
    Begin(ActiveBuild),
    /// The partition is complete.
    End,
    /// The worker undoes the active build.
    Cancel,
    /// The objects of the first failed partition are removed up to this one.
    Advance(u64),
    /// The rows of the first failed partition are removed.
    Undone,
    /// The partition that is being made is complete, and replaces another one.
    Replace(u64),
    ReplaceFrom(u64),
    Replaced,
}

impl Builds {
    fn apply(&mut self, change: BuildChange) {
        match change {
            BuildChange::Begin(build) => self.active = Some(build),
            BuildChange::End => self.active = None,
            BuildChange::Cancel => {
                self.failed.extend(self.active.take().map(|build| (build.target, 0)));
            }
            BuildChange::Advance(object) => {
                self.failed.first_mut().into_iter().for_each(|(_, next)| *next = object);
            }
            BuildChange::Undone => drop(self.failed.drain(..1)),
            BuildChange::Replace(partition) => {
                let build = self.active.take();
                self.replacement =
                    build.map(|build| Replacement { copy: build.target, partition, next: 0 });
            }
            BuildChange::ReplaceFrom(object) => {
                self.replacement.iter_mut().for_each(|replacement| replacement.next = object);
            }
            BuildChange::Replaced => self.replacement = None,
        }
    }
}

pub(crate) struct Transaction<'a> {
    tables: &'a mut DriveTables,
    loaded: &'a LoadedRows,
    writes: Rows,
    pub(crate) counters: Counters,
    reserved: BlockRuns,
    confirmed: BlockRuns,
    written: Vec<BlockEntry>,
    freed: BlockRuns,
    /// The partition and the identifiers of objects that this transaction creates. The tables have no row about them
    /// yet.
    fresh: Option<(u64, RangeInclusive<u64>)>,
    /// The value of [`DriveTables::has_work`] after the transaction, if it is known.
    has_work: Option<bool>,
    pub(crate) last_work: u64,
    build_change: Option<BuildChange>,
    faults: &'a DriveMutation,
}

/// Some rows of a range, in ascending order of their keys.
pub(crate) struct RowPage {
    pub(crate) rows: Vec<(Key, Bytes)>,
    /// The key with which the next page begins; `None` if this is the last page.
    pub(crate) next: Option<Key>,
}

impl<'a> Transaction<'a> {
    pub(crate) fn new(
        tables: &'a mut DriveTables,
        loaded: &'a LoadedRows,
        faults: &'a DriveMutation,
    ) -> Self {
        let (counters, last_work) = (tables.counters, tables.last_work);
        Self {
            tables,
            loaded,
            writes: Rows::new(),
            counters,
            reserved: SmallVec::new(),
            confirmed: SmallVec::new(),
            written: Vec::new(),
            freed: SmallVec::new(),
            fresh: None,
            has_work: None,
            last_work,
            build_change: None,
            faults,
        }
    }

    /// Returns the value of a row as this transaction sees it; `None` if there is no such row.
    pub(crate) fn get(&mut self, key: &Key) -> Step<Option<Bytes>> {
        if let Some(row) = self.writes.get(key) {
            return Ok(row.clone());
        }
        if let Some(row) = self.tables.rows.changed(key) {
            return Ok(row.clone());
        }
        if let Some(row) = self.loaded.rows.get(key) {
            return Ok(row.clone());
        }
        self.tables.rows.get(key).ok_or_else(|| Stop::Missing(Need::Row(key.clone())))
    }

    /// Replaces a row, or removes it. Reads the former value first.
    pub(crate) fn put(&mut self, key: Key, row: Option<Bytes>) -> Step<()> {
        let old = self.get(&key)?;
        self.replace(key, old.as_ref(), row);
        Ok(())
    }

    /// Notes that this transaction creates objects with these identifiers in a partition.
    pub(crate) fn creates(&mut self, partition: u64, ids: RangeInclusive<u64>) {
        self.fresh = Some((partition, ids));
    }

    /// Returns a row about an object. For an object that this transaction creates, does not read the tables.
    pub(crate) fn get_of(&mut self, address: ObjectAddress, key: &Key) -> Step<Option<Bytes>> {
        let is_fresh = self.fresh.as_ref().is_some_and(|(partition, ids)| {
            *partition == address.partition && ids.contains(&address.object)
        });
        if is_fresh {
            return Ok(self.writes.get(key).cloned().flatten());
        }
        self.get(key)
    }

    /// Replaces a row whose present value is `old`, or removes it.
    pub(crate) fn replace(&mut self, key: Key, old: Option<&Bytes>, row: Option<Bytes>) {
        let size = |row: Option<&Bytes>| row.map_or(0, |row| space_of_row(&key, row));
        let bytes = self.counters.row_bytes + size(row.as_ref());
        self.counters.row_bytes = bytes.saturating_sub(size(old));
        self.writes.insert(key, row);
    }

    /// Adds a row with a key that is known not to exist.
    pub(crate) fn insert(&mut self, key: Key, row: Bytes) {
        self.counters.row_bytes += space_of_row(&key, &row);
        self.writes.insert(key, Some(row));
    }

    /// Returns about `limit` rows whose keys are from `start` to before `end`.
    pub(crate) fn page(&mut self, start: &Key, end: &Key, limit: usize) -> Step<RowPage> {
        let loaded = self
            .loaded
            .ranges
            .iter()
            .find(|range| range.start == *start && range.end == *end && range.limit == limit);
        let Some(loaded) = loaded else {
            let (start, end) = (start.clone(), end.clone());
            return Err(Stop::Missing(Need::Range { start, end, limit }));
        };
        // The tables may have more rows behind the last row that was read: end the page there.
        let next = loaded.rows.last().filter(|_| loaded.is_partial()).map(|(key, _)| {
            let mut next = key.clone();
            next.push(0);
            next
        });
        let end = next.as_ref().unwrap_or(end);
        if start >= end {
            return Ok(RowPage { rows: Vec::new(), next });
        }
        let bounds = || start.clone()..end.clone();
        let mut rows = Rows::new();
        rows.extend(loaded.rows.iter().map(|(key, row)| (key.clone(), Some(row.clone()))));
        for changed in self.tables.rows.layers().chain([&self.writes]) {
            rows.extend(changed.range(bounds()).map(|(key, row)| (key.clone(), row.clone())));
        }
        let rows = rows.into_iter().filter_map(|(key, row)| Some((key, row?))).collect();
        Ok(RowPage { rows, next })
    }

    /// Calls `each` for all rows whose keys are from `start` to before `end`.
    pub(crate) fn for_each(
        &mut self,
        start: &Key,
        end: &Key,
        mut each: impl FnMut(&mut Self, Key, Bytes) -> Step<()>,
    ) -> Step<()> {
        let mut at = Some(start.clone());
        while let Some(start) = at {
            let page = self.page(&start, end, PAGE_ROWS)?;
            for (key, row) in page.rows {
                each(self, key, row)?;
            }
            at = page.next;
        }
        Ok(())
    }

    /// Reserves blocks for data at once, and not only when the transaction is applied. [`Transaction::abandon`] gives
    /// them back.
    pub(crate) fn reserve(&mut self, count: u64) -> Step<BlockRuns> {
        if count == 0 {
            return Ok(BlockRuns::new());
        }
        match self.tables.groups.reserve(count) {
            Ok(runs) => {
                self.reserved.extend(runs.iter().copied());
                Ok(runs)
            }
            Err(NoBlocks::Load(group)) => Err(Stop::Missing(Need::Group(group))),
            Err(NoBlocks::Full) if self.tables.groups.pending() > 0 => Err(Stop::Full),
            Err(NoBlocks::Full) => Err(Stop::Failed(self.full())),
        }
    }

    /// Returns the error for a drive without free blocks.
    pub(crate) fn full(&self) -> ObjectError {
        let groups = &self.tables.groups;
        ObjectError::Quota { used: groups.used * 4096, limit: groups.blocks() * 4096 }
    }

    /// Counts reserved blocks as used, because rows refer to them now: to each block of `runs` with an entry of
    /// `written`.
    pub(crate) fn confirm(&mut self, runs: &[BlockRun], written: impl Iterator<Item = BlockEntry>) {
        self.confirmed.extend(runs.iter().copied());
        self.written.extend(written);
    }

    /// Frees a block when the transaction is applied. No row may refer to the block any more.
    pub(crate) fn free(&mut self, block: u64) -> Step<()> {
        if block >= self.tables.groups.blocks() {
            let text = format!("a row refers to block {block}, which is behind the last one");
            return Err(Stop::Failed(ObjectError::Storage(text)));
        }
        let group = block / GROUP_BLOCKS;
        if !self.tables.groups.touch(group) {
            return Err(Stop::Missing(Need::Group(group)));
        }
        push_block(&mut self.freed, block);
        Ok(())
    }

    /// Returns true if the partition must not be seen: it is not complete.
    pub(crate) fn is_hidden(&self, partition: u64) -> bool {
        let builds = &self.tables.builds;
        builds.active.is_some_and(|build| build.target == partition)
            || builds.failed.iter().any(|(target, _)| *target == partition)
            || builds.replacement.is_some_and(|r| r.copy == partition || r.partition == partition)
    }

    pub(crate) fn active_build(&self) -> Option<ActiveBuild> {
        self.tables.builds.active
    }

    /// Returns a partition that must be removed, because it was not completed, and its next object.
    pub(crate) fn failed_build(&self) -> Option<(u64, u64)> {
        self.tables.builds.failed.first().copied()
    }

    pub(crate) fn replacement(&self) -> Option<Replacement> {
        self.tables.builds.replacement
    }

    pub(crate) fn change_build(&mut self, change: BuildChange) {
        self.build_change = Some(change);
    }

    /// Returns true if an object of the source is not copied yet.
    pub(crate) fn is_to_copy(&mut self, build: &ActiveBuild, id: u64, content: u64) -> Step<bool> {
        let copy = super::key::object(ObjectAddress::new(build.target, id));
        Ok(content <= build.newest_content && self.get(&copy)?.is_none())
    }

    /// Returns the number of chunks that one transaction may free or copy.
    pub(crate) fn step_chunks(&self) -> usize {
        self.tables.step_chunks
    }

    /// Notes that this transaction leaves chunks for the background thread to free.
    pub(crate) fn note_work(&mut self) {
        self.has_work = Some(true);
    }

    /// Returns true if this transaction leaves chunks for the background thread to free.
    pub(crate) fn adds_work(&self) -> bool {
        self.has_work == Some(true)
    }

    /// Notes that the tables have no work row.
    pub(crate) fn note_no_work(&mut self) {
        self.has_work = Some(false);
    }

    /// Returns the space in bytes of all rows above which no object can be created.
    pub(crate) fn table_limit(&self) -> u64 {
        self.tables.row_limit
    }

    /// Returns the commands at work. Changes of this list stay if the transaction is run again, or fails.
    pub(crate) fn works(&mut self) -> &mut Works {
        &mut self.tables.works
    }

    /// Returns a token that keeps all blocks from being used again that rows refer to now.
    pub(crate) fn enter_epoch(&self) -> std::sync::Arc<()> {
        self.tables.epochs.enter()
    }

    /// Returns the number of blocks that can be reserved now, or after the next commit.
    pub(crate) fn free_blocks(&self) -> u64 {
        self.tables.groups.free()
    }

    pub(crate) fn used_blocks(&self) -> u64 {
        self.tables.groups.used
    }

    pub(crate) fn total_blocks(&self) -> u64 {
        self.tables.groups.blocks()
    }

    /// Assigns `count` consecutive identifiers, and returns the first one.
    pub(crate) fn next_id(&mut self, count: u64) -> Step<u64> {
        let first = self.counters.next_id;
        if first + count > self.counters.reserved_id
            && !self.faults.is(DriveMutant::IdentifiersNotReserved)
        {
            return Err(Stop::Identifiers);
        }
        self.counters.next_id += count;
        Ok(first)
    }

    pub(crate) fn next_content(&mut self) -> u64 {
        self.counters.next_content += 1;
        self.counters.next_content
    }

    /// Applies the changes to the state in memory. Returns true if a row has changed.
    pub(crate) fn apply(self) -> bool {
        let is_change = !self.writes.is_empty();
        let tables = self.tables;
        tables.counters = self.counters;
        tables.has_work = self.has_work.unwrap_or(tables.has_work);
        tables.last_work = self.last_work;
        self.build_change.into_iter().for_each(|change| tables.builds.apply(change));
        if is_change {
            tables.version += 1;
        }
        for (key, row) in self.writes {
            tables.rows.put(key, row);
        }
        tables.groups.confirm(&self.confirmed);
        tables.unsynced.add(self.written.into_iter());
        self.freed.iter().for_each(|run| tables.unsynced.remove(*run));
        tables.groups.release(&self.freed, self.faults.is(DriveMutant::FreedAtOnce));
        is_change
    }

    /// Gives back the blocks that were reserved, because the transaction is not applied.
    pub(crate) fn abandon(self) {
        self.tables.groups.unreserve(&self.reserved);
    }
}

/// Returns the space in bytes that a row takes in the tables if redb fills half of each page. redb splits a full page in
/// the middle, so rows that are added in ascending order leave half of each page empty. A row of more than a third of a
/// page may be alone in its page, and a page of more than 4 KiB has a power of two.
fn space_of_row(key: &Key, row: &Bytes) -> u64 {
    let bytes = (key.len() + row.len() + ROW_HEADER) as u64;
    match bytes <= PAGE / 3 {
        true => bytes * 2,
        false => bytes.next_power_of_two().max(PAGE),
    }
}

impl Counters {
    /// Encodes the row of counters, with the number of used blocks.
    pub(crate) fn encode(&self, used: u64) -> Bytes {
        let numbers = [
            self.reserved_id,
            self.next_content,
            self.row_bytes,
            self.next_tag,
            self.oldest_tag,
            self.objects,
            self.partitions,
            used,
        ];
        let numbers = numbers.iter().flat_map(|number| number.to_le_bytes());
        numbers.chain(self.tag_horizon).chain(self.largest_tag).collect()
    }

    /// Decodes the row of counters. Returns the counters and the number of used blocks. Identifiers that were reserved
    /// count as assigned.
    pub(crate) fn decode(row: &[u8]) -> Option<(Self, u64)> {
        let (tag_horizon, tags) = row.get(NUMBERS..)?.split_first_chunk()?;
        let largest_tag = tags.first_chunk()?;
        let number =
            |n: usize| u64::from_le_bytes(row[n * 8..n * 8 + 8].try_into().expect("8 bytes"));
        let counters = Self {
            next_id: number(0),
            reserved_id: number(0),
            next_content: number(1),
            row_bytes: number(2),
            next_tag: number(3),
            oldest_tag: number(4),
            objects: number(5),
            partitions: number(6),
            tag_horizon: *tag_horizon,
            largest_tag: *largest_tag,
        };
        let plain = [0, 1, 2, 3, 4, 5, 6, 7].map(number);
        let has_room = plain.iter().all(|number| *number < MOST_COUNTED);
        let tags = counters.next_tag.checked_sub(counters.oldest_tag)?;
        (has_room && tags <= MOST_TAGS).then_some((counters, number(7)))
    }
}

pub(crate) const TAG_BYTES: usize = 16;
/// Length in bytes of redb's pages.
const PAGE: u64 = 4096;
/// Bytes that redb adds to each row: the ends of key and value, and a part of the page's header.
const ROW_HEADER: usize = 12;
/// Larger numbers do not occur: a row with one is damaged. Below it, sums do not overflow.
const MOST_COUNTED: u64 = 1 << 62;
/// Request tags that a row of counters may name. More would be forgotten one by one, which would take long.
const MOST_TAGS: u64 = 1 << 20;
/// Bytes of the numbers at the begin of the row of counters.
const NUMBERS: usize = 64;
/// Number of identifiers that one commit reserves.
pub(crate) const IDENTIFIER_STEP: u64 = 1 << 16;
/// Maximum number of rows in a page that a transaction reads to its end.
pub(crate) const PAGE_ROWS: usize = 1024;
