//! Creating objects and removing them.

use bytes::Bytes;
use object::{FIRST_IDENTIFIER, ObjectAddress, ObjectError, ObjectType, RefusedField, Timestamp};

use super::{
    attributes::{MEMBERSHIP_PAGE, leave},
    freeing::free_content,
    key,
    object_row::ObjectRow,
    object_rows::{check_changeable, check_tables, find, find_partition, guard_copy, store},
    tracking,
    transaction::{Step, Stop, Transaction},
};

/// Creates a partition with the identifier `requested`, or with one that the drive chooses. Returns the identifier.
pub(crate) fn create_partition(
    transaction: &mut Transaction<'_>,
    requested: u64,
    now: Timestamp,
) -> Step<u64> {
    check_tables(transaction)?;
    let mut root = find(transaction, ObjectAddress::ROOT)?;
    let id = choose_partition(transaction, requested)?;
    let mut row = ObjectRow::new(ObjectType::Partition, now);
    row.quota = root.quota;
    row.max_length = root.max_length;
    transaction.insert(key::object(ObjectAddress::partition(id)), row.encode());
    count_partition(transaction, &mut root)?;
    Ok(id)
}

/// Counts a new partition.
pub(crate) fn count_partition(transaction: &mut Transaction<'_>, root: &mut ObjectRow) -> Step<()> {
    root.members.count += 1;
    transaction.counters.partitions += 1;
    root.members.changes = root.members.changes.wrapping_add(1);
    store(transaction, ObjectAddress::ROOT, root)
}

/// Returns the identifier of a new partition, unless the requested one is in use.
pub(crate) fn choose_partition(transaction: &mut Transaction<'_>, requested: u64) -> Step<u64> {
    check_requested(requested, RefusedField::Partition)?;
    let id = match requested {
        0 => loop {
            let id = transaction.next_id(1)?;
            if !transaction.is_hidden(id)
                && transaction.get(&key::object(ObjectAddress::partition(id)))?.is_none()
            {
                break id;
            }
        },
        id => id,
    };
    let address = ObjectAddress::partition(id);
    if transaction.is_hidden(id) || transaction.get(&key::object(address))?.is_some() {
        return Err(Stop::Failed(ObjectError::Exists { object: address }));
    }
    Ok(id)
}

/// Creates `count` user objects or collections with consecutive identifiers. Returns the first identifier.
pub(crate) fn create_objects(
    transaction: &mut Transaction<'_>,
    partition: u64,
    requested: u64,
    count: u64,
    row: &ObjectRow,
) -> Step<u64> {
    check_requested(requested, RefusedField::Object)?;
    check_tables(transaction)?;
    let mut parent = find_partition(transaction, partition)?;
    check_changeable(&parent, RefusedField::Partition)?;
    let objects = parent.members.count + parent.members.collections;
    if parent.quota.objects != 0 && objects + count > parent.quota.objects {
        let limit = parent.quota.objects;
        return Err(Stop::Failed(ObjectError::Quota { used: objects, limit }));
    }
    let first = match requested {
        0 => choose(transaction, partition, count, parent.members.highest)?,
        first => first,
    };
    let last = first
        .checked_add(count - 1)
        .ok_or(ObjectError::InvalidField { field: RefusedField::Object })?;
    transaction.creates(partition, first..=last);
    for id in first..=last {
        let address = ObjectAddress::new(partition, id);
        if id <= parent.members.highest && transaction.get(&key::object(address))?.is_some() {
            return Err(Stop::Failed(ObjectError::Exists { object: address }));
        }
        let mut row = row.clone();
        row.content = transaction.next_content();
        if row.object_type != ObjectType::UserObject {
            transaction.insert(key::collection(partition, id), Bytes::new());
        }
        transaction.insert(key::object(address), row.encode());
    }
    match row.object_type {
        ObjectType::UserObject => parent.members.count += count,
        _ => parent.members.collections += count,
    }
    transaction.counters.objects += count;
    parent.members.highest = parent.members.highest.max(last);
    parent.members.changes = parent.members.changes.wrapping_add(1);
    store(transaction, ObjectAddress::partition(partition), &parent)?;
    Ok(first)
}

