//! Tests of the unit with the store that keeps objects on a volume.

use volume::{Geometry, MemVolume, Stack};

use super::{linux::osd_test, *};
use crate::store::{DriveIdentity, DriveOptions, DriveStore, Limits};

fn volume() -> Stack {
    Arc::new(MemVolume::new(Geometry::with_blocks((256 << 20) / 512)))
}

async fn open(volume: &Stack, time: &TestTime, least: SecurityMethod) -> Bench<DriveStore> {
    let clock = Arc::new(DriveClock::new(time.clone()));
    let identity = DriveIdentity {
        system_id: SYSTEM,
        vendor: "FOREBAY".into(),
        product: "object drive".into(),
        revision: "1".into(),
        serial: "42".into(),
    };
    let options = DriveOptions {
        limits: Limits::default(),
        identity,
        clock: Arc::clone(&clock) as Arc<dyn crate::store::Clock>,
    };
    let store = DriveStore::open(volume.clone(), options).await.unwrap();
    Bench::over(Arc::new(store), clock, least).await
}

#[tokio::test]
async fn the_osd_test_of_the_linux_kernel_passes_on_a_volume() {
    let bench = open(&volume(), &TestTime::new(1_000_000), SecurityMethod::NoSec).await;
    osd_test(&bench).await;
    bench.unit.store().close().await.unwrap();
}

#[tokio::test]
async fn keys_and_data_survive_a_restart_and_used_nonces_do_not() {
    let (volume, time) = (volume(), TestTime::new(1_000_000));
    let least = SecurityMethod::CmdRsp;
    let bench = open(&volume, &time, least).await;
    let root_keys = bench.unit.security().keys();
    root_keys.set_key(bench.unit.store(), &set_key(KeyToSet::Root, 0xa0)).await.unwrap();
    let seed = set_key(KeyToSet::Root, 0xa0).seed;
    let root = master().derive(&seed);
    let create = Command::CreatePartition { requested: PARTITION };
    let partition = ObjectAddress::partition(PARTITION);
    let (kind, method) = (ObjectType::Partition, SecurityMethod::CmdRsp);
    let capability = Capability::for_object(partition, kind, Permissions::CREATE, method);
    let signed = bench.signed_with(bench.cdb(create), &capability, &root.authentication);
    data_in(bench.run(&signed.bytes, Vec::new()).await);
    bench.set_keys().await;
    let all = Permissions(u16::MAX);
    let create = Command::Create { partition: PARTITION, requested: OBJECT.object, count: 1 };
    let signed = bench.signed(bench.cdb(create), &bench.capability(all));
    data_in(bench.run(&signed.bytes, Vec::new()).await);
    let write = Command::Write { object: OBJECT, length: 5, start: 0 };
    let written = bench.signed(bench.cdb(write), &bench.capability(all));
    data_in(bench.run(&written.bytes, b"hello".to_vec()).await);
    bench.unit.store().close().await.unwrap();
    drop(bench);

    let bench = open(&volume, &time, least).await;
    let replayed = bench.run(&written.bytes, b"jello".to_vec()).await;
    assert_eq!(codes(&replayed), Some((0x24, 0x07, None)));
    let read = bench.cdb(Command::Read { object: OBJECT, length: 5, start: 0 });
    let signed = bench.signed(read, &bench.capability(all));
    assert_eq!(data_in(bench.run(&signed.bytes, Vec::new()).await), b"hello");

    // A new partition with the identifier of a removed one must inherit neither keys nor capabilities.
    let remove = Command::RemovePartition { partition: PARTITION, with_contents: true };
    let capability = Capability::for_object(partition, kind, all, method);
    let signed = bench.signed_with(bench.cdb(remove), &capability, &root.authentication);
    data_in(bench.run(&signed.bytes, Vec::new()).await);
    time.advance(1);
    let again = Command::CreatePartition { requested: PARTITION };
    let signed = bench.signed_with(bench.cdb(again), &capability, &root.authentication);
    data_in(bench.run(&signed.bytes, Vec::new()).await);
    let read = bench.cdb(Command::Read { object: OBJECT, length: 5, start: 0 });
    let signed = bench.signed(read, &bench.capability(all));
    assert_eq!(codes(&bench.run(&signed.bytes, Vec::new()).await), Some((0x24, 0x00, Some(184))));
    bench.unit.store().close().await.unwrap();
}

