//! GET, SET and REMOVE MEMBER ATTRIBUTES or OBJECTS, and the members of tracking collections.
//!
//! A user object does not know the tracking collections that it is a member of. The row of such a member has the time
//! at which the object was created, which tells it from a later object with the same identifier.

use bytes::Bytes;
use object::{
    Command, ListedObject, ObjectAddress, ObjectError, ObjectReply, ObjectRequest, ObjectType,
    RefusedField, Timestamp,
};

use super::{
    attributes::{self, AttributeContext, TAG_PAGE},
    background::STEP_OBJECTS,
    build::MEMBERS,
    conclusion::{Conclusion, answer, untagged},
    drive_core::DriveCore,
    key,
    listing::ListSource,
    object_row::ObjectRow,
    object_rows::{check_changeable, check_tables, decode, find_typed, guard_copy, store},
    objects::remove_user,
    tracking::{self, NewWork, TRACKING_COLLECTION, WorkGuard},
    transaction::{RowPage, Step, Transaction},
    works::{Progress, WorkId},
};

/// A member of a collection.
pub(crate) enum Member<T> {
    Object(T),
    /// The object was removed.
    Missing,
    /// The object was removed, and its identifier given to a new one.
    Newer,
}

impl Progress {
    /// Returns the progress after one more member.
    pub(crate) fn after<T>(mut self, id: u64, member: &Member<T>) -> Self {
        match member {
            Member::Object(_) => self.processed += 1,
            Member::Missing => self.missing += 1,
            Member::Newer => self.newer += 1,
        }
        self.next = id.saturating_add(1);
        self
    }
}

impl DriveCore {
    pub(crate) fn context(&self, now: Timestamp) -> AttributeContext<'_> {
        let (identity, limits) = (&self.options.identity, &self.options.limits);
        AttributeContext { identity, limits, now }
    }

    /// Performs GET, SET or REMOVE MEMBER ATTRIBUTES or OBJECTS, one member after the other.
    pub(crate) async fn for_members(
        &self,
        request: &ObjectRequest,
        collection: ObjectAddress,
    ) -> Result<ObjectReply, ObjectError> {
        let members = MemberRequest::new(request, collection, self.now());
        if matches!(request.command, Command::GetMemberAttributes { .. }) {
            let found = self.read_members(&members).await?;
            return self.run(|transaction| self.conclude_members(transaction, &members)).await.map(
                |mut reply| {
                    reply.members = found;
                    reply
                },
            );
        }
        self.admit_change().await?;
        let id = self
            .run(|transaction| {
                let row = find_typed(transaction, collection, ObjectType::Collection)?;
                check_changeable(&row, RefusedField::Object)?;
                tracking::check_idle(transaction, collection, RefusedField::Object)?;
                let new = NewWork {
                    command: &request.command,
                    collection,
                    source: collection,
                    total: row.members.count,
                    is_background: false,
                };
                tracking::begin(transaction, &new)
            })
            .await?;
        let guard = WorkGuard::new(&self.tables, id);
        match self.change_members(&members, guard.id).await {
            Ok(changed) => {
                let reply = self.run(|transaction| {
                    tracking::end(transaction, guard.id, &Ok(()))?;
                    self.conclude_members(transaction, &members)
                });
                let mut reply = reply.await?;
                reply.members = changed;
                Ok(reply)
            }
            Err(error) => {
                self.end_work(guard.id, &Err(error.clone())).await;
                Err(error)
            }
        }
    }

    /// Records the end of a command. A record that cannot be written stays that of an interrupted command.
    pub(crate) async fn end_work(&self, id: WorkId, result: &Result<(), ObjectError>) {
        let recorded = self.run(|transaction| tracking::end(transaction, id, result)).await;
        drop(recorded);
    }

    async fn read_members(
        &self,
        members: &MemberRequest<'_>,
    ) -> Result<Vec<ListedObject>, ObjectError> {
        let limit = self.options.limits.list_entries;
        let source = ListSource::Members(members.collection);
        let mut found = Vec::new();
        let mut first = 0;
        loop {
            let (ids, next) = self.ids(source, first, STEP_OBJECTS).await?;
            for id in ids {
                let member = self.run(|transaction| self.member(transaction, members, id)).await?;
                if let Member::Object(member) = member {
                    found.push(member);
                }
                if found.len() == limit {
                    return Ok(found);
                }
            }
            if next == 0 {
                return Ok(found);
            }
            first = next;
        }
    }

    async fn change_members(
        &self,
        members: &MemberRequest<'_>,
        work: WorkId,
    ) -> Result<Vec<ListedObject>, ObjectError> {
        let limit = self.options.limits.list_entries;
        let source = ListSource::Members(members.collection);
        let mut changed = Vec::new();
        let mut progress = self.tables.state.lock().works.progress(work.collection);
        loop {
            let first = progress.unwrap_or_default().next;
            let (ids, next) = self.ids(source, first, STEP_OBJECTS).await?;
            for id in ids {
                self.admit_change().await?;
                let (member, after) = self
                    .run(|transaction| {
                        tracking::check(transaction, work)?;
                        let member = self.member(transaction, members, id)?;
                        let after = progress.unwrap_or_default().after(id, &member);
                        tracking::advance(transaction, work, &after)?;
                        Ok((member, after))
                    })
                    .await?;
                progress = Some(after);
                if let Member::Object(member) = member
                    && changed.len() < limit
                {
                    changed.push(member);
                }
            }
            if next == 0 {
                return Ok(changed);
            }
        }
    }

    /// Changes one member, or reads its attributes.
    fn member(
        &self,
        transaction: &mut Transaction<'_>,
        members: &MemberRequest<'_>,
        id: u64,
    ) -> Step<Member<ListedObject>> {
        let MemberRequest { collection, ref request, now, .. } = *members;
        let address = ObjectAddress::new(collection.partition, id);
        let is_removal = matches!(request.command, Command::RemoveMemberObjects { .. });
        let member = match find_member(transaction, collection, id)? {
            Member::Object(mut row) => {
                if is_removal || !request.set.is_empty() {
                    check_changeable(&row, RefusedField::Object)?;
                }
                let context = self.context(now);
                if !request.set.is_empty() {
                    attributes::set(transaction, &context, address, &mut row, &request.set)?;
                    store(transaction, address, &row)?;
                }
                let attributes =
                    attributes::get(transaction, &context, address, &row, &request.get)?;
                if is_removal {
                    remove_user(transaction, address, &row)?;
                }
                Member::Object(ListedObject { id, object_type: row.object_type, attributes })
            }
            Member::Missing => Member::Missing,
            Member::Newer => Member::Newer,
        };
        if is_removal {
            drop_tracked(transaction, collection, id)?;
        }
        Ok(member)
    }

    /// Returns the reply to a command on members, and keeps its request tag.
    fn conclude_members(
        &self,
        transaction: &mut Transaction<'_>,
        members: &MemberRequest<'_>,
    ) -> Step<ObjectReply> {
        let row = find_typed(transaction, members.collection, ObjectType::Collection)?;
        let conclusion = Conclusion::new(self, &members.own, members.collection, members.now);
        answer(transaction, &conclusion, &row)
    }
}

