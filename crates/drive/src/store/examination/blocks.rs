//! Compares the data of all objects with its checksums, and the references to each block with the bitmaps of free
//! space.
//!
//! The references are counted for a window of blocks at a time, so that the memory does not grow with the volume.

use std::sync::Arc;

use object::{ObjectAddress, ObjectType};
use volume::Data;

use super::{
    report::{DriveExamination, DriveFindingKind},
    rows::ExaminedRows,
    unfinished::each_unfinished_content,
};
use crate::store::{
    block_on::block_on,
    chunk::{self, BlockEntry, CHUNK_BLOCKS},
    disk::{BLOCK, DriveDisk, crc32c_of},
    groups::{GROUP_BLOCKS, SUMMARY_GROUPS},
    key,
    object_row::{MAY_SHARE, ObjectRow},
    superblock::Superblock,
};

/// A callback that receives the number of bytes compared so far, and the number of all bytes to compare.
pub type ExaminationProgress = Box<dyn Fn(u64, u64) + Send>;

/// An examination of the blocks of data.
pub(super) struct BlockExamination<'a> {
    pub(super) rows: &'a ExaminedRows,
    pub(super) report: &'a mut DriveExamination,
    pub(super) disk: Arc<DriveDisk>,
    pub(super) layout: &'a Superblock,
    /// Number of used blocks according to the row of counters.
    pub(super) used: u64,
    pub(super) progress: ExaminationProgress,
}

/// The counted references to a window of blocks that begins with `first`.
struct BlockWindow {
    first: u64,
    /// Number of references to each block. The top bit is set if one of the objects is not marked as sharing.
    references: Vec<u32>,
}

impl BlockWindow {
    fn end(&self) -> u64 {
        self.first + self.references.len() as u64
    }

    /// Counts a reference to a block. Returns true if it is the first one to a block of this window.
    fn count(&mut self, block: u64, may_share: bool) -> bool {
        let Some(index) = block.checked_sub(self.first) else { return false };
        let Some(references) = self.references.get_mut(index as usize) else { return false };
        let is_first = *references & !EXCLUSIVE == 0;
        // The count cannot reach the top bit: each reference takes 12 bytes of the tables.
        *references += 1;
        if !may_share {
            *references |= EXCLUSIVE;
        }
        is_first
    }
}

