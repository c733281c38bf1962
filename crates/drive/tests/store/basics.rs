//! Each test performs one kind of command on a drive in memory.

use drive::{DriveStore, OpenError};
use object::{
    Attribute, AttributeSelection, Command, Continuation, MapRun, MapRunKind, MapType,
    ObjectAddress, ObjectError, ObjectRequest, ObjectStore, ObjectType, Query, QueryCriterion,
    QueryMatch, RefusedField, ReplyData, ScatterEntry,
};
use volume::{Data, Durability, Extent, Lba};

use crate::support::*;

const MIB: u64 = 1 << 20;

#[test]
fn foreign_short_and_newer_volumes_are_refused() {
    run(async {
        let foreign = memory(16 * MIB);
        foreign.write(Lba(0), vec![1; 512].into(), Durability::Volatile).await.unwrap();
        let opened = DriveStore::open(foreign, options()).await;
        assert!(matches!(opened.err(), Some(OpenError::Foreign)));
        let short = DriveStore::open(memory(MIB), options()).await;
        assert!(matches!(short.err(), Some(OpenError::TooSmall { .. })));
    });
}

#[test]
fn objects_attributes_and_records_are_there_after_a_restart() {
    run(async {
        let volume = memory(64 * MIB);
        let store = open(&volume).await;
        let epoch = store.boot_epoch();
        let partition = create_partition(&store).await;
        assert_eq!(partition, 0x1_0000);
        let object = create(&store, partition).await;
        write(&store, object, 4090, b"hello world".to_vec()).await.unwrap();
        set(&store, object, Attribute::new(0x1_0000, 1, b"inode".to_vec())).await.unwrap();
        set(&store, object, Attribute::new(1, 9, b"name".to_vec())).await.unwrap();
        store.put_record("clock", "12".into()).await.unwrap();
        store.close().await.unwrap();
        drop(store);
        let store = open(&volume).await;
        assert_eq!(store.boot_epoch(), epoch + 1);
        assert_eq!(read(&store, object, 4088, 100).await.unwrap(), b"\0\0hello world");
        assert_eq!(get(&store, object, 0x1_0000, 1).await.unwrap(), "inode");
        assert_eq!(get(&store, object, 1, 9).await.unwrap(), "name");
        assert_eq!(store.record("clock").await.unwrap().unwrap(), "12");
        assert_eq!(list(&store, partition, 1).await.unwrap(), [object.object]);
        let next = create(&store, partition).await;
        assert!(next.object > object.object);
    });
}

#[test]
fn a_read_behind_the_end_says_how_many_bytes_there_are() {
    run(async {
        let store = open(&memory(64 * MIB)).await;
        let partition = create_partition(&store).await;
        let object = create(&store, partition).await;
        append(&store, object, b"abc".to_vec()).await.unwrap();
        let reply = append(&store, object, b"def".to_vec()).await.unwrap();
        assert_eq!(reply.current.append_start, 3);
        let reply = perform(&store, Command::Read { object, length: 10, start: 2 }).await.unwrap();
        assert_eq!(reply.read_past_end, Some(4));
        let reply = perform(&store, Command::Read { object, length: 4, start: 2 }).await.unwrap();
        assert_eq!(reply.read_past_end, None);
    });
}

#[test]
fn punch_and_clear_work_on_bytes_and_on_blocks() {
    run(async {
        let store = open(&memory(64 * MIB)).await;
        let partition = create_partition(&store).await;
        let object = create(&store, partition).await;
        append(&store, object, b"hello world".to_vec()).await.unwrap();
        perform(&store, Command::Punch { object, length: 5, start: 0 }).await.unwrap();
        assert_eq!(read(&store, object, 0, 100).await.unwrap(), b" world");
        perform(&store, Command::Clear { object, length: 3, start: 0 }).await.unwrap();
        assert_eq!(read(&store, object, 0, 100).await.unwrap(), b"\0\0\0rld");
        let bytes: Vec<u8> = (0..3 * MIB).map(|n| (n / 4096 % 251) as u8).collect();
        write(&store, object, 0, bytes.clone()).await.unwrap();
        let used = get_number(&store, object, 1, 0x81).await;
        assert_eq!(used, 3 * MIB);
        perform(&store, Command::Punch { object, length: MIB, start: MIB }).await.unwrap();
        assert_eq!(get_number(&store, object, 1, 0x81).await, 2 * MIB);
        let left = read(&store, object, 0, 3 * MIB).await.unwrap();
        assert!(left[..MIB as usize] == bytes[..MIB as usize]);
        assert!(left[MIB as usize..] == bytes[2 * MIB as usize..]);
        perform(&store, Command::Clear { object, length: MIB, start: 4096 }).await.unwrap();
        assert_eq!(get_number(&store, object, 1, 0x81).await, MIB);
        let map = Command::ReadMap {
            object,
            allocation_length: 1 << 20,
            start: 0,
            map_type: MapType::All,
        };
        let ReplyData::Map(runs) = perform(&store, map).await.unwrap().data else {
            panic!("a map")
        };
        let run = |kind, start, length| MapRun { kind, start, length };
        let expected = [
            run(MapRunKind::Written, 0, 4096),
            run(MapRunKind::Hole, 4096, MIB),
            run(MapRunKind::Written, 4096 + MIB, MIB - 4096),
        ];
        assert_eq!(runs, expected);
    });
}

