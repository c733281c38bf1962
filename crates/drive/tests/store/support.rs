//! A drive on a volume in memory, and functions that perform single commands.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
};

use bytes::Bytes;
use drive::{Clock, DriveIdentity, DriveMutation, DriveOptions, DriveStore, Limits, OpenError};
use object::{
    Attribute, AttributeId, AttributeSelection, Command, ListRequest, ObjectAddress, ObjectError,
    ObjectReply, ObjectRequest, ObjectStore, ReplyData, Timestamp,
};
use volume::{Data, Geometry, MemVolume, Stack};

/// A clock that advances by a millisecond each time that it is read.
pub struct TestClock(AtomicU64);

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_ms(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

pub fn options() -> DriveOptions {
    DriveOptions {
        limits: Limits::default(),
        identity: DriveIdentity {
            system_id: *b"f181000e464f52454241",
            vendor: "FOREBAY".into(),
            product: "object drive".into(),
            revision: "1".into(),
            serial: "42".into(),
        },
        clock: Arc::new(TestClock(AtomicU64::new(1_700_000_000_000))),
    }
}

pub fn geometry(bytes: u64) -> Geometry {
    Geometry::with_blocks(bytes / 512)
}

pub fn memory(bytes: u64) -> Stack {
    Arc::new(MemVolume::new(geometry(bytes)))
}

pub fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

pub async fn open(volume: &Stack) -> DriveStore {
    DriveStore::open(volume.clone(), options()).await.expect("opened")
}

pub async fn open_with(volume: &Stack, mutation: DriveMutation) -> Result<DriveStore, OpenError> {
    DriveStore::open_with(volume.clone(), options(), mutation).await
}

/// Returns the bytes of a request tag that is long past.
pub fn tag_value(number: u8) -> Vec<u8> {
    u128::from(number).to_be_bytes().to_vec()
}

pub async fn perform(store: &DriveStore, command: Command) -> Result<ObjectReply, ObjectError> {
    store.perform(ObjectRequest::new(command)).await
}

pub async fn create_partition(store: &DriveStore) -> u64 {
    let reply = perform(store, Command::CreatePartition { requested: 0 }).await.expect("created");
    reply.current.object.partition
}

pub async fn create(store: &DriveStore, partition: u64) -> ObjectAddress {
    let command = Command::Create { partition, requested: 0, count: 1 };
    perform(store, command).await.expect("created").current.object
}

pub async fn write(
    store: &DriveStore,
    object: ObjectAddress,
    start: u64,
    bytes: Vec<u8>,
) -> Result<ObjectReply, ObjectError> {
    let command = Command::Write { object, length: bytes.len() as u64, start };
    store.perform(ObjectRequest::new(command).with_data(Data::from(bytes))).await
}

pub async fn append(
    store: &DriveStore,
    object: ObjectAddress,
    bytes: Vec<u8>,
) -> Result<ObjectReply, ObjectError> {
    let command = Command::Append { object, length: bytes.len() as u64 };
    store.perform(ObjectRequest::new(command).with_data(Data::from(bytes))).await
}

pub async fn read(
    store: &DriveStore,
    object: ObjectAddress,
    start: u64,
    length: u64,
) -> Result<Vec<u8>, ObjectError> {
    let reply = perform(store, Command::Read { object, length, start }).await?;
    let ReplyData::Bytes(data) = reply.data else { panic!("READ returns bytes") };
    Ok(data.into_bytes().to_vec())
}

pub async fn flush(store: &DriveStore) -> Result<(), ObjectError> {
    let scope = object::FlushScope::RangeOrEverything;
    perform(store, Command::FlushOsd { scope }).await.map(drop)
}

pub async fn set(
    store: &DriveStore,
    object: ObjectAddress,
    attribute: Attribute,
) -> Result<ObjectReply, ObjectError> {
    store.perform(ObjectRequest::new(Command::SetAttributes { object }).setting(attribute)).await
}

pub async fn set_length(
    store: &DriveStore,
    object: ObjectAddress,
    length: u64,
) -> Result<ObjectReply, ObjectError> {
    set(store, object, Attribute::new(1, 0x82, length.to_be_bytes().to_vec())).await
}

pub async fn get(
    store: &DriveStore,
    object: ObjectAddress,
    page: u32,
    number: u32,
) -> Result<Bytes, ObjectError> {
    let selection = AttributeSelection::One(AttributeId::new(page, number));
    let request = ObjectRequest::new(Command::GetAttributes { object }).getting(selection);
    Ok(store.perform(request).await?.attributes.remove(0).value)
}

pub async fn get_number(store: &DriveStore, object: ObjectAddress, page: u32, number: u32) -> u64 {
    let value = get(store, object, page, number).await.expect("there");
    u64::from_be_bytes(value.as_ref().try_into().expect("8 bytes"))
}

/// Lists all user objects of a partition, or all partitions if `partition` is zero, with `at_once` identifiers in each
/// answer.
pub async fn list(
    store: &DriveStore,
    partition: u64,
    at_once: u64,
) -> Result<Vec<u64>, ObjectError> {
    let mut ids = Vec::new();
    let mut list = ListRequest { allocation_length: 24 + 8 * at_once, ..ListRequest::default() };
    loop {
        let reply = perform(store, Command::List { partition, list }).await?;
        let ReplyData::List(found) = reply.data else { panic!("LIST returns a list") };
        ids.extend(found.objects.iter().map(|object| object.id));
        if found.continuation == 0 {
            return Ok(ids);
        }
        (list.first, list.identifier) = (found.continuation, found.identifier);
    }
}

/// Polls a future `polls` times. Returns its result if it is ready by then; otherwise drops it, as the abort of a
/// command does.
pub async fn polled<T>(future: impl Future<Output = T>, polls: usize) -> Option<T> {
    // Tokio lets a task wait that polls many times without giving way. One poll of a command on 200 members does
    // not reach the end: each member needs an answer of the thread that loads rows, and Tokio gives a task 128 at once.
    tokio::task::yield_now().await;
    let mut future = std::pin::pin!(future);
    let mut left = polls;
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending if left <= 1 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

/// Creates a collection and `count` user objects that are its members.
pub async fn linked_collection(
    store: &DriveStore,
    partition: u64,
    count: usize,
) -> (ObjectAddress, Vec<ObjectAddress>) {
    let command = Command::CreateCollection { partition, requested: 0 };
    let collection = perform(store, command).await.expect("created").current.object;
    let mut members = Vec::new();
    for _ in 0..count {
        let object = create(store, partition).await;
        let id = collection.object.to_be_bytes().to_vec();
        set(store, object, Attribute::new(4, 1, id)).await.expect("joined");
        members.push(object);
    }
    (collection, members)
}

pub async fn tracking_collection(
    store: &DriveStore,
    partition: u64,
    source: u64,
) -> Result<ObjectAddress, ObjectError> {
    let command = Command::CreateUserTrackingCollection { partition, requested: 0, source };
    Ok(perform(store, command).await?.current.object)
}

/// Lists the members of a collection, or the collections of a partition.
pub async fn list_collection(
    store: &DriveStore,
    collection: ObjectAddress,
) -> Result<Vec<u64>, ObjectError> {
    let mut ids = Vec::new();
    let mut list = ListRequest { allocation_length: 4096, ..ListRequest::default() };
    loop {
        let reply = perform(store, Command::ListCollection { collection, list }).await?;
        let ReplyData::List(found) = reply.data else { panic!("LIST COLLECTION returns a list") };
        ids.extend(found.objects.iter().map(|object| object.id));
        if found.continuation == 0 {
            return Ok(ids);
        }
        (list.first, list.identifier) = (found.continuation, found.identifier);
    }
}
