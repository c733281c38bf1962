//! Performs the commands of an object store on the tables and blocks of a drive.

use bytes::Bytes;
use object::{
    Attribute, AttributeId, Command, ListedObject, ObjectAddress, ObjectError, ObjectReply,
    ObjectRequest, ObjectResult, ObjectType, RefusedField,
};
use osd::{BOOT_EPOCH, REQUEST_HORIZON, REQUEST_RESULT};

use super::{
    attributes::{TAG_PAGE, is_policy_tag},
    committer::CommitJob,
    conclusion::{
        Conclusion, answer, check_tag, check_tag_time, conclude, decode_result, tag_of, untagged,
    },
    copying::PartitionCopy,
    drive_core::DriveCore,
    key,
    listing::ListSource,
    object_row::{FROZEN, ObjectRow},
    object_rows::{decode, find, find_partition, find_user, store},
    objects::{create_objects, create_partition, remove_partition, remove_user},
    plans::{DataChange, clear_change, length_change, segments_of, write_change},
    reading::ranges_of,
    transaction::{Stop, TAG_BYTES},
};

impl DriveCore {
    pub(crate) async fn perform(&self, request: ObjectRequest) -> ObjectResult {
        let is_tagged = tag_of(&request).filter(|_| request.command.is_unrepeatable());
        let known = match is_tagged {
            Some(tag) => self.tagged(tag).await?,
            None => None,
        };
        let reply = match known {
            // The command was performed before: a second one has no effect and the first one's reply.
            Some(current) => ObjectReply { current, ..ObjectReply::default() },
            None => match self.dispatch(&request).await {
                Err(error) => self.performed_meanwhile(is_tagged, error).await?,
                Ok(reply) => reply,
            },
        };
        if request.options.fua || is_always_stable(&request) {
            self.commit(false).await?;
        }
        Ok(reply)
    }

    /// Returns the reply to a command that failed because the same command was performed since it began. An initiator
    /// that has lost its session repeats a command that may still be at work in the old session.
    async fn performed_meanwhile(
        &self,
        tag: Option<[u8; TAG_BYTES]>,
        error: ObjectError,
    ) -> ObjectResult {
        let AttributeId { page, number } = osd::REQUEST_TAG;
        match tag {
            Some(tag) if error == (ObjectError::InvalidAttribute { page, number }) => {
                let current = self.tagged(tag).await?.ok_or(error)?;
                Ok(ObjectReply { current, ..ObjectReply::default() })
            }
            _ => Err(error),
        }
    }

    /// Returns the result of the command with this request tag. Fails if it may have been forgotten, or
    /// if the tag is from the future.
    async fn tagged(
        &self,
        tag: [u8; TAG_BYTES],
    ) -> Result<Option<object::CurrentCommand>, ObjectError> {
        let now = self.now();
        self.run(|transaction| match transaction.get(&key::tag(&tag))? {
            Some(row) => Ok(decode_result(&row)),
            None => {
                check_tag_time(&tag, now)?;
                check_tag(transaction, &tag).map(|()| None)
            }
        })
        .await
    }

    async fn dispatch(&self, request: &ObjectRequest) -> ObjectResult {
        if let Some((source, list)) = ListSource::of(&request.command) {
            return self.list(request, source, list).await;
        }
        match request.command {
            Command::Read { object, length, start } => {
                self.read(request, object, &ranges_of(request, start, length)?).await
            }
            Command::Write { object, length, start } => {
                let change = write_change(&ranges_of(request, start, length)?, &request.data)?;
                self.change(request, object, |_| Ok(change.clone())).await
            }
            Command::Append { object, .. } => self.append_to_object(request, object).await,
            Command::Clear { object, length, start } => {
                let range = start..end_of(start, length)?;
                self.change(request, object, |row| Ok(clear_change(row, range.clone()))).await
            }
            Command::Punch { object, length, start } => {
                self.punch(request, object, start..end_of(start, length)?).await
            }
            Command::Create { partition, requested, count } => {
                self.create(request, partition, requested, count).await
            }
            Command::CreateAndWrite { partition, requested, start, .. } => {
                end_of(start, request.data.len() as u64)?;
                self.create_with(request, start, |transaction, now| {
                    let row = ObjectRow::new(ObjectType::UserObject, now);
                    let id = create_objects(transaction, partition, requested, 1, &row)?;
                    Ok(ObjectAddress::new(partition, id))
                })
                .await
            }
            Command::ReadMap { object, start, map_type, .. } => {
                self.read_map(request, object, start, map_type).await
            }
            Command::ReadMapsAndCompare { object, start, .. } => {
                self.compare_maps(request, object, start).await
            }
            Command::FormatOsd { .. } => self.format(request).await,
            Command::CreatePartition { requested } => {
                self.create_partition(request, requested).await
            }
            Command::RemovePartition { partition, with_contents } => {
                self.remove_partition(request, partition, with_contents).await
            }
            Command::Remove { object } => self.remove(request, object).await,
            Command::GetAttributes { object } => self.get_attributes(request, object).await,
            Command::SetAttributes { object } => self.set_attributes(request, object).await,
            // The unit has set the key before. The store sets the attributes in the lists, and keeps the request tag.
            Command::SetKey(_) => self.set_attributes(request, request.command.object()).await,
            Command::Flush { .. }
            | Command::FlushCollection { .. }
            | Command::FlushPartition { .. }
            | Command::FlushOsd { .. } => self.flush(request).await,
            _ => self.dispatch_collections(request).await,
        }
    }

