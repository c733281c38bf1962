//! A model of the drive in memory: its content as values, and the effect of each command on them.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use drive::DriveStore;
use object::{
    Attribute, AttributeId, Command, Continuation, ListRequest, ObjectAddress, ObjectError,
    ObjectReply, ObjectRequest, ReplyData, ScatterEntry,
};

use crate::support::*;

/// The pages of attributes that the model knows: vendor pages, and the collections page.
pub const OWN_PAGE: u32 = 0x1_0000;
pub const PARTITION_PAGE: u32 = 0x3001_0000;
pub const MEMBERSHIP_PAGE: u32 = 4;
pub const LOGICAL_LENGTH: AttributeId = AttributeId::new(1, 0x82);
pub const QUOTA: AttributeId = AttributeId::new(0x3000_0002, 0x1_0001);

pub type Attributes = BTreeMap<AttributeId, Bytes>;

#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ModelObject {
    pub bytes: Vec<u8>,
    pub attributes: Attributes,
    /// The collections that the object is a member of, by the number of the attribute.
    pub memberships: BTreeMap<u32, u64>,
}

#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ModelPartition {
    pub objects: BTreeMap<u64, ModelObject>,
    pub collections: BTreeSet<u64>,
    pub attributes: Attributes,
    /// The quota in bytes; zero: none.
    pub quota: u64,
}

/// Everything that can be read from a drive.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct DriveContent {
    pub partitions: BTreeMap<u64, ModelPartition>,
    pub record: Option<Bytes>,
}

#[derive(Clone, Debug, Default)]
pub struct DriveModel {
    pub content: DriveContent,
    /// Snapshots with their objects, and copies made with FREEZE.
    pub frozen: BTreeSet<ObjectAddress>,
}

impl DriveModel {
    pub fn partition(&mut self, id: u64) -> &mut ModelPartition {
        self.content.partitions.get_mut(&id).expect("the partition exists")
    }

    pub fn object(&mut self, address: ObjectAddress) -> &mut ModelObject {
        let objects = &mut self.partition(address.partition).objects;
        objects.get_mut(&address.object).expect("the object exists")
    }

    /// Applies the command of a request that the drive has performed. `created` is the first object that it created.
    pub fn perform(&mut self, request: &ObjectRequest, created: ObjectAddress) {
        let address = request.command.object();
        match request.command {
            Command::CreatePartition { .. } => {
                self.content.partitions.insert(created.partition, ModelPartition::default());
            }
            Command::RemovePartition { partition, .. } => {
                self.content.partitions.remove(&partition);
                self.frozen.retain(|frozen| frozen.partition != partition);
            }
            Command::FormatOsd { .. } => {
                self.content.partitions.clear();
                self.frozen.clear();
            }
            Command::CreateSnapshot { source, .. } => self.copy_partition(source, created, true),
            Command::CreateClone { source, .. } => self.copy_partition(source, created, false),
            Command::CreateCollection { partition, .. } => {
                self.partition(partition).collections.insert(created.object);
            }
            Command::RemoveCollection { collection, .. } => self.remove_collection(collection),
            Command::RemoveMemberObjects { collection } => {
                let is_member = |object: &ModelObject| is_member(object, collection);
                let objects = &mut self.partition(collection.partition).objects;
                objects.retain(|_, object| !is_member(object));
            }
            Command::SetMemberAttributes { collection } => {
                for object in self.partition(collection.partition).objects.values_mut() {
                    if is_member(object, collection) {
                        set_attributes(object, &request.set);
                    }
                }
                return;
            }
            Command::Create { count, .. } => {
                for n in 0..u64::from(count) {
                    let mut object = ModelObject::default();
                    set_attributes(&mut object, &request.set);
                    let id = created.object + n;
                    self.partition(created.partition).objects.insert(id, object);
                }
                return;
            }
            Command::CreateAndWrite { partition, start, .. } => {
                let mut object = ModelObject::default();
                put(&mut object.bytes, start, &request.data.clone().into_bytes());
                self.partition(partition).objects.insert(created.object, object);
            }
            Command::CopyUserObjects { .. } => self.copy_object(request, created),
            Command::Remove { object } => {
                self.partition(object.partition).objects.remove(&object.object);
                self.frozen.remove(&object);
                return;
            }
            _ if address.object != 0 => self.change_data(request),
            _ => {}
        }
        let subject = if request.command.creates() { created } else { address };
        self.set(subject, &request.set);
    }

