//! COPY USER OBJECTS, snapshots and clones: copies that share blocks until one of them changes.

use bytes::Bytes;
use object::{
    AttributeId, Continuation, ObjectAddress, ObjectError, ObjectReply, ObjectRequest, ObjectType,
    RefusedField,
};

use super::{
    chunk,
    conclusion::{Conclusion, conclude},
    drive_core::DriveCore,
    extents::count_used,
    key,
    listing::ListSource,
    object_row::{FROZEN, HAS_WORK, MAY_SHARE, ObjectRow},
    object_rows::{check_tables, decode, find, find_partition, find_user, store},
    objects::{create_objects, create_partition},
    sharing::share_blocks,
    transaction::{Step, Stop, Transaction},
};

/// Whether a partition is a snapshot or a clone of another one, as its row says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(crate) enum PartitionCopy {
    Snapshot = 1,
    Clone = 2,
}

impl DriveCore {
    /// Performs COPY USER OBJECTS for the object in the CDB continuation segment.
    pub(crate) async fn copy_object(
        &self,
        request: &ObjectRequest,
        partition: u64,
        requested: u64,
    ) -> Result<ObjectReply, ObjectError> {
        let Continuation::CopySource(source) = &request.continuation else {
            return Err(ObjectError::InvalidField { field: RefusedField::ContinuationLength });
        };
        self.admit_change().await?;
        let now = self.now();
        self.run(|transaction| {
            let mut old = find_user(transaction, source.object)?;
            let new = ObjectRow::new(ObjectType::UserObject, now);
            let id = create_objects(transaction, partition, requested, 1, &new)?;
            let address = ObjectAddress::new(partition, id);
            let mut new = find_user(transaction, address)?;
            copy_content(transaction, source.object, &mut old, &mut new)?;
            count_used(transaction, address, 0, new.used)?;
            if source.with_attributes {
                copy_attributes(transaction, source.object, address, &mut new)?;
            }
            let mut conclusion = Conclusion::new(self, request, address, now);
            conclusion.change_in_used = (new.used * 4096) as i64;
            let reply = conclude(transaction, &conclusion, &mut new, true)?;
            if source.freeze {
                new.flags |= FROZEN;
                store(transaction, address, &new)?;
            }
            Ok(reply)
        })
        .await
    }

    /// Performs CREATE SNAPSHOT or CREATE CLONE, as one transaction.
    pub(crate) async fn copy_partition(
        &self,
        request: &ObjectRequest,
        source: u64,
        requested: u64,
        kind: PartitionCopy,
    ) -> Result<ObjectReply, ObjectError> {
        self.admit_change().await?;
        let now = self.now();
        self.warm_up(source).await?;
        self.run(|transaction| {
            let old = find_partition(transaction, source)?;
            if old.members.count + old.members.collections > MOST_COPIED {
                return Err(Stop::Failed(ObjectError::Quota {
                    used: old.members.count + old.members.collections,
                    limit: MOST_COPIED,
                }));
            }
            let id = create_partition(transaction, requested, now)?;
            let address = ObjectAddress::partition(id);
            let mut new = find(transaction, address)?;
            new.members = old.members;
            (new.members.kind, new.members.source) = (kind as u8, source);
            (new.quota, new.max_length, new.used) = (old.quota, old.max_length, old.used);
            copy_objects(transaction, source, id, kind)?;
            transaction.counters.objects += old.members.count + old.members.collections;
            copy_attributes(transaction, ObjectAddress::partition(source), address, &mut new)?;
            let reply = conclude(
                transaction,
                &Conclusion::new(self, request, address, now),
                &mut new,
                true,
            )?;
            if kind == PartitionCopy::Snapshot {
                new.flags |= FROZEN;
                store(transaction, address, &new)?;
            }
            Ok(reply)
        })
        .await
    }

    /// Reads the rows that a copy of a partition needs, so that its transaction finds most of them in memory.
    async fn warm_up(&self, partition: u64) -> Result<(), ObjectError> {
        let mut first = 0;
        loop {
            let (ids, next) = self.ids(ListSource::UserObjects(partition), first, 1024).await?;
            for id in ids {
                let address = ObjectAddress::new(partition, id);
                self.run(|transaction| match transaction.get(&key::object(address))? {
                    Some(row) => {
                        let row = decode(address, &row)?;
                        chunk_numbers(&row).filter(|_| row.used > 0).try_for_each(|n| {
                            transaction.get(&key::chunk(row.content, n)).map(drop)
                        })
                    }
                    None => Ok(()),
                })
                .await?;
            }
            if next == 0 {
                return Ok(());
            }
            first = next;
        }
    }

    /// Performs DETACH CLONE: the partition no longer counts as a clone.
    pub(crate) async fn detach_clone(
        &self,
        request: &ObjectRequest,
        clone: u64,
    ) -> Result<ObjectReply, ObjectError> {
        let now = self.now();
        let address = ObjectAddress::partition(clone);
        self.run(|transaction| {
            let mut row = find_partition(transaction, clone)?;
            if row.members.kind != PartitionCopy::Clone as u8 {
                return Err(Stop::Failed(ObjectError::InvalidField {
                    field: RefusedField::Partition,
                }));
            }
            (row.members.kind, row.members.source) = (0, 0);
            conclude(transaction, &Conclusion::new(self, request, address, now), &mut row, true)
        })
        .await
    }
}

