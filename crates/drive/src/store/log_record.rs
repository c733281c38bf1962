//! A record of the log, as bytes.
//!
//! A record begins at a block of 4 KiB and fills whole blocks; the rest of its last block is zero. Numbers are
//! little-endian. First comes a header of 64 bytes:
//!
//! | bytes | content |
//! |-------|---------|
//! | 0..8 | magic number `FBYOBJRC` |
//! | 8..16 | generation of the log |
//! | 16..24 | sequence number of the record in its generation, from 1 on |
//! | 24..28 | bytes of the body |
//! | 28..32 | number of rows |
//! | 32..36 | number of blocks of data |
//! | 36..40 | CRC32C of the body |
//! | 40..48 | number of records of the generation before, if its fold has not ended; else 0 |
//! | 60..64 | CRC32C of bytes 0..60 |
//!
//! The body has the rows and then the blocks of data. A row is the length of its key (2 bytes), the length of its value
//! (4 bytes; FFFFFFFFh: the row is removed), the key and the value. A block of data is its number (8 bytes) and the
//! CRC32C of its content (4 bytes).

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{
    chunk::BlockEntry,
    disk::{BLOCK, crc32c},
    key::Key,
    row_store::Rows,
};

/// The facts in the header of a record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct RecordHeader {
    pub(crate) generation: u64,
    pub(crate) sequence: u64,
    body: u32,
    rows: u32,
    blocks: u32,
    body_crc: u32,
    /// The number of records of the generation before that this record follows.
    pub(crate) follows: u64,
}

/// The content of a record.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct LogRecord {
    pub(crate) rows: Rows,
    /// Blocks of data that were written shortly before the record.
    pub(crate) blocks: Vec<BlockEntry>,
}

impl RecordHeader {
    /// Decodes a header; `None` if there is none.
    pub(crate) fn decode(block: &[u8]) -> Option<Self> {
        let mut header = block.get(..HEADER)?;
        let crc = u32::from_le_bytes(header[HEADER - 4..].try_into().expect("4 bytes"));
        if &header[..8] != MAGIC || crc32c(&header[..HEADER - 4]) != crc {
            return None;
        }
        header.advance(8);
        Some(Self {
            generation: header.get_u64_le(),
            sequence: header.get_u64_le(),
            body: header.get_u32_le(),
            rows: header.get_u32_le(),
            blocks: header.get_u32_le(),
            body_crc: header.get_u32_le(),
            follows: header.get_u64_le(),
        })
    }

    /// Returns the bytes of the record on the volume.
    pub(crate) fn length(&self) -> u64 {
        (HEADER as u64 + u64::from(self.body)).next_multiple_of(BLOCK)
    }

    /// Returns true if `record` has the body that belongs to the header.
    pub(crate) fn is_body_of(&self, record: &[u8]) -> bool {
        let body = record.get(HEADER..HEADER + self.body as usize);
        body.is_some_and(|body| crc32c(body) == self.body_crc)
    }
}

/// Returns the bytes of a record. The place is its generation, its sequence number, and the number of records of the
/// generation before that it follows.
pub(crate) fn encode(place: (u64, u64, u64), rows: &Rows, blocks: &[BlockEntry]) -> Bytes {
    let (generation, sequence, follows) = place;
    let size: usize = rows.iter().map(|(key, row)| row_bytes(key, row.as_ref())).sum();
    let body = size + blocks.len() * LISTED_BLOCK;
    let mut record = BytesMut::with_capacity((HEADER + body).next_multiple_of(BLOCK as usize));
    record.put_bytes(0, HEADER);
    for (key, row) in rows {
        record.put_u16_le(key.len() as u16);
        record.put_u32_le(row.as_ref().map_or(REMOVED, |row| row.len() as u32));
        record.put_slice(key);
        row.iter().for_each(|row| record.put_slice(row));
    }
    for entry in blocks {
        record.put_u64_le(entry.block);
        record.put_u32_le(entry.crc);
    }
    let body_crc = crc32c(&record[HEADER..]);
    let mut header = &mut record[..HEADER];
    header.put_slice(MAGIC);
    header.put_u64_le(generation);
    header.put_u64_le(sequence);
    header.put_u32_le(body as u32);
    header.put_u32_le(rows.len() as u32);
    header.put_u32_le(blocks.len() as u32);
    header.put_u32_le(body_crc);
    header.put_u64_le(follows);
    let crc = crc32c(&record[..HEADER - 4]);
    record[HEADER - 4..HEADER].copy_from_slice(&crc.to_le_bytes());
    record.resize(record.len().next_multiple_of(BLOCK as usize), 0);
    record.freeze()
}

