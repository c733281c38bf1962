//! Decodes hostile bytes as everything that a drive reads from its volume, for the fuzz target `drive_metadata`.
//!
//! The pages of redb have checksums of their own. An attacker who can write to the volume can make right ones, so no row
//! may cause a panic, or memory that its length does not justify.

use bytes::Bytes;
use object::ObjectAddress;

use super::{
    chunk::{self, BlockEntry, CHUNK_BLOCKS, ChunkRow},
    conclusion::decode_result,
    disk::{BLOCK, crc32c},
    groups::{GROUP_BLOCKS, Groups},
    key,
    metadata_file::FileLength,
    object_row::ObjectRow,
    superblock::{SIZE, Superblock},
    transaction::Counters,
};

/// Decodes `bytes` as the kind of metadata that `kind` selects.
///
/// # Panics
/// The decoded value differs after it was encoded and decoded again, or breaks a rule that the drive relies on.
pub fn decode_metadata(kind: u8, bytes: &[u8]) {
    let is_sealed = kind & 0x80 != 0;
    match kind % 7 {
        0 => superblock(bytes, is_sealed),
        1 => file_length(bytes, is_sealed),
        2 => {
            if let Some(row) = ObjectRow::decode(bytes) {
                assert_eq!(ObjectRow::decode(&row.encode()), Some(row));
            }
        }
        3 => chunk_row(&Bytes::copy_from_slice(bytes)),
        4 => group_row(&Bytes::copy_from_slice(bytes)),
        5 => {
            if let Some((counters, used)) = Counters::decode(bytes) {
                assert_eq!(Counters::decode(&counters.encode(used)), Some((counters, used)));
            }
        }
        _ => keys(bytes),
    }
}

/// Decodes a superblock. With `is_sealed`, its magic number and its checksum are right.
fn superblock(bytes: &[u8], is_sealed: bool) {
    let mut block = [0; SIZE];
    let length = bytes.len().min(SIZE);
    block[..length].copy_from_slice(&bytes[..length]);
    if is_sealed {
        block[..8].copy_from_slice(b"FBYOBJDR");
        let crc = crc32c(&block[..SIZE - 4]);
        block[SIZE - 4..].copy_from_slice(&crc.to_le_bytes());
    }
    if let Some(Ok(found)) = Superblock::decode(&block) {
        assert!(found.data_start + found.data_blocks * BLOCK <= found.volume_bytes);
        let again = Superblock::decode(&found.encode());
        assert!(matches!(again, Some(Ok(again)) if again == found));
    }
}

fn file_length(bytes: &[u8], is_sealed: bool) {
    let mut block = vec![0; BLOCK as usize];
    let length = bytes.len().min(block.len());
    block[..length].copy_from_slice(&bytes[..length]);
    if is_sealed {
        block[..8].copy_from_slice(b"FBYOBJTL");
        let crc = crc32c(&block[..24]);
        block[24..28].copy_from_slice(&crc.to_le_bytes());
    }
    let region = 65_536..65_536 + (5 << 20);
    if let Some(found) = FileLength::decode(&block, &region) {
        let again = found.encode().into_bytes();
        assert_eq!(FileLength::decode(&again, &region), Some(found));
    }
}

fn chunk_row(row: &Bytes) {
    let mut chunk = ChunkRow::new(Some(row));
    for (index, found) in chunk::entries(row) {
        assert_eq!(chunk::entry(Some(row), index), Some(found));
        // No entry is for a block that an offset in bytes cannot name.
        assert!(found.block < u64::MAX);
    }
    for index in 0..CHUNK_BLOCKS {
        chunk.set(index, None);
    }
    let entry = BlockEntry { block: 7, crc: 9 };
    chunk.set(3, Some(entry));
    let changed = chunk.finish().expect("it has an entry");
    assert_eq!(chunk::entry(Some(&changed), 3), Some(entry));
}

/// Loads a bitmap for a group of which only some blocks exist, and reserves all that are free.
fn group_row(row: &Bytes) {
    let blocks = GROUP_BLOCKS / 2;
    let mut groups = Groups::new(blocks, 0);
    groups.load(0, Some(row));
    let used: u64 =
        row.iter().take(blocks as usize / 8).map(|byte| u64::from(byte.count_ones())).sum();
    assert!(groups.reserve(blocks - used + 1).is_err(), "more blocks than there are");
    let runs = groups.reserve(blocks - used).expect("all free blocks");
    assert!(runs.iter().all(|run| run.start + run.count <= blocks));
    groups.unreserve(&runs);
}

/// Takes the numbers out of a key and of the result of a tag.
fn keys(bytes: &[u8]) {
    let _ = (key::last_number(bytes), key::number(bytes, 1), key::is_record(bytes));
    let id = key::attribute_id(bytes);
    let address = ObjectAddress::new(1, key::number(bytes, 1));
    assert_eq!(key::attribute_id(&key::attribute(address, id)), id);
    let _ = decode_result(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_metadata_ends_in_values_or_a_refusal() {
        // Rows of each length, of zeros, of ones, and of numbers.
        for kind in 0..=u8::MAX {
            for length in 0..200_usize {
                decode_metadata(kind, &vec![0; length]);
                decode_metadata(kind, &vec![0xff; length]);
                let numbers: Vec<u8> = (0..length).map(|n| (n * 37) as u8).collect();
                decode_metadata(kind, &numbers);
            }
        }
    }
}
