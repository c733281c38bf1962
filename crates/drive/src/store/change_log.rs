//! The log in front of the tables: a commit is one write and one flush.
//!
//! A commit appends a *record*: the rows that changed since the last record, and a list of the data blocks that were
//! written since then and to which these rows refer, with their checksums. One flush makes the record and the data
//! stable together. From time to time all rows of the log are written to the tables (a *fold*). The tables name the
//! *generation* of the log that continues them; a fold writes the next number in the same transaction. So records that
//! are in the tables already do not count any more, and nothing has to be erased. The log's region has two halves; even
//! generations have the first one. A generation begins at the begin of its half, its records follow each other without
//! gaps, and their sequence numbers begin with 1.
//!
//! When a half is full, a fold of its rows begins on a thread of its own, and records of the next generation go to the
//! other half meanwhile. They count only if all records before them do, so each of them names the number of records of
//! the generation before. A start reads the generation that the tables name, and then the next one.
//!
//! # A record may be on the volume without its data
//!
//! Before the flush ends, a power failure can leave the record but not its data. This can happen to the last record
//! only, because a record is written after the flush of the record before it has ended: one is in flight. So a start
//! reads the blocks in the list of the last record. A block with another checksum shows that the flush never ended;
//! no command was answered because of this record, and the start leaves it out. A block that cannot be read does not
//! show that. The record may have been acknowledged, so it counts, and a READ of the block reports the damage.
//!
//! An acknowledged record must therefore never look as if its flush had not ended. So each block in the list of the
//! last record must keep its content:
//!
//! - A block is in the list if a row refers to it when the rows are frozen. A block that was freed before is not in the
//!   list: it may be used again or discarded as soon as the record is stable.
//! - A block that is freed after the freeze may be used again when the *next* record or fold is stable. Then this
//!   record is not the last one.
//! - A block that snapshots share is freed with its last reference only. Content is never replaced in place; a scrub
//!   writes the content that the checksum names.
//! - A write that was on its way at the freeze goes to a reserved block to which no row refers. The block is in the list
//!   of the record that has its row. It is not given back while an abandoned write to it may still reach the volume.
//! - A fold beside commits has rows of stable records only. A block that such a record frees may be used again before the
//!   fold ends; a start replays the record.
//! - FORMAT OSD discards blocks after its fold has begun a new generation.
//!
//! A block of an old last record can also decay on the disk. So an idle drive, and a drive that is closed, folds the
//! log; then there is no last record.
//!
//! # Failures
//!
//! After a write or flush of the log has failed, the record may be on the volume or not. No record is written behind it:
//! the next commit is a fold.
//!
//! A start also looks behind the last intact record. If there is a later record, an acknowledged record between them was
//! damaged, and the start fails: the blocks that it freed may have other content by now.

use std::ops::Range;

use bytes::Bytes;
use volume::{Data, Durability, Extent};

use super::{
    block_on::block_on,
    chunk::BlockEntry,
    disk::{BLOCK, DriveDisk, crc32c_of},
    log_record::{LogRecord, RecordHeader, decode, encode},
    mutant::{DriveMutant, DriveMutation},
    options::OpenError,
    row_store::Rows,
    superblock::Superblock,
};

/// The place of the next record.
pub(crate) struct ChangeLog {
    layout: Superblock,
    generation: u64,
    /// The sequence number of the last record; zero: there is none.
    sequence: u64,
    /// The number of records of the generation before, until its fold has ended.
    follows: u64,
    /// The bytes behind the last record.
    free: Range<u64>,
    /// Records must not be written before the next fold, because the content of the region is not known.
    must_fold: bool,
}

impl ChangeLog {
    /// Returns the log of a drive whose tables name `generation`. The first commit is a fold.
    pub(crate) fn new(layout: &Superblock, generation: u64) -> Self {
        Self {
            // The next generation may have records, too.
            generation: generation.wrapping_add(1),
            sequence: 0,
            follows: 0,
            free: half(layout, generation),
            layout: layout.clone(),
            must_fold: true,
        }
    }

    /// Returns true if no record must be written before a fold.
    pub(crate) fn must_fold(&self) -> bool {
        self.must_fold
    }

    /// Returns true if there may be records that are not in the tables.
    pub(crate) fn has_records(&self) -> bool {
        self.sequence > 0 || self.follows > 0
    }

    /// Returns the number of records in the present generation.
    pub(crate) fn records(&self) -> u64 {
        self.sequence
    }

    /// Returns the bytes of a record with these rows and blocks; `None` if the region has no room for it.
    pub(crate) fn record(&self, rows: &Rows, blocks: &[BlockEntry]) -> Option<Bytes> {
        let place = (self.generation, self.sequence + 1, self.follows);
        let record = encode(place, rows, blocks);
        (record.len() as u64 <= self.free.end - self.free.start).then_some(record)
    }

