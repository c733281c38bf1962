//! READ MAPS AND COMPARE: the ranges in which two user objects do not have the same blocks.
//!
//! A copy shares its blocks with the original, so the answer names what was changed since the copy was made. Blocks
//! behind the end of an object count as holes. Blocks with equal content at different places count as different.

use std::collections::BTreeMap;

use bytes::Bytes;
use object::{
    Continuation, MapRun, MapRunKind, ObjectAddress, ObjectError, ObjectReply, ObjectRequest,
    RefusedField, ReplyData,
};

use super::{
    build::number_after,
    chunk::{self, CHUNK_BLOCKS},
    conclusion::{Conclusion, conclude},
    disk::BLOCK,
    drive_core::DriveCore,
    key,
    object_row::ObjectRow,
    object_rows::find_user,
    reading::add_run,
    transaction::{Step, Transaction},
    work_row::is_left_over,
};

impl DriveCore {
    /// Performs READ MAPS AND COMPARE. A run is written if the object has the block, and a hole if only the other object
    /// has one. A few chunks are compared at a time, so changes in the meantime may be seen in part.
    pub(crate) async fn compare_maps(
        &self,
        request: &ObjectRequest,
        address: ObjectAddress,
        start: u64,
    ) -> Result<ObjectReply, ObjectError> {
        let Continuation::UserObject(other) = request.continuation else {
            return Err(ObjectError::InvalidField { field: RefusedField::ContinuationLength });
        };
        let now = self.now();
        let mut runs = Vec::new();
        let mut next = Some(start / (CHUNK_BLOCKS * BLOCK));
        while let Some(first) = next.filter(|_| runs.len() < MOST_RUNS) {
            let (found, more) = self
                .run(|transaction| compare_some(transaction, [address, other], first, start))
                .await?;
            found.into_iter().for_each(|run: MapRun| {
                add_run(&mut runs, run.kind, run.start..run.start + run.length);
            });
            next = more;
        }
        let mut reply = self
            .run(|transaction| {
                let mut row = find_user(transaction, address)?;
                let conclusion = Conclusion::new(self, request, address, now);
                conclude(transaction, &conclusion, &mut row, false)
            })
            .await?;
        reply.data = ReplyData::Map(runs);
        Ok(reply)
    }
}

/// Compares some chunks from `first` on. Returns the runs that differ, and the chunk with which to go on; `None`: all
/// are compared.
fn compare_some(
    transaction: &mut Transaction<'_>,
    objects: [ObjectAddress; 2],
    first: u64,
    start: u64,
) -> Step<(Vec<MapRun>, Option<u64>)> {
    let mut chunks = BTreeMap::<u64, [Option<Bytes>; 2]>::new();
    let (mut next, mut end) = (None, 0);
    for (n, address) in objects.into_iter().enumerate() {
        let row = find_user(transaction, address)?;
        end = row.length.max(end);
        if let Some(more) = chunks_of(transaction, &row, first, |number, chunk| {
            chunks.entry(number).or_default()[n] = Some(chunk);
        })? {
            next = Some(next.map_or(more, |next: u64| next.min(more)));
        }
    }
    let mut runs = Vec::new();
    for (number, [own, other]) in chunks.range(..next.unwrap_or(u64::MAX)) {
        for index in 0..CHUNK_BLOCKS {
            let place = |row: &Option<Bytes>| chunk::entry(row.as_ref(), index).map(|e| e.block);
            let (own, other) = (place(own), place(other));
            if own == other {
                continue;
            }
            let kind = if own.is_some() { MapRunKind::Written } else { MapRunKind::Hole };
            // The number of the chunk may come from a hostile row.
            let block = number.saturating_mul(CHUNK_BLOCKS).saturating_add(index);
            let at = block.saturating_mul(BLOCK);
            add_run(&mut runs, kind, at.max(start)..at.saturating_add(BLOCK).min(end));
        }
    }
    Ok((runs, next))
}

/// Calls `each` for some chunks of an object from `first` on. Returns the chunk with which to go on.
fn chunks_of(
    transaction: &mut Transaction<'_>,
    row: &ObjectRow,
    first: u64,
    mut each: impl FnMut(u64, Bytes),
) -> Step<Option<u64>> {
    if row.used == 0 {
        return Ok(None);
    }
    let limit = transaction.step_chunks();
    let end = key::chunks_end(row.content);
    let page = transaction.page(&key::chunk(row.content, first), &end, limit)?;
    for (row_key, chunk) in page.rows {
        let number = key::last_number(&row_key);
        if !is_left_over(transaction, row, number)? {
            each(number, chunk);
        }
    }
    Ok(page.next.map(|next| number_after(&next)))
}

/// Runs after which the answer ends, so that its memory is bounded. The reader goes on behind the last one.
const MOST_RUNS: usize = 4096;
