//! Looks up and stores the rows of objects, and checks them before a change.

use bytes::Bytes;
use object::{ObjectAddress, ObjectError, ObjectType, RefusedField};

use super::{
    key,
    object_row::{FROZEN, ObjectRow},
    row_store::Need,
    transaction::{Step, Stop, Transaction},
};

/// Returns the row of an object. Fails if the object does not exist.
pub(crate) fn find(transaction: &mut Transaction<'_>, address: ObjectAddress) -> Step<ObjectRow> {
    if address.partition == 0 && address.object != 0 {
        return Err(Stop::Failed(ObjectError::InvalidField { field: RefusedField::Partition }));
    }
    let row = match transaction.is_hidden(address.partition) {
        true => None,
        false => transaction.get(&key::object(address))?,
    };
    match row {
        Some(row) => decode(address, &row),
        None => Err(Stop::Failed(ObjectError::NoSuchObject { object: address })),
    }
}

pub(crate) fn decode(address: ObjectAddress, row: &Bytes) -> Step<ObjectRow> {
    let damaged = || ObjectError::Storage(format!("the row of {address} is damaged"));
    ObjectRow::decode(row).ok_or_else(|| Stop::Failed(damaged()))
}

/// Returns the row of an object that must have this type.
pub(crate) fn find_typed(
    transaction: &mut Transaction<'_>,
    address: ObjectAddress,
    object_type: ObjectType,
) -> Step<ObjectRow> {
    let row = find(transaction, address)?;
    if row.object_type == object_type {
        return Ok(row);
    }
    let field = match object_type {
        ObjectType::Root | ObjectType::Partition => RefusedField::Partition,
        _ => RefusedField::Object,
    };
    Err(Stop::Failed(ObjectError::InvalidField { field }))
}

pub(crate) fn find_user(
    transaction: &mut Transaction<'_>,
    address: ObjectAddress,
) -> Step<ObjectRow> {
    if address.object == 0 {
        return Err(Stop::Failed(ObjectError::InvalidField { field: RefusedField::Object }));
    }
    find_typed(transaction, address, ObjectType::UserObject)
}

/// Returns the row of a user object for a command that reads or changes its chunk `chunk` next. If the row is not in
/// memory, both rows are loaded at once.
pub(crate) fn find_with_chunk(
    transaction: &mut Transaction<'_>,
    address: ObjectAddress,
    chunk: u64,
) -> Step<ObjectRow> {
    find_user(transaction, address).map_err(|stop| match stop {
        Stop::Missing(Need::Row(key)) => Stop::Missing(Need::Object { key, chunk }),
        stop => stop,
    })
}

pub(crate) fn find_partition(transaction: &mut Transaction<'_>, partition: u64) -> Step<ObjectRow> {
    if partition == 0 {
        return Err(Stop::Failed(ObjectError::InvalidField { field: RefusedField::Partition }));
    }
    find(transaction, ObjectAddress::partition(partition))
}

pub(crate) fn store(
    transaction: &mut Transaction<'_>,
    address: ObjectAddress,
    row: &ObjectRow,
) -> Step<()> {
    guard_copy(transaction, address, row)?;
    transaction.put(key::object(address), Some(row.encode()))
}

/// Fails with [`Stop::Copy`] if an object must be copied into a new snapshot or clone before it changes.
pub(crate) fn guard_copy(
    transaction: &mut Transaction<'_>,
    address: ObjectAddress,
    row: &ObjectRow,
) -> Step<()> {
    let build = transaction.active_build();
    let Some(build) = build.filter(|build| build.source == address.partition) else {
        return Ok(());
    };
    match address.object != 0 && transaction.is_to_copy(&build, address.object, row.content)? {
        true => Err(Stop::Copy(address.object)),
        false => Ok(()),
    }
}

/// Fails if the object must not change.
pub(crate) fn check_changeable(row: &ObjectRow, field: RefusedField) -> Step<()> {
    match row.has(FROZEN) {
        true => Err(Stop::Failed(ObjectError::InvalidField { field })),
        false => Ok(()),
    }
}

/// Fails if the tables have no room for more objects. A part of the tables is kept free, because removals need room,
/// too.
pub(crate) fn check_tables(transaction: &mut Transaction<'_>) -> Step<()> {
    let (used, limit) = (transaction.counters.row_bytes, transaction.table_limit());
    match used > limit {
        true => Err(Stop::Failed(ObjectError::Quota { used, limit })),
        false => Ok(()),
    }
}
