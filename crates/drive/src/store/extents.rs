//! The map from the blocks of a user object to blocks of the drive: looks up a range, and replaces entries.

use std::ops::Range;

use bytes::Bytes;
use object::{ObjectAddress, ObjectError, RefusedField};

use super::{
    chunk::{self, BlockEntry, CHUNK_BLOCKS, ChunkRow},
    disk::BLOCK,
    freeing::free_chunk,
    key,
    object_row::{HAS_WORK, MAY_SHARE, ObjectRow},
    object_rows::{find_partition, store},
    sharing::free_blocks,
    transaction::{Step, Stop, Transaction},
    work_row::{is_left_over, leave_chunks, take_chunk},
};

/// Returns the chunk row number `number` of an object; `None` if all its blocks are holes, or are still to be freed.
fn chunk_row(
    transaction: &mut Transaction<'_>,
    row: &ObjectRow,
    number: u64,
) -> Step<Option<Bytes>> {
    if row.used == 0 || number * CHUNK_BLOCKS * BLOCK >= row.length {
        return Ok(None);
    }
    if is_left_over(transaction, row, number)? {
        return Ok(None);
    }
    transaction.get(&key::chunk(row.content, number))
}

/// Calls `each` for every block number of `blocks`, ascending, with the entry of the block.
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

/// Replaces the entries of these blocks, which must be in ascending order, and frees the blocks that they had before.
pub(crate) fn replace(
    transaction: &mut Transaction<'_>,
    row: &mut ObjectRow,
    entries: &[(u64, BlockEntry)],
) -> Step<()> {
    for part in entries.chunk_by(|a, b| a.0 / CHUNK_BLOCKS == b.0 / CHUNK_BLOCKS) {
        let number = part[0].0 / CHUNK_BLOCKS;
        if is_left_over(transaction, row, number)? {
            free_left_over(transaction, row, number)?;
        }
        let old = chunk_row(transaction, row, number)?;
        let mut chunk = ChunkRow::new(old.as_ref());
        let mut freed = Vec::new();
        for (block, entry) in part {
            if let Some(replaced) = chunk::entry(old.as_ref(), block % CHUNK_BLOCKS) {
                freed.push(replaced.block);
                row.used = row.used.saturating_sub(1);
            }
            chunk.set(block % CHUNK_BLOCKS, Some(*entry));
            row.used += 1;
        }
        free_blocks(transaction, row.has(MAY_SHARE), freed)?;
        let (key, new) = (key::chunk(row.content, number), chunk.finish());
        match (old, new) {
            (None, Some(new)) => transaction.insert(key, new),
            (_, new) => transaction.put(key, new)?,
        }
    }
    Ok(())
}

/// Frees the blocks of a chunk that was left to the background thread, because the chunk gets new content now.
fn free_left_over(transaction: &mut Transaction<'_>, row: &mut ObjectRow, number: u64) -> Step<()> {
    let key = key::chunk(row.content, number);
    if let Some(old) = transaction.get(&key)? {
        let freed = free_chunk(transaction, row.has(MAY_SHARE), key, &old)?;
        row.used = row.used.saturating_sub(freed);
    }
    take_chunk(transaction, row, number)
}

/// Makes holes of `blocks`. If more than `limit` chunks are affected, the background thread frees the whole chunks.
pub(crate) fn make_holes(
    transaction: &mut Transaction<'_>,
    address: ObjectAddress,
    row: &mut ObjectRow,
    blocks: Range<u64>,
    limit: usize,
) -> Step<()> {
    let last_block = row.length.div_ceil(BLOCK);
    let blocks = blocks.start..blocks.end.min(last_block);
    if row.used == 0 || blocks.start >= blocks.end {
        return Ok(());
    }
    let (first, last) = (blocks.start / CHUNK_BLOCKS, (blocks.end - 1) / CHUNK_BLOCKS);
    if last - first < FEW_CHUNKS.min(limit as u64) {
        return clear_chunks(transaction, row, first..last + 1, &blocks);
    }
    let (from, to) = (key::chunk(row.content, first), key::chunk(row.content, last + 1));
    let page = transaction.page(&from, &to, limit)?;
    if page.next.is_none() && page.rows.len() <= limit {
        for (row_key, _) in page.rows {
            let number = key::last_number(&row_key);
            clear_chunks(transaction, row, number..number + 1, &blocks)?;
        }
        return Ok(());
    }
    let whole = blocks.start.div_ceil(CHUNK_BLOCKS)..match blocks.end == last_block {
        true => last + 1,
        false => blocks.end / CHUNK_BLOCKS,
    };
    clear_chunks(transaction, row, first..whole.start, &blocks)?;
    clear_chunks(transaction, row, whole.end..last + 1, &blocks)?;
    leave_chunks(transaction, address, row, whole)
}

fn clear_chunks(
    transaction: &mut Transaction<'_>,
    row: &mut ObjectRow,
    numbers: Range<u64>,
    blocks: &Range<u64>,
) -> Step<()> {
    for number in numbers {
        if let Some(chunk) = chunk_row(transaction, row, number)? {
            clear_chunk(transaction, row, number, &chunk, blocks)?;
        }
    }
    Ok(())
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
        if blocks.contains(&(number.saturating_mul(CHUNK_BLOCKS).saturating_add(index))) {
            chunk.set(index, None);
            freed.push(entry.block);
            row.used = row.used.saturating_sub(1);
        }
    }
    free_blocks(transaction, row.has(MAY_SHARE), freed)?;
    transaction.put(key::chunk(row.content, number), chunk.finish())
}

/// Fails if the range that PUNCH cuts out at block `to` and the blocks behind it are in too many chunks: their places
/// change in one transaction, so that no reader sees a part of the change.
pub(crate) fn check_shift(transaction: &mut Transaction<'_>, row: &ObjectRow, to: u64) -> Step<()> {
    let (start, end) = (key::chunk(row.content, to / CHUNK_BLOCKS), key::chunks_end(row.content));
    let page = transaction.page(&start, &end, MOST_SHIFTED)?;
    match page.next.is_some() || page.rows.len() > MOST_SHIFTED {
        true => Err(Stop::Failed(ObjectError::InvalidField { field: RefusedField::Length })),
        false => Ok(()),
    }
}

/// Moves the blocks from `from` on down to `to`, after the blocks between were made holes.
pub(crate) fn shift_down(
    transaction: &mut Transaction<'_>,
    row: &ObjectRow,
    from: u64,
    to: u64,
) -> Step<()> {
    if row.has(HAS_WORK) {
        // Free the blocks that are left to the background thread first: their old entries must not be moved.
        return Err(Stop::Work(row.content));
    }
    let mut entries = Vec::new();
    let start = key::chunk(row.content, from / CHUNK_BLOCKS);
    let end = key::chunks_end(row.content);
    let mut kept = Vec::new();
    transaction.for_each(&start, &end, |transaction, key, chunk| {
        let number = key::last_number(&key);
        let mut rest = ChunkRow::new(Some(&chunk));
        for (index, entry) in chunk::entries(&chunk) {
            let block = number.saturating_mul(CHUNK_BLOCKS).saturating_add(index);
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

/// Adds the change of an object's used blocks to its partition, and checks the partition's quota.
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

/// Number of chunks up to which chunk rows are looked up one by one. More are read as a range of rows.
const FEW_CHUNKS: u64 = 8;
/// Chunks whose blocks one PUNCH moves: 4 GiB of data, and about 40 MiB of memory.
const MOST_SHIFTED: usize = 4096;
