//! A store in memory, a clock that the test sets, and the keys of tests.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use object::{
    Attribute, AttributeId, AttributeSelection, Command, Continuation, CurrentCommand,
    FIRST_IDENTIFIER, KeyToSet, ListedObject, MapRun, MapRunKind, ObjectAddress, ObjectError,
    ObjectList, ObjectReply, ObjectRequest, ObjectResult, ObjectStore, ObjectType, ReplyData,
    ScatterEntry, SetKeyRequest, Timestamp,
};
use osd::{
    CDB_BYTES, Capability, OsdCdb,
    security::{CapabilityKey, IntegrityCheckValue, Key, KeyPair, SecurityMethod, SystemId},
};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use volume::{Data, Reply};

use crate::{backing::DriveBacking, security::TimeSource, store::GuardFacts};

pub(crate) const PARTITION: u64 = 0x1_0000;
pub(crate) const SYSTEM: SystemId = [0xf1; 20];
/// Attribute number of the policy access tag in the policy/security pages.
pub(crate) const POLICY_TAG: u32 = 0x4000_0001;

/// The master key that the test vectors of `osd` use: bytes 40h to 5Fh and 60h to 7Fh.
pub(crate) fn master() -> KeyPair {
    let key = |first: u8| Key::new(std::array::from_fn(|at| first + at as u8));
    KeyPair { authentication: key(0x40), generation: key(0x60) }
}

/// Returns a SET KEY whose seed is the bytes `first`, `first + 1` and so on.
pub(crate) fn set_key(key: KeyToSet, first: u8) -> SetKeyRequest {
    let seed = std::array::from_fn(|at| first.wrapping_add(at as u8));
    SetKeyRequest { key, key_identifier: [7; 7], seed }
}

/// Returns the working key that a drive has after SET KEY for the root, partition and working key, each with the seed
/// of [`set_key`] from A0h.
pub(crate) fn working_pair() -> KeyPair {
    let seed = set_key(KeyToSet::Root, 0xa0).seed;
    master().derive(&seed).derive(&seed).derive(&seed)
}

/// Puts a capability and its proof into a CDB, as a client does that has the authentication key `key`.
pub(crate) fn sign(mut cdb: OsdCdb, capability: &Capability, key: &Key, token: &[u8]) -> SignedCdb {
    cdb.capability = capability.to_bytes();
    let key = CapabilityKey::new(capability.algorithm, key, &cdb.capability, &SYSTEM);
    cdb.integrity = match capability.method {
        SecurityMethod::NoSec => IntegrityCheckValue::ZERO,
        SecurityMethod::CapKey => key.of_token(token),
        SecurityMethod::CmdRsp | SecurityMethod::AllData => key.of_cdb(&cdb.encode()),
    };
    SignedCdb { bytes: cdb.encode(), cdb, key }
}

/// A CDB with its capability and integrity check value.
#[derive(Clone)]
pub(crate) struct SignedCdb {
    pub(crate) cdb: OsdCdb,
    pub(crate) bytes: [u8; CDB_BYTES],
    pub(crate) key: CapabilityKey,
}

/// The clocks of a host, which stand still until the test sets them.
#[derive(Clone)]
pub(crate) struct TestTime(Arc<[AtomicU64; 2]>);

impl TestTime {
    pub(crate) fn new(wall: u64) -> Self {
        Self(Arc::new([AtomicU64::new(wall), AtomicU64::new(0)]))
    }

    pub(crate) fn set_wall(&self, ms: u64) {
        self.0[0].store(ms, Ordering::SeqCst);
    }

    pub(crate) fn advance(&self, ms: u64) {
        self.0.iter().for_each(|clock| {
            clock.fetch_add(ms, Ordering::SeqCst);
        });
    }
}

impl TimeSource for TestTime {
    fn wall_ms(&self) -> u64 {
        self.0[0].load(Ordering::SeqCst)
    }

    fn elapsed_ms(&self) -> u64 {
        self.0[1].load(Ordering::SeqCst)
    }
}

/// An object store in memory, with only the commands that the tests of unit and security need.
pub(crate) struct MemoryStore {
    objects: Mutex<Objects>,
    records: Mutex<BTreeMap<String, Bytes>>,
    fails_records: AtomicBool,
    created: AtomicU64,
    epoch: AtomicU64,
    performed: AtomicU64,
    /// If set, the next command fails with this error.
    failure: Mutex<Option<ObjectError>>,
    /// If set, each READ waits for a permit of this semaphore.
    held: Mutex<Option<Arc<Semaphore>>>,
}

type Objects = BTreeMap<ObjectAddress, Object>;

struct Object {
    object_type: ObjectType,
    created: Timestamp,
    data: Vec<u8>,
    attributes: BTreeMap<AttributeId, Bytes>,
}

