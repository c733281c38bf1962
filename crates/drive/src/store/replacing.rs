//! A complete copy takes the place of a partition, in steps: REFRESH SNAPSHOT OR CLONE and RESTORE PARTITION FROM
//! SNAPSHOT.
//!
//! First the objects of the partition are removed, then those of the copy get its number. Meanwhile the partition is not
//! visible. A start after a crash goes on with the replacement.

use object::{AttributeId, ObjectAddress, ObjectType};

use super::{
    build::{BuildRow, MEMBERS, find_build, number_after, remove_attribute_rows, remove_objects},
    key,
    object_rows::decode,
    transaction::{BuildChange, Step, Transaction},
};

/// Does a bounded part of the replacement. Returns false if there is none.
pub(crate) fn replace_some(transaction: &mut Transaction<'_>) -> Step<bool> {
    let Some(replacement) = transaction.replacement() else { return Ok(false) };
    let (copy, partition) = (replacement.copy, replacement.partition);
    let mut build = find_build(transaction, copy)?;
    let next = match build.stage {
        1 => remove_objects(transaction, partition, replacement.next)?,
        _ => move_objects(transaction, copy, partition, replacement.next)?,
    };
    match next {
        Some(next) => transaction.change_build(BuildChange::ReplaceFrom(next)),
        None if build.stage == 1 => {
            build.stage = 2;
            transaction.put(key::build(copy), Some(build.encode()))?;
            transaction.change_build(BuildChange::ReplaceFrom(0));
        }
        None => finish(transaction, copy, partition, &build)?,
    }
    Ok(true)
}

/// Moves some objects from `first` on. Returns the object with which to go on; `None`: all are moved.
fn move_objects(
    transaction: &mut Transaction<'_>,
    copy: u64,
    partition: u64,
    first: u64,
) -> Step<Option<u64>> {
    let start = key::object(ObjectAddress::new(copy, first.max(1)));
    let limit = transaction.step_chunks();
    let page = transaction.page(&start, &key::objects_end(copy), limit)?;
    for (row_key, row) in page.rows {
        let id = key::last_number(&row_key);
        let (from, to) = (ObjectAddress::new(copy, id), ObjectAddress::new(partition, id));
        if decode(from, &row)?.object_type == ObjectType::Collection {
            if !move_members(transaction, from, to)? {
                return Ok(Some(id));
            }
            let list_key = key::collection(copy, id);
            if let Some(list) = transaction.get(&list_key)? {
                transaction.put(list_key, None)?;
                transaction.put(key::collection(partition, id), Some(list))?;
            }
        }
        let first = key::attribute(from, AttributeId::new(0, 0));
        transaction.for_each(
            &first,
            &key::attributes_end(from),
            |transaction, row_key, value| {
                transaction.put(key::attribute(to, key::attribute_id(&row_key)), Some(value))?;
                transaction.put(row_key, None)
            },
        )?;
        transaction.put(row_key, None)?;
        transaction.put(key::object(to), Some(row))?;
    }
    Ok(page.next.map(|next| number_after(&next)))
}

/// Moves some members of a collection. Returns true if none is left.
fn move_members(
    transaction: &mut Transaction<'_>,
    from: ObjectAddress,
    to: ObjectAddress,
) -> Step<bool> {
    let (mut start, end) = (key::member(from, 0), key::members_end(from));
    loop {
        let page = transaction.page(&start, &end, MEMBERS)?;
        let is_any = !page.rows.is_empty();
        for (row_key, row) in page.rows {
            transaction.replace(row_key.clone(), Some(&row), None);
            transaction.put(key::member(to, key::last_number(&row_key)), Some(row))?;
        }
        match page.next {
            None => return Ok(true),
            Some(_) if is_any => return Ok(false),
            // Rows that were removed since the last commit.
            Some(next) => start = next,
        }
    }
}

/// Makes the replaced partition visible again. It takes over the numbers of objects and collections, and the used
/// blocks, of the hidden copy that was made for it.
fn finish(
    transaction: &mut Transaction<'_>,
    copy: u64,
    partition: u64,
    build: &BuildRow,
) -> Step<()> {
    let address = ObjectAddress::partition(partition);
    if let Some(row) = transaction.get(&key::object(address))? {
        let mut row = decode(address, &row)?;
        let objects = |members: &super::object_row::Membership| members.count + members.collections;
        let (old, new) = (objects(&row.members), objects(&build.row.members));
        transaction.counters.objects = transaction.counters.objects.saturating_sub(old) + new;
        row.members.count = build.row.members.count;
        row.members.collections = build.row.members.collections;
        row.members.highest = row.members.highest.max(build.row.members.highest);
        row.members.changes = row.members.changes.wrapping_add(1);
        row.used = build.used;
        transaction.put(key::object(address), Some(row.encode()))?;
    }
    remove_attribute_rows(transaction, ObjectAddress::partition(copy))?;
    transaction.put(key::build(copy), None)?;
    transaction.change_build(BuildChange::Replaced);
    Ok(())
}
