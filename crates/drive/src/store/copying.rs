//! COPY USER OBJECTS, snapshots and clones: copies that share blocks until one of them changes.

use bytes::Bytes;
use object::{
    AttributeId, Continuation, ObjectAddress, ObjectError, ObjectReply, ObjectRequest, ObjectType,
    RefusedField, Timestamp,
};

use super::{
    build::{BuildRow, copy_attribute_rows, copy_some, find_build},
    chunk,
    conclusion::{Conclusion, conclude},
    drive_core::DriveCore,
    extents::count_used,
    key,
    object_row::{FROZEN, HAS_WORK, MAY_SHARE, ObjectRow},
    object_rows::{check_changeable, check_tables, find, find_partition, find_user, store},
    objects::{choose_partition, count_partition, create_objects},
    sharing::share_blocks,
    transaction::{ActiveBuild, BuildChange, Step, Stop, Transaction},
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

    /// Performs CREATE SNAPSHOT or CREATE CLONE in steps. The new partition is visible after the last one.
    pub(crate) async fn copy_partition(
        &self,
        request: &ObjectRequest,
        source: u64,
        requested: u64,
        kind: PartitionCopy,
    ) -> Result<ObjectReply, ObjectError> {
        let _turn = self.builds.lock().await;
        self.finish_builds().await?;
        self.admit_change().await?;
        let now = self.now();
        let is_snapshot = kind == PartitionCopy::Snapshot;
        let build = self
            .run(|transaction| begin(transaction, source, [requested, 0], is_snapshot, now))
            .await?;
        let mut guard = BuildGuard { core: self, is_done: false };
        self.copy_all(&build).await?;
        let reply = self
            .run(|transaction| {
                let done = find_build(transaction, build.target)?;
                let address = ObjectAddress::partition(build.target);
                let mut new = ObjectRow { used: done.used, ..done.row };
                (new.members.kind, new.members.source) = (kind as u8, source);
                let mut root = find(transaction, ObjectAddress::ROOT)?;
                count_partition(transaction, &mut root)?;
                transaction.counters.objects += new.members.count + new.members.collections;
                transaction.put(key::build(build.target), None)?;
                transaction.change_build(BuildChange::End);
                transaction.insert(key::object(address), new.encode());
                let conclusion = Conclusion::new(self, request, address, now);
                let reply = conclude(transaction, &conclusion, &mut new, true)?;
                if is_snapshot {
                    new.flags |= FROZEN;
                    store(transaction, address, &new)?;
                }
                Ok(reply)
            })
            .await?;
        guard.is_done = true;
        Ok(reply)
    }

    /// Waits until a new build may begin.
    async fn finish_builds(&self) -> Result<(), ObjectError> {
        let is_waiting = || {
            let builds = &self.tables.state.lock().builds;
            builds.failed.len() >= MOST_FAILED || builds.replacement.is_some()
        };
        while is_waiting() {
            self.work().await?;
        }
        Ok(())
    }

    /// Copies all objects that a build needs.
    async fn copy_all(&self, build: &ActiveBuild) -> Result<(), ObjectError> {
        let mut next = Some(0);
        while let Some(first) = next {
            self.admit_change().await?;
            next = self.run(|transaction| copy_some(transaction, build, first)).await?;
        }
        Ok(())
    }

    /// Performs RESTORE PARTITION FROM SNAPSHOT, or REFRESH SNAPSHOT OR CLONE without a `snapshot`. The partition keeps
    /// its objects until the copy is complete, and is not visible while it gets the new ones.
    pub(crate) async fn replace_partition(
        &self,
        request: &ObjectRequest,
        partition: u64,
        snapshot: Option<u64>,
    ) -> Result<ObjectReply, ObjectError> {
        let _turn = self.builds.lock().await;
        self.finish_builds().await?;
        self.admit_change().await?;
        let now = self.now();
        let build = self
            .run(|transaction| {
                let (source, is_snapshot) = find_source(transaction, partition, snapshot)?;
                begin(transaction, source, [0, partition], is_snapshot, now)
            })
            .await?;
        let mut guard = BuildGuard { core: self, is_done: false };
        self.copy_all(&build).await?;
        self.run(|transaction| {
            let mut done = find_build(transaction, build.target)?;
            find_partition(transaction, partition)?;
            if transaction.get(&key::trash(partition))?.is_some() {
                // It is being removed.
                let field = RefusedField::Partition;
                return Err(Stop::Failed(ObjectError::InvalidField { field }));
            }
            done.stage = 1;
            transaction.put(key::build(build.target), Some(done.encode()))?;
            transaction.change_build(BuildChange::Replace(partition));
            transaction.note_work();
            Ok(())
        })
        .await?;
        guard.is_done = true;
        self.finish_builds().await?;
        let address = ObjectAddress::partition(partition);
        self.run(|transaction| {
            let mut row = find_partition(transaction, partition)?;
            conclude(transaction, &Conclusion::new(self, request, address, now), &mut row, true)
        })
        .await
    }

    /// Performs DETACH CLONE.
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

/// Begins to make a partition as a copy of another one.
fn begin(
    transaction: &mut Transaction<'_>,
    source: u64,
    [requested, replaces]: [u64; 2],
    is_snapshot: bool,
    now: Timestamp,
) -> Step<ActiveBuild> {
    let old = find_partition(transaction, source)?;
    check_tables(transaction)?;
    let target = choose_partition(transaction, requested)?;
    let newest_content = transaction.next_content();
    let (from, to) = (ObjectAddress::partition(source), ObjectAddress::partition(target));
    copy_attribute_rows(transaction, from, to)?;
    let mut row = ObjectRow::new(ObjectType::Partition, now);
    (row.members, row.quota, row.max_length) = (old.members, old.quota, old.max_length);
    row.attribute_bytes = old.attribute_bytes;
    let begun = BuildRow { source, newest_content, used: 0, replaces, stage: 0, row };
    transaction.insert(key::build(target), begun.encode());
    let build = ActiveBuild { source, target, newest_content, is_snapshot, is_abandoned: false };
    transaction.change_build(BuildChange::Begin(build));
    Ok(build)
}

/// Returns the partition whose objects a partition gets, and true if they do not change there.
fn find_source(
    transaction: &mut Transaction<'_>,
    partition: u64,
    snapshot: Option<u64>,
) -> Step<(u64, bool)> {
    let refused = |field| Err(Stop::Failed(ObjectError::InvalidField { field }));
    let row = find_partition(transaction, partition)?;
    let Some(snapshot) = snapshot else {
        return match row.members.kind {
            0 => refused(RefusedField::Partition),
            kind => Ok((row.members.source, kind == PartitionCopy::Snapshot as u8)),
        };
    };
    check_changeable(&row, RefusedField::Partition)?;
    let members = find_partition(transaction, snapshot)?.members;
    match members.kind == PartitionCopy::Snapshot as u8 && members.source == partition {
        true => Ok((snapshot, false)),
        false => refused(RefusedField::Object),
    }
}

/// Has the worker undo a build whose command fails or is dropped.
struct BuildGuard<'a> {
    core: &'a DriveCore,
    is_done: bool,
}

impl Drop for BuildGuard<'_> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        if let Some(build) = &mut self.core.tables.state.lock().builds.active {
            build.is_abandoned = true;
        }
        self.core.wake_worker();
    }
}

/// Number of chunks (of 1 MiB) up to which an object's chunk rows are looked up one by one. The rows of a longer object
/// are read as a range.
const FEW_CHUNKS: u64 = 64;
/// Builds that failed and are not undone yet, above which a new one waits.
const MOST_FAILED: usize = 4;