impl MemoryStore {
    pub(crate) fn new() -> Self {
        let store = Self {
            objects: Mutex::default(),
            records: Mutex::default(),
            fails_records: AtomicBool::new(false),
            created: AtomicU64::new(1),
            epoch: AtomicU64::new(1),
            performed: AtomicU64::new(0),
            failure: Mutex::default(),
            held: Mutex::default(),
        };
        store.add(ObjectAddress::ROOT, ObjectType::Root);
        store
    }

    pub(crate) fn with_partition(partition: u64) -> Self {
        let store = Self::new();
        store.add(ObjectAddress::partition(partition), ObjectType::Partition);
        store
    }

    pub(crate) fn add(&self, address: ObjectAddress, object_type: ObjectType) {
        let created = Timestamp::from_ms(self.created.fetch_add(1, Ordering::SeqCst));
        let object = Object { object_type, created, data: Vec::new(), attributes: BTreeMap::new() };
        self.objects.lock().insert(address, object);
    }

    pub(crate) fn replace_partition(&self, partition: u64) {
        self.objects.lock().retain(|address, _| address.partition != partition);
        self.add(ObjectAddress::partition(partition), ObjectType::Partition);
    }

    pub(crate) fn records(&self) -> Vec<Bytes> {
        self.records.lock().values().cloned().collect()
    }

    pub(crate) fn fail_records(&self, fails: bool) {
        self.fails_records.store(fails, Ordering::SeqCst);
    }

