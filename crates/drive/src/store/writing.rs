//! Changes the data of a user object: WRITE, APPEND, CLEAR, PUNCH and a new logical length.
//!
//! A change never overwrites a block to which a row refers. A command looks up the object, writes the new content into
//! reserved blocks, and then replaces the entries of the map in one transaction. If another command has changed the
//! same blocks in the meantime, the change begins again.

use object::{
    ObjectAddress, ObjectError, ObjectReply, ObjectRequest, RefusedField, Timestamp,
    TimestampControl,
};
use volume::Data;

use super::{
    chunk::BlockEntry,
    conclusion::{Conclusion, conclude},
    disk::{BLOCK, crc32c_of},
    drive_core::DriveCore,
    extents::{check_shift, count_used, entry, make_holes, replace, shift_down},
    groups::BlockRuns,
    object_row::ObjectRow,
    object_rows::{check_changeable, check_tables, find_partition, find_user},
    pieces::{BlockPiece, covers, cut, overlay},
    plans::{DataChange, segments_of},
    reading::ReadPlan,
    reservation::Reservation,
    space::{check_length, check_quota},
    transaction::{Step, Transaction},
};

/// A planned change, with the state of the object for which it was planned.
pub(crate) struct Prepared {
    pub(crate) row: ObjectRow,
    pub(crate) change: DataChange,
    pub(crate) pieces: Vec<BlockPiece>,
    /// For each piece that has only parts of a block: the number of the block and its present entry.
    pub(crate) old: Vec<(u64, Option<BlockEntry>)>,
    /// Blocks and their entries that must be unchanged when the change is applied.
    pub(crate) checks: Vec<(u64, Option<BlockEntry>)>,
    pub(crate) token: std::sync::Arc<()>,
}

/// New content that was written to reserved blocks.
struct Written {
    entries: Vec<(u64, BlockEntry)>,
    reservation: Reservation,
}

impl DriveCore {
    /// Performs the change that `plan` makes for the object's row, and sets the attributes of the request.
    pub(crate) async fn change(
        &self,
        request: &ObjectRequest,
        address: ObjectAddress,
        plan: impl Fn(&ObjectRow) -> Result<DataChange, ObjectError> + Sync,
    ) -> Result<ObjectReply, ObjectError> {
        let done = self.try_change(request, address, |row| plan(row).map(Some)).await?;
        done.ok_or(ObjectError::Unsupported)
    }

    /// Performs a change like [`DriveCore::change`]. Returns `None` if `plan` returns `None`.
    pub(crate) async fn try_change(
        &self,
        request: &ObjectRequest,
        address: ObjectAddress,
        plan: impl Fn(&ObjectRow) -> Result<Option<DataChange>, ObjectError> + Sync,
    ) -> Result<Option<ObjectReply>, ObjectError> {
        self.admit_change().await?;
        let now = self.now();
        loop {
            let prepared = self.run(|transaction| prepare(transaction, address, &plan)).await?;
            let Some((prepared, runs)) = prepared else { return Ok(None) };
            let reservation = self.take_over(runs);
            let done = self.finish_change(request, address, &prepared, reservation, now).await?;
            if done.is_some() {
                return Ok(done);
            }
        }
    }

    /// Writes the data of a prepared change and applies it. Returns `None` if the object has changed in the meantime,
    /// so that the change must be prepared again.
    pub(crate) async fn finish_change(
        &self,
        request: &ObjectRequest,
        address: ObjectAddress,
        prepared: &Prepared,
        reservation: Reservation,
        now: Timestamp,
    ) -> Result<Option<ObjectReply>, ObjectError> {
        let written = self.write_pieces(address, prepared, reservation).await?;
        let done = self
            .run(|transaction| {
                let mut row = find_user(transaction, address)?;
                if !is_still(transaction, prepared, &row)? {
                    return Ok(None);
                }
                check_changeable(&row, RefusedField::Object)?;
                let before = row.used;
                apply(transaction, address, &mut row, &prepared.change, &written)?;
                note_change(request, &mut row, now);
                count_used(transaction, address, before, row.used)?;
                let mut conclusion = Conclusion::new(self, request, address, now);
                conclusion.append_start = prepared.change.append_start;
                conclusion.change_in_used = (row.used as i64 - before as i64) * BLOCK as i64;
                conclude(transaction, &conclusion, &mut row, true).map(Some)
            })
            .await?;
        if done.is_some() {
            written.reservation.confirmed();
        }
        Ok(done)
    }