#[test]
fn scatter_and_gather_move_the_ranges_in_their_order() {
    run(async {
        let store = open(&memory(64 * MIB)).await;
        let partition = create_partition(&store).await;
        let object = create(&store, partition).await;
        let entries = [(10_000, 5000), (0, 3), (12_000, 10)];
        let entries: Vec<_> =
            entries.iter().map(|&(start, length)| ScatterEntry { start, length }).collect();
        let bytes: Vec<u8> = (0..5013).map(|n| n as u8 | 1).collect();
        let command = Command::Write { object, length: 5013, start: 0 };
        let mut request = ObjectRequest::new(command).with_data(Data::from(bytes.clone()));
        request.continuation = Continuation::ScatterGather(entries.clone());
        store.perform(request).await.unwrap();
        let all = read(&store, object, 0, 20_000).await.unwrap();
        assert_eq!(
            (all.len(), &all[..4]),
            (15_000, &[bytes[5000], bytes[5001], bytes[5002], 0][..])
        );
        assert_eq!(all[12_000..12_010], bytes[5003..]);
        assert_eq!(all[10_000..12_000], bytes[..2000]);
        let mut request = ObjectRequest::new(Command::Read { object, length: 5013, start: 0 });
        request.continuation = Continuation::ScatterGather(entries);
        let ReplyData::Bytes(data) = store.perform(request).await.unwrap().data else { panic!() };
        let data = data.into_bytes();
        assert_eq!((&data[5000..5003], &data[5003..]), (&bytes[5000..5003], &bytes[5003..]));
    });
}

#[test]
fn quotas_and_a_full_drive_refuse_before_anything_changes_and_removal_still_works() {
    run(async {
        let store = open(&memory(16 * MIB)).await;
        let partition = create_partition(&store).await;
        let object = create(&store, partition).await;
        let quota = Attribute::new(0x3000_0002, 0x1_0001, (8 * 4096_u64).to_be_bytes().to_vec());
        set(&store, ObjectAddress::partition(partition), quota).await.unwrap();
        write(&store, object, 0, vec![1; 8 * 4096]).await.unwrap();
        let full = write(&store, object, 8 * 4096, vec![1; 4096]).await;
        assert!(matches!(full, Err(ObjectError::Quota { .. })), "{full:?}");
        write(&store, object, 0, vec![2; 8 * 4096]).await.unwrap();
        let other = create_partition(&store).await;
        let big = create(&store, other).await;
        let mut written = 0;
        let error = loop {
            match append(&store, big, vec![3; MIB as usize]).await {
                Ok(_) => written += MIB,
                Err(error) => break error,
            }
        };
        assert!(
            matches!(error, ObjectError::Quota { .. }) && written >= 9 * MIB,
            "{error} {written}"
        );
        assert_eq!(get_number(&store, big, 1, 0x82).await, written);
        perform(&store, Command::Remove { object: big }).await.unwrap();
        let again = create(&store, other).await;
        append(&store, again, vec![4; MIB as usize]).await.unwrap();
    });
}