/// Returns the first of `count` consecutive identifiers that are not used in the partition.
fn choose(
    transaction: &mut Transaction<'_>,
    partition: u64,
    count: u64,
    highest: u64,
) -> Step<u64> {
    'next: loop {
        let first = transaction.next_id(count)?;
        for id in (first..first + count).take_while(|id| *id <= highest) {
            if transaction.get(&key::object(ObjectAddress::new(partition, id)))?.is_some() {
                continue 'next;
            }
        }
        return Ok(first);
    }
}

fn check_requested(requested: u64, field: RefusedField) -> Step<()> {
    match requested {
        1..FIRST_IDENTIFIER => Err(Stop::Failed(ObjectError::InvalidField { field })),
        _ => Ok(()),
    }
}

/// Removes a user object with its attributes, memberships and data. Returns the number of its blocks.
pub(crate) fn remove_user(
    transaction: &mut Transaction<'_>,
    address: ObjectAddress,
    row: &ObjectRow,
) -> Step<u64> {
    guard_copy(transaction, address, row)?;
    remove_attributes(transaction, address)?;
    free_content(transaction, row)?;
    transaction.put(key::object(address), None)?;
    let mut parent = find_partition(transaction, address.partition)?;
    parent.members.count = parent.members.count.saturating_sub(1);
    transaction.counters.objects = transaction.counters.objects.saturating_sub(1);
    parent.members.changes = parent.members.changes.wrapping_add(1);
    parent.used -= row.used.min(parent.used);
    store(transaction, ObjectAddress::partition(address.partition), &parent)?;
    Ok(row.used)
}

/// Removes a collection that has no members.
pub(crate) fn remove_collection(
    transaction: &mut Transaction<'_>,
    address: ObjectAddress,
) -> Step<()> {
    let row = find(transaction, address)?;
    guard_copy(transaction, address, &row)?;
    remove_attributes(transaction, address)?;
    tracking::forget(transaction, address)?;
    transaction.put(key::object(address), None)?;
    transaction.put(key::collection(address.partition, address.object), None)?;
    let mut parent = find_partition(transaction, address.partition)?;
    parent.members.collections = parent.members.collections.saturating_sub(1);
    transaction.counters.objects = transaction.counters.objects.saturating_sub(1);
    parent.members.changes = parent.members.changes.wrapping_add(1);
    store(transaction, ObjectAddress::partition(address.partition), &parent)
}

/// Removes a partition that has no objects.
pub(crate) fn remove_partition(transaction: &mut Transaction<'_>, partition: u64) -> Step<()> {
    let address = ObjectAddress::partition(partition);
    remove_attributes(transaction, address)?;
    transaction.put(key::object(address), None)?;
    let mut root = find(transaction, ObjectAddress::ROOT)?;
    root.members.count = root.members.count.saturating_sub(1);
    transaction.counters.partitions = transaction.counters.partitions.saturating_sub(1);
    root.members.changes = root.members.changes.wrapping_add(1);
    store(transaction, ObjectAddress::ROOT, &root)
}

/// Removes all attributes of an object. A user object leaves its collections.
fn remove_attributes(transaction: &mut Transaction<'_>, address: ObjectAddress) -> Step<()> {
    let first = key::attribute(address, object::AttributeId::new(0, 0));
    transaction.for_each(&first, &key::attributes_end(address), |transaction, row_key, value| {
        let id = key::attribute_id(&row_key);
        if address.object != 0 && id.page == MEMBERSHIP_PAGE {
            leave(transaction, address, &value)?;
        }
        transaction.put(row_key, None)
    })
}