    async fn dispatch_collections(&self, request: &ObjectRequest) -> ObjectResult {
        match request.command {
            Command::CreateCollection { partition, requested } => {
                self.create_collection(request, partition, requested).await
            }
            Command::RemoveCollection { collection, force } => {
                self.remove_collection(request, collection, force).await
            }
            Command::RemoveMemberObjects { collection }
            | Command::GetMemberAttributes { collection }
            | Command::SetMemberAttributes { collection } => {
                self.for_members(request, collection).await
            }
            Command::CreateUserTrackingCollection { .. } => {
                self.create_tracking_collection(request).await
            }
            Command::Query { .. } => self.query(request).await,
            Command::CopyUserObjects { partition, requested, .. } => {
                self.copy_object(request, partition, requested).await
            }
            Command::CreateSnapshot { source, requested, .. } => {
                self.copy_partition(request, source, requested, PartitionCopy::Snapshot).await
            }
            Command::CreateClone { source, requested, .. } => {
                self.copy_partition(request, source, requested, PartitionCopy::Clone).await
            }
            Command::ObjectStructureCheck { object } => {
                let report = self.scrub(object).await?;
                match report.damaged.first() {
                    Some((object, range)) => {
                        Err(ObjectError::Damaged { object: *object, range: range.clone() })
                    }
                    None => self.get_attributes(request, object).await,
                }
            }
            Command::DetachClone { clone } => self.detach_clone(request, clone).await,
            Command::RefreshSnapshotOrClone { copy } => {
                self.replace_partition(request, copy, None).await
            }
            Command::RestorePartitionFromSnapshot { partition, snapshot } => {
                self.replace_partition(request, partition, Some(snapshot)).await
            }
            _ => Err(ObjectError::Unsupported),
        }
    }

    async fn append_to_object(
        &self,
        request: &ObjectRequest,
        object: ObjectAddress,
    ) -> ObjectResult {
        let lock = (object.object ^ object.partition) as usize % self.appends.len();
        let _turn = self.appends[lock].lock().await;
        let plan = |row: &ObjectRow| {
            let length = end_of(row.length, request.data.len() as u64)?;
            Ok(DataChange {
                segments: segments_of(row.length, &request.data),
                length,
                needs_length: true,
                append_start: row.length,
                ..DataChange::default()
            })
        };
        self.change(request, object, plan).await
    }

    async fn create(
        &self,
        request: &ObjectRequest,
        partition: u64,
        requested: u64,
        count: u16,
    ) -> ObjectResult {
        self.admit_change().await?;
        let now = self.now();
        let count = u64::from(count.max(1));
        // Only the first object's attributes carry the request tag: the result of the command names that object.
        let further = (count > 1).then(|| untagged(request));
        self.run(|transaction| {
            let row = ObjectRow::new(ObjectType::UserObject, now);
            let first = create_objects(transaction, partition, requested, count, &row)?;
            let mut members = Vec::new();
            let mut reply = ObjectReply::default();
            for id in first..first + count {
                let address = ObjectAddress::new(partition, id);
                let mut row = find_user(transaction, address)?;
                let its_request = further.as_ref().filter(|_| id != first).unwrap_or(request);
                let conclusion = Conclusion::new(self, its_request, address, now);
                let one = conclude(transaction, &conclusion, &mut row, false)?;
                let attributes = if count > 1 { one.attributes.clone() } else { Vec::new() };
                members.push(ListedObject { id, object_type: ObjectType::UserObject, attributes });
                if id == first {
                    reply = one;
                }
            }
            reply.members = members;
            Ok(reply)
        })
        .await
    }

    async fn create_partition(&self, request: &ObjectRequest, requested: u64) -> ObjectResult {
        self.admit_change().await?;
        let now = self.now();
        self.run(|transaction| {
            let id = create_partition(transaction, requested, now)?;
            let address = ObjectAddress::partition(id);
            let mut row = find(transaction, address)?;
            conclude(transaction, &Conclusion::new(self, request, address, now), &mut row, false)
        })
        .await
    }

