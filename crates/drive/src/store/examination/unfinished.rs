//! Removals and copies that are done in steps, and that the recovery of the drive did not finish.
//!
//! A sound drive has none after its recovery. One damaged row can keep the recovery from finishing the others. Their
//! chunks belong to no object, but still count as referenced, so that they are not reported as leaked.

use bytes::Bytes;
use object::{ObjectAddress, ObjectType};

use super::{
    report::{DriveExamination, DriveFindingKind},
    rows::ExaminedRows,
};
use crate::store::{
    build::{BuildRow, Progress},
    key::{self, Key, RowKind},
    object_row::ObjectRow,
    work_row::WorkRow,
};

/// Adds the finding for a row of work that should have been finished.
pub(super) fn examine_unfinished(
    rows: &ExaminedRows,
    report: &mut DriveExamination,
    kind: RowKind,
    row_key: &Key,
    row: &Bytes,
) -> Result<(), redb::Error> {
    let text = match kind {
        RowKind::Work if WorkRow::decode(row).is_none() => "a work row is damaged",
        RowKind::Build if BuildRow::decode(row).is_none() => "the row of a copy is damaged",
        RowKind::Build => "a copy of a partition cannot be finished",
        RowKind::Progress if Progress::decode(row).is_none() => "a progress row is damaged",
        RowKind::Progress if !rows.has(&key::build(key::number(row_key, 0)))? => {
            "the progress row belongs to no copy"
        }
        RowKind::Progress => "a copy of an object cannot be finished",
        _ => "a removal cannot be finished",
    };
    report.find(DriveFindingKind::Tables, format!("{text}: {row_key:02x?}"));
    Ok(())
}

/// Calls `each` for the contents of removed objects that are not freed yet, and of objects that were copied in part.
/// The flag is true if blocks of the content may be shared.
pub(super) fn each_unfinished_content(
    rows: &ExaminedRows,
    mut each: impl FnMut(u64, bool) -> Result<(), redb::Error>,
) -> Result<(), redb::Error> {
    rows.each(&key::work(0), &key::works_end(), |row_key, row| {
        let content = key::last_number(&row_key);
        // A damaged row does not name its object. If that was removed, its blocks are leaked.
        let Some(work) = WorkRow::decode(&row) else { return Ok(()) };
        let is_owned = match work.object {
            Some(object) => has_content(rows, object, content)?,
            None => false,
        };
        if is_owned || !RowKind::Work.fits(row_key.len()) {
            return Ok(());
        }
        each(content, work.may_share)
    })?;
    rows.each(&key::progress(0, 0), &key::progress_end(u64::MAX), |_, row| {
        match Progress::decode(&row) {
            Some(progress) if progress.content != 0 => each(progress.content, true),
            _ => Ok(()),
        }
    })
}

fn has_content(
    rows: &ExaminedRows,
    object: ObjectAddress,
    content: u64,
) -> Result<bool, redb::Error> {
    let row = rows.get(&key::object(object))?.and_then(|row| ObjectRow::decode(&row));
    Ok(row.is_some_and(|row| row.object_type == ObjectType::UserObject && row.content == content))
}

/// Counts the chunks that belong to no object, but to unfinished work.
pub(super) fn count_unfinished_chunks(rows: &ExaminedRows) -> Result<u64, redb::Error> {
    let mut chunks = 0;
    each_unfinished_content(rows, |content, _| {
        rows.each(&key::chunk(content, 0), &key::chunks_end(content), |_, _| {
            chunks += 1;
            Ok(())
        })
    })?;
    Ok(chunks)
}
