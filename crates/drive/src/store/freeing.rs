//! Frees the chunks that work rows name (those of removed, cleared and shortened objects), a bounded number in each
//! transaction.

use std::collections::BTreeSet;

use bytes::Bytes;
use object::ObjectAddress;

use super::{
    chunk,
    groups::GROUP_BLOCKS,
    key::{self, Key, RowKind},
    object_row::{HAS_WORK, MAY_SHARE, ObjectRow},
    object_rows::decode,
    sharing::free_blocks,
    transaction::{Step, Transaction},
    work_row::{self, WorkRow, find_work, store_work},
};

/// Frees the blocks of a chunk, and removes the chunk row. Returns the number of blocks.
pub(crate) fn free_chunk(
    transaction: &mut Transaction<'_>,
    may_share: bool,
    row_key: Key,
    row: &Bytes,
) -> Step<u64> {
    let blocks: Vec<_> = chunk::entries(row).map(|(_, entry)| entry.block).collect();
    let count = blocks.len() as u64;
    free_blocks(transaction, may_share, blocks)?;
    transaction.replace(row_key, Some(row), None);
    Ok(count)
}

/// Frees all blocks of a user object. Leaves them to the worker if they are in many chunks.
pub(crate) fn free_content(transaction: &mut Transaction<'_>, row: &ObjectRow) -> Step<()> {
    if row.used == 0 {
        return Ok(());
    }
    let limit = transaction.step_chunks();
    let page =
        transaction.page(&key::chunk(row.content, 0), &key::chunks_end(row.content), limit)?;
    if page.next.is_some() || page.rows.len() > limit {
        return store_work(
            transaction,
            row.content,
            &WorkRow { may_share: row.has(MAY_SHARE), ..WorkRow::of_all() },
        );
    }
    for (row_key, chunk) in page.rows {
        free_chunk(transaction, row.has(MAY_SHARE), row_key, &chunk)?;
    }
    match row.has(HAS_WORK) {
        true => transaction.put(key::work(row.content), None),
        false => Ok(()),
    }
}

/// Frees some chunks of a content, or of the first one that has work. Returns false if there is no such work.
pub(crate) fn free_some(transaction: &mut Transaction<'_>, content: Option<u64>) -> Step<bool> {
    let found = match content {
        Some(content) => find_work(transaction, content)?.map(|work| (content, work)),
        None => first_work(transaction)?,
    };
    let Some((content, mut work)) = found else {
        if content.is_none() {
            transaction.note_no_work();
        }
        return Ok(false);
    };
    let freed = free_part(transaction, content, &mut work)?;
    if let Some(address) = work.object {
        note_freed(transaction, address, content, &work, freed)?;
    }
    store_work(transaction, content, &work)?;
    Ok(true)
}

fn first_work(transaction: &mut Transaction<'_>) -> Step<Option<(u64, WorkRow)>> {
    // Begin with the last row that was used: those before it may be removed, but still be in the tables.
    for first in [transaction.last_work, 0] {
        let (mut start, end) = (key::work(first), key::works_end());
        loop {
            let page = transaction.page(&start, &end, WORK_ROWS)?;
            if let Some((row_key, row)) = page.rows.first() {
                let content = key::last_number(row_key);
                if !RowKind::Work.fits(row_key.len()) {
                    // The row of this content is another one, so this row would stay forever.
                    return Err(work_row::damaged(content));
                }
                transaction.last_work = content;
                return Ok(Some((content, work_row::decode(content, row)?)));
            }
            let Some(next) = page.next else { break };
            start = next;
        }
    }
    Ok(None)
}

/// Frees chunks of the first range of `work`, and takes them out of the range. Returns the number of freed blocks.
fn free_part(transaction: &mut Transaction<'_>, content: u64, work: &mut WorkRow) -> Step<u64> {
    let range = work.chunks[0].clone();
    let limit = transaction.step_chunks();
    let page = transaction.page(
        &key::chunk(content, range.start),
        &key::chunk(content, range.end),
        limit,
    )?;
    let is_last = page.next.is_none() && page.rows.len() <= limit;
    let (mut freed, mut done, mut groups) = (0, None, BTreeSet::new());
    for (row_key, row) in page.rows.into_iter().take(limit) {
        let number = key::last_number(&row_key);
        groups.extend(chunk::entries(&row).map(|(_, entry)| entry.block / GROUP_BLOCKS));
        if done.is_some() && groups.len() > STEP_GROUPS {
            work.chunks[0].start = number;
            return Ok(freed);
        }
        freed += free_chunk(transaction, work.may_share, row_key, &row)?;
        done = Some(number);
    }
    let start = match (done, page.next) {
        _ if is_last => range.end,
        (Some(number), _) => number + 1,
        // All rows of this page were removed since the last commit, so the range continues with the next page.
        (None, next) => next.map_or(range.end, |next| next_chunk(&next)),
    };
    match start < range.end {
        true => work.chunks[0].start = start,
        false => drop(work.chunks.remove(0)),
    }
    Ok(freed)
}

/// Returns the number of the first chunk of a page. `key` is the key of the chunk before, with a further byte.
fn next_chunk(key: &[u8]) -> u64 {
    key::last_number(&key[..key.len() - 1]) + 1
}

/// Subtracts freed blocks from the used blocks of the object that still has `content`, and of its partition.
fn note_freed(
    transaction: &mut Transaction<'_>,
    address: ObjectAddress,
    content: u64,
    work: &WorkRow,
    freed: u64,
) -> Step<()> {
    let Some(row) = transaction.get(&key::object(address))? else { return Ok(()) };
    let mut row = decode(address, &row)?;
    if row.content != content {
        return Ok(());
    }
    row.used = row.used.saturating_sub(freed);
    if work.chunks.is_empty() {
        row.flags &= !HAS_WORK;
    }
    transaction.put(key::object(address), Some(row.encode()))?;
    let partition = ObjectAddress::partition(address.partition);
    let Some(parent) = transaction.get(&key::object(partition))? else { return Ok(()) };
    let mut parent = decode(partition, &parent)?;
    parent.used = parent.used.saturating_sub(freed);
    transaction.put(key::object(partition), Some(parent.encode()))
}

/// Number of work rows that are read at once. Only the first one is used; rows before it may have been removed since
/// the last commit.
const WORK_ROWS: usize = 64;
/// Maximum number of groups of blocks (16 KiB of memory each) that one transaction touches, if it frees more than one
/// chunk.
const STEP_GROUPS: usize = 64;