    /// Sets the attributes of a request on a partition or user object that exists.
    fn set(&mut self, address: ObjectAddress, set: &[Attribute]) {
        let Some(partition) = self.content.partitions.get_mut(&address.partition) else { return };
        if let Some(object) = partition.objects.get_mut(&address.object) {
            return set_attributes(object, set);
        }
        for attribute in set.iter().filter(|_| address.is_partition()) {
            match attribute.id {
                QUOTA => {
                    let value = attribute.value.as_ref().try_into().expect("8 bytes");
                    partition.quota = u64::from_be_bytes(value);
                }
                id if id.page == PARTITION_PAGE => {
                    put_attribute(&mut partition.attributes, attribute)
                }
                _ => {}
            }
        }
    }

    fn copy_partition(&mut self, source: u64, created: ObjectAddress, is_snapshot: bool) {
        let copy = self.partition(source).clone();
        if is_snapshot {
            let copies = copy.objects.keys().chain(&copy.collections);
            let copies = copies.map(|id| ObjectAddress::new(created.partition, *id));
            self.frozen.extend(copies.chain([created]));
        }
        self.content.partitions.insert(created.partition, copy);
    }

    fn copy_object(&mut self, request: &ObjectRequest, created: ObjectAddress) {
        let Continuation::CopySource(source) = request.continuation else { unreachable!() };
        let mut copy = self.object(source.object).clone();
        copy.memberships.clear();
        if !source.with_attributes {
            copy.attributes.clear();
        }
        self.partition(created.partition).objects.insert(created.object, copy);
        if source.freeze {
            self.frozen.insert(created);
        }
    }

    fn remove_collection(&mut self, collection: ObjectAddress) {
        let partition = self.partition(collection.partition);
        partition.collections.remove(&collection.object);
        for object in partition.objects.values_mut() {
            object.memberships.retain(|_, member| *member != collection.object);
        }
    }

    fn change_data(&mut self, request: &ObjectRequest) {
        let command = request.command;
        let partition = self.partition(command.object().partition);
        let Some(object) = partition.objects.get_mut(&command.object().object) else { return };
        let bytes = &mut object.bytes;
        let length = bytes.len() as u64;
        let data = request.data.clone().into_bytes();
        match command {
            Command::Write { start, length, .. } => {
                let mut at = 0;
                for entry in entries(request, start, length) {
                    let end = at + entry.length as usize;
                    put(bytes, entry.start, &data[at..end]);
                    at = end;
                }
            }
            Command::Append { .. } => bytes.extend_from_slice(&data),
            Command::Clear { start, length: count, .. } => {
                let (first, end) = (start.min(length), (start + count).min(length));
                bytes[first as usize..end as usize].fill(0);
            }
            Command::Punch { start, length: count, .. } => {
                let (first, end) = (start.min(length), (start + count).min(length));
                bytes.drain(first as usize..end as usize);
            }
            _ => {}
        }
    }

    /// Returns the members of a collection that match the query of a request, or all user objects of the partition.
    pub fn matches(&self, request: &ObjectRequest, collection: ObjectAddress) -> Vec<u64> {
        let Continuation::Query(query) = &request.continuation else { unreachable!() };
        let objects = self.content.partitions[&collection.partition].objects.iter();
        objects
            .filter(|(_, object)| collection.object == 0 || is_member(object, collection))
            .filter(|(_, object)| query.is_met(|id| object.attributes.get(&id).cloned()))
            .map(|(id, _)| *id)
            .collect()
    }

    /// Returns the members of a collection.
    pub fn members(&self, collection: ObjectAddress) -> Vec<u64> {
        let objects = self.content.partitions[&collection.partition].objects.iter();
        objects.filter(|(_, object)| is_member(object, collection)).map(|(id, _)| *id).collect()
    }

