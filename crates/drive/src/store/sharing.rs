//! Counts the references to blocks that several objects share.

use std::collections::HashMap;

use bytes::Bytes;

use super::{
    key,
    object_row::{MAY_SHARE, ObjectRow},
    transaction::{Step, Transaction},
};

/// Releases one reference to each of `blocks`. A block is freed with its last reference. `may_share` is false if no
/// block can have several references.
pub(crate) fn free_blocks(
    transaction: &mut Transaction<'_>,
    may_share: bool,
    mut blocks: Vec<u64>,
) -> Step<()> {
    if !may_share {
        return blocks.into_iter().try_for_each(|block| transaction.free(block));
    }
    let references = references(transaction, &mut blocks)?;
    for block in blocks {
        match references.get(&block).copied() {
            None | Some(0) => transaction.free(block)?,
            Some(more) => {
                let left = (more > 1).then(|| Bytes::copy_from_slice(&(more - 1).to_le_bytes()));
                transaction.put(key::shared(block), left)?;
            }
        }
    }
    Ok(())
}

/// Adds one reference to each of `blocks`, which belong to the object with this row.
pub(crate) fn share_blocks(
    transaction: &mut Transaction<'_>,
    row: &ObjectRow,
    mut blocks: Vec<u64>,
) -> Step<()> {
    let known = match row.has(MAY_SHARE) {
        true => references(transaction, &mut blocks)?,
        false => HashMap::new(),
    };
    for block in blocks {
        let key = key::shared(block);
        match known.get(&block) {
            None => transaction.insert(key, Bytes::copy_from_slice(&1_u32.to_le_bytes())),
            Some(more) => {
                let more = more.checked_add(1).ok_or_else(|| transaction.full())?;
                transaction.put(key, Some(Bytes::copy_from_slice(&more.to_le_bytes())))?;
            }
        }
    }
    Ok(())
}

/// Returns how many references beyond the first each shared block has; blocks with one reference are left out. Sorts
/// `blocks`.
fn references(transaction: &mut Transaction<'_>, blocks: &mut [u64]) -> Step<HashMap<u64, u32>> {
    blocks.sort_unstable();
    let mut found = HashMap::new();
    // Read the counts of blocks that are close to each other as one range, because each range costs a read of the
    // tables.
    for near in blocks.chunk_by(|a, b| b - a <= NEAR) {
        let (Some(first), Some(last)) = (near.first(), near.last()) else { continue };
        let (start, end) = (key::shared(*first), key::shared(last + 1));
        transaction.for_each(&start, &end, |_, row_key, row| {
            let more = row.first_chunk().map_or(1, |bytes| u32::from_le_bytes(*bytes));
            found.insert(key::last_number(&row_key), more);
            Ok(())
        })?;
    }
    Ok(found)
}

/// Maximum distance of two block numbers whose reference counts are read together.
const NEAR: u64 = 1024;
