//! The ring of records in the NVRAM of a log buffer. `docs/formats/log-buffer.md` describes its bytes.

use std::collections::VecDeque;

use journal::{
    BLOCK_BYTES,
    bytes::{array, put, put_u32, put_u64, u32_at, u64_at},
    checksum::crc32c,
};
use volume::Data;

use super::mark::BufferId;
use crate::nvram::{BUFFER_MAGIC as MAGIC, StableMemory};

/// The writes in the NVRAM, in order. New records reuse the space of the oldest ones.
///
/// After the memory has [failed](StableMemory::error), the ring does not write to it any more.
pub(super) struct LogBufferRing {
    memory: Box<dyn StableMemory>,
    buffer: BufferId,
    /// The writes that the NVRAM holds, oldest first.
    held: VecDeque<LogBufferRecord>,
    /// The number and the offset of the next record.
    next: (u64, usize),
    /// The index in [`CELLS_AT`] of the cell that is written next, 0 or 1.
    next_cell: usize,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct LogBufferRecord {
    pub number: u64,
    /// The first block of the log disk for which the record has data.
    pub block: u64,
    pub blocks: u32,
    /// The offset of the record's header in the memory.
    offset: usize,
}

impl LogBufferRecord {
    /// Returns the number of bytes of the header and the data together.
    fn length(&self) -> usize {
        HEADER_BYTES + self.blocks as usize * BLOCK_BYTES
    }
}

/// The result of reading an NVRAM for the log buffer with a given id.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum LogBufferContents {
    /// The memory holds no writes: it is zeros, was being cleared, or is that of another buffer without records.
    Blank,
    /// The NVRAM belongs to this buffer, and all its records are intact.
    Whole,
    /// The NVRAM belongs to another buffer and holds writes, or another program uses the memory.
    Other,
    /// The NVRAM belongs to this buffer, and at least one record is damaged.
    Damaged,
}

impl LogBufferRing {
    /// Reads the memory and changes nothing. The ring has records only if the contents are whole.
    pub fn open(memory: Box<dyn StableMemory>, buffer: BufferId) -> (Self, LogBufferContents) {
        let mut ring =
            Self { memory, buffer, held: VecDeque::new(), next: (1, RING_AT), next_cell: 0 };
        let contents = ring.load();
        if contents != LogBufferContents::Whole {
            ring.held.clear();
        }
        (ring, contents)
    }

    fn load(&mut self) -> LogBufferContents {
        let mut top = [0; TOP_BYTES];
        self.memory.read(0, &mut top);
        if top[0] == 0 {
            return LogBufferContents::Blank;
        }
        let is_whole = top.starts_with(MAGIC)
            && u32_at(&top, TOP_CHECKSUM_AT) == crc32c(&top[..TOP_CHECKSUM_AT])
            && u32_at(&top, VERSION_AT) == VERSION
            && u64_at(&top, LENGTH_AT) == self.memory.len() as u64;
        if !is_whole {
            return LogBufferContents::Other;
        }
        let found: BufferId = array(&top, BUFFER_AT);
        if found == self.buffer {
            return self.load_records();
        }
        let ours = std::mem::replace(&mut self.buffer, found);
        let has_none = self.load_records() == LogBufferContents::Whole && self.held.is_empty();
        self.buffer = ours;
        if has_none { LogBufferContents::Blank } else { LogBufferContents::Other }
    }

    fn load_records(&mut self) -> LogBufferContents {
        let cells = CELLS_AT.map(|at| self.cell(at));
        let newest = usize::from(cells[1].map(|cell| cell.0) > cells[0].map(|cell| cell.0));
        let Some((number, offset)) = cells[newest] else { return LogBufferContents::Damaged };
        self.next_cell = 1 - newest;
        self.next = (number, offset);
        while let Some(record) = self.following() {
            if !self.is_whole(&record) {
                return LogBufferContents::Damaged;
            }
            self.held.push_back(record);
            self.next = (record.number + 1, record.offset + record.length());
        }
        // A crash can only tear the newest record. A record that is newer than the first missing one shows
        // damage.
        let offsets = (RING_AT..=self.memory.len() - HEADER_BYTES).step_by(HEADER_BYTES);
        let mut headers = offsets.filter_map(|offset| self.header(offset));
        if headers.any(|record| record.number > self.next.0) {
            return LogBufferContents::Damaged;
        }
        LogBufferContents::Whole
    }

