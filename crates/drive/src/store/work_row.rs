//! A work row: it names chunks of an object's content whose blocks are still to be freed.
//!
//! A command on many chunks does not free their blocks itself. The command removes or changes the row of the object,
//! and puts the ranges of chunks into a work row in the same transaction. From then on no reader sees these chunks. The
//! background thread frees them in bounded transactions, also after a restart.
//!
//! The key of a work row has the number of the content. The row has a version (1 byte), flags of the object row (1),
//! six zeros, the identifiers of the partition and the object (8 each; zero: the object was removed), and then the
//! first chunk and the end of each range (8 each, little-endian), in ascending order.

use std::ops::Range;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use object::{ObjectAddress, ObjectError};
use smallvec::SmallVec;

use super::{
    key,
    object_row::{HAS_WORK, MAY_SHARE, ObjectRow},
    transaction::{Step, Stop, Transaction},
};

const ROW_VERSION: u8 = 1;
const HEADER: usize = 24;
/// Maximum number of ranges in a work row, which keeps the row below 2 KiB. A command that needs more ranges first
/// frees some chunks itself.
const MOST_RANGES: usize = 64;

#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct WorkRow {
    /// The object that still has the content; `None` if the object was removed.
    pub(crate) object: Option<ObjectAddress>,
    /// True if the blocks may be shared with a copy.
    pub(crate) may_share: bool,
    pub(crate) chunks: SmallVec<[Range<u64>; 2]>,
}

impl WorkRow {
    /// The work that frees all chunks of a removed object.
    pub(crate) fn of_all() -> Self {
        let chunks = std::iter::once(0..u64::MAX).collect();
        Self { object: None, may_share: false, chunks }
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(HEADER + 16 * self.chunks.len());
        bytes.put_u8(ROW_VERSION);
        bytes.put_u8(if self.may_share { MAY_SHARE } else { 0 });
        bytes.put_bytes(0, 6);
        let object = self.object.unwrap_or(ObjectAddress::ROOT);
        bytes.put_u64_le(object.partition);
        bytes.put_u64_le(object.object);
        for range in &self.chunks {
            bytes.put_u64_le(range.start);
            bytes.put_u64_le(range.end);
        }
        bytes.freeze()
    }

    /// Decodes a work row. Returns `None` for a row of another version or form.
    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let count = bytes.len().checked_sub(HEADER)? / 16;
        if bytes.get_u8() != ROW_VERSION || count == 0 || count > MOST_RANGES {
            return None;
        }
        let may_share = bytes.get_u8() & MAY_SHARE != 0;
        bytes.advance(6);
        let object = ObjectAddress::new(bytes.get_u64_le(), bytes.get_u64_le());
        let mut chunks = SmallVec::new();
        let mut end = 0;
        for _ in 0..count {
            let range = bytes.get_u64_le()..bytes.get_u64_le();
            if range.start < end || range.start >= range.end {
                return None;
            }
            end = range.end;
            chunks.push(range);
        }
        Some(Self { object: (object.object != 0).then_some(object), may_share, chunks })
    }

    fn contains(&self, chunk: u64) -> bool {
        self.chunks.iter().any(|range| range.contains(&chunk))
    }

    /// Adds a range of chunks, and joins it with the ranges that it touches.
    fn add(&mut self, mut added: Range<u64>) {
        let mut kept = SmallVec::new();
        for range in self.chunks.drain(..) {
            if range.end < added.start || range.start > added.end {
                kept.push(range);
            } else {
                added = added.start.min(range.start)..added.end.max(range.end);
            }
        }
        let at = kept.iter().take_while(|range: &&Range<u64>| range.start < added.start).count();
        kept.insert(at, added);
        self.chunks = kept;
    }

    /// Takes one chunk out of the ranges, because it was freed.
    fn take_out(&mut self, chunk: u64) {
        let all = std::mem::take(&mut self.chunks);
        for range in all {
            let parts = match range.contains(&chunk) {
                true => [range.start..chunk, chunk + 1..range.end],
                false => [range, 0..0],
            };
            self.chunks.extend(parts.into_iter().filter(|part| part.start < part.end));
        }
    }
}

/// Returns the work row of a content; `None` if no chunk of it is to be freed.
pub(crate) fn find_work(transaction: &mut Transaction<'_>, content: u64) -> Step<Option<WorkRow>> {
    let Some(row) = transaction.get(&key::work(content))? else { return Ok(None) };
    decode(content, &row).map(Some)
}