    async fn remove(&self, request: &ObjectRequest, object: ObjectAddress) -> ObjectResult {
        let now = self.now();
        self.run(|transaction| {
            let mut row = find_user(transaction, object)?;
            super::object_rows::check_changeable(&row, RefusedField::Object)?;
            let mut conclusion = Conclusion::new(self, request, object, now);
            conclusion.change_in_used = -((row.used * 4096) as i64);
            let reply = conclude(transaction, &conclusion, &mut row, false)?;
            remove_user(transaction, object, &row)?;
            Ok(reply)
        })
        .await
    }

    async fn remove_partition(
        &self,
        request: &ObjectRequest,
        partition: u64,
        with_contents: bool,
    ) -> ObjectResult {
        let now = self.now();
        let address = ObjectAddress::partition(partition);
        let reply = self
            .run(|transaction| {
                let mut row = find_partition(transaction, partition)?;
                let is_empty = row.members.count + row.members.collections == 0;
                if !is_empty && !with_contents {
                    return Err(Stop::Failed(ObjectError::NotEmpty { object: address }));
                }
                let conclusion = Conclusion::new(self, request, address, now);
                let reply = conclude(transaction, &conclusion, &mut row, false)?;
                if is_empty {
                    remove_partition(transaction, partition)?;
                } else {
                    // Freeze the partition: clients must not create objects in it while it is emptied. The row in the
                    // trash makes a start after a crash go on with the removal.
                    row.flags |= FROZEN;
                    store(transaction, address, &row)?;
                    transaction.put(key::trash(partition), Some(Bytes::new()))?;
                }
                Ok((reply, is_empty))
            })
            .await?;
        if let (reply, true) = reply {
            return Ok(reply);
        }
        self.commit(false).await?;
        self.empty_partition(partition).await?;
        Ok(reply.0)
    }

    /// Removes the objects of a partition in steps, and then the partition. User objects go first, so that linked
    /// collections have no members when they are removed.
    pub(crate) async fn empty_partition(&self, partition: u64) -> Result<(), ObjectError> {
        let mut next = Some(key::object(ObjectAddress::new(partition, 1)));
        while let Some(start) = next {
            self.admit_change().await?;
            next = self
                .run(|transaction| {
                    let end = key::objects_end(partition);
                    let page = transaction.page(&start, &end, REMOVAL_STEP)?;
                    let mut blocks = 0;
                    for (row_key, row) in &page.rows {
                        if blocks > REMOVAL_BLOCKS {
                            return Ok(Some(row_key.clone()));
                        }
                        let address = ObjectAddress::new(partition, key::last_number(row_key));
                        let row = decode(address, row)?;
                        if row.object_type == ObjectType::UserObject {
                            blocks += remove_user(transaction, address, &row)?;
                        }
                    }
                    Ok(page.next)
                })
                .await?;
        }
        loop {
            let (collections, _) =
                self.ids(ListSource::Collections(partition), 0, REMOVAL_STEP).await?;
            if collections.is_empty() {
                break;
            }
            for id in collections {
                while !self.undo_step(ObjectAddress::new(partition, id)).await? {}
            }
        }
        self.run(|transaction| {
            find_partition(transaction, partition)?;
            transaction.put(key::trash(partition), None)?;
            remove_partition(transaction, partition)
        })
        .await
    }

    async fn get_attributes(&self, request: &ObjectRequest, object: ObjectAddress) -> ObjectResult {
        let now = self.now();
        let own = untagged(request);
        let mut reply = self
            .run(|transaction| {
                let mut row = find(transaction, object)?;
                let conclusion = Conclusion::new(self, &own, object, now);
                // GET ATTRIBUTES returns the values as they were before the command sets any.
                let reply = answer(transaction, &conclusion, &row)?;
                if !own.set.is_empty() {
                    let silent = ObjectRequest { get: Vec::new(), ..own.clone() };
                    let conclusion = Conclusion::new(self, &silent, object, now);
                    conclude(transaction, &conclusion, &mut row, true)?;
                }
                Ok(reply)
            })
            .await?;
        self.answer_tags(request, &mut reply.attributes).await?;
        Ok(reply)
    }