    /// Returns the record after the last one. The record lies right behind the last one, or at the beginning
    /// of the ring.
    fn following(&self) -> Option<LogBufferRecord> {
        let (number, offset) = self.next;
        let is_it = |record: &LogBufferRecord| record.number == number;
        self.header(offset).filter(is_it).or_else(|| self.header(RING_AT).filter(is_it))
    }

    /// Returns the record whose header is at `offset`; `None` if there is no whole header of this buffer.
    fn header(&self, offset: usize) -> Option<LogBufferRecord> {
        if offset + HEADER_BYTES > self.memory.len() {
            return None;
        }
        let mut header = [0; HEADER_BYTES];
        self.memory.read(offset, &mut header);
        let is_whole = array::<16>(&header, RECORD_BUFFER_AT) == self.buffer
            && u32_at(&header, RECORD_CHECKSUM_AT) == crc32c(&header[..RECORD_CHECKSUM_AT]);
        let record = LogBufferRecord {
            number: u64_at(&header, NUMBER_AT),
            block: u64_at(&header, BLOCK_AT),
            blocks: u32_at(&header, BLOCKS_AT),
            offset,
        };
        (is_whole && record.blocks > 0 && offset + record.length() <= self.memory.len())
            .then_some(record)
    }

    fn is_whole(&self, record: &LogBufferRecord) -> bool {
        let mut header = [0; HEADER_BYTES];
        self.memory.read(record.offset, &mut header);
        crc32c(&self.data(record)) == u32_at(&header, DATA_CHECKSUM_AT)
    }

    /// Returns the number and the offset in a cell; `None` if the cell is torn.
    fn cell(&self, at: usize) -> Option<(u64, usize)> {
        let mut cell = [0; CELL_BYTES];
        self.memory.read(at, &mut cell);
        let is_whole = u32_at(&cell, CELL_CHECKSUM_AT) == !crc32c(&cell[..CELL_CHECKSUM_AT]);
        let offset = usize::try_from(u64_at(&cell, 8)).unwrap_or(usize::MAX);
        let fits = (RING_AT..=self.memory.len()).contains(&offset);
        (is_whole && fits).then(|| (u64_at(&cell, 0), offset))
    }

    /// Erases the NVRAM and labels it for the buffer with this id.
    pub fn format(&mut self, buffer: BufferId) {
        // The magic is cleared first and written last: a memory whose clearing was interrupted is blank.
        self.write(0, &[0; TOP_BYTES]);
        self.buffer = buffer;
        (self.held, self.next, self.next_cell) = (VecDeque::new(), (1, RING_AT), 0);
        for at in CELLS_AT {
            self.write(at, &[0; CELL_BYTES]);
        }
        self.note_oldest();
        let mut top = [0; TOP_BYTES];
        put(&mut top, 0, MAGIC);
        put_u32(&mut top, VERSION_AT, VERSION);
        put(&mut top, BUFFER_AT, &buffer);
        put_u64(&mut top, LENGTH_AT, self.memory.len() as u64);
        let checksum = crc32c(&top[..TOP_CHECKSUM_AT]);
        put_u32(&mut top, TOP_CHECKSUM_AT, checksum);
        self.write(MAGIC.len(), &top[MAGIC.len()..]);
        self.write(0, MAGIC);
    }

    /// Returns the records, oldest first.
    pub fn held(&self) -> impl Iterator<Item = &LogBufferRecord> {
        self.held.iter()
    }

    pub fn data(&self, record: &LogBufferRecord) -> Vec<u8> {
        let mut data = vec![0; record.length() - HEADER_BYTES];
        self.memory.read(record.offset + HEADER_BYTES, &mut data);
        data
    }

    /// Returns true if a record that is put into the ring is stable.
    pub fn is_sound(&self) -> bool {
        self.memory.error().is_none()
    }

    /// Returns the reason why the NVRAM has failed; `None` if it works.
    pub fn error(&self) -> Option<String> {
        self.memory.error().map(ToString::to_string)
    }

    pub fn next(&self) -> u64 {
        self.next.0
    }