/// Decodes the body of a record whose checksums are right. `None`: its lengths contradict each other.
pub(crate) fn decode(header: &RecordHeader, record: &Bytes) -> Option<LogRecord> {
    let mut body = record.get(HEADER..HEADER + header.body as usize)?;
    let mut found = LogRecord::default();
    for _ in 0..header.rows {
        let key = body.try_get_u16_le().ok()? as usize;
        let value = body.try_get_u32_le().ok()?;
        let key = Key::from_slice(body.get(..key)?);
        body.advance(key.len());
        let value = (value != REMOVED).then_some(value as usize);
        let row = match value {
            Some(length) => Some(Bytes::copy_from_slice(body.get(..length)?)),
            None => None,
        };
        body.advance(value.unwrap_or(0));
        found.rows.insert(key, row);
    }
    for _ in 0..header.blocks {
        let block = body.try_get_u64_le().ok()?;
        let crc = body.try_get_u32_le().ok()?;
        found.blocks.push(BlockEntry { block, crc });
    }
    body.is_empty().then_some(found)
}

fn row_bytes(key: &Key, row: Option<&Bytes>) -> usize {
    2 + 4 + key.len() + row.map_or(0, Bytes::len)
}

const MAGIC: &[u8; 8] = b"FBYOBJRC";
const HEADER: usize = 64;
const LISTED_BLOCK: usize = 12;
/// The length of the value of a row that is removed.
const REMOVED: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> (Rows, Vec<BlockEntry>, Bytes) {
        let mut rows = Rows::new();
        rows.insert(Key::from_slice(b"a"), Some(Bytes::from(vec![7; 5000])));
        rows.insert(Key::from_slice(b"bcd"), None);
        rows.insert(Key::from_slice(b"e"), Some(Bytes::new()));
        let blocks = vec![BlockEntry { block: 3, crc: 4 }, BlockEntry { block: 1 << 40, crc: 5 }];
        let bytes = encode((9, 2, 7), &rows, &blocks);
        (rows, blocks, bytes)
    }

    #[test]
    fn a_record_decodes_as_it_was_encoded() {
        let (rows, blocks, bytes) = record();
        let header = RecordHeader::decode(&bytes).unwrap();
        assert_eq!((header.generation, header.sequence, header.follows), (9, 2, 7));
        assert_eq!(header.length(), 8192);
        assert!(header.is_body_of(&bytes) && bytes.len() == 8192);
        assert_eq!(decode(&header, &bytes), Some(LogRecord { rows, blocks }));
    }

    #[test]
    fn a_flipped_bit_of_a_record_is_noticed() {
        let (_, _, bytes) = record();
        let used = HEADER + RecordHeader::decode(&bytes).unwrap().body as usize;
        for bit in (0..HEADER * 8).chain((HEADER * 8..used * 8).step_by(97)) {
            let mut flipped = bytes.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let header = RecordHeader::decode(&flipped);
            assert!(!header.is_some_and(|header| header.is_body_of(&flipped)), "bit {bit}");
        }
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        let (_, _, bytes) = record();
        let header = RecordHeader::decode(&bytes).unwrap();
        for lie in [
            RecordHeader { rows: u32::MAX, ..header },
            RecordHeader { blocks: u32::MAX, ..header },
            RecordHeader { rows: 1, ..header },
            RecordHeader { body: u32::MAX, ..header },
            RecordHeader { body: header.body - 1, ..header },
        ] {
            assert_eq!(decode(&lie, &bytes), None, "{lie:?}");
        }
    }
}
