//! Performs LIST and LIST COLLECTION.

use object::{
    AttributeSelection, Command, ListRequest, ListedObject, ObjectAddress, ObjectError, ObjectList,
    ObjectReply, ObjectRequest, ObjectType, ReplyData,
};

use super::{
    attributes::{self, root},
    conclusion::{Conclusion, conclude},
    drive_core::DriveCore,
    key::{self, Key},
    object_row::{Membership, ObjectRow},
    object_rows::{decode, find, find_partition, find_typed},
    transaction::{Step, Transaction},
};

/// The objects that a list contains: partitions, or objects of one partition or collection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ListSource {
    Partitions,
    UserObjects(u64),
    Collections(u64),
    Members(ObjectAddress),
}

impl ListSource {
    pub(crate) fn of(command: &Command) -> Option<(Self, ListRequest)> {
        Some(match *command {
            Command::List { partition: 0, list } => (Self::Partitions, list),
            Command::List { partition, list } => (Self::UserObjects(partition), list),
            Command::ListCollection { collection, list } if collection.object == 0 => {
                (Self::Collections(collection.partition), list)
            }
            Command::ListCollection { collection, list } => (Self::Members(collection), list),
            _ => return None,
        })
    }

    /// Returns the root, partition or collection whose content is listed.
    fn parent(self) -> ObjectAddress {
        match self {
            Self::Partitions => ObjectAddress::ROOT,
            Self::UserObjects(partition) | Self::Collections(partition) => {
                ObjectAddress::partition(partition)
            }
            Self::Members(collection) => collection,
        }
    }

    fn parent_row(self, transaction: &mut Transaction<'_>) -> Step<ObjectRow> {
        match self {
            Self::Partitions => root(transaction),
            Self::UserObjects(partition) | Self::Collections(partition) => {
                find_partition(transaction, partition)
            }
            Self::Members(collection) => {
                find_typed(transaction, collection, ObjectType::Collection)
            }
        }
    }

    /// Returns the key of the first row to read, for the identifier `first`, and the key behind the last row.
    fn range(self, first: u64) -> (Key, Key) {
        match self {
            Self::Partitions => {
                (key::object(ObjectAddress::partition(first.max(1))), key::partitions_end())
            }
            Self::UserObjects(partition) => (
                key::object(ObjectAddress::new(partition, first.max(1))),
                key::objects_end(partition),
            ),
            Self::Collections(partition) => {
                (key::collection(partition, first), key::collections_end(partition))
            }
            Self::Members(collection) => {
                (key::member(collection, first), key::members_end(collection))
            }
        }
    }

    fn object_type(self) -> ObjectType {
        match self {
            Self::Partitions => ObjectType::Partition,
            Self::UserObjects(_) | Self::Members(_) => ObjectType::UserObject,
            Self::Collections(_) => ObjectType::Collection,
        }
    }

    fn address(self, id: u64) -> ObjectAddress {
        match self {
            Self::Partitions => ObjectAddress::partition(id),
            Self::UserObjects(partition) | Self::Collections(partition) => {
                ObjectAddress::new(partition, id)
            }
            Self::Members(collection) => ObjectAddress::new(collection.partition, id),
        }
    }

    fn count(self, members: &Membership) -> u64 {
        match self {
            Self::Collections(_) => members.collections,
            _ => members.count,
        }
    }
}

/// At most `limit` identifiers of a list, the identifier with which the list continues (zero if it is complete), and
/// the row of the root, partition or collection that is listed.
struct FoundIds {
    ids: Vec<u64>,
    continuation: u64,
    parent: ObjectRow,
}

fn find_ids(
    transaction: &mut Transaction<'_>,
    source: ListSource,
    first: u64,
    limit: usize,
) -> Step<FoundIds> {
    let parent = source.parent_row(transaction)?;
    let (start, end) = source.range(first);
    let mut at = Some(start);
    let mut ids = Vec::new();
    let mut continuation = 0;
    'pages: while let Some(start) = at {
        let page = transaction.page(&start, &end, limit + 1)?;
        for (row_key, row) in page.rows {
            let id = key::last_number(&row_key);
            if let ListSource::UserObjects(partition) = source
                && decode(ObjectAddress::new(partition, id), &row)?.object_type
                    != ObjectType::UserObject
            {
                continue;
            }
            if ids.len() == limit {
                continuation = id;
                break 'pages;
            }
            ids.push(id);
        }
        at = page.next;
    }
    Ok(FoundIds { ids, continuation, parent })
}