#[test]
fn a_damaged_block_fails_for_its_range_only() {
    run(async {
        let volume = memory(16 * MIB);
        let store = open(&volume).await;
        let partition = create_partition(&store).await;
        let object = create(&store, partition).await;
        write(&store, object, 0, vec![7; 3 * 4096]).await.unwrap();
        flush(&store).await.unwrap();
        // Find the object's second block on the volume, and damage it.
        let blocks = volume.geometry().blocks / 8;
        let mut found = Vec::new();
        for block in 0..blocks {
            let extent = Extent { lba: Lba(block * 8), blocks: 8 };
            let bytes = volume.read(extent).await.unwrap().into_bytes();
            if bytes.iter().all(|byte| *byte == 7) {
                found.push(block);
            }
        }
        assert_eq!(found.len(), 3);
        volume.write(Lba(found[1] * 8), vec![8; 512].into(), Durability::Volatile).await.unwrap();
        let damaged = read(&store, object, 0, 3 * 4096).await;
        assert_eq!(damaged, Err(ObjectError::Damaged { object, range: 4096..8192 }));
        assert_eq!(read(&store, object, 8192, 4096).await.unwrap(), vec![7; 4096]);
        let map = Command::ReadMap {
            object,
            allocation_length: 4096,
            start: 0,
            map_type: MapType::DamagedData,
        };
        let ReplyData::Map(runs) = perform(&store, map).await.unwrap().data else {
            panic!("a map")
        };
        assert_eq!(runs, [MapRun { kind: MapRunKind::DamagedData, start: 4096, length: 4096 }]);
        let report = store.scrub().await.unwrap();
        assert_eq!(report.damaged, [(object, 4096..8192)]);
        assert_eq!((report.objects, report.bytes), (1, 3 * 4096));
        let checked = perform(&store, Command::ObjectStructureCheck { object }).await;
        assert!(matches!(checked, Err(ObjectError::Damaged { .. })));
        write(&store, object, 4096, vec![9; 4096]).await.unwrap();
        assert_eq!(store.scrub().await.unwrap().damaged, []);
        assert_eq!(read(&store, object, 4096, 1).await.unwrap(), [9]);
    });
}

#[test]
fn collections_have_members_that_queries_find() {
    run(async {
        let store = open(&memory(64 * MIB)).await;
        let partition = create_partition(&store).await;
        let reply =
            perform(&store, Command::CreateCollection { partition, requested: 0 }).await.unwrap();
        let collection = reply.current.object;
        assert_eq!(reply.current.object_type, Some(ObjectType::Collection));
        let mut objects = Vec::new();
        for n in 0..5_u8 {
            let object = create(&store, partition).await;
            let id = collection.object.to_be_bytes().to_vec();
            set(&store, object, Attribute::new(4, 1, id)).await.unwrap();
            set(&store, object, Attribute::new(0x1_0000, 1, vec![n + 1])).await.unwrap();
            objects.push(object);
        }
        let criterion = QueryCriterion {
            id: object::AttributeId::new(0x1_0000, 1),
            minimum: vec![2].into(),
            maximum: vec![3].into(),
        };
        let command =
            Command::Query { collection, allocation_length: 4096, matches: 0, immediate: false };
        let mut request = ObjectRequest::new(command);
        let query = Query { match_type: QueryMatch::All, criteria: vec![criterion] };
        request.continuation = Continuation::Query(query);
        let ReplyData::List(found) = store.perform(request).await.unwrap().data else { panic!() };
        let ids: Vec<_> = found.objects.iter().map(|object| object.id).collect();
        assert_eq!(ids, [objects[1].object, objects[2].object]);
        perform(&store, Command::Remove { object: objects[0] }).await.unwrap();
        assert_eq!(get_number(&store, collection, 0x6000_0004, 0x10).await, 4);
        let refused = perform(&store, Command::RemoveCollection { collection, force: false }).await;
        assert!(matches!(refused, Err(ObjectError::NotEmpty { .. })));
        perform(&store, Command::RemoveCollection { collection, force: true }).await.unwrap();
        assert!(get(&store, objects[1], 4, 1).await.unwrap().is_empty());
        let removed =
            perform(&store, Command::RemovePartition { partition, with_contents: false }).await;
        assert!(matches!(removed, Err(ObjectError::NotEmpty { .. })));
        perform(&store, Command::RemovePartition { partition, with_contents: true }).await.unwrap();
        assert_eq!(store.statistics().partitions, 0);
        assert_eq!(store.statistics().used_bytes, 0);
    });
}

