//! Collections and the commands on their members.

use object::{
    Attribute, Command, Continuation, ListedObject, ObjectAddress, ObjectError, ObjectList,
    ObjectReply, ObjectRequest, ObjectType, Query, RefusedField, ReplyData, Timestamp,
};

use super::{
    attributes::{self, AttributeContext, MEMBERSHIP_PAGE},
    conclusion::{Conclusion, answer, conclude},
    drive_core::DriveCore,
    key,
    listing::ListSource,
    object_row::ObjectRow,
    object_rows::{check_changeable, decode, find_typed, store},
    objects::{create_objects, remove_collection, remove_user},
    transaction::{Step, Stop, Transaction},
};

impl DriveCore {
    fn context(&self, now: Timestamp) -> AttributeContext<'_> {
        let (identity, limits) = (&self.options.identity, &self.options.limits);
        AttributeContext { identity, limits, now }
    }

    /// Performs CREATE COLLECTION.
    pub(crate) async fn create_collection(
        &self,
        request: &ObjectRequest,
        partition: u64,
        requested: u64,
    ) -> Result<ObjectReply, ObjectError> {
        self.admit_change().await?;
        let now = self.now();
        self.run(|transaction| {
            let row = ObjectRow::new(ObjectType::Collection, now);
            let id = create_objects(transaction, partition, requested, 1, &row)?;
            let address = ObjectAddress::new(partition, id);
            let mut row = find_typed(transaction, address, ObjectType::Collection)?;
            conclude(transaction, &Conclusion::new(self, request, address, now), &mut row, true)
        })
        .await
    }

    /// Performs REMOVE COLLECTION. Members stay user objects.
    pub(crate) async fn remove_collection(
        &self,
        request: &ObjectRequest,
        collection: ObjectAddress,
        force: bool,
    ) -> Result<ObjectReply, ObjectError> {
        self.admit_change().await?;
        let now = self.now();
        self.run(|transaction| {
            let mut row = find_typed(transaction, collection, ObjectType::Collection)?;
            check_changeable(&row, RefusedField::Object)?;
            if row.members.count > 0 && !force {
                return Err(Stop::Failed(ObjectError::NotEmpty { object: collection }));
            }
            let conclusion = Conclusion::new(self, request, collection, now);
            let reply = conclude(transaction, &conclusion, &mut row, false)?;
            let (start, end) = (key::member(collection, 0), key::members_end(collection));
            transaction.for_each(&start, &end, |transaction, row_key, number| {
                end_membership(transaction, collection, key::last_number(&row_key), &number)?;
                transaction.put(row_key, None)
            })?;
            remove_collection(transaction, collection)?;
            Ok(reply)
        })
        .await
    }

    /// Performs GET, SET or REMOVE MEMBER ATTRIBUTES or OBJECTS, one member after the other.
    pub(crate) async fn for_members(
        &self,
        request: &ObjectRequest,
        collection: ObjectAddress,
    ) -> Result<ObjectReply, ObjectError> {
        let now = self.now();
        let limit = self.options.limits.list_entries;
        if !matches!(request.command, Command::GetMemberAttributes { .. }) {
            self.check_collection(collection).await?;
        }
        let mut members = Vec::new();
        let mut first = 0;
        loop {
            let (ids, next) = self.ids(ListSource::Members(collection), first, limit).await?;
            for id in ids {
                self.admit_change().await?;
                let address = ObjectAddress::new(collection.partition, id);
                let member =
                    self.run(|transaction| self.member(transaction, request, address, now)).await?;
                if members.len() < limit {
                    members.extend(member);
                }
            }
            if next == 0 {
                break;
            }
            first = next;
        }
        let own = ObjectRequest { get: Vec::new(), set: Vec::new(), ..request.clone() };
        let mut reply = self
            .run(|transaction| {
                let row = find_typed(transaction, collection, ObjectType::Collection)?;
                answer(transaction, &Conclusion::new(self, &own, collection, now), &row)
            })
            .await?;
        reply.members = members;
        Ok(reply)
    }

    /// Fails if there is no such collection, or if it is part of a snapshot. A command on many objects calls this before
    /// it changes the first one.
    async fn check_collection(&self, collection: ObjectAddress) -> Result<(), ObjectError> {
        self.run(|transaction| {
            let row = find_typed(transaction, collection, ObjectType::Collection)?;
            check_changeable(&row, RefusedField::Object)
        })
        .await
    }

    fn member(
        &self,
        transaction: &mut Transaction<'_>,
        request: &ObjectRequest,
        address: ObjectAddress,
        now: Timestamp,
    ) -> Step<Option<ListedObject>> {
        let Some(row) = transaction.get(&key::object(address))? else { return Ok(None) };
        let mut row = decode(address, &row)?;
        let context = self.context(now);
        if !request.set.is_empty() {
            attributes::set(transaction, &context, address, &mut row, &request.set)?;
            store(transaction, address, &row)?;
        }
        let found = attributes::get(transaction, &context, address, &row, &request.get)?;
        if matches!(request.command, Command::RemoveMemberObjects { .. }) {
            remove_user(transaction, address, &row)?;
        }
        Ok(Some(ListedObject {
            id: address.object,
            object_type: row.object_type,
            attributes: found,
        }))
    }

    /// Performs QUERY. With IMMED_TR the matches become members of the collection `matches`.
    pub(crate) async fn query(
        &self,
        request: &ObjectRequest,
        collection: ObjectAddress,
        allocation_length: u64,
        matches: Option<u64>,
    ) -> Result<ObjectReply, ObjectError> {
        let now = self.now();
        let Continuation::Query(query) = &request.continuation else {
            return Err(ObjectError::InvalidField { field: RefusedField::ContinuationLength });
        };
        let source = match collection.object {
            0 => ListSource::UserObjects(collection.partition),
            _ => ListSource::Members(collection),
        };
        let room =
            (allocation_length.min(request.data_in_capacity).saturating_sub(12) / 8) as usize;
        let limit = room.min(self.options.limits.list_entries);
        if let Some(matches) = matches {
            self.check_collection(ObjectAddress::new(collection.partition, matches)).await?;
        }
        let mut list = ObjectList::default();
        let mut first = 0;
        loop {
            let (ids, next) = self.ids(source, first, self.options.limits.list_entries).await?;
            for id in ids {
                let address = ObjectAddress::new(collection.partition, id);
                if !self.run(|transaction| self.matches(transaction, query, address, now)).await? {
                    continue;
                }
                if let Some(matches) = matches {
                    self.admit_change().await?;
                    let target = ObjectAddress::new(collection.partition, matches);
                    self.run(|transaction| self.join_collection(transaction, target, address, now))
                        .await?;
                } else {
                    list.total_bytes += 8;
                    if list.objects.len() < limit {
                        let object_type = ObjectType::UserObject;
                        list.objects.push(ListedObject { id, object_type, attributes: Vec::new() });
                    }
                }
            }
            if next == 0 {
                break;
            }
            first = next;
        }
        let mut reply = self
            .run(|transaction| {
                let mut row = super::object_rows::find(transaction, collection)?;
                conclude(
                    transaction,
                    &Conclusion::new(self, request, collection, now),
                    &mut row,
                    false,
                )
            })
            .await?;
        reply.data = ReplyData::List(list);
        Ok(reply)
    }

    fn matches(
        &self,
        transaction: &mut Transaction<'_>,
        query: &Query,
        address: ObjectAddress,
        now: Timestamp,
    ) -> Step<bool> {
        let Some(row) = transaction.get(&key::object(address))? else { return Ok(false) };
        let row = decode(address, &row)?;
        let context = self.context(now);
        let mut missing = None;
        let is_met = query.is_met(|id| {
            attributes::value_of(transaction, &context, address, &row, id).unwrap_or_else(|stop| {
                missing = Some(stop);
                None
            })
        });
        missing.map_or(Ok(is_met), Err)
    }

    /// Makes an object a member of a collection, with the first free number of its collections page.
    fn join_collection(
        &self,
        transaction: &mut Transaction<'_>,
        collection: ObjectAddress,
        address: ObjectAddress,
        now: Timestamp,
    ) -> Step<()> {
        if transaction.get(&key::member(collection, address.object))?.is_some() {
            return Ok(());
        }
        let Some(row) = transaction.get(&key::object(address))? else { return Ok(()) };
        let mut row = decode(address, &row)?;
        let mut number = 1;
        loop {
            let id = object::AttributeId::new(MEMBERSHIP_PAGE, number);
            if transaction.get(&key::attribute(address, id))?.is_none() {
                break;
            }
            number += 1;
        }
        let value = collection.object.to_be_bytes().to_vec();
        let membership = Attribute::new(MEMBERSHIP_PAGE, number, value);
        attributes::set(transaction, &self.context(now), address, &mut row, &[membership])?;
        store(transaction, address, &row)
    }
}

/// Removes the attribute that makes a user object a member of a collection, since the collection is being removed.
fn end_membership(
    transaction: &mut Transaction<'_>,
    collection: ObjectAddress,
    object: u64,
    number: &[u8],
) -> Step<()> {
    let address = ObjectAddress::new(collection.partition, object);
    let number = number.try_into().map_or(0, u32::from_be_bytes);
    let id = object::AttributeId::new(MEMBERSHIP_PAGE, number);
    transaction.put(key::attribute(address, id), None)?;
    let Some(row) = transaction.get(&key::object(address))? else { return Ok(()) };
    let mut row = decode(address, &row)?;
    row.attribute_bytes = row.attribute_bytes.saturating_sub(8);
    store(transaction, address, &row)
}
