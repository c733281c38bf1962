//! PUNCH of a range that does not consist of whole blocks. The bytes behind the range are read and written again.

use std::ops::Range;

use object::{ObjectAddress, ObjectError, ObjectReply, ObjectRequest, RefusedField};

use super::{
    chunk::BlockEntry,
    disk::BLOCK,
    drive_core::DriveCore,
    extents::look_up,
    groups::BlockRuns,
    object_row::ObjectRow,
    object_rows::{check_changeable, find_user},
    pieces::{BlockPiece, Segment, cut},
    plans::{DataChange, punch_change},
    reading::ReadPlan,
    transaction::{Step, Stop, Transaction},
    writing::Prepared,
};

/// The way to perform a PUNCH: change only the map of blocks, or move the bytes of these blocks.
enum Found {
    MapOnly,
    Moves {
        row: Box<ObjectRow>,
        entries: Vec<(u64, Option<BlockEntry>)>,
        runs: BlockRuns,
        token: std::sync::Arc<()>,
    },
}

impl DriveCore {
    /// Performs PUNCH.
    pub(crate) async fn punch(
        &self,
        request: &ObjectRequest,
        address: ObjectAddress,
        range: Range<u64>,
    ) -> Result<ObjectReply, ObjectError> {
        self.admit_change().await?;
        let now = self.now();
        loop {
            let found = self.run(|transaction| find_moving(transaction, address, &range)).await?;
            let Found::Moves { row, entries, runs, token } = found else {
                let plan = |row: &ObjectRow| Ok(punch_change(row, &range));
                match self.try_change(request, address, plan).await? {
                    Some(reply) => return Ok(reply),
                    // The length of the object has changed, so that a change of the map does not suffice any more.
                    None => continue,
                }
            };
            let reservation = self.take_over(runs);
            let mut plan = ReadPlan::default();
            entries.iter().for_each(|(block, entry)| plan.push(*block, *entry));
            let data = self.read_plan(address, &plan).await?;
            // The data that was read begins with the block that has `range.start`. Take the bytes behind the range.
            let base = range.start / BLOCK * BLOCK;
            let skip = (range.end - base) as usize;
            let moved = data.slice(skip, (row.length - range.end) as usize);
            let length = row.length - (range.end - range.start);
            let first_hole = length.div_ceil(BLOCK);
            let mut bytes = moved.into_bytes().to_vec();
            // Fill the last block with zeros behind the new end of the object.
            let end = first_hole * BLOCK;
            bytes.resize((end - range.start) as usize, 0);
            let change = DataChange {
                segments: vec![Segment { start: range.start, data: bytes.into() }],
                holes: std::iter::once(first_hole..row.length.div_ceil(BLOCK)).collect(),
                length,
                needs_length: true,
                ..DataChange::default()
            };
            let pieces = cut(&change.segments);
            let parts = pieces.iter().filter(|piece| matches!(piece, BlockPiece::Parts { .. }));
            let old = parts.map(|piece| entries[(piece.first() - base / BLOCK) as usize]).collect();
            let prepared = Prepared { row: *row, change, pieces, old, checks: entries, token };
            let done = self.finish_change(request, address, &prepared, reservation, now).await?;
            if let Some(reply) = done {
                return Ok(reply);
            }
        }
    }
}

fn find_moving(
    transaction: &mut Transaction<'_>,
    address: ObjectAddress,
    range: &Range<u64>,
) -> Step<Found> {
    let row = find_user(transaction, address)?;
    check_changeable(&row, RefusedField::Object)?;
    if punch_change(&row, range).is_some() {
        return Ok(Found::MapOnly);
    }
    if row.length - range.start > MOST_MOVED {
        return Err(Stop::Failed(ObjectError::InvalidField { field: RefusedField::Length }));
    }
    let blocks = range.start / BLOCK..row.length.div_ceil(BLOCK);
    let mut entries = Vec::new();
    look_up(transaction, &row, blocks, |block, entry| entries.push((block, entry)))?;
    let length = row.length - (range.end - range.start);
    let runs = transaction.reserve(length.div_ceil(BLOCK) - range.start / BLOCK)?;
    let token = transaction.enter_epoch();
    Ok(Found::Moves { row: Box::new(row), entries, runs, token })
}

/// Maximum number of bytes that PUNCH moves: they are all in memory at once.
const MOST_MOVED: u64 = 64 << 20;