#[tokio::test]
async fn a_short_buffer_is_no_read_past_the_end() {
    let bench = open(&volume(), &TestTime::new(1_000_000), SecurityMethod::NoSec).await;
    let run = async |command: Command, data: &[u8], data_in_capacity: u32| {
        let task = bench.task(&bench.cdb(command).encode(), data.to_vec());
        bench.unit.execute(Task { data_in_capacity, ..task }).await
    };
    let create = Command::CreatePartition { requested: PARTITION };
    data_in(run(create, &[], 0).await);
    let create = Command::Create { partition: PARTITION, requested: OBJECT.object, count: 1 };
    data_in(run(create, &[], 0).await);
    data_in(run(Command::Write { object: OBJECT, length: 5, start: 0 }, b"hello", 0).await);

    let read = |length| Command::Read { object: OBJECT, length, start: 0 };
    assert_eq!(data_in(run(read(5), &[], 3).await), b"hel");
    assert_eq!(data_in(run(read(5), &[], 5).await), b"hello");
    for (capacity, found) in [(6, &b"hello"[..]), (3, b"hel")] {
        let completion = run(read(6), &[], capacity).await;
        assert_eq!(codes(&completion), Some((0x3b, 0x17, None)));
        assert_eq!(completion.data_in.into_bytes(), found);
    }
    bench.unit.store().close().await.unwrap();
}