#[test]
fn a_read_of_more_than_one_answer_has_is_refused_and_not_shortened() {
    run(async {
        let store = open(&memory(16 * MIB)).await;
        let partition = create_partition(&store).await;
        let object = create(&store, partition).await;
        set_length(&store, object, 65 * MIB).await.unwrap();
        assert_eq!(read(&store, object, 0, 64 * MIB).await.unwrap().len() as u64, 64 * MIB);
        let refused = ObjectError::InvalidField { field: RefusedField::Length };
        assert_eq!(read(&store, object, 0, 64 * MIB + 1).await, Err(refused));
        // A READ beyond the end returns only the bytes up to the end.
        assert_eq!(read(&store, object, 64 * MIB, 1 << 40).await.unwrap().len() as u64, MIB);
    });
}

#[test]
fn format_removes_objects_and_keeps_records() {
    run(async {
        let volume = memory(16 * MIB);
        let store = open(&volume).await;
        let partition = create_partition(&store).await;
        let object = create(&store, partition).await;
        write(&store, object, 0, vec![7; 8192]).await.unwrap();
        store.put_record("key", "sealed".into()).await.unwrap();
        perform(&store, Command::FormatOsd { capacity: 0 }).await.unwrap();
        let gone = read(&store, object, 0, 1).await;
        assert_eq!(gone, Err(ObjectError::NoSuchObject { object }));
        assert_eq!((store.statistics().used_bytes, store.statistics().partitions), (0, 0));
        drop(store);
        let store = open(&volume).await;
        assert_eq!(store.record("key").await.unwrap().unwrap(), "sealed");
        assert!(create_partition(&store).await > object.object);
    });
}

#[test]
fn a_tagged_command_is_performed_once_and_its_result_is_kept() {
    run(async {
        let volume = memory(16 * MIB);
        let store = open(&volume).await;
        let partition = create_partition(&store).await;
        let object = create(&store, partition).await;
        let tag = Attribute::new(0xf001_0000, 1, tag_value(5));
        let command = Command::Append { object, length: 3 };
        let request =
            ObjectRequest::new(command).with_data(Data::from(b"abc".to_vec())).setting(tag.clone());
        append(&store, object, b"xy".to_vec()).await.unwrap();
        let first = store.perform(request.clone()).await.unwrap();
        flush(&store).await.unwrap();
        drop(store);
        let store = open(&volume).await;
        let second = store.perform(request).await.unwrap();
        assert_eq!((first.current.append_start, second.current.append_start), (2, 2));
        assert_eq!(read(&store, object, 0, 9).await.unwrap(), b"xyabc");
        let result = object::AttributeId::new(0xf001_0000, 2);
        let request = ObjectRequest::new(Command::GetAttributes { object: ObjectAddress::ROOT })
            .setting(tag)
            .getting(AttributeSelection::One(result));
        let value = store.perform(request).await.unwrap().attributes.remove(0).value;
        assert_eq!((value.len(), &value[32..]), (40, &2_u64.to_be_bytes()[..]));
    });
}

#[test]
fn access_to_a_snapshot_can_be_permitted_and_revoked() {
    run(async {
        let store = open(&memory(16 * MIB)).await;
        let partition = create_partition(&store).await;
        let object = create(&store, partition).await;
        let method = object::CopyMethod(0);
        let command = Command::CreateSnapshot { source: partition, requested: 0, method };
        let snapshot = perform(&store, command).await.unwrap().current.object;
        let copy = ObjectAddress::new(snapshot.partition, object.object);
        for (address, page) in [(snapshot, 0x3000_0005), (copy, 0x5)] {
            let tag = Attribute::new(page, 0x4000_0001, vec![0, 0, 0, 7]);
            set(&store, address, tag).await.unwrap();
            assert_eq!(store.guard_facts(address).await.unwrap().policy_tag, 7);
            let other = Attribute::new(page & 0xf000_0000 | 0x1_0000, 1, b"x".to_vec());
            assert!(set(&store, address, other).await.is_err(), "content of a snapshot");
        }
        let seed = [1; 20];
        let key = object::KeyToSet::Partition { partition: snapshot.partition };
        let set_key = object::SetKeyRequest { key, key_identifier: [0; 7], seed };
        let tag = Attribute::new(0xf001_0000, 1, tag_value(5));
        let request = ObjectRequest::new(Command::SetKey(set_key)).setting(tag);
        store.perform(request).await.unwrap();
    });
}