/// Returns the numbers of an object's chunks if each of them is looked up on its own; an empty range for a long object.
fn chunk_numbers(row: &ObjectRow) -> std::ops::Range<u64> {
    let chunks = row.length.div_ceil(chunk::CHUNK_BLOCKS * 4096);
    0..if chunks > FEW_CHUNKS { 0 } else { chunks }
}

/// Makes `new` refer to all blocks of `old`, and notes in both rows that blocks may be shared.
fn copy_content(
    transaction: &mut Transaction<'_>,
    old_address: ObjectAddress,
    old: &mut ObjectRow,
    new: &mut ObjectRow,
) -> Step<()> {
    (new.length, new.used, new.max_length) = (old.length, old.used, old.max_length);
    if old.used == 0 {
        return Ok(());
    }
    if old.has(HAS_WORK) {
        return Err(Stop::Work(old.content));
    }
    let numbers = chunk_numbers(old);
    let (is_marked, content) = (old.has(MAY_SHARE), new.content);
    let copy = |transaction: &mut Transaction<'_>, number: u64, row: Bytes| {
        let blocks = chunk::entries(&row).map(|(_, entry)| entry.block).collect();
        share_blocks(transaction, old, blocks)?;
        transaction.insert(key::chunk(content, number), row);
        Ok(())
    };
    if numbers.is_empty() {
        let (start, end) = (key::chunk(old.content, 0), key::chunks_end(old.content));
        transaction.for_each(&start, &end, |transaction, row_key, row| {
            copy(transaction, key::last_number(&row_key), row)
        })?;
    } else {
        for number in numbers {
            if let Some(row) = transaction.get(&key::chunk(old.content, number))? {
                copy(transaction, number, row)?;
            }
        }
    }
    new.flags |= MAY_SHARE;
    if !is_marked {
        old.flags |= MAY_SHARE;
        store(transaction, old_address, old)?;
    }
    Ok(())
}

/// Copies all attributes that have rows of their own. Memberships of a user object are left out: the copy is in no
/// collection.
fn copy_attributes(
    transaction: &mut Transaction<'_>,
    from: ObjectAddress,
    to: ObjectAddress,
    new: &mut ObjectRow,
) -> Step<()> {
    let (start, end) = (key::attribute(from, AttributeId::new(0, 0)), key::attributes_end(from));
    transaction.for_each(&start, &end, |transaction, row_key, value| {
        let id = key::attribute_id(&row_key);
        if id.page != super::attributes::MEMBERSHIP_PAGE || from.object == 0 {
            new.attribute_bytes += value.len() as u32;
            transaction.insert(key::attribute(to, id), value);
        }
        Ok(())
    })
}

/// Copies all objects of a partition to a new one, with their identifiers and attributes.
fn copy_objects(
    transaction: &mut Transaction<'_>,
    source: u64,
    target: u64,
    kind: PartitionCopy,
) -> Step<()> {
    check_tables(transaction)?;
    let (start, end) = (key::object(ObjectAddress::new(source, 1)), key::objects_end(source));
    transaction.for_each(&start, &end, |transaction, row_key, row| {
        let id = key::last_number(&row_key);
        let (from, to) = (ObjectAddress::new(source, id), ObjectAddress::new(target, id));
        let mut old = decode(from, &row)?;
        let mut new = old.clone();
        if old.object_type == ObjectType::UserObject {
            new.content = transaction.next_content();
            copy_content(transaction, from, &mut old, &mut new)?;
        } else {
            transaction.insert(key::collection(target, id), Bytes::new());
            let (start, end) = (key::member(from, 0), key::members_end(from));
            transaction.for_each(&start, &end, |transaction, member, number| {
                transaction.insert(key::member(to, key::last_number(&member)), number);
                Ok(())
            })?;
        }
        match kind {
            PartitionCopy::Snapshot => new.flags |= FROZEN,
            // A clone of a snapshot can change.
            PartitionCopy::Clone => new.flags &= !FROZEN,
        }
        transaction.insert(key::object(to), new.encode());
        Ok(())
    })?;
    // One range for the attributes of all objects, because each range is one read.
    let first = key::attribute(ObjectAddress::new(source, 1), AttributeId::new(0, 0));
    let end = key::attributes_end(ObjectAddress::new(source, u64::MAX));
    transaction.for_each(&first, &end, |transaction, row_key, value| {
        let to = ObjectAddress::new(target, key::attribute_object(&row_key));
        transaction.insert(key::attribute(to, key::attribute_id(&row_key)), value);
        Ok(())
    })
}

/// Number of chunks (of 1 MiB) up to which an object's chunk rows are looked up one by one. The rows of a longer object
/// are read as a range.
const FEW_CHUNKS: u64 = 64;
/// Most objects of a partition that is copied: the copy is one transaction, which other commands wait for.
const MOST_COPIED: u64 = 16_384;