    /// Checks what the drive has returned for a request that reads. The model is as it was before the command.
    pub fn check_reply(&self, request: &ObjectRequest, reply: &ObjectReply) {
        let command = request.command;
        let partition = self.content.partitions.get(&command.object().partition);
        let object = partition.and_then(|found| found.objects.get(&command.object().object));
        match (command, &reply.data) {
            (Command::Read { start, length, .. }, ReplyData::Bytes(data)) => {
                let mut expected = Vec::new();
                let bytes = &object.expect("it was read").bytes;
                for ScatterEntry { start, length } in entries(request, start, length) {
                    let first = (start as usize).min(bytes.len());
                    let end = (start.saturating_add(length) as usize).min(bytes.len());
                    expected.extend_from_slice(&bytes[first..end]);
                }
                assert!(data.clone().into_bytes() == expected, "{command:?}");
            }
            (Command::Append { .. }, _) => {
                let length = object.expect("it has grown").bytes.len() as u64;
                assert_eq!(reply.current.append_start, length);
            }
            (Command::Query { collection, .. }, ReplyData::List(found)) => {
                let ids: Vec<_> = found.objects.iter().map(|object| object.id).collect();
                assert_eq!(ids, self.matches(request, collection));
            }
            (Command::GetMemberAttributes { collection }, _) => {
                let found: Vec<_> = reply.members.iter().map(|member| member.id).collect();
                assert_eq!(found, self.members(collection));
                let id = AttributeId::new(OWN_PAGE, 1);
                for member in &reply.members {
                    let known = &self.content.partitions[&collection.partition].objects[&member.id];
                    let value = known.attributes.get(&id).cloned().unwrap_or_default();
                    assert_eq!(member.attributes, [Attribute { id, value }]);
                }
            }
            (Command::ReadMap { start, .. }, ReplyData::Map(runs)) => {
                let bytes = &object.expect("it was read").bytes;
                let mut at = start.min(bytes.len() as u64);
                for run in runs {
                    assert_eq!(run.start, at, "{runs:?}");
                    at += run.length;
                    let part = &bytes[run.start as usize..at as usize];
                    assert!(
                        match run.kind {
                            object::MapRunKind::Written => true,
                            object::MapRunKind::Hole => part.iter().all(|byte| *byte == 0),
                            object::MapRunKind::DamagedData => false,
                        },
                        "{run:?}"
                    );
                }
                assert_eq!(at, bytes.len() as u64, "{runs:?}");
            }
            _ => {}
        }
    }
}

fn is_member(object: &ModelObject, collection: ObjectAddress) -> bool {
    object.memberships.values().any(|member| *member == collection.object)
}

/// Returns the ranges of a READ or WRITE.
fn entries(request: &ObjectRequest, start: u64, length: u64) -> Vec<ScatterEntry> {
    match &request.continuation {
        Continuation::ScatterGather(entries) => entries.clone(),
        _ => vec![ScatterEntry { start, length }],
    }
}

fn put(bytes: &mut Vec<u8>, start: u64, data: &[u8]) {
    let (start, end) = (start as usize, start as usize + data.len());
    if !data.is_empty() {
        bytes.resize(bytes.len().max(end), 0);
        bytes[start..end].copy_from_slice(data);
    }
}

fn put_attribute(attributes: &mut Attributes, attribute: &Attribute) {
    match attribute.value.is_empty() {
        true => drop(attributes.remove(&attribute.id)),
        false => drop(attributes.insert(attribute.id, attribute.value.clone())),
    }
}

fn set_attributes(object: &mut ModelObject, set: &[Attribute]) {
    for attribute in set {
        let number = || u64::from_be_bytes(attribute.value.as_ref().try_into().expect("8 bytes"));
        match attribute.id {
            LOGICAL_LENGTH => object.bytes.resize(number() as usize, 0),
            id if id.page == MEMBERSHIP_PAGE && attribute.value.is_empty() => {
                object.memberships.remove(&id.number);
            }
            id if id.page == MEMBERSHIP_PAGE => {
                object.memberships.insert(id.number, number());
            }
            id if id.page == OWN_PAGE => put_attribute(&mut object.attributes, attribute),
            _ => {}
        }
    }
}