impl BlockExamination<'_> {
    /// Examines all blocks of the drive, one window after the other.
    pub(super) fn run(mut self) -> Result<(), redb::Error> {
        let blocks = self.layout.data_blocks;
        let (mut first, mut used) = (0, 0);
        while first < blocks {
            let count = (blocks - first).min(WINDOW) as usize;
            let mut window = BlockWindow { first, references: vec![0; count] };
            self.count_references(&mut window)?;
            used += window.references.iter().filter(|references| **references != 0).count() as u64;
            self.compare_groups(&window)?;
            self.compare_shared(&window)?;
            first += WINDOW;
        }
        let kind = DriveFindingKind::Counter;
        self.report.compare(kind, "used blocks of the drive", self.used, used);
        self.examine_outside()
    }

    /// Counts the references to the blocks of a window. Reads and checks each block when its first reference is found.
    fn count_references(&mut self, window: &mut BlockWindow) -> Result<(), redb::Error> {
        let rows = self.rows;
        rows.each(&key::objects_start(), &key::all_objects_end(), |row_key, row| {
            let object = ObjectAddress::new(key::number(&row_key, 0), key::number(&row_key, 1));
            let Some(row) = ObjectRow::decode(&row) else { return Ok(()) };
            if row.object_type != ObjectType::UserObject {
                return Ok(());
            }
            let (start, end) = (key::chunk(row.content, 0), key::chunks_end(row.content));
            rows.each(&start, &end, |row_key, chunk| {
                let base = key::last_number(&row_key).saturating_mul(CHUNK_BLOCKS);
                let entries: Vec<(u64, BlockEntry)> = chunk::entries(&chunk)
                    .take(CHUNK_BLOCKS as usize)
                    .filter(|(_, entry)| window.count(entry.block, row.has(MAY_SHARE)))
                    .map(|(index, entry)| (base.saturating_add(index), entry))
                    .collect();
                self.read(object, &entries);
                Ok(())
            })
        })?;
        each_unfinished_content(rows, |content, may_share| {
            rows.each(&key::chunk(content, 0), &key::chunks_end(content), |_, chunk| {
                // No command reads this data any more, so its checksums do not matter.
                for (_, entry) in chunk::entries(&chunk).take(CHUNK_BLOCKS as usize) {
                    window.count(entry.block, may_share);
                }
                Ok(())
            })
        })
    }

    /// Reads blocks of an object, adjacent ones with one call, and compares them with their checksums.
    fn read(&mut self, object: ObjectAddress, entries: &[(u64, BlockEntry)]) {
        for run in entries.chunk_by(|a, b| a.1.block + 1 == b.1.block) {
            let Some((_, first)) = run.first() else { continue };
            if let Ok(data) = self.read_blocks(first.block, run.len()) {
                for (n, (at, entry)) in run.iter().enumerate() {
                    let block = data.slice(n * BLOCK as usize, BLOCK as usize);
                    if crc32c_of(&block) != entry.crc {
                        self.damaged(object, *at, "does not match its checksum");
                    }
                }
            } else {
                for (at, entry) in run {
                    match self.read_blocks(entry.block, 1) {
                        Ok(data) if crc32c_of(&data) == entry.crc => {}
                        Ok(_) => self.damaged(object, *at, "does not match its checksum"),
                        Err(error) => {
                            self.damaged(object, *at, &format!("cannot be read: {error}"));
                        }
                    }
                }
            }
            self.report.bytes += run.len() as u64 * BLOCK;
        }
        (self.progress)(self.report.bytes, self.used.saturating_mul(BLOCK));
    }

    fn read_blocks(&self, block: u64, count: usize) -> Result<Data, volume::Error> {
        let offset = self.layout.data_start + block * BLOCK;
        block_on(self.disk.read(offset, count as u64 * BLOCK))
    }

    fn damaged(&mut self, object: ObjectAddress, block: u64, why: &str) {
        let at = block.saturating_mul(BLOCK);
        let text = format!("the block at byte {at} {why}");
        self.report.find_at(DriveFindingKind::Data, object, &text);
    }

    /// Compares the bitmaps of the groups with the references.
    fn compare_groups(&mut self, window: &BlockWindow) -> Result<(), redb::Error> {
        let mut first = window.first;
        while first < window.end() {
            let group = first / GROUP_BLOCKS;
            let row = self.rows.get(&key::group(group))?.unwrap_or_default();
            self.compare_summary(group, &row)?;
            for block in first..first + GROUP_BLOCKS {
                let bit = (block - first) as usize;
                let is_used = row.get(bit / 8).is_some_and(|byte| byte & 1 << (bit % 8) != 0);
                // The bits of blocks behind the end of the drive must be clear.
                let index = (block - window.first) as usize;
                let references = window.references.get(index).copied().unwrap_or_default();
                match (is_used, references != 0) {
                    (true, false) => {
                        let text =
                            format!("block {block} counts as used, but nothing refers to it");
                        self.report.find(DriveFindingKind::Leaked, text);
                    }
                    (false, true) => {
                        let text =
                            format!("block {block} counts as free, but an object refers to it");
                        self.report.find(DriveFindingKind::Free, text);
                    }
                    _ => {}
                }
            }
            first += GROUP_BLOCKS;
        }
        Ok(())
    }

    /// Compares the number of used blocks of a group in its summary row with its bitmap.
    fn compare_summary(&mut self, group: u64, bitmap: &[u8]) -> Result<(), redb::Error> {
        let part = group / SUMMARY_GROUPS as u64;
        let summary = self.rows.get(&key::summary(part))?.unwrap_or_default();
        let at = (group % SUMMARY_GROUPS as u64) as usize * 2;
        let kept = summary.get(at..at + 2).and_then(|bytes| bytes.try_into().ok());
        let counted = bitmap.iter().map(|byte| u64::from(byte.count_ones())).sum();
        self.report.compare(
            DriveFindingKind::Counter,
            format_args!("used blocks of group {group}"),
            kept.map_or(0, |bytes| u64::from(u16::from_le_bytes(bytes))),
            counted,
        );
        Ok(())
    }

    /// Compares the reference counts of shared blocks with the references.
    fn compare_shared(&mut self, window: &BlockWindow) -> Result<(), redb::Error> {
        let kind = DriveFindingKind::References;
        let mut next = window.first;
        let report = &mut *self.report;
        let mut check = |block: u64, further: u32| {
            let references = window.references[(block - window.first) as usize];
            let counted = u64::from(references & !EXCLUSIVE);
            if counted > 1 || further > 0 {
                let kept = u64::from(further) + 1;
                report.compare(kind, format_args!("references to block {block}"), kept, counted);
            }
            if counted > 1 && references & EXCLUSIVE != 0 {
                let text = format!("block {block} is shared by an object that is not marked so");
                report.find(kind, text);
            }
        };
        self.rows.each(
            &key::shared(window.first),
            &key::shared(window.end()),
            |row_key, row| {
                let block = key::last_number(&row_key);
                (next..block).for_each(|block| check(block, 0));
                let further = row.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
                check(block, further);
                next = block + 1;
                Ok(())
            },
        )?;
        (next..window.end()).for_each(|block| check(block, 0));
        Ok(())
    }

    /// Adds findings for chunks, groups and reference counts that name blocks behind the end of the drive.
    fn examine_outside(&mut self) -> Result<(), redb::Error> {
        let blocks = self.layout.data_blocks;
        let report = &mut *self.report;
        self.rows.each(&key::chunk(0, 0), &key::group(0), |row_key, chunk| {
            if chunk::entries(&chunk).any(|(_, entry)| entry.block >= blocks) {
                let text =
                    format!("the chunk {row_key:02x?} refers to a block behind the last one");
                report.find(DriveFindingKind::References, text);
            }
            Ok(())
        })?;
        let last = blocks.div_ceil(GROUP_BLOCKS);
        self.rows.each(&key::group(last), &key::groups_end(), |row_key, _| {
            let text = format!("the group {} is behind the last one", key::last_number(&row_key));
            report.find(DriveFindingKind::Tables, text);
            Ok(())
        })?;
        self.rows.each(&key::summary(0), &key::summaries_end(), |row_key, row| {
            let part = key::last_number(&row_key);
            let first = part.saturating_mul(SUMMARY_GROUPS as u64);
            if first.saturating_add(row.len() as u64 / 2) > last {
                let text = format!("the summary {part} has groups behind the last one");
                report.find(DriveFindingKind::Tables, text);
            }
            Ok(())
        })?;
        self.rows.each(&key::shared(blocks), &key::shared_end(), |row_key, _| {
            let text = format!("block {} is behind the last one", key::last_number(&row_key));
            report.find(DriveFindingKind::References, text);
            Ok(())
        })
    }
}

const EXCLUSIVE: u32 = 1 << 31;
/// Number of blocks (128 GiB) whose references are counted at once: the counts take 128 MiB of memory. The rows of all
/// objects are read once for each window, which takes little time compared with reading the data.
const WINDOW: u64 = 1 << 25;
