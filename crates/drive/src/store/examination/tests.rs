//! Tests that examinations find damage which was made on purpose in rows or data of a drive.

mod hostile;

use std::sync::Arc;

use bytes::Bytes;
use object::{
    Attribute, AttributeId, Command, ObjectAddress, ObjectReply, ObjectRequest, ObjectStore,
    Timestamp,
};
use redb::ReadableTable;
use volume::{Data, Durability, Extent, Geometry, Lba, MemVolume, Stack};

use super::{DriveExamination, DriveFindingKind, examine_drive, on_thread};
use crate::store::{
    Clock, DriveIdentity, DriveOptions, DriveStore, Limits, OpenError,
    build::BuildRow,
    key::{self, Key},
    object_row::ObjectRow,
    tables::ROWS,
    work_row::WorkRow,
};

struct StoppedClock;

impl Clock for StoppedClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_ms(1_700_000_000_000)
    }
}

fn options() -> DriveOptions {
    DriveOptions {
        limits: Limits::default(),
        identity: DriveIdentity {
            system_id: [7; 20],
            vendor: "FOREBAY".into(),
            product: "object drive".into(),
            revision: "1".into(),
            serial: "42".into(),
        },
        clock: Arc::new(StoppedClock),
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

async fn perform(store: &DriveStore, command: Command) -> ObjectReply {
    store.perform(ObjectRequest::new(command)).await.expect("performed")
}

async fn write(store: &DriveStore, object: ObjectAddress, data: Vec<u8>) {
    let command = Command::Write { object, length: data.len() as u64, start: 0 };
    let request = ObjectRequest::new(command).with_data(Data::from(data));
    store.perform(request).await.expect("written");
}

async fn set(store: &DriveStore, object: ObjectAddress, attribute: Attribute) {
    let request = ObjectRequest::new(Command::SetAttributes { object }).setting(attribute);
    store.perform(request).await.expect("set");
}

/// A closed drive with two objects, one of them a member of a collection, with a snapshot of all that, and with a
/// tracking collection.
struct Sample {
    volume: Stack,
    partition: u64,
    first: ObjectAddress,
    collection: ObjectAddress,
    tracking: ObjectAddress,
}

const PARTITION: u64 = 0x1_0000;

async fn sample() -> Sample {
    let volume: Stack = Arc::new(MemVolume::new(Geometry::with_blocks((16 << 20) / 512)));
    let store = DriveStore::open(Arc::clone(&volume), options()).await.expect("opened");
    perform(&store, Command::CreatePartition { requested: PARTITION }).await;
    let partition = PARTITION;
    let create = Command::CreateCollection { partition, requested: 0 };
    let collection = perform(&store, create).await.current.object;
    let tag = Attribute::new(0xf001_0000, 1, 9_u128.to_be_bytes().to_vec());
    let create = Command::Create { partition, requested: 0, count: 2 };
    let created = store.perform(ObjectRequest::new(create).setting(tag)).await.expect("created");
    let first = created.current.object;
    let second = ObjectAddress::new(partition, first.object + 1);
    write(&store, first, vec![1; 100_000]).await;
    write(&store, second, vec![2; 5_000]).await;
    set(&store, first, Attribute::new(0x1_0000, 1, b"name".to_vec())).await;
    let membership = collection.object.to_be_bytes().to_vec();
    set(&store, first, Attribute::new(4, 1, membership)).await;
    let method = object::CopyMethod(0);
    perform(&store, Command::CreateSnapshot { source: partition, requested: 0, method }).await;
    let source = collection.object;
    let create = Command::CreateUserTrackingCollection { partition, requested: 0, source };
    let tracking = perform(&store, create).await.current.object;
    store.close().await.expect("closed");
    Sample { volume, partition, first, collection, tracking }
}

async fn examine(volume: &Stack) -> Result<Option<DriveExamination>, OpenError> {
    examine_drive(Arc::clone(volume), options(), Box::new(|_, _| {})).await
}

async fn found(volume: &Stack) -> Vec<DriveFindingKind> {
    let report = examine(volume).await.expect("examined").expect("a drive");
    println!("{report:?}");
    assert_eq!(report.is_sound(), report.findings.is_empty());
    report.findings.iter().map(|finding| finding.kind).collect()
}

async fn all_bytes(volume: &Stack) -> Bytes {
    let blocks = volume.geometry().blocks as u32;
    volume.read(Extent { lba: Lba(0), blocks }).await.expect("read").into_bytes()
}

/// Replaces a row of the closed drive by the result of `change`; `None` removes the row.
async fn change_row(
    volume: &Stack,
    key: Key,
    change: impl FnOnce(Option<Vec<u8>>) -> Option<Vec<u8>> + Send + 'static,
) {
    on_thread(volume, move |database, _, _| {
        let write = database.begin_write().expect("begun");
        {
            let mut rows = write.open_table(ROWS).expect("opened");
            let old = rows.get(&key[..]).expect("read").map(|row| row.value().to_vec());
            match change(old) {
                Some(row) => drop(rows.insert(&key[..], &row[..]).expect("inserted")),
                None => drop(rows.remove(&key[..]).expect("removed")),
            }
        }
        write.commit().expect("committed");
        Ok(())
    })
    .await
    .expect("changed");
}

/// Returns a change that flips one bit of byte `at` of a row.
fn flip(at: usize) -> impl FnOnce(Option<Vec<u8>>) -> Option<Vec<u8>> + Send + 'static {
    move |row| {
        let mut row = row.expect("the row is there");
        row[at] ^= 1;
        Some(row)
    }
}

fn remove(_: Option<Vec<u8>>) -> Option<Vec<u8>> {
    None
}

#[test]
fn a_sound_drive_has_no_findings_and_not_one_byte_of_its_volume_changes() {
    run(async {
        let sample = sample().await;
        let before = all_bytes(&sample.volume).await;
        let report = examine(&sample.volume).await.expect("examined").expect("a drive");
        assert!(report.is_sound() && report.notes.is_empty(), "{report:?}");
        assert_eq!((report.partitions, report.objects, report.unknown_rows), (2, 7, 0));
        assert_eq!(report.bytes, 27 * 4096, "shared blocks are read once");
        assert!(all_bytes(&sample.volume).await == before);
    });
}

#[test]
fn a_drive_that_was_not_closed_is_examined_as_its_next_start_would_find_it() {
    run(async {
        let sample = sample().await;
        let store = DriveStore::open(Arc::clone(&sample.volume), options()).await.expect("opened");
        write(&store, sample.first, vec![3; 50_000]).await;
        let scope = object::FlushScope::RangeOrEverything;
        perform(&store, Command::FlushOsd { scope }).await;
        drop(store);
        let before = all_bytes(&sample.volume).await;
        let report = examine(&sample.volume).await.expect("examined").expect("a drive");
        assert!(report.is_sound(), "{report:?}");
        assert_eq!(report.notes, ["the drive was not closed"]);
        assert!(all_bytes(&sample.volume).await == before);
    });
}

#[test]
fn blocks_that_a_removed_object_has_left_over_are_not_leaked() {
    run(async {
        let sample = sample().await;
        let store = DriveStore::open(Arc::clone(&sample.volume), options()).await.expect("opened");
        let created = Command::Create { partition: sample.partition, requested: 0, count: 1 };
        let object = perform(&store, created).await.current.object;
        for chunk in 0..40 {
            let start = chunk << 20;
            let command = Command::Write { object, length: 4096, start };
            let request = ObjectRequest::new(command).with_data(Data::from(vec![5; 4096]));
            store.perform(request).await.expect("written");
        }
        perform(&store, Command::Remove { object }).await;
        let scope = object::FlushScope::RangeOrEverything;
        perform(&store, Command::FlushOsd { scope }).await;
        drop(store);
        let report = examine(&sample.volume).await.expect("examined").expect("a drive");
        assert!(report.is_sound(), "{report:?}");
    });
}

#[test]
fn a_volume_of_zeros_is_no_drive_yet() {
    run(async {
        let blank: Stack = Arc::new(MemVolume::new(Geometry::with_blocks((16 << 20) / 512)));
        assert_eq!(examine(&blank).await.expect("examined"), None);
        assert_eq!(examine(&blank).await.expect("examined"), None, "it is still blank");
    });
}

#[test]
fn damaged_data_is_found_with_its_object_and_place() {
    run(async {
        let sample = sample().await;
        let all = all_bytes(&sample.volume).await;
        let at =
            all.windows(4096).step_by(4096).position(|block| block == [1; 4096]).expect("data");
        let block: Data = vec![8; 512].into();
        let lba = Lba(at as u64 * 8 + 3);
        sample.volume.write(lba, block, Durability::Stable).await.expect("written");
        let report = examine(&sample.volume).await.expect("examined").expect("a drive");
        assert_eq!(report.found, 1, "{report:?}");
        assert_eq!(report.findings[0].kind, DriveFindingKind::Data);
        let text = &report.findings[0].text;
        assert!(text.starts_with(&format!("{}: the block at byte ", sample.first)), "{text}");
    });
}

type Change = Box<dyn FnOnce(Option<Vec<u8>>) -> Option<Vec<u8>> + Send>;

/// Damages one row of a sample drive, and checks that the examination finds damage of this kind.
fn expect(what: &str, key: Key, kind: DriveFindingKind, change: Change) {
    run(async {
        let sample = sample().await;
        change_row(&sample.volume, key, change).await;
        let found = found(&sample.volume).await;
        assert!(found.contains(&kind), "{what}: {found:?}");
    });
}

/// Returns a change that sets or clears bits in byte `at` of a group's bitmap, and gives the bitmap its full length.
fn bits(at: usize, set: u8, clear: u8) -> Change {
    Box::new(move |row| {
        let mut row = row.expect("the row is there");
        row.resize(4096, 0);
        row[at] = row[at] & !clear | set;
        Some(row)
    })
}

fn add(row: &'static [u8]) -> Change {
    Box::new(|_| Some(row.to_vec()))
}

#[test]
fn contradictions_between_objects_and_free_space_are_found() {
    use DriveFindingKind as Kind;
    let (group, chunk, shared) = (key::group(0), key::chunk(2, 0), key::shared(0));
    expect("a leaked block", group.clone(), Kind::Leaked, bits(300, 1, 0));
    expect("used behind the last block", group.clone(), Kind::Leaked, bits(4095, 1, 0));
    expect("free", group, Kind::Free, bits(0, 0, 1));
    expect("no reference count", shared.clone(), Kind::References, Box::new(remove));
    expect("a wrong reference count", shared, Kind::References, Box::new(flip(1)));
    expect("an extra reference count", key::shared(500), Kind::References, add(&[1, 0, 0, 0]));
    expect("a block behind the last one", chunk.clone(), Kind::References, Box::new(flip(6)));
    expect("a group behind the last one", key::group(9), Kind::Tables, add(&[0; 8]));
    let push = |row: Option<Vec<u8>>| row.map(|row| [&row[..], &[1]].concat());
    expect("a wrong summary", key::summary(0), Kind::Counter, Box::new(flip(0)));
    expect("half a number", key::summary(0), Kind::Tables, add(&[27, 0, 0]));
    expect("no summary", key::summary(0), Kind::Counter, Box::new(remove));
    expect("groups behind the last one", key::summary(7), Kind::Tables, add(&[0, 0]));
    expect("half an entry", chunk, Kind::Tables, Box::new(push));
    expect("a chunk of nothing", key::chunk(0x99_9999, 0), Kind::Object, add(&[0; 12]));
}

#[test]
fn contradictions_between_rows_of_objects_are_found() {
    use DriveFindingKind as Kind;
    let Sample { partition, first, collection, .. } = run(sample());
    let (object, parent) = (key::object(first), key::object(ObjectAddress::partition(partition)));
    let name = key::attribute(first, AttributeId::new(0x1_0000, 1));
    let membership = key::attribute(first, AttributeId::new(4, 1));
    let nothing = key::attribute(ObjectAddress::new(partition, 0x77), AttributeId::new(1, 9));
    let member = key::member(collection, first.object);
    expect("used blocks", object.clone(), Kind::Object, Box::new(flip(42)));
    expect("a shorter object", object.clone(), Kind::Object, Box::new(flip(36)));
    expect("a row of another version", object, Kind::Object, Box::new(flip(0)));
    expect("objects of a partition", parent.clone(), Kind::Object, Box::new(flip(74)));
    expect("a lost partition", parent, Kind::Object, Box::new(remove));
    expect("counters", key::counters(), Kind::Counter, Box::new(flip(40)));
    let cut = |row: Option<Vec<u8>>| row.map(|row| row[..9].to_vec());
    expect("short counters", key::counters(), Kind::Tables, Box::new(cut));
    expect("a lost attribute", name, Kind::Attribute, Box::new(remove));
    expect("an attribute of nothing", nothing, Kind::Attribute, add(b"x"));
    expect("a lost membership", membership, Kind::Collection, Box::new(remove));
    expect("a lost member", member, Kind::Collection, Box::new(remove));
    let listed = key::collection(partition, 0x99_9999);
    expect("a listed collection", listed, Kind::Collection, add(b""));
    expect("a request tag", key::tag(&9_u128.to_be_bytes()), Kind::Tables, Box::new(remove));
}

/// Returns the row of a copy from one partition, which replaces another one, or none if that is zero.
fn build_row(source: u64, replaces: u64, stage: u64) -> Vec<u8> {
    let row = ObjectRow::new(object::ObjectType::Partition, Timestamp::from_ms(1));
    let build = BuildRow { source, newest_content: 9, used: 0, replaces, stage, row };
    build.encode().to_vec()
}

#[test]
fn rows_of_work_that_cannot_be_finished_are_found() {
    use DriveFindingKind::Tables;
    let (partition, other) = (PARTITION, PARTITION + 99);
    let work = key::work(0x99_9999);
    expect("a damaged work row", work.clone(), Tables, add(&[9; 40]));
    let long = Key::from_iter(work.iter().chain(&[0]).copied());
    let every = WorkRow::of_all().encode().to_vec();
    expect("a work row with a long key", long, Tables, Box::new(|_| Some(every)));
    expect("a damaged copy", key::build(other), Tables, add(&[0; 100]));
    for (copy, replaces, stage) in [(partition, 0, 0), (other, other, 1), (other, other + 1, 1)] {
        let row = build_row(partition, replaces, stage);
        expect("an impossible copy", key::build(copy), Tables, Box::new(|_| Some(row)));
    }
    expect("progress of no copy", key::progress(other, 7), Tables, add(&[0; 24]));
    let removed = key::trash(other);
    let long = Key::from_iter(removed.iter().chain(&[0]).copied());
    expect("a removal with a long key", long, Tables, add(b""));
}

#[test]
fn a_damaged_work_row_hides_no_other_damage_and_its_followers_are_not_leaked() {
    run(async {
        let sample = sample().await;
        let store = DriveStore::open(Arc::clone(&sample.volume), options()).await.expect("opened");
        let created = Command::Create { partition: sample.partition, requested: 0, count: 1 };
        let object = perform(&store, created).await.current.object;
        write(&store, object, vec![5; 100_000]).await;
        store.close().await.expect("closed");
        // The object was removed, and a work row has its content.
        let address = key::object(object);
        let (sender, content) = std::sync::mpsc::channel();
        change_row(&sample.volume, address, move |row| {
            let row = ObjectRow::decode(&row.expect("the row is there")).expect("a row");
            sender.send(row.content).expect("received");
            None
        })
        .await;
        let work = WorkRow::of_all().encode().to_vec();
        let content = content.recv().expect("sent");
        change_row(&sample.volume, key::work(content), |_| Some(work)).await;
        change_row(&sample.volume, key::work(0), |_| Some(vec![9; 40])).await;
        change_row(&sample.volume, key::collection(sample.partition, 0x99_9999), |_| Some(vec![]))
            .await;
        let found = found(&sample.volume).await;
        assert!(found.contains(&DriveFindingKind::Collection), "{found:?}");
        assert!(!found.contains(&DriveFindingKind::Leaked), "{found:?}");
    });
}

#[test]
fn contradictions_between_rows_of_tracked_commands_are_found() {
    use DriveFindingKind::Collection;
    let Sample { partition, first, tracking, .. } = run(sample());
    let cut = |row: Option<Vec<u8>>| row.map(|row| row[..9].to_vec());
    let member = key::member(tracking, first.object);
    expect("a short member", member, Collection, add(&[1]));
    expect("a short record", key::tracking(tracking), Collection, Box::new(cut));
    let nothing = key::tracking(ObjectAddress::new(partition, 0x99_9999));
    expect("a record of nothing", nothing, Collection, add(&[0; 46]));
    expect("a record of an object", key::tracking(first), Collection, add(&[0; 46]));
    let nothing = key::pending(ObjectAddress::new(partition, 0x99_9999));
    expect("a pending command of nothing", nothing, Collection, add(&[2]));
}