    /// Writes the data of all pieces into the reserved blocks.
    async fn write_pieces(
        &self,
        address: ObjectAddress,
        prepared: &Prepared,
        reservation: Reservation,
    ) -> Result<Written, ObjectError> {
        if prepared.pieces.is_empty() {
            return Ok(Written { entries: Vec::new(), reservation });
        }
        let mut all = Data::new();
        let mut crcs = Vec::new();
        let mut old = prepared.old.iter();
        for piece in &prepared.pieces {
            match piece {
                BlockPiece::Whole { data, .. } => {
                    crcs.extend(checksums(data));
                    all.append(data.clone());
                }
                BlockPiece::Parts { block, parts } => {
                    let (_, entry) = old.next().expect("one for each piece of this kind");
                    let data =
                        self.old_block(address, *block, *entry, parts, &prepared.row).await?;
                    let data = overlay(data, parts);
                    crcs.push(crc32c_of(&data));
                    all.append(data);
                }
            }
        }
        let numbers = prepared.pieces.iter().flat_map(|piece| {
            let first = piece.first();
            first..first + piece.count()
        });
        let entries = numbers
            .zip(reservation.blocks().zip(&crcs))
            .map(|(number, (block, crc))| (number, BlockEntry { block, crc: *crc }))
            .collect();
        let reservation = self.write_blocks(reservation, &all).await?;
        Ok(Written { entries, reservation })
    }

    /// Reads the present content of a block of which parts are written. Returns `None` if that content is not needed:
    /// the block is a hole, or one part covers it.
    async fn old_block(
        &self,
        address: ObjectAddress,
        block: u64,
        entry: Option<BlockEntry>,
        parts: &[(usize, Data)],
        row: &ObjectRow,
    ) -> Result<Option<Data>, ObjectError> {
        let content = row.length.saturating_sub(block * BLOCK).min(BLOCK) as usize;
        if entry.is_none() || covers(parts, content) {
            return Ok(None);
        }
        let mut plan = ReadPlan::default();
        plan.push(block, entry);
        self.read_plan(address, &plan).await.map(Some)
    }