#[tokio::test]
async fn every_reported_service_action_is_known_and_no_other() {
    let bench = open(&volume(), &TestTime::new(1_000_000), SecurityMethod::NoSec).await;
    let all = [0xa3, 0x0c, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    let all = data_in(bench.run(&all, Vec::new()).await);
    let reported: Vec<u16> = all[4..]
        .chunks_exact(8)
        .filter(|entry| entry[0] == 0x7f)
        .map(|entry| u16::from_be_bytes([entry[2], entry[3]]))
        .collect();
    for action in osd::ServiceAction::ALL {
        let mut cdb = OsdCdb::new(Command::Remove { object: OBJECT }).encode();
        cdb[8..10].copy_from_slice(&(*action as u16).to_be_bytes());
        let is_unknown = codes(&bench.run(&cdb, Vec::new()).await) == Some((0x20, 0x00, None));
        assert_eq!(is_unknown, !reported.contains(&(*action as u16)), "{}", action.name());
    }
    bench.unit.store().close().await.unwrap();
}

#[tokio::test]
async fn a_partition_is_compared_with_its_snapshot_and_restored_over_the_wire() {
    use object::{Continuation, MapRun, MapRunKind};
    use osd::{ContinuationSegment, ServiceAction};
    let bench = open(&volume(), &TestTime::new(1_000_000), SecurityMethod::NoSec).await;
    let run = async |command: Command, data: &[u8]| {
        bench.run(&bench.cdb(command).encode(), data.to_vec()).await
    };
    data_in(run(Command::CreatePartition { requested: PARTITION }, &[]).await);
    let create = Command::Create { partition: PARTITION, requested: OBJECT.object, count: 1 };
    data_in(run(create, &[]).await);
    let write = Command::Write { object: OBJECT, length: 5, start: 0 };
    data_in(run(write, b"hello").await);
    let (snapshot, method) = (PARTITION + 1, object::CopyMethod(0));
    let command = Command::CreateSnapshot { source: PARTITION, requested: snapshot, method };
    data_in(run(command, &[]).await);
    data_in(run(write, b"jello").await);

    let allocation_length = 4096;
    let compare = Command::ReadMapsAndCompare { object: OBJECT, allocation_length, start: 0 };
    let mut cdb = bench.cdb(compare);
    let other = ObjectAddress::new(snapshot, OBJECT.object);
    let segment = ContinuationSegment {
        service_action: ServiceAction::ReadMapsAndCompare,
        integrity: osd::security::IntegrityCheckValue::ZERO,
        continuation: Continuation::UserObject(other),
    };
    cdb.continuation_length = segment.encode().len() as u32;
    let map = data_in(bench.run(&cdb.encode(), segment.encode()).await);
    let written = MapRun { kind: MapRunKind::Written, start: 0, length: 5 };
    assert_eq!(osd::parse_map(&map), Some(vec![written]));

    let restore = Command::RestorePartitionFromSnapshot { partition: PARTITION, snapshot };
    data_in(run(restore, &[]).await);
    let read = |object| Command::Read { object, length: 5, start: 0 };
    assert_eq!(data_in(run(read(OBJECT), &[]).await), b"hello");
    data_in(run(write, b"jello").await);
    data_in(run(Command::RefreshSnapshotOrClone { copy: snapshot }, &[]).await);
    assert_eq!(data_in(run(read(other), &[]).await), b"jello");
    let wrong = run(Command::RefreshSnapshotOrClone { copy: PARTITION }, &[]).await;
    assert_eq!(codes(&wrong), Some((0x24, 0x00, Some(16))));
    bench.unit.store().close().await.unwrap();
}

#[tokio::test]
async fn the_request_tag_of_set_key_is_kept_with_its_result() {
    use object::{Attribute, AttributeId, AttributeSelection, ObjectRequest, ObjectStore as _};
    let bench = open(&volume(), &TestTime::new(1_000_000), SecurityMethod::CmdRsp).await;
    let tag = Attribute::new(0xf001_0000, 1, 9_u128.to_be_bytes().to_vec());
    let set = osd::list::encode_attributes(std::slice::from_ref(&tag));
    let mut cdb = bench.cdb(Command::SetKey(set_key(KeyToSet::Root, 0xa0)));
    let in_buffer = osd::ListInBuffer { length: set.len() as u32, offset: 0 };
    cdb.attributes =
        osd::AttributeParameters::Lists { get: None, retrieved: None, set: Some(in_buffer) };
    let permissions = Permissions::DEVICE_MANAGEMENT | Permissions::POLICY_SECURITY;
    let (object, kind, method) = (ObjectAddress::ROOT, ObjectType::Root, SecurityMethod::CmdRsp);
    let capability = Capability::for_object(object, kind, permissions, method);
    let signed = bench.signed_with(cdb, &capability, &master().authentication);
    data_in(bench.run(&signed.bytes, set).await);
    assert_eq!(bench.unit.security().keys().root_identifier(), Some([7; 7]));
    let result = AttributeSelection::One(AttributeId::new(0xf001_0000, 2));
    let request = ObjectRequest::new(Command::GetAttributes { object });
    let reply = bench.unit.store().perform(request.setting(tag).getting(result)).await.unwrap();
    assert!(!reply.attributes[0].value.is_empty());
    bench.unit.store().close().await.unwrap();
}

#[tokio::test]
async fn frozen_audits_and_policy_tags_are_kept_by_the_store() {
    use object::{Attribute, ObjectRequest, ObjectStore as _};
    let (volume, time) = (volume(), TestTime::new(1_000_000));
    let bench = open(&volume, &time, SecurityMethod::CapKey).await;
    let store = bench.unit.store();
    let perform = async |command, attribute: Option<Attribute>| {
        let mut request = ObjectRequest::new(command);
        request.set.extend(attribute);
        store.perform(request).await.unwrap();
    };
    perform(Command::CreatePartition { requested: PARTITION }, None).await;
    let create = Command::Create { partition: PARTITION, requested: OBJECT.object, count: 1 };
    perform(create, None).await;
    bench.set_keys().await;
    let read = |capability: Capability| {
        let cdb = bench.cdb(Command::Read { object: OBJECT, length: 0, start: 0 });
        bench.signed(cdb, &capability).bytes
    };
    let tagged = Capability { policy_tag: 7, ..bench.capability(Permissions::READ) };
    let refused = bench.run(&read(tagged), Vec::new()).await;
    assert_eq!(codes(&refused), Some((0x24, 0x00, Some(140))));
    let tag = Attribute::new(5, 0x4000_0001, vec![0, 0, 0, 7]);
    perform(Command::SetAttributes { object: OBJECT }, Some(tag)).await;
    data_in(bench.run(&read(tagged), Vec::new()).await);
    let object = ObjectAddress::partition(PARTITION);
    let audit = Attribute::new(crate::security::FROZEN_AUDITS, 1, vec![3; 20]);
    perform(Command::SetAttributes { object }, Some(audit)).await;
    bench.unit.security().keys().forget(PARTITION);
    let audited = Capability { audit: [3; 20], ..tagged };
    assert_eq!(codes(&bench.run(&read(audited), Vec::new()).await), Some((0x24, 0x04, None)));
    data_in(bench.run(&read(tagged), Vec::new()).await);
    store.close().await.unwrap();
}