pub(crate) fn decode(content: u64, row: &[u8]) -> Step<WorkRow> {
    WorkRow::decode(row).ok_or_else(|| damaged(content))
}

/// Returns the failure for a work row that is damaged.
pub(crate) fn damaged(content: u64) -> Stop {
    Stop::Failed(ObjectError::Storage(format!("the work row of content {content} is damaged")))
}

/// Stores the work row of a content, or removes it if no chunk is left. Fails with [`Stop::Work`] if the row would have
/// too many ranges.
pub(crate) fn store_work(
    transaction: &mut Transaction<'_>,
    content: u64,
    work: &WorkRow,
) -> Step<()> {
    if work.chunks.len() > MOST_RANGES {
        return Err(Stop::Work(content));
    }
    if work.chunks.is_empty() {
        return transaction.put(key::work(content), None);
    }
    transaction.put(key::work(content), Some(work.encode()))?;
    transaction.note_work();
    Ok(())
}

/// Returns true if a chunk of the object is still to be freed. Readers must then take it for a hole.
pub(crate) fn is_left_over(
    transaction: &mut Transaction<'_>,
    row: &ObjectRow,
    chunk: u64,
) -> Step<bool> {
    if !row.has(HAS_WORK) {
        return Ok(false);
    }
    Ok(find_work(transaction, row.content)?.is_some_and(|work| work.contains(chunk)))
}

/// Leaves a range of chunks of an object for the background thread to free.
pub(crate) fn leave_chunks(
    transaction: &mut Transaction<'_>,
    address: ObjectAddress,
    row: &mut ObjectRow,
    chunks: Range<u64>,
) -> Step<()> {
    if chunks.start >= chunks.end {
        return Ok(());
    }
    let mut work = find_work(transaction, row.content)?.unwrap_or_default();
    (work.object, work.may_share) = (Some(address), row.has(MAY_SHARE));
    work.add(chunks);
    row.flags |= HAS_WORK;
    store_work(transaction, row.content, &work)
}

/// Removes a chunk from the object's work row, because a command that needs the chunk has freed it.
pub(crate) fn take_chunk(
    transaction: &mut Transaction<'_>,
    row: &mut ObjectRow,
    chunk: u64,
) -> Step<()> {
    let mut work = find_work(transaction, row.content)?.unwrap_or_default();
    work.take_out(chunk);
    if work.chunks.is_empty() {
        row.flags &= !HAS_WORK;
    }
    store_work(transaction, row.content, &work)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(ranges: &[Range<u64>]) -> WorkRow {
        let object = Some(ObjectAddress::new(7, 8));
        WorkRow { object, may_share: true, chunks: ranges.iter().cloned().collect() }
    }

    #[test]
    fn ranges_are_joined_and_split_in_ascending_order() {
        let mut row = work(&[5..8, 20..30]);
        row.add(1..3);
        row.add(8..10);
        assert_eq!(row.chunks.as_slice(), [1..3, 5..10, 20..30]);
        row.add(2..25);
        assert_eq!(row.chunks.as_slice(), work(&[Range { start: 1, end: 30 }]).chunks.as_slice());
        row.take_out(1);
        row.take_out(10);
        row.take_out(40);
        assert_eq!(row.chunks.as_slice(), [2..10, 11..30]);
        assert!(row.contains(9) && !row.contains(10));
    }

    #[test]
    fn work_rows_decode_as_they_were_encoded_and_others_are_refused() {
        let row = work(&[1..3, 3..u64::MAX]);
        let bytes = row.encode();
        assert_eq!(WorkRow::decode(&bytes), Some(row));
        for length in 0..HEADER + 16 {
            assert_eq!(WorkRow::decode(&bytes[..length]), None);
        }
        let ascending = |ranges| WorkRow::decode(&work(ranges).encode()).is_some();
        assert!(!ascending(&[5..8, 6..9]) && !ascending(&[1..2, Range { start: 5, end: 5 }]));
        assert!(!ascending(&[1..2, Range { start: 8, end: 5 }]));
        let long: Vec<_> = (0..MOST_RANGES as u64 + 1).map(|n| n * 2..n * 2 + 1).collect();
        assert!(!ascending(&long));
    }
}