/// A command on the members of a collection. The lists are about the members, the request tag about the collection.
struct MemberRequest<'a> {
    collection: ObjectAddress,
    /// The command with the lists, without the request tag.
    request: std::borrow::Cow<'a, ObjectRequest>,
    /// The command with the request tag, without the lists.
    own: ObjectRequest,
    now: Timestamp,
}

impl<'a> MemberRequest<'a> {
    fn new(request: &'a ObjectRequest, collection: ObjectAddress, now: Timestamp) -> Self {
        let tags = request.set.iter().filter(|set| set.id.page == TAG_PAGE).cloned().collect();
        let own = ObjectRequest { get: Vec::new(), set: tags, ..request.clone() };
        let request = match own.set.is_empty() {
            true => std::borrow::Cow::Borrowed(request),
            false => std::borrow::Cow::Owned(untagged(request)),
        };
        Self { collection, request, own, now }
    }
}

/// Returns the row of a member.
pub(crate) fn find_member(
    transaction: &mut Transaction<'_>,
    collection: ObjectAddress,
    id: u64,
) -> Step<Member<ObjectRow>> {
    let address = ObjectAddress::new(collection.partition, id);
    let Some(row) = transaction.get(&key::object(address))? else { return Ok(Member::Missing) };
    let row = decode(address, &row)?;
    if row.object_type != ObjectType::UserObject {
        return Ok(Member::Newer);
    }
    let parent = find_typed(transaction, collection, ObjectType::Collection)?;
    if parent.members.kind != TRACKING_COLLECTION {
        return Ok(Member::Object(row));
    }
    let created = Bytes::copy_from_slice(&row.times.created.to_bytes());
    Ok(match transaction.get(&key::member(collection, id))? {
        Some(known) if known == created => Member::Object(row),
        Some(_) => Member::Newer,
        None => Member::Missing,
    })
}

/// Returns the first page of members of a collection that has any, or the last page.
pub(crate) fn first_members(
    transaction: &mut Transaction<'_>,
    collection: ObjectAddress,
) -> Step<RowPage> {
    let (mut start, end) = (key::member(collection, 0), key::members_end(collection));
    loop {
        let page = transaction.page(&start, &end, MEMBERS)?;
        match page.next {
            // Rows that were removed since the last commit.
            Some(next) if page.rows.is_empty() => start = next,
            next => return Ok(RowPage { rows: page.rows, next }),
        }
    }
}

/// Makes a user object a member of a tracking collection.
pub(crate) fn add_tracked(
    transaction: &mut Transaction<'_>,
    collection: ObjectAddress,
    id: u64,
    created: Timestamp,
) -> Step<()> {
    let member = key::member(collection, id);
    let created = Bytes::copy_from_slice(&created.to_bytes());
    let old = transaction.get(&member)?;
    let mut parent = find_typed(transaction, collection, ObjectType::Collection)?;
    if old.is_none() {
        check_tables(transaction)?;
        parent.members.count += 1;
        store(transaction, collection, &parent)?;
    } else {
        guard_copy(transaction, collection, &parent)?;
    }
    transaction.replace(member, old.as_ref(), Some(created));
    Ok(())
}

/// Takes a user object off the member list of a collection, if that is a tracking collection.
fn drop_tracked(transaction: &mut Transaction<'_>, collection: ObjectAddress, id: u64) -> Step<()> {
    let mut parent = find_typed(transaction, collection, ObjectType::Collection)?;
    let member = key::member(collection, id);
    if parent.members.kind == TRACKING_COLLECTION && transaction.get(&member)?.is_some() {
        parent.members.count = parent.members.count.saturating_sub(1);
        store(transaction, collection, &parent)?;
        transaction.put(member, None)?;
    }
    Ok(())
}