    pub(crate) fn restart(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns how many commands were performed that could change something, or return data.
    pub(crate) fn performed(&self) -> u64 {
        self.performed.load(Ordering::SeqCst)
    }

    pub(crate) fn fail_next(&self, error: ObjectError) {
        *self.failure.lock() = Some(error);
    }

    /// Makes every READ wait for a permit of the returned semaphore.
    pub(crate) fn hold_reads(&self) -> Arc<Semaphore> {
        let held = Arc::new(Semaphore::new(0));
        *self.held.lock() = Some(Arc::clone(&held));
        held
    }

    pub(crate) fn data(&self, address: ObjectAddress) -> Option<Vec<u8>> {
        self.objects.lock().get(&address).map(|object| object.data.clone())
    }

    pub(crate) fn attribute(
        &self,
        address: ObjectAddress,
        page: u32,
        number: u32,
    ) -> Option<Bytes> {
        let objects = self.objects.lock();
        objects.get(&address)?.attributes.get(&AttributeId::new(page, number)).cloned()
    }

    fn run(&self, request: &ObjectRequest) -> ObjectResult {
        if let Some(error) = self.failure.lock().take() {
            return Err(error);
        }
        let mut objects = self.objects.lock();
        let mut reply = ObjectReply::default();
        let address = self.create_objects(&mut objects, request, &mut reply)?;
        change_data(&mut objects, request, &mut reply)?;
        read_data(&objects, request, &mut reply)?;
        list(&objects, request, &mut reply);
        let object = exists_mut(&mut objects, address)?;
        set_attributes(object, request);
        get_attributes(object, request, &mut reply);
        reply.current = CurrentCommand {
            object_type: Some(object.object_type),
            object: address,
            ..reply.current
        };
        remove(&mut objects, request)?;
        Ok(reply)
    }

    /// Performs the commands that create objects, and FORMAT OSD. Returns the object of any command.
    fn create_objects(
        &self,
        objects: &mut Objects,
        request: &ObjectRequest,
        reply: &mut ObjectReply,
    ) -> Result<ObjectAddress, ObjectError> {
        let mut address = request.command.object();
        match request.command {
            Command::FormatOsd { .. } => objects.retain(|address, _| address.is_root()),
            Command::CreatePartition { requested } => {
                address = ObjectAddress::partition(requested.max(PARTITION));
                create(objects, &self.created, address, ObjectType::Partition)?;
            }
            Command::Create { partition, requested, count } => {
                exists(objects, ObjectAddress::partition(partition))?;
                let last = objects.range(..ObjectAddress::new(partition + 1, 0)).next_back();
                let next = last.map_or(0, |(address, _)| address.object + 1);
                let first = if requested == 0 { next.max(FIRST_IDENTIFIER) } else { requested };
                for id in first..first + u64::from(count) {
                    address = ObjectAddress::new(partition, id);
                    create(objects, &self.created, address, ObjectType::UserObject)?;
                    let object_type = ObjectType::UserObject;
                    reply.members.push(ListedObject { id, object_type, attributes: Vec::new() });
                }
            }
            Command::CreateCollection { partition, requested } => {
                exists(objects, ObjectAddress::partition(partition))?;
                address = ObjectAddress::new(partition, requested);
                create(objects, &self.created, address, ObjectType::Collection)?;
            }
            Command::CreateAndWrite { partition, requested, start, .. } => {
                exists(objects, ObjectAddress::partition(partition))?;
                address = ObjectAddress::new(partition, requested);
                create(objects, &self.created, address, ObjectType::UserObject)?;
                write(&mut exists_mut(objects, address)?.data, start, &request.data);
            }
            Command::CopyUserObjects { .. } => {
                let Continuation::CopySource(source) = &request.continuation else {
                    return Err(ObjectError::Unsupported);
                };
                let data = exists(objects, source.object)?.data.clone();
                create(objects, &self.created, address, ObjectType::UserObject)?;
                exists_mut(objects, address)?.data = data;
            }
            _ => {}
        }
        Ok(address)
    }
}

/// Performs the commands that change the data of an object.
fn change_data(
    objects: &mut Objects,
    request: &ObjectRequest,
    reply: &mut ObjectReply,
) -> Result<(), ObjectError> {
    let address = request.command.object();
    match request.command {
        Command::Write { start, .. } => {
            let object = exists_mut(objects, address)?;
            match &request.continuation {
                Continuation::ScatterGather(entries) => {
                    let mut at = 0;
                    for ScatterEntry { start, length } in entries {
                        let part = request.data.slice(at, *length as usize);
                        write(&mut object.data, *start, &part);
                        at += *length as usize;
                    }
                }
                _ => write(&mut object.data, start, &request.data),
            }
        }
        Command::Append { .. } => {
            let object = exists_mut(objects, address)?;
            reply.current.append_start = object.data.len() as u64;
            write(&mut object.data, reply.current.append_start, &request.data);
        }
        Command::Clear { start, length, .. } => {
            let zeros = Data::zeros(length as usize);
            write(&mut exists_mut(objects, address)?.data, start, &zeros);
        }
        Command::Punch { start, length, .. } => {
            let data = &mut exists_mut(objects, address)?.data;
            let end = (start.saturating_add(length)).min(data.len() as u64) as usize;
            data.drain((start as usize).min(end)..end);
        }
        _ => {}
    }
    Ok(())
}

/// Performs READ and READ MAP.
fn read_data(
    objects: &Objects,
    request: &ObjectRequest,
    reply: &mut ObjectReply,
) -> Result<(), ObjectError> {
    let address = request.command.object();
    match request.command {
        Command::Read { start, length, .. } => {
            let data = &exists(objects, address)?.data;
            let one = [ScatterEntry { start, length }];
            let entries = match &request.continuation {
                Continuation::ScatterGather(entries) => &entries[..],
                _ => &one,
            };
            let mut bytes = Vec::new();
            for ScatterEntry { start, length } in entries {
                let (start, end) = (*start as usize, start.saturating_add(*length) as usize);
                let stored = start.min(data.len())..end.min(data.len());
                if end > data.len() {
                    reply.read_past_end = Some((bytes.len() + stored.len()) as u64);
                }
                bytes.extend_from_slice(&data[stored]);
            }
            reply.data = ReplyData::Bytes(bytes.into());
        }
        Command::ReadMap { .. } => {
            let length = exists(objects, address)?.data.len() as u64;
            let run = MapRun { kind: MapRunKind::Written, start: 0, length };
            reply.data = ReplyData::Map(vec![run]);
        }
        _ => {}
    }
    Ok(())
}

/// Performs LIST.
fn list(objects: &Objects, request: &ObjectRequest, reply: &mut ObjectReply) {
    let Command::List { partition, list } = request.command else { return };
    let is_listed = |address: &ObjectAddress| match partition {
        0 => address.is_partition(),
        _ => address.partition == partition && address.object != 0,
    };
    let listed = objects.iter().filter(|(address, _)| is_listed(address));
    let id = |address: &ObjectAddress| match partition {
        0 => address.partition,
        _ => address.object,
    };
    let listed = listed.filter(|(address, _)| id(address) >= list.first);
    let listed: Vec<_> = listed
        .map(|(address, object)| ListedObject {
            id: id(address),
            object_type: object.object_type,
            attributes: Vec::new(),
        })
        .collect();
    let total_bytes = 8 * listed.len() as u64;
    let list = ObjectList { objects: listed, total_bytes, ..ObjectList::default() };
    reply.data = ReplyData::List(list);
}

fn set_attributes(object: &mut Object, request: &ObjectRequest) {
    for attribute in &request.set {
        if (attribute.id.page, attribute.id.number) == (1, 0x82) {
            let length = attribute.value.as_ref().try_into().map_or(0, u64::from_be_bytes);
            object.data.resize(length as usize, 0);
        }
        object.attributes.insert(attribute.id, attribute.value.clone());
    }
}

fn get_attributes(object: &Object, request: &ObjectRequest, reply: &mut ObjectReply) {
    for selection in &request.get {
        match *selection {
            AttributeSelection::One(id) => {
                let length = Bytes::copy_from_slice(&(object.data.len() as u64).to_be_bytes());
                let value = match (id.page, id.number) {
                    (1, 0x81 | 0x82) => Some(length),
                    _ => object.attributes.get(&id).cloned(),
                };
                let value = value.unwrap_or_default();
                reply.attributes.push(Attribute { id, value });
            }
            AttributeSelection::PageFormat(page) => {
                let value = |id: AttributeId| object.attributes.get(&id).cloned();
                reply.page = Some(osd::encode_page(page, value).into());
            }
            AttributeSelection::Page(page) => {
                let in_page = |(id, _): &(&AttributeId, &Bytes)| id.page == page;
                let found = object.attributes.iter().filter(in_page);
                let found = found.map(|(id, value)| Attribute { id: *id, value: value.clone() });
                reply.attributes.extend(found);
            }
            _ => {}
        }
    }
}

/// Performs the commands that remove objects or partitions.
fn remove(objects: &mut Objects, request: &ObjectRequest) -> Result<(), ObjectError> {
    let address = request.command.object();
    match request.command {
        Command::Remove { .. } | Command::RemoveCollection { .. } => {
            objects.remove(&address);
        }
        Command::RemovePartition { partition, with_contents } => {
            let others = objects.range(address..).skip(1);
            let mut others = others.take_while(|(other, _)| other.partition == partition);
            if others.next().is_some() && !with_contents {
                return Err(ObjectError::NotEmpty { object: address });
            }
            objects.retain(|other, _| other.partition != partition);
        }
        _ => {}
    }
    Ok(())
}

fn write(data: &mut Vec<u8>, start: u64, bytes: &Data) {
    let (start, end) = (start as usize, start as usize + bytes.len());
    data.resize(data.len().max(end), 0);
    bytes.copy_to_slice(&mut data[start..end]);
}

fn create(
    objects: &mut Objects,
    created: &AtomicU64,
    address: ObjectAddress,
    object_type: ObjectType,
) -> Result<(), ObjectError> {
    if objects.contains_key(&address) {
        return Err(ObjectError::Exists { object: address });
    }
    let created = Timestamp::from_ms(created.fetch_add(1, Ordering::SeqCst));
    let object = Object { object_type, created, data: Vec::new(), attributes: BTreeMap::new() };
    objects.insert(address, object);
    Ok(())
}

fn exists(objects: &Objects, object: ObjectAddress) -> Result<&Object, ObjectError> {
    objects.get(&object).ok_or(ObjectError::NoSuchObject { object })
}

fn exists_mut(objects: &mut Objects, object: ObjectAddress) -> Result<&mut Object, ObjectError> {
    objects.get_mut(&object).ok_or(ObjectError::NoSuchObject { object })
}

impl ObjectStore for MemoryStore {
    fn perform(&self, request: ObjectRequest) -> Reply<'_, ObjectResult> {
        let is_guards = request.options.timestamps == object::TimestampControl::Bypass;
        self.performed.fetch_add(u64::from(!is_guards), Ordering::SeqCst);
        let held = self.held.lock().clone();
        match (held, request.command) {
            (Some(held), Command::Read { .. }) => Reply::new(async move {
                held.acquire().await.expect("the semaphore stays open").forget();
                self.run(&request)
            }),
            _ => Reply::done(self.run(&request)),
        }
    }
}

