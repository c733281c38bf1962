//! CREATE USER TRACKING COLLECTION.

use object::{
    Command, ObjectAddress, ObjectError, ObjectReply, ObjectRequest, ObjectType, RefusedField,
    Timestamp,
};

use super::{
    background::{BackgroundJob, STEP_OBJECTS},
    conclusion::{Conclusion, conclude},
    drive_core::DriveCore,
    key,
    listing::ListSource,
    members::{Member, add_tracked, find_member},
    object_row::ObjectRow,
    object_rows::find_typed,
    objects::{create_objects, remove_collection},
    querying::drop_all_tracked,
    tracking::{self, NewWork, Pending, TRACKING_COLLECTION, WorkGuard},
    transaction::{Step, Stop, Transaction},
    works::{Progress, WorkId},
};

impl DriveCore {
    /// Performs CREATE USER TRACKING COLLECTION: the members of the collection `source` become members of the new one.
    pub(crate) async fn create_tracking_collection(
        &self,
        request: &ObjectRequest,
    ) -> Result<ObjectReply, ObjectError> {
        let Command::CreateUserTrackingCollection { partition, requested, source } =
            request.command
        else {
            return Err(ObjectError::Unsupported);
        };
        self.admit_change().await?;
        let now = self.now();
        if source == 0 {
            return self
                .run(|transaction| {
                    let address = create_empty(transaction, partition, requested, now)?;
                    self.conclude_creation(transaction, request, address, now)
                })
                .await;
        }
        let source = ObjectAddress::new(partition, source);
        let id = self
            .run(|transaction| {
                let total = check_source(transaction, source)?.members.count;
                let collection = create_empty(transaction, partition, requested, now)?;
                transaction.put(key::pending(collection), Some(Pending::Creation.encode()))?;
                let command = &request.command;
                let new = NewWork { command, collection, source, total, is_background: false };
                tracking::begin(transaction, &new)
            })
            .await?;
        let creation = Creation { core: self, guard: Some(WorkGuard::new(&self.tables, id)) };
        self.copy_members(source, id).await?;
        let reply = self
            .run(|transaction| {
                tracking::end(transaction, id, &Ok(()))?;
                self.conclude_creation(transaction, request, id.collection, now)
            })
            .await?;
        creation.complete();
        Ok(reply)
    }

    fn conclude_creation(
        &self,
        transaction: &mut Transaction<'_>,
        request: &ObjectRequest,
        address: ObjectAddress,
        now: Timestamp,
    ) -> Step<ObjectReply> {
        let mut row = find_typed(transaction, address, ObjectType::Collection)?;
        conclude(transaction, &Conclusion::new(self, request, address, now), &mut row, true)
    }

    async fn copy_members(&self, source: ObjectAddress, work: WorkId) -> Result<(), ObjectError> {
        let total = self.tables.state.lock().works.progress(work.collection);
        let mut progress = total.unwrap_or_default();
        loop {
            let (ids, next) =
                self.ids(ListSource::Members(source), progress.next, STEP_OBJECTS).await?;
            self.admit_change().await?;
            progress = self
                .run(|transaction| {
                    tracking::check(transaction, work)?;
                    let after = copy_some(transaction, source, work.collection, &ids, progress)?;
                    tracking::advance(transaction, work, &after)?;
                    Ok(after)
                })
                .await?;
            if next == 0 {
                return Ok(());
            }
        }
    }

    /// Makes the next step of the removal of a tracking collection that was not completed. Returns true if that was
    /// the last one.
    pub(crate) async fn undo_step(&self, collection: ObjectAddress) -> Result<bool, ObjectError> {
        self.admit_change().await?;
        self.run(|transaction| {
            let is_empty = drop_all_tracked(transaction, collection)?;
            if is_empty {
                remove_collection(transaction, collection)?;
            }
            Ok(is_empty)
        })
        .await
    }
}

/// Removes a new collection, unless its creation is complete.
struct Creation<'a> {
    core: &'a DriveCore,
    guard: Option<WorkGuard>,
}

impl Creation<'_> {
    fn complete(mut self) {
        self.guard = None;
    }
}

impl Drop for Creation<'_> {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            self.core.add_job(BackgroundJob::Undo(guard));
        }
    }
}

fn create_empty(
    transaction: &mut Transaction<'_>,
    partition: u64,
    requested: u64,
    now: Timestamp,
) -> Step<ObjectAddress> {
    let mut row = ObjectRow::new(ObjectType::Collection, now);
    row.members.kind = TRACKING_COLLECTION;
    let id = create_objects(transaction, partition, requested, 1, &row)?;
    Ok(ObjectAddress::new(partition, id))
}

fn check_source(transaction: &mut Transaction<'_>, source: ObjectAddress) -> Step<ObjectRow> {
    tracking::check_idle(transaction, source, RefusedField::Start)?;
    match find_typed(transaction, source, ObjectType::Collection) {
        Err(Stop::Failed(ObjectError::NoSuchObject { .. } | ObjectError::InvalidField { .. })) => {
            Err(Stop::Failed(ObjectError::InvalidField { field: RefusedField::Start }))
        }
        row => row,
    }
}

/// Makes members of the collection `from` members of `to`.
fn copy_some(
    transaction: &mut Transaction<'_>,
    from: ObjectAddress,
    to: ObjectAddress,
    ids: &[u64],
    mut progress: Progress,
) -> Step<Progress> {
    for &id in ids {
        let member = find_member(transaction, from, id)?;
        if let Member::Object(row) = &member {
            add_tracked(transaction, to, id, row.times.created)?;
        }
        progress = progress.after(id, &member);
    }
    Ok(progress)
}