    /// Returns the maximum number of blocks of one record: a quarter of the ring, so that several
    /// records fit.
    pub fn most_blocks(&self) -> u32 {
        let ring = self.memory.len() - RING_AT;
        u32::try_from((ring / 4 - HEADER_BYTES) / BLOCK_BYTES).unwrap_or(u32::MAX)
    }

    /// Puts a write into the ring. Returns its number, or `None` if there is no room now. The write is stable
    /// when this returns, if the ring [is sound](Self::is_sound).
    pub fn put(&mut self, block: u64, data: &Data) -> Option<u64> {
        let blocks = (data.len() / BLOCK_BYTES) as u32;
        let record = LogBufferRecord { number: self.next.0, block, blocks, offset: 0 };
        let offset = self.room(record.length())?;
        let record = LogBufferRecord { offset, ..record };
        let checksum = match data.parts() {
            [one] => crc32c(one),
            _ => crc32c(&data.clone().into_bytes()),
        };
        let mut header = [0; HEADER_BYTES];
        put_u64(&mut header, NUMBER_AT, record.number);
        put_u64(&mut header, BLOCK_AT, block);
        put_u32(&mut header, BLOCKS_AT, blocks);
        put_u32(&mut header, DATA_CHECKSUM_AT, checksum);
        put(&mut header, RECORD_BUFFER_AT, &self.buffer);
        let checksum = crc32c(&header[..RECORD_CHECKSUM_AT]);
        put_u32(&mut header, RECORD_CHECKSUM_AT, checksum);
        // Write the data before the header: a whole header states that its data is stable.
        let mut at = offset + HEADER_BYTES;
        for part in data.parts() {
            self.write(at, part);
            at += part.len();
        }
        self.write(offset, &header);
        self.held.push_back(record);
        self.next = (record.number + 1, offset + record.length());
        Some(record.number)
    }

    /// Returns the offset at which a record of `length` bytes fits; `None` if there is no room.
    fn room(&self, length: usize) -> Option<usize> {
        let (end, next) = (self.memory.len(), self.next.1);
        let Some(oldest) = self.held.front().map(|record| record.offset) else {
            let at = if next + length <= end { next } else { RING_AT };
            return (at + length <= end).then_some(at);
        };
        if next > oldest {
            if next + length <= end {
                return Some(next);
            }
            return (RING_AT + length <= oldest).then_some(RING_AT);
        }
        (next + length <= oldest).then_some(next)
    }

    /// Frees the NVRAM space of all writes up to `number`, which are on the disk.
    pub fn release(&mut self, number: u64) {
        while self.held.front().is_some_and(|record| record.number <= number) {
            self.held.pop_front();
        }
        self.note_oldest();
    }

    /// Records number and offset of the oldest record in the memory.
    fn note_oldest(&mut self) {
        let oldest = self.held.front().map(|record| (record.number, record.offset));
        let (number, offset) = oldest.unwrap_or(self.next);
        let mut cell = [0; CELL_BYTES];
        put_u64(&mut cell, 0, number);
        put_u64(&mut cell, 8, offset as u64);
        let checksum = crc32c(&cell[..CELL_CHECKSUM_AT]);
        put_u32(&mut cell, CELL_CHECKSUM_AT, !checksum);
        // Write the two cells in turn: if a crash tears this one, the other holds the position from one step
        // earlier.
        self.write(CELLS_AT[self.next_cell], &cell);
        self.next_cell = 1 - self.next_cell;
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        if self.is_sound() {
            self.memory.write(at, bytes);
        }
    }
}

const VERSION: u32 = 1;
const VERSION_AT: usize = 8;
const BUFFER_AT: usize = 16;
const LENGTH_AT: usize = 32;
const TOP_CHECKSUM_AT: usize = 40;
const TOP_BYTES: usize = 44;
/// Offsets of the two cells of the NVRAM. Each has a cache line of its own.
const CELLS_AT: [usize; 2] = [64, 128];
const CELL_CHECKSUM_AT: usize = 16;
const CELL_BYTES: usize = 20;
const RING_AT: usize = 4096;
const HEADER_BYTES: usize = 64;
const NUMBER_AT: usize = 0;
const BLOCK_AT: usize = 8;
const BLOCKS_AT: usize = 16;
const DATA_CHECKSUM_AT: usize = 20;
const RECORD_BUFFER_AT: usize = 24;
const RECORD_CHECKSUM_AT: usize = 60;

#[cfg(test)]
mod tests;