#[test]
fn copies_and_snapshots_share_blocks_until_one_of_them_changes() {
    run(async {
        let volume = memory(64 * MIB);
        let store = open(&volume).await;
        let partition = create_partition(&store).await;
        let object = create(&store, partition).await;
        write(&store, object, 0, vec![1; 2 * MIB as usize]).await.unwrap();
        set(&store, object, Attribute::new(0x1_0000, 1, b"inode".to_vec())).await.unwrap();
        let used = store.statistics().used_bytes;
        let method = object::CopyMethod(0);
        let command = Command::CreateSnapshot { source: partition, requested: 0, method };
        let snapshot = perform(&store, command).await.unwrap().current.object.partition;
        let mut request =
            ObjectRequest::new(Command::CopyUserObjects { partition, requested: 0, method });
        request.continuation = Continuation::CopySource(object::CopySource {
            object,
            with_attributes: true,
            freeze: false,
            time: object::Timestamp::ZERO,
        });
        let copy = store.perform(request).await.unwrap().current.object;
        assert_eq!(store.statistics().used_bytes, used);
        let frozen = ObjectAddress::new(snapshot, object.object);
        assert!(write(&store, frozen, 0, vec![9; 10]).await.is_err());
        write(&store, object, 4096, vec![2; 8192]).await.unwrap();
        write(&store, copy, 0, vec![3; 10]).await.unwrap();
        assert_eq!(store.statistics().used_bytes, used + 3 * 4096);
        for (object, at, byte) in
            [(frozen, 4096, 1), (object, 4096, 2), (copy, 4096, 1), (copy, 0, 3)]
        {
            assert_eq!(read(&store, object, at, 1).await.unwrap(), [byte], "{object} {at}");
        }
        assert_eq!(get(&store, frozen, 0x1_0000, 1).await.unwrap(), "inode");
        assert_eq!(get(&store, copy, 0x1_0000, 1).await.unwrap(), "inode");
        perform(&store, Command::Remove { object }).await.unwrap();
        perform(&store, Command::Remove { object: copy }).await.unwrap();
        assert_eq!(store.statistics().used_bytes, used);
        flush(&store).await.unwrap();
        drop(store);
        let store = open(&volume).await;
        assert!(read(&store, frozen, 0, 2 * MIB).await.unwrap().iter().all(|byte| *byte == 1));
        let command = Command::RemovePartition { partition: snapshot, with_contents: true };
        perform(&store, command).await.unwrap();
        assert_eq!((store.statistics().used_bytes, store.statistics().objects), (0, 0));
    });
}

#[test]
fn a_write_that_has_no_room_is_refused_before_its_data() {
    run(async {
        let store = open(&memory(16 * MIB)).await;
        let partition = create_partition(&store).await;
        let object = create(&store, partition).await;
        store.admit(Command::Write { object, length: MIB, start: 0 }).await.unwrap();
        let full = store.admit(Command::Write { object, length: 20 * MIB, start: 0 }).await;
        assert!(matches!(full, Err(ObjectError::Quota { .. })));
        let wraps = store.admit(Command::Write { object, length: 2, start: u64::MAX }).await;
        assert!(matches!(wraps, Err(ObjectError::InvalidField { .. })));
    });
}

#[test]
fn full_tables_refuse_new_objects_and_let_objects_be_removed() {
    run(async {
        let volume = memory(16 * MIB);
        let store = open(&volume).await;
        let partition = create_partition(&store).await;
        let command = Command::Create { partition, requested: 0, count: 1 };
        let mut objects = Vec::new();
        let error = loop {
            let mut request = ObjectRequest::new(command);
            for number in 1..=4 {
                request =
                    request.setting(Attribute::new(0x1_0000, number, vec![number as u8; 500]));
            }
            match store.perform(request).await {
                Ok(reply) => objects.push(reply.current.object),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, ObjectError::Quota { .. }) && objects.len() > 500, "{error}");
        flush(&store).await.unwrap();
        for object in objects.iter().rev() {
            perform(&store, Command::Remove { object: *object }).await.unwrap();
        }
        flush(&store).await.unwrap();
        assert_eq!(store.statistics().objects, 0);
        create(&store, partition).await;
        drop(store);
        assert!(list(&open(&volume).await, partition, 10).await.unwrap().len() <= 1);
    });
}