    /// Writes a record. On return it is stable, and so is everything that was written to the volume before. With
    /// `flushes_first`, the data is stable before the record is written, because the record does not list its blocks.
    pub(crate) fn append(
        &mut self,
        disk: &DriveDisk,
        record: Bytes,
        flushes_first: bool,
        mutation: &DriveMutation,
    ) -> Result<(), volume::Error> {
        let length = record.len() as u64;
        self.must_fold = true;
        if flushes_first {
            block_on(disk.flush())?;
        }
        block_on(disk.write(self.free.start, Data::from(record), Durability::Volatile))?;
        if !mutation.is(DriveMutant::LogSync) {
            block_on(disk.flush())?;
        }
        self.must_fold = false;
        self.sequence += 1;
        self.free.start += length;
        Ok(())
    }

    /// Returns the generation that a fold writes into the tables. No record is written until [`ChangeLog::folded`] is
    /// called, because a fold that fails may be in the tables or not.
    pub(crate) fn begin_fold(&mut self, mutation: &DriveMutation) -> u64 {
        self.must_fold = true;
        if !mutation.is(DriveMutant::GenerationNotAdvanced) {
            self.generation = self.generation.wrapping_add(1);
        }
        self.generation
    }

    /// Notes that the tables have all rows of the log, and name the generation of [`ChangeLog::begin_fold`].
    pub(crate) fn folded(&mut self) {
        self.sequence = 0;
        self.begin_half();
    }

    /// Begins to write records of the generation of [`ChangeLog::begin_fold`], beside the fold.
    pub(crate) fn begin_half(&mut self) {
        (self.follows, self.sequence) = (self.sequence, 0);
        (self.free, self.must_fold) = (half(&self.layout, self.generation), false);
    }

    /// Notes that a fold beside commits has ended.
    pub(crate) fn fold_ended(&mut self, is_done: bool) {
        match is_done {
            true => self.follows = 0,
            false => self.must_fold = true,
        }
    }
}

/// Returns the bytes of the volume that a generation has.
fn half(layout: &Superblock, generation: u64) -> Range<u64> {
    let region = layout.log();
    let middle = region.start + u64::from(layout.log_bytes) / 2 / BLOCK * BLOCK;
    match generation.is_multiple_of(2) {
        true => region.start..middle,
        false => middle..region.end,
    }
}

/// Reads the rows of a log that continue tables which name `generation`. Blocks.
pub(crate) fn recover(
    disk: &DriveDisk,
    layout: &Superblock,
    generation: u64,
    mutation: &DriveMutation,
) -> Result<Rows, OpenError> {
    let (mut rows, mut last) = (Rows::new(), LogRecord::default());
    let mut follows = None;
    for generation in [generation, generation.wrapping_add(1)] {
        let mut free = half(layout, generation);
        let mut sequence = 0;
        while let Some((header, record)) = read(disk, &free, generation, sequence + 1)? {
            if follows.is_some_and(|records| header.follows != records) {
                return Err(OpenError::Log);
            }
            rows.extend(std::mem::replace(&mut last, record).rows);
            free.start += header.length();
            sequence += 1;
        }
        if has_later_record(disk, free, generation, sequence + 1) {
            return Err(OpenError::Log);
        }
        follows = Some(sequence);
    }
    if mutation.is(DriveMutant::DataUnchecked) || has_data(disk, layout, &last.blocks)? {
        rows.extend(last.rows);
    }
    Ok(rows)
}

/// Reads the record at the begin of `range`. `None`: the record there is torn, or not the next one.
fn read(
    disk: &DriveDisk,
    range: &Range<u64>,
    generation: u64,
    sequence: u64,
) -> Result<Option<(RecordHeader, LogRecord)>, volume::Error> {
    if range.start >= range.end {
        return Ok(None);
    }
    let is_next = |header: &RecordHeader| {
        (header.generation, header.sequence) == (generation, sequence)
            && header.length() <= range.end - range.start
    };
    let next_header = |data: &Data| {
        let bytes = data.clone().into_bytes();
        RecordHeader::decode(&bytes).filter(is_next)
    };
    // Each copy of a mirror is asked: a copy may lack what another one has.
    let first = disk.extent(range.start, BLOCK);
    let is_header = |data: &Data| next_header(data).is_some();
    let found = examine(disk, first, &is_header)?;
    let Some(header) = found.as_ref().and_then(next_header) else { return Ok(None) };
    let whole = disk.extent(range.start, header.length());
    let is_whole = |data: &Data| {
        let bytes = data.clone().into_bytes();
        RecordHeader::decode(&bytes) == Some(header) && header.is_body_of(&bytes)
    };
    let found = examine(disk, whole, &is_whole)?;
    let record = found.and_then(|data| decode(&header, &data.into_bytes()));
    Ok(record.map(|record| (header, record)))
}

/// Returns a copy of the extent that is right; `None` if it can be read and no copy is right.
fn examine(
    disk: &DriveDisk,
    extent: Extent,
    is_right: &(dyn Fn(&Data) -> bool + Sync),
) -> Result<Option<Data>, volume::Error> {
    let found = block_on(volume::examine(&**disk.volume(), extent, is_right))?;
    if found.is_none() {
        // A mirror counts copies that cannot be read among the wrong ones. Its read fails if it cannot read any.
        block_on(disk.volume().read(extent))?;
    }
    Ok(found)
}

