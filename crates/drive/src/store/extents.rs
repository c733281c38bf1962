//! The map of a user object: looking up the blocks of a range, and replacing them.

use std::ops::Range;

use bytes::Bytes;
use object::{ObjectAddress, ObjectError};

use super::{
    chunk::{self, BlockEntry, CHUNK_BLOCKS, ChunkRow},
    disk::BLOCK,
    key,
    object_row::ObjectRow,
    object_rows::{find_partition, store},
    objects::free_blocks,
    transaction::{Step, Stop, Transaction},
};

/// Returns the row of a chunk. A chunk behind the end of the object has none.
fn chunk_row(
    transaction: &mut Transaction<'_>,
    row: &ObjectRow,
    number: u64,
) -> Step<Option<Bytes>> {
    if row.used == 0 || number * CHUNK_BLOCKS * BLOCK >= row.length {
        return Ok(None);
    }
    transaction.get(&key::chunk(row.content, number))
}

/// Calls `each` for every block of `blocks`, in order, with its entry.
pub(crate) fn look_up(
    transaction: &mut Transaction<'_>,
    row: &ObjectRow,
    blocks: Range<u64>,
    mut each: impl FnMut(u64, Option<BlockEntry>),
) -> Step<()> {
    let mut at = blocks.start;
    while at < blocks.end {
        let number = at / CHUNK_BLOCKS;
        let chunk = chunk_row(transaction, row, number)?;
        let end = ((number + 1) * CHUNK_BLOCKS).min(blocks.end);
        for block in at..end {
            each(block, chunk::entry(chunk.as_ref(), block % CHUNK_BLOCKS));
        }
        at = end;
    }
    Ok(())
}

pub(crate) fn entry(
    transaction: &mut Transaction<'_>,
    row: &ObjectRow,
    block: u64,
) -> Step<Option<BlockEntry>> {
    let chunk = chunk_row(transaction, row, block / CHUNK_BLOCKS)?;
    Ok(chunk::entry(chunk.as_ref(), block % CHUNK_BLOCKS))
}

/// Replaces the entries of blocks, which come in ascending order, and frees the blocks that they had.
pub(crate) fn replace(
    transaction: &mut Transaction<'_>,
    row: &mut ObjectRow,
    entries: &[(u64, BlockEntry)],
) -> Step<()> {
    for part in entries.chunk_by(|a, b| a.0 / CHUNK_BLOCKS == b.0 / CHUNK_BLOCKS) {
        let number = part[0].0 / CHUNK_BLOCKS;
        let old = chunk_row(transaction, row, number)?;
        let mut chunk = ChunkRow::new(old.as_ref());
        let mut freed = Vec::new();
        for (block, entry) in part {
            if let Some(replaced) = chunk::entry(old.as_ref(), block % CHUNK_BLOCKS) {
                freed.push(replaced.block);
                row.used -= 1;
            }
            chunk.set(block % CHUNK_BLOCKS, Some(*entry));
            row.used += 1;
        }
        free_blocks(transaction, row, freed)?;
        let (key, new) = (key::chunk(row.content, number), chunk.finish());
        match (old, new) {
            (None, Some(new)) => transaction.insert(key, new),
            (_, new) => transaction.put(key, new)?,
        }
    }
    Ok(())
}

/// Makes holes of blocks, and frees them.
pub(crate) fn make_holes(
    transaction: &mut Transaction<'_>,
    row: &mut ObjectRow,
    blocks: Range<u64>,
) -> Step<()> {
    let end = blocks.end.min(row.length.div_ceil(BLOCK));
    if row.used == 0 || blocks.start >= end {
        return Ok(());
    }
    let (first, last) = (blocks.start / CHUNK_BLOCKS, (end - 1) / CHUNK_BLOCKS);
    if last - first < FEW_CHUNKS {
        for number in first..=last {
            if let Some(chunk) = chunk_row(transaction, row, number)? {
                clear_chunk(transaction, row, number, &chunk, &(blocks.start..end))?;
            }
        }
        return Ok(());
    }
    let (from, to) = (key::chunk(row.content, first), key::chunk(row.content, last + 1));
    transaction.for_each(&from, &to, |transaction, key, chunk| {
        clear_chunk(transaction, row, key::last_number(&key), &chunk, &(blocks.start..end))
    })
}

fn clear_chunk(
    transaction: &mut Transaction<'_>,
    row: &mut ObjectRow,
    number: u64,
    old: &Bytes,
    blocks: &Range<u64>,
) -> Step<()> {
    let mut chunk = ChunkRow::new(Some(old));
    let mut freed = Vec::new();
    for (index, entry) in chunk::entries(old) {
        if blocks.contains(&(number * CHUNK_BLOCKS + index)) {
            chunk.set(index, None);
            freed.push(entry.block);
            row.used -= 1;
        }
    }
    free_blocks(transaction, row, freed)?;
    transaction.put(key::chunk(row.content, number), chunk.finish())
}

/// Moves the blocks from `from` on down to `to`, after the blocks between were made holes.
pub(crate) fn shift_down(
    transaction: &mut Transaction<'_>,
    row: &ObjectRow,
    from: u64,
    to: u64,
) -> Step<()> {
    let mut entries = Vec::new();
    let start = key::chunk(row.content, from / CHUNK_BLOCKS);
    let end = key::chunks_end(row.content);
    let mut kept = Vec::new();
    transaction.for_each(&start, &end, |transaction, key, chunk| {
        let number = key::last_number(&key);
        let mut rest = ChunkRow::new(Some(&chunk));
        for (index, entry) in chunk::entries(&chunk) {
            let block = number * CHUNK_BLOCKS + index;
            if block >= from {
                entries.push((block - (from - to), entry));
                rest.set(index, None);
            }
        }
        kept.push((number, rest.finish()));
        let (_, rest) = kept.last().expect("just pushed");
        transaction.put(key, rest.clone())
    })?;
    for part in entries.chunk_by(|a, b| a.0 / CHUNK_BLOCKS == b.0 / CHUNK_BLOCKS) {
        let number = part[0].0 / CHUNK_BLOCKS;
        let old = transaction.get(&key::chunk(row.content, number))?;
        let mut chunk = ChunkRow::new(old.as_ref());
        part.iter().for_each(|(block, entry)| chunk.set(block % CHUNK_BLOCKS, Some(*entry)));
        transaction.put(key::chunk(row.content, number), chunk.finish())?;
    }
    Ok(())
}

/// Counts a change of the blocks of an object for its partition, and checks the partition's quota.
pub(crate) fn count_used(
    transaction: &mut Transaction<'_>,
    address: ObjectAddress,
    before: u64,
    after: u64,
) -> Step<()> {
    if before == after {
        return Ok(());
    }
    let mut parent = find_partition(transaction, address.partition)?;
    let used = (parent.used + after).saturating_sub(before);
    let (bytes, quota) = (used * BLOCK, parent.quota.bytes);
    if after > before && quota != 0 && bytes > quota {
        return Err(Stop::Failed(ObjectError::Quota { used: bytes, limit: quota }));
    }
    parent.used = used;
    store(transaction, ObjectAddress::partition(address.partition), &parent)
}

/// Chunks that are looked up one by one. More are read as a range, which goes through the loader.
const FEW_CHUNKS: u64 = 8;
