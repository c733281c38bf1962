//! Quotas and free space, checked before data is written or even sent.

use object::{Command, ObjectAddress, ObjectError, RefusedField};

use super::{
    disk::BLOCK,
    object_row::ObjectRow,
    object_rows::{find, find_partition, find_user},
    transaction::{Step, Stop, Transaction},
};

/// Fails if the object must not become `length` bytes long. `own` is the limit of the object itself, or zero.
pub(crate) fn check_length(
    transaction: &mut Transaction<'_>,
    partition: &ObjectRow,
    length: u64,
    own: u64,
) -> Step<()> {
    let limit = match (own, partition.max_length) {
        (0, 0) => find(transaction, ObjectAddress::ROOT)?.max_length,
        (0, limit) | (limit, _) => limit,
    };
    if length > MOST_LENGTH {
        return Err(Stop::Failed(ObjectError::InvalidField { field: RefusedField::Length }));
    }
    match limit != 0 && length > limit {
        true => Err(Stop::Failed(ObjectError::Quota { used: length, limit })),
        false => Ok(()),
    }
}

pub(crate) fn check_quota(partition: &ObjectRow, more: u64) -> Step<()> {
    let (used, limit) = ((partition.used + more) * BLOCK, partition.quota.bytes);
    match limit != 0 && used > limit {
        true => Err(Stop::Failed(ObjectError::Quota { used, limit })),
        false => Ok(()),
    }
}

/// Fails if `command` would fail for lack of space. The check needs no data of the command.
pub(crate) fn check_space(transaction: &mut Transaction<'_>, command: &Command) -> Step<()> {
    let data = command.data_out_length();
    let (start, row) = match *command {
        Command::Write { object, start, .. } => (start, Some(find_user(transaction, object)?)),
        Command::Append { object, .. } => {
            let row = find_user(transaction, object)?;
            (row.length, Some(row))
        }
        Command::CreateAndWrite { start, .. } => (start, None),
        _ => return Ok(()),
    };
    let wraps = ObjectError::InvalidField { field: RefusedField::Length };
    let end = start.checked_add(data).ok_or(wraps)?;
    let partition = find_partition(transaction, command.object().partition)?;
    let (length, own) = row.map_or((0, 0), |row| (row.length, row.max_length));
    if end > length {
        check_length(transaction, &partition, end, own)?;
        // Count only blocks behind the object's end: blocks within the object may exist already, and the quota counts
        // them then.
        check_quota(&partition, end.div_ceil(BLOCK) - length.max(start).div_ceil(BLOCK))?;
    }
    let blocks = end.div_ceil(BLOCK) - start / BLOCK;
    match data > 0 && blocks > transaction.free_blocks() {
        true => Err(Stop::Failed(transaction.full())),
        false => Ok(()),
    }
}

/// Maximum length of an object in bytes: offsets in commands and in `i64` stay far from overflow.
const MOST_LENGTH: u64 = 1 << 60;