/// Returns true if a block of `range` begins a record of this generation that was written after the one with the number
/// `sequence`. A block that cannot be read counts as one without a record.
fn has_later_record(disk: &DriveDisk, range: Range<u64>, generation: u64, sequence: u64) -> bool {
    let mut at = range.start;
    while at < range.end {
        let length = WINDOW.min(range.end - at);
        if let Ok(data) = block_on(disk.read(at, length)) {
            let bytes = data.into_bytes();
            let headers = bytes.chunks(BLOCK as usize).filter_map(RecordHeader::decode);
            if headers
                .into_iter()
                .any(|found| found.generation == generation && found.sequence > sequence)
            {
                return true;
            }
        }
        at += length;
    }
    false
}

/// Returns false if a block has other data than the record with this list was written for.
fn has_data(
    disk: &DriveDisk,
    layout: &Superblock,
    blocks: &[BlockEntry],
) -> Result<bool, OpenError> {
    for entry in blocks {
        if entry.block >= layout.data_blocks {
            return Err(OpenError::Log);
        }
        let extent = disk.extent(layout.data_start + entry.block * BLOCK, BLOCK);
        let is_right = |data: &Data| crc32c_of(data) == entry.crc;
        match examine(disk, extent, &is_right) {
            Ok(Some(_)) | Err(volume::Error::Medium { .. }) => {}
            Ok(None) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

/// Bytes of the log that a start reads at once when it looks for later records.
const WINDOW: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use volume::{Geometry, MemVolume};

    use super::*;
    use crate::store::key::Key;

    struct Bench {
        disk: DriveDisk,
        layout: Superblock,
        log: ChangeLog,
    }

    impl Bench {
        /// Returns an empty log of generation 12.
        fn new() -> Self {
            let disk = DriveDisk::new(Arc::new(MemVolume::new(Geometry::with_blocks(1 << 15))));
            let layout = Superblock::plan(disk.bytes(), [7; 16]).unwrap();
            let mut log = ChangeLog::new(&layout, 10);
            assert_eq!(log.begin_fold(&DriveMutation::default()), 12);
            log.folded();
            Self { disk, layout, log }
        }

        fn append(&mut self, key: u8) {
            let mut rows = Rows::new();
            rows.insert(Key::from_slice(&[key]), None);
            let record = self.log.record(&rows, &[]).unwrap();
            self.log.append(&self.disk, record, false, &DriveMutation::default()).unwrap();
        }

        fn begin_half(&mut self) {
            self.log.begin_fold(&DriveMutation::default());
            self.log.begin_half();
        }

        /// Returns the keys of the rows that a start finds if the tables name `generation`.
        fn found(&self, generation: u64) -> Option<Vec<u8>> {
            let rows =
                recover(&self.disk, &self.layout, generation, &DriveMutation::default()).ok()?;
            Some(rows.keys().map(|key| key[0]).collect())
        }

        fn damage(&self, generation: u64, block: u64) {
            let at = half(&self.layout, generation).start + block * BLOCK;
            let data = Data::from(vec![1; BLOCK as usize]);
            block_on(self.disk.write(at, data, Durability::Volatile)).unwrap();
        }
    }

    #[test]
    fn records_beside_a_fold_count_with_those_before_them() {
        let mut bench = Bench::new();
        bench.append(1);
        bench.append(2);
        assert_eq!(bench.found(12), Some(vec![1, 2]));
        bench.begin_half();
        bench.append(3);
        // The fold has not ended, or it has.
        assert_eq!(bench.found(12), Some(vec![1, 2, 3]));
        assert_eq!(bench.found(13), Some(vec![3]));
        bench.damage(13, 0);
        assert_eq!(bench.found(12), Some(vec![1, 2]));
    }

    #[test]
    fn a_damaged_end_of_the_generation_before_is_an_error() {
        let mut bench = Bench::new();
        bench.append(1);
        bench.append(2);
        bench.begin_half();
        bench.append(3);
        bench.damage(12, 1);
        assert_eq!(bench.found(12), None);
        assert_eq!(bench.found(13), Some(vec![3]));
    }

    #[test]
    fn records_of_an_older_generation_do_not_count() {
        let mut bench = Bench::new();
        (1..=3).for_each(|key| bench.append(key));
        bench.log.begin_fold(&DriveMutation::default());
        bench.log.folded();
        bench.log.begin_fold(&DriveMutation::default());
        bench.log.folded();
        bench.append(9);
        assert_eq!(bench.found(14), Some(vec![9]));
    }

    #[test]
    fn no_record_is_written_after_a_fold_beside_commits_failed() {
        let mut bench = Bench::new();
        bench.append(1);
        bench.begin_half();
        bench.append(2);
        bench.log.fold_ended(false);
        assert!(bench.log.must_fold() && bench.log.has_records());
    }
}
