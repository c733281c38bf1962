//! QUERY: its matches are listed, or become the members of a tracking collection.

use object::{
    Command, Continuation, ListedObject, ObjectAddress, ObjectError, ObjectList, ObjectReply,
    ObjectRequest, ObjectType, Query, RefusedField, ReplyData, Timestamp,
};

use super::{
    attributes,
    background::{BackgroundJob, MOST_BACKGROUND, QueryWork, STEP_OBJECTS},
    conclusion::{Conclusion, conclude},
    drive_core::DriveCore,
    key,
    listing::ListSource,
    members::{Member, add_tracked, find_member, first_members},
    object_row::ObjectRow,
    object_rows::{check_changeable, decode, find, find_typed, store},
    tracking::{self, NewWork, Pending, TRACKING_COLLECTION, WorkGuard},
    transaction::{Step, Stop, Transaction},
};

impl DriveCore {
    /// Performs QUERY.
    pub(crate) async fn query(&self, request: &ObjectRequest) -> Result<ObjectReply, ObjectError> {
        let Command::Query { collection, allocation_length, matches, .. } = request.command else {
            return Err(ObjectError::Unsupported);
        };
        let Continuation::Query(query) = &request.continuation else {
            return Err(ObjectError::InvalidField { field: RefusedField::ContinuationLength });
        };
        if matches != 0 {
            let target = ObjectAddress::new(collection.partition, matches);
            return self.query_into(request, query, collection, target).await;
        }
        let now = self.now();
        let room =
            (allocation_length.min(request.data_in_capacity).saturating_sub(12) / 8) as usize;
        let limit = room.min(self.options.limits.list_entries);
        let mut list = ObjectList::default();
        let mut first = 0;
        loop {
            let (ids, next) = self.ids(source_of(collection), first, STEP_OBJECTS).await?;
            for id in ids {
                let is_match = self
                    .run(|transaction| self.matches(transaction, query, collection, id, now))
                    .await?;
                if let Member::Object(Some(_)) = is_match {
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
        let mut reply =
            self.run(|transaction| self.conclude_query(transaction, request, collection)).await?;
        reply.data = ReplyData::List(list);
        Ok(reply)
    }

    fn conclude_query(
        &self,
        transaction: &mut Transaction<'_>,
        request: &ObjectRequest,
        collection: ObjectAddress,
    ) -> Step<ObjectReply> {
        let mut row = find(transaction, collection)?;
        let conclusion = Conclusion::new(self, request, collection, self.now());
        conclude(transaction, &conclusion, &mut row, false)
    }

    /// Makes the matches the members of the tracking collection `target`. With IMMED_TR the command is answered when
    /// its record is written, and goes on in the background.
    async fn query_into(
        &self,
        request: &ObjectRequest,
        query: &Query,
        source: ObjectAddress,
        target: ObjectAddress,
    ) -> Result<ObjectReply, ObjectError> {
        self.admit_change().await?;
        let is_immediate = matches!(request.command, Command::Query { immediate: true, .. });
        let (id, answered) = self
            .run(|transaction| {
                let row = find(transaction, source)?;
                check_target(transaction, source, target)?;
                let is_background =
                    is_immediate && transaction.works().background() < MOST_BACKGROUND;
                let mut answered = None;
                if is_background {
                    answered = Some(self.conclude_query(transaction, request, source)?);
                    let pending = Pending::Query { source, query: query.clone() };
                    transaction.put(key::pending(target), Some(pending.encode()))?;
                }
                let new = NewWork {
                    command: &request.command,
                    collection: target,
                    source,
                    total: row.members.count,
                    is_background,
                };
                Ok((tracking::begin(transaction, &new)?, answered))
            })
            .await?;
        let guard = WorkGuard::new(&self.tables, id);
        let progress = self.tables.state.lock().works.progress(target).unwrap_or_default();
        let mut work = QueryWork { guard, source, query: query.clone(), progress };
        if let Some(reply) = answered {
            self.add_job(BackgroundJob::Query(Box::new(work)));
            return Ok(reply);
        }
        loop {
            match self.query_step(&mut work).await {
                Ok(false) => {}
                Ok(true) => break,
                Err(error) => {
                    self.end_work(work.guard.id, &Err(error.clone())).await;
                    return Err(error);
                }
            }
        }
        self.run(|transaction| {
            tracking::end(transaction, work.guard.id, &Ok(()))?;
            self.conclude_query(transaction, request, source)
        })
        .await
    }

    /// Makes the next step of a QUERY into a collection. Returns true if that was the last one.
    pub(crate) async fn query_step(&self, work: &mut QueryWork) -> Result<bool, ObjectError> {
        let target = work.guard.id.collection;
        self.admit_change().await?;
        if !work.progress.is_emptied {
            let before = work.progress;
            work.progress = self
                .run(|transaction| {
                    let is_emptied = drop_all_tracked(transaction, target)?;
                    let progress = super::works::Progress { is_emptied, ..before };
                    tracking::advance(transaction, work.guard.id, &progress)?;
                    Ok(progress)
                })
                .await?;
            return Ok(false);
        }
        let (ids, next) =
            self.ids(source_of(work.source), work.progress.next, STEP_OBJECTS).await?;
        for id in ids {
            self.admit_change().await?;
            let (before, now) = (work.progress, self.now());
            let QueryWork { guard, source, query, .. } = &*work;
            work.progress = self
                .run(|transaction| {
                    tracking::check(transaction, guard.id)?;
                    let found = self.matches(transaction, query, *source, id, now)?;
                    let after = before.after(id, &found);
                    match found {
                        Member::Object(Some(created)) => {
                            add_tracked(transaction, target, id, created)?;
                            tracking::advance(transaction, guard.id, &after)?;
                        }
                        // Only matches are worth a change of the record: after a crash the rest is compared again.
                        _ => transaction.works().note(guard.id, after),
                    }
                    Ok(after)
                })
                .await?;
        }
        Ok(next == 0)
    }

    /// Compares a user object. Returns the time at which it was created if it matches.
    fn matches(
        &self,
        transaction: &mut Transaction<'_>,
        query: &Query,
        source: ObjectAddress,
        id: u64,
        now: Timestamp,
    ) -> Step<Member<Option<Timestamp>>> {
        let address = ObjectAddress::new(source.partition, id);
        let row = match find_source(transaction, source, address)? {
            Member::Object(row) => row,
            Member::Missing => return Ok(Member::Missing),
            Member::Newer => return Ok(Member::Newer),
        };
        let context = self.context(now);
        let mut missing = None;
        let is_met = query.is_met(|id| {
            attributes::value_of(transaction, &context, address, &row, id).unwrap_or_else(|stop| {
                missing = Some(stop);
                None
            })
        });
        match missing {
            Some(stop) => Err(stop),
            None => Ok(Member::Object(is_met.then_some(row.times.created))),
        }
    }
}

fn source_of(collection: ObjectAddress) -> ListSource {
    match collection.object {
        0 => ListSource::UserObjects(collection.partition),
        _ => ListSource::Members(collection),
    }
}

fn find_source(
    transaction: &mut Transaction<'_>,
    source: ObjectAddress,
    address: ObjectAddress,
) -> Step<Member<ObjectRow>> {
    if source.object != 0 {
        return find_member(transaction, source, address.object);
    }
    match transaction.get(&key::object(address))? {
        Some(row) => Ok(Member::Object(decode(address, &row)?)),
        None => Ok(Member::Missing),
    }
}

/// Fails unless the collection can take the matches of a query on `source`.
fn check_target(
    transaction: &mut Transaction<'_>,
    source: ObjectAddress,
    target: ObjectAddress,
) -> Step<()> {
    let refused = Stop::Failed(ObjectError::InvalidField { field: RefusedField::Start });
    if source == target {
        return Err(refused);
    }
    let row = match find_typed(transaction, target, ObjectType::Collection) {
        Err(Stop::Failed(ObjectError::NoSuchObject { .. } | ObjectError::InvalidField { .. })) => {
            return Err(refused);
        }
        row => row?,
    };
    if row.members.kind != TRACKING_COLLECTION {
        return Err(refused);
    }
    check_changeable(&row, RefusedField::Start)?;
    tracking::check_idle(transaction, source, RefusedField::Object)?;
    tracking::check_idle(transaction, target, RefusedField::Start)
}

/// Removes members of a tracking collection. Returns true if there are no more.
pub(crate) fn drop_all_tracked(
    transaction: &mut Transaction<'_>,
    collection: ObjectAddress,
) -> Step<bool> {
    let mut row = find_typed(transaction, collection, ObjectType::Collection)?;
    let page = first_members(transaction, collection)?;
    let is_empty = page.next.is_none();
    row.members.count = row.members.count.saturating_sub(page.rows.len() as u64);
    for (member, known) in page.rows {
        transaction.replace(member, Some(&known), None);
    }
    store(transaction, collection, &row)?;
    Ok(is_empty)
}