/// Reads everything that a drive has, and checks that its counters agree with that.
pub async fn content(store: &DriveStore) -> Result<DriveContent, ObjectError> {
    let mut found = DriveContent::default();
    let (mut used, mut count) = (0, 0);
    for id in list(store, 0, 100).await? {
        let address = ObjectAddress::partition(id);
        let mut partition = ModelPartition::default();
        let mut used_here = 0;
        for id in list(store, id, 3).await? {
            let object = ObjectAddress::new(id_of(address), id);
            let (known, used) = content_of(store, object).await?;
            used_here += used;
            partition.objects.insert(id, known);
        }
        let list = ListRequest { allocation_length: 24 + 8 * 1024, ..ListRequest::default() };
        let reply = perform(store, Command::ListCollection { collection: address, list }).await?;
        let ReplyData::List(collections) = reply.data else { panic!("a list") };
        partition.collections = collections.objects.iter().map(|object| object.id).collect();
        for &collection in &partition.collections {
            let collection = ObjectAddress::new(id, collection);
            let listed = perform(store, Command::ListCollection { collection, list }).await?;
            let ReplyData::List(members) = listed.data else { panic!("a list") };
            let members = members.objects.iter().map(|object| object.id);
            let known =
                partition.objects.iter().filter(|(_, object)| is_member(object, collection));
            assert!(members.eq(known.map(|(id, _)| *id)), "members of {collection}");
        }
        partition.quota = number_of(store, address, QUOTA).await?;
        partition.attributes = page_of(store, address, PARTITION_PAGE).await?;
        let counted = number_of(store, address, AttributeId::new(0x3000_0001, 0x81)).await?;
        assert_eq!(counted, used_here, "blocks of partition {id:x}");
        used += used_here;
        count += partition.objects.len() + partition.collections.len();
        found.partitions.insert(id, partition);
    }
    found.record = store.record("name").await?;
    let statistics = store.statistics();
    // Copies share blocks.
    assert!(used >= statistics.used_bytes, "{used} bytes used, {statistics:?}");
    assert_eq!(statistics.objects, count as u64);
    assert_eq!(statistics.partitions, found.partitions.len() as u64);
    Ok(found)
}

fn id_of(partition: ObjectAddress) -> u64 {
    partition.partition
}

/// Returns the content of a user object, and the bytes that are allocated for it.
async fn content_of(
    store: &DriveStore,
    object: ObjectAddress,
) -> Result<(ModelObject, u64), ObjectError> {
    let bytes = read(store, object, 0, u64::MAX >> 1).await?;
    assert_eq!(number_of(store, object, LOGICAL_LENGTH).await?, bytes.len() as u64, "{object}");
    let memberships = page_of(store, object, MEMBERSHIP_PAGE).await?;
    let memberships = memberships.iter().map(|(id, value)| {
        (id.number, u64::from_be_bytes(value.as_ref().try_into().expect("8 bytes")))
    });
    let memberships = memberships.collect();
    let attributes = page_of(store, object, OWN_PAGE).await?;
    let used = number_of(store, object, AttributeId::new(1, 0x81)).await?;
    assert!(used <= (bytes.len() as u64).next_multiple_of(4096), "{object} has {used} bytes");
    Ok((ModelObject { bytes, attributes, memberships }, used))
}

async fn number_of(
    store: &DriveStore,
    object: ObjectAddress,
    id: AttributeId,
) -> Result<u64, ObjectError> {
    let value = get(store, object, id.page, id.number).await?;
    Ok(u64::from_be_bytes(value.as_ref().try_into().expect("8 bytes")))
}

async fn page_of(
    store: &DriveStore,
    object: ObjectAddress,
    page: u32,
) -> Result<Attributes, ObjectError> {
    use object::{AttributeSelection, ObjectStore};
    let request = ObjectRequest::new(Command::GetAttributes { object })
        .getting(AttributeSelection::Page(page));
    let found = store.perform(request).await?.attributes;
    Ok(found.into_iter().map(|attribute| (attribute.id, attribute.value)).collect())
}