    /// Creates an object with data in one transaction. `create` makes the object's row.
    pub(crate) async fn create_with(
        &self,
        request: &ObjectRequest,
        start: u64,
        create: impl Fn(&mut Transaction<'_>, Timestamp) -> Step<ObjectAddress>,
    ) -> Result<ObjectReply, ObjectError> {
        self.admit_change().await?;
        let now = self.now();
        let length = start + request.data.len() as u64;
        let segments = segments_of(start, &request.data);
        let prepared = Prepared {
            row: ObjectRow::new(object::ObjectType::UserObject, now),
            pieces: cut(&segments),
            old: Vec::new(),
            checks: Vec::new(),
            change: DataChange { segments, length, ..DataChange::default() },
            token: std::sync::Arc::new(()),
        };
        let parts =
            prepared.pieces.iter().filter(|piece| matches!(piece, BlockPiece::Parts { .. }));
        let prepared =
            Prepared { old: parts.map(|piece| (piece.first(), None)).collect(), ..prepared };
        // Check length and quota before data is written, so that the command need not fail afterwards.
        let runs = self
            .run(|transaction| {
                let partition = find_partition(transaction, request.command.object().partition)?;
                check_length(transaction, &partition, length, 0)?;
                let blocks = prepared.pieces.iter().map(BlockPiece::count).sum();
                check_quota(&partition, blocks)?;
                transaction.reserve(blocks)
            })
            .await?;
        let reservation = self.take_over(runs);
        let written = self.write_pieces(request.command.object(), &prepared, reservation).await?;
        let reply = self
            .run(|transaction| {
                let address = create(transaction, now)?;
                let mut row = find_user(transaction, address)?;
                apply(transaction, address, &mut row, &prepared.change, &written)?;
                count_used(transaction, address, 0, row.used)?;
                let mut conclusion = Conclusion::new(self, request, address, now);
                conclusion.change_in_used = (row.used * BLOCK) as i64;
                conclude(transaction, &conclusion, &mut row, true)
            })
            .await?;
        written.reservation.confirmed();
        Ok(reply)
    }
}

fn prepare(
    transaction: &mut Transaction<'_>,
    address: ObjectAddress,
    plan: &impl Fn(&ObjectRow) -> Result<Option<DataChange>, ObjectError>,
) -> Step<Option<(Prepared, BlockRuns)>> {
    let row = find_user(transaction, address)?;
    check_changeable(&row, RefusedField::Object)?;
    let Some(change) = plan(&row)? else { return Ok(None) };
    let partition = find_partition(transaction, address.partition)?;
    if change.length > row.length {
        check_tables(transaction)?;
        check_length(transaction, &partition, change.length, row.max_length)?;
    }
    let (mut pieces, mut old, mut checks, mut blocks) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for piece in cut(&change.segments) {
        if let BlockPiece::Parts { block, .. } = piece {
            let known = entry(transaction, &row, block)?;
            checks.push((block, known));
            if change.is_zeroing && known.is_none() {
                continue;
            }
            old.push((block, known));
        }
        blocks += piece.count();
        pieces.push(piece);
    }
    if blocks > 0 && row.length <= change.append_start {
        // APPEND only adds blocks, so its quota can be checked before its data is written.
        check_quota(&partition, blocks.saturating_sub(old.len() as u64))?;
    }
    // Reserve before entering the epoch: on a full drive, the reservation may have to wait until this epoch has no
    // readers.
    let runs = transaction.reserve(blocks)?;
    let token = transaction.enter_epoch();
    Ok(Some((Prepared { row, change, pieces, old, checks, token }, runs)))
}

/// Returns true if the object has not changed since the change was prepared, as far as the change depends on it.
fn is_still(transaction: &mut Transaction<'_>, prepared: &Prepared, row: &ObjectRow) -> Step<bool> {
    // The token has kept the blocks of the old entries from being used again, so equal entries mean equal content.
    let _ = &prepared.token;
    if row.content != prepared.row.content
        || (prepared.change.needs_length && row.length != prepared.row.length)
    {
        return Ok(false);
    }
    for (block, old) in &prepared.checks {
        if entry(transaction, row, *block)? != *old {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Makes holes, moves entries and refers to the new blocks in the object's map, and sets the object's length.
fn apply(
    transaction: &mut Transaction<'_>,
    address: ObjectAddress,
    row: &mut ObjectRow,
    change: &DataChange,
    written: &Written,
) -> Step<()> {
    if let Some((_, to)) = change.shift {
        check_shift(transaction, row, to)?;
    }
    // The blocks behind a range that is cut out move into its place, so it must be free at once.
    let limit = if change.shift.is_some() { usize::MAX } else { transaction.step_chunks() };
    for holes in &change.holes {
        make_holes(transaction, address, row, holes.clone(), limit)?;
    }
    if let Some((from, to)) = change.shift {
        shift_down(transaction, row, from, to)?;
    }
    replace(transaction, row, &written.entries)?;
    let entries = written.entries.iter().map(|(_, entry)| *entry);
    transaction.confirm(written.reservation.runs(), entries);
    row.length = if change.needs_length { change.length } else { row.length.max(change.length) };
    Ok(())
}

fn note_change(request: &ObjectRequest, row: &mut ObjectRow, now: Timestamp) {
    if request.options.timestamps == TimestampControl::Update {
        row.times.data_modified = now;
    }
}

fn checksums(data: &Data) -> impl Iterator<Item = u32> {
    let block = BLOCK as usize;
    (0..data.len() / block).map(move |n| match data.parts() {
        [part] => super::disk::crc32c(&part[n * block..(n + 1) * block]),
        _ => crc32c_of(&data.slice(n * block, block)),
    })
}