impl DriveCore {
    /// Returns at most `limit` identifiers of a list from `first` on, and the identifier with which the list continues
    /// (zero if it is complete).
    pub(crate) async fn ids(
        &self,
        source: ListSource,
        first: u64,
        limit: usize,
    ) -> Result<(Vec<u64>, u64), ObjectError> {
        let found = self.run(|transaction| find_ids(transaction, source, first, limit)).await?;
        Ok((found.ids, found.continuation))
    }

    /// Performs LIST or LIST COLLECTION.
    pub(crate) async fn list(
        &self,
        request: &ObjectRequest,
        source: ListSource,
        list: ListRequest,
    ) -> Result<ObjectReply, ObjectError> {
        let now = self.now();
        let room = list.allocation_length.min(request.data_in_capacity).saturating_sub(LIST_HEADER);
        let entry = if list.with_attributes { ATTRIBUTED_ENTRY } else { 8 };
        let limit = (room / entry).min(self.options.limits.list_entries as u64) as usize;
        let found =
            self.run(|transaction| find_ids(transaction, source, list.first, limit)).await?;
        let mut answer = ObjectList { continuation: found.continuation, ..ObjectList::default() };
        let mut bytes = 0;
        for id in found.ids {
            let selections = if list.with_attributes { &request.get[..] } else { &[] };
            // Leave out an object that was removed since its identifier was found.
            let Some(object) =
                self.listed(source.object_type(), source.address(id), id, selections, now).await?
            else {
                continue;
            };
            let more = if list.with_attributes { encoded_bytes(&object) } else { 8 };
            if bytes + more > room && !answer.objects.is_empty() {
                answer.continuation = id;
                break;
            }
            bytes += more;
            answer.objects.push(object);
        }
        let members = &found.parent.members;
        let rest = source.count(members).saturating_sub(answer.objects.len() as u64);
        answer.total_bytes = if answer.continuation == 0 { bytes } else { bytes + rest * entry };
        let identifier = members.changes | 1 << 31;
        if answer.continuation != 0 {
            answer.identifier = identifier;
        }
        answer.changed = list.identifier != 0 && list.identifier != identifier;
        let parent = source.parent();
        let mut reply = self
            .run(|transaction| {
                let mut row = find(transaction, parent)?;
                let own = match list.with_attributes {
                    true => ObjectRequest { get: Vec::new(), ..request.clone() },
                    false => request.clone(),
                };
                let conclusion = Conclusion::new(self, &own, parent, now);
                conclude(transaction, &conclusion, &mut row, false)
            })
            .await?;
        reply.data = ReplyData::List(answer);
        Ok(reply)
    }

    /// Returns an object with the selected attributes; `None` if it does not exist.
    pub(crate) async fn listed(
        &self,
        object_type: ObjectType,
        address: ObjectAddress,
        id: u64,
        selections: &[AttributeSelection],
        now: object::Timestamp,
    ) -> Result<Option<ListedObject>, ObjectError> {
        if selections.is_empty() {
            return Ok(Some(ListedObject { id, object_type, attributes: Vec::new() }));
        }
        let (identity, limits) = (&self.options.identity, &self.options.limits);
        self.run(|transaction| {
            let Some(row) = transaction.get(&key::object(address))? else { return Ok(None) };
            let row = decode(address, &row)?;
            let context = attributes::AttributeContext { identity, limits, now };
            let attributes = attributes::get(transaction, &context, address, &row, selections)?;
            Ok(Some(ListedObject { id, object_type, attributes }))
        })
        .await
    }
}

/// Returns the length in bytes of an object's entry in a list with attributes.
fn encoded_bytes(object: &ListedObject) -> u64 {
    let values = object
        .attributes
        .iter()
        .map(|attribute| (16 + attribute.value.len() as u64).next_multiple_of(8));
    ATTRIBUTED_ENTRY + values.sum::<u64>()
}

/// Length in bytes of a list before its first object.
const LIST_HEADER: u64 = 24;
/// Length in bytes of an object's entry in a list with attributes, before the attributes.
const ATTRIBUTED_ENTRY: u64 = 16;