impl DriveBacking for MemoryStore {
    fn guard_facts(&self, object: ObjectAddress) -> Reply<'_, Result<GuardFacts, ObjectError>> {
        let objects = self.objects.lock();
        let facts = exists(&objects, object).map(|found| {
            let tag = |(id, _): &(&AttributeId, &Bytes)| id.number == POLICY_TAG;
            let tag = found.attributes.iter().find(tag);
            GuardFacts {
                object_type: found.object_type,
                created: found.created,
                policy_tag: tag.map_or(0, |(_, value)| {
                    value.as_ref().try_into().map_or(0, u32::from_be_bytes)
                }),
            }
        });
        Reply::done(facts)
    }

    fn record(&self, key: &str) -> Reply<'_, Result<Option<Bytes>, ObjectError>> {
        Reply::done(Ok(self.records.lock().get(key).cloned()))
    }

    fn put_record(&self, key: &str, value: Bytes) -> Reply<'_, Result<(), ObjectError>> {
        if self.fails_records.load(Ordering::SeqCst) {
            return Reply::done(Err(ObjectError::Storage("full".into())));
        }
        self.records.lock().insert(key.into(), value);
        Reply::done(Ok(()))
    }

    fn boot_epoch(&self) -> u16 {
        self.epoch.load(Ordering::SeqCst) as u16
    }
}
