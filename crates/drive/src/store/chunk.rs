//! A chunk row: the numbers and checksums of the blocks that hold 1 MiB of a user object.
//!
//! An entry has twelve bytes: the number of the block plus one (8, little-endian; zero is a hole), and the CRC32C
//! of its 4096 bytes (4). Holes at the end of the row are left out.

use bytes::{Bytes, BytesMut};

/// Number of blocks in a chunk, which is 1 MiB of a user object.
pub(crate) const CHUNK_BLOCKS: u64 = 256;
pub(crate) const ENTRY: usize = 12;

/// The number of a block on the drive, and the CRC32C of its content. A hole has no such entry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct BlockEntry {
    pub(crate) block: u64,
    pub(crate) crc: u32,
}

/// Returns the entry of block `index` of a chunk; `None` if the block is a hole.
pub(crate) fn entry(row: Option<&Bytes>, index: u64) -> Option<BlockEntry> {
    let at = index as usize * ENTRY;
    let bytes = row?.get(at..at + ENTRY)?;
    let block = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
    let crc = u32::from_le_bytes(bytes[8..].try_into().expect("4 bytes"));
    Some(BlockEntry { block: block.checked_sub(1)?, crc })
}

/// A copy of a chunk row that is being changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChunkRow(BytesMut);

impl ChunkRow {
    pub(crate) fn new(row: Option<&Bytes>) -> Self {
        // A damaged row may have a part of an entry, or more entries than a chunk has.
        let whole = |row: &Bytes| entries_in(row) as usize * ENTRY;
        Self(row.map(|row| BytesMut::from(&row[..whole(row)])).unwrap_or_default())
    }

    /// Replaces the entry of block `index`; `None` makes it a hole.
    pub(crate) fn set(&mut self, index: u64, entry: Option<BlockEntry>) {
        let at = index as usize * ENTRY;
        if self.0.len() < at + ENTRY {
            if entry.is_none() {
                return;
            }
            self.0.resize(at + ENTRY, 0);
        }
        let (block, crc) = entry.map_or((0, 0), |entry| (entry.block + 1, entry.crc));
        self.0[at..at + 8].copy_from_slice(&block.to_le_bytes());
        self.0[at + 8..at + ENTRY].copy_from_slice(&crc.to_le_bytes());
    }

    /// Returns the changed row; `None` if all entries are holes, so that the row must be removed.
    pub(crate) fn finish(mut self) -> Option<Bytes> {
        while self.0.len() >= ENTRY && self.0[self.0.len() - ENTRY..].iter().all(|byte| *byte == 0)
        {
            self.0.truncate(self.0.len() - ENTRY);
        }
        (!self.0.is_empty()).then(|| self.0.freeze())
    }
}

/// Returns the entries of a chunk row that are not holes, with their indexes in the chunk.
pub(crate) fn entries(row: &Bytes) -> impl Iterator<Item = (u64, BlockEntry)> {
    (0..entries_in(row))
        .filter_map(move |index| entry(Some(row), index).map(|found| (index, found)))
}

/// Returns the number of entries in a row. A hostile row may be longer than a chunk.
fn entries_in(row: &Bytes) -> u64 {
    CHUNK_BLOCKS.min((row.len() / ENTRY) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_at_the_end_take_no_bytes() {
        let mut chunk = ChunkRow::new(None);
        chunk.set(3, Some(BlockEntry { block: 0, crc: 9 }));
        chunk.set(7, Some(BlockEntry { block: 5, crc: 6 }));
        chunk.set(200, None);
        let row = chunk.finish().unwrap();
        assert_eq!(row.len(), 8 * ENTRY);
        assert_eq!(entry(Some(&row), 3), Some(BlockEntry { block: 0, crc: 9 }));
        assert_eq!((entry(Some(&row), 4), entry(Some(&row), 255)), (None, None));
        assert_eq!(entries(&row).map(|(index, _)| index).collect::<Vec<_>>(), [3, 7]);
        let mut chunk = ChunkRow::new(Some(&row));
        chunk.set(3, None);
        chunk.set(7, None);
        assert_eq!(chunk.finish(), None);
    }
}