    /// Fills in the attributes of the request tag page: the result of the command whose tag the request sets, the
    /// largest forgotten tag (the horizon), and the boot epoch.
    async fn answer_tags(
        &self,
        request: &ObjectRequest,
        attributes: &mut [Attribute],
    ) -> Result<(), ObjectError> {
        if attributes.iter().all(|attribute| attribute.id.page != TAG_PAGE) {
            return Ok(());
        }
        let tag = tag_of(request).unwrap_or_default();
        // Read both in one transaction: a missing result has a meaning only with the horizon of the same moment.
        let (result, horizon) = self
            .run(|transaction| {
                let result = transaction.get(&key::tag(&tag))?;
                Ok((result, transaction.counters.tag_horizon))
            })
            .await?;
        if result.is_some() {
            // The initiator takes the command for done, and a command with FUA for stable.
            self.commit(false).await?;
        }
        for attribute in attributes.iter_mut().filter(|attribute| attribute.id.page == TAG_PAGE) {
            attribute.value = match attribute.id {
                REQUEST_RESULT => result.clone().unwrap_or_default(),
                REQUEST_HORIZON => Bytes::copy_from_slice(&horizon),
                BOOT_EPOCH => Bytes::copy_from_slice(&self.boot_epoch.to_be_bytes()),
                _ => Bytes::new(),
            };
        }
        Ok(())
    }

    async fn set_attributes(&self, request: &ObjectRequest, object: ObjectAddress) -> ObjectResult {
        let length = request.set.iter().rfind(|set| (set.id.page, set.id.number) == LOGICAL_LENGTH);
        if let Some(length) = length {
            let (page, number) = LOGICAL_LENGTH;
            let value = length.value.as_ref().try_into().map(u64::from_be_bytes);
            let length = value.map_err(|_| ObjectError::InvalidAttribute { page, number })?;
            return self.change(request, object, |row| Ok(length_change(row, length))).await;
        }
        self.admit_change().await?;
        let now = self.now();
        self.run(|transaction| {
            let mut row = find(transaction, object)?;
            // The content of a snapshot cannot change, but access to it can be permitted and revoked.
            if !request.set.iter().all(|set| set.id.page == TAG_PAGE || is_policy_tag(set)) {
                super::object_rows::check_changeable(&row, RefusedField::Object)?;
            }
            conclude(transaction, &Conclusion::new(self, request, object, now), &mut row, true)
        })
        .await
    }

    async fn flush(&self, request: &ObjectRequest) -> ObjectResult {
        let now = self.now();
        let object = request.command.object();
        let reply = self
            .run(|transaction| {
                let mut row = find(transaction, object)?;
                conclude(transaction, &Conclusion::new(self, request, object, now), &mut row, false)
            })
            .await?;
        self.commit(false).await?;
        Ok(reply)
    }

    /// Performs FORMAT OSD: one commit removes every row of the tables except the named records, such as keys and
    /// clock.
    async fn format(&self, request: &ObjectRequest) -> ObjectResult {
        let now = self.now();
        let gone = || ObjectError::Storage("the object drive is closed".into());
        {
            let mut state = self.tables.state.lock();
            if state.is_formatting && !state.has_format_failed {
                return Err(ObjectError::FormatInProgress);
            }
            (state.is_formatting, state.has_format_failed) = (true, false);
        }
        let waiting = FormatEnd(self);
        loop {
            let idle = self.tables.idle.notified();
            let mut idle = std::pin::pin!(idle);
            idle.as_mut().enable();
            if self.tables.state.lock().groups.reserved() == 0 {
                break;
            }
            idle.await;
        }
        let (reply, done) = tokio::sync::oneshot::channel();
        let tag = tag_of(request).unwrap_or_default();
        self.committer.send(CommitJob::Format { now, tag, reply }).map_err(|_| gone())?;
        // From here on the committer lets commands in again, also if this command is aborted.
        std::mem::forget(waiting);
        done.await.map_err(|_| gone())?.map_err(super::tables::storage_error)?;
        self.run(|transaction| {
            let address = ObjectAddress::ROOT;
            let mut row = find(transaction, address)?;
            conclude(transaction, &Conclusion::new(self, request, address, now), &mut row, true)
        })
        .await
    }
}

/// Lets commands in again if FORMAT OSD is aborted before its work begins.
struct FormatEnd<'a>(&'a DriveCore);

impl Drop for FormatEnd<'_> {
    fn drop(&mut self) {
        self.0.tables.state.lock().is_formatting = false;
        self.0.wake_worker();
    }
}

/// Returns true if the effect of a command must be stable before it is answered, even without FUA.
fn is_always_stable(request: &ObjectRequest) -> bool {
    matches!(request.command, Command::FormatOsd { .. } | Command::RemovePartition { .. })
        || request.set.iter().any(is_policy_tag)
}

fn end_of(start: u64, length: u64) -> Result<u64, ObjectError> {
    start.checked_add(length).ok_or(ObjectError::InvalidField { field: RefusedField::Length })
}

/// Page and number of the attribute "user object logical length".
const LOGICAL_LENGTH: (u32, u32) = (1, 0x82);
/// Number of objects that one step of REMOVE PARTITION removes.
const REMOVAL_STEP: usize = 256;
/// Blocks after which a step of the removal of a partition ends, so that its memory is bounded.
const REMOVAL_BLOCKS: u64 = 4096;
