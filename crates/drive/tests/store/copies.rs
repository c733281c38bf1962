//! Copies of partitions and objects that are made in steps, while other commands are at work.

use std::collections::BTreeMap;

use drive::DriveStore;
use object::{
    Attribute, Command, Continuation, MapRunKind, ObjectAddress, ObjectRequest, ObjectStore,
    ReplyData,
};
use sim::Rng;
use volume::Stack;

use crate::{
    steps::{BLOCK, MIB, Sparse, check_sound, open_small, snapshot_of, sparse, write_chunks},
    support::*,
};

/// Makes a partition with a collection and with objects, most of them with one chunk. The collection is the first one.
async fn make_objects(store: &DriveStore, partition: u64, count: u64) -> Vec<ObjectAddress> {
    let command = Command::CreateCollection { partition, requested: 0 };
    let collection = perform(store, command).await.unwrap().current.object;
    let mut objects = vec![collection];
    for n in 0..count {
        let object = create(store, partition).await;
        write_chunks(store, object, 0..if n % 10 == 0 { 9 } else { 1 }).await;
        let id = collection.object.to_be_bytes().to_vec();
        set(store, object, Attribute::new(4, 1, id)).await.unwrap();
        objects.push(object);
    }
    objects
}

#[test]
fn a_snapshot_is_as_of_one_moment_although_objects_change_while_it_is_made() {
    let mut overlaps = 0;
    for seed in 0..10 {
        run(async {
            let store = open_small(&memory(64 * MIB)).await;
            let partition = create_partition(&store).await;
            let mut objects = make_objects(&store, partition, 60).await.split_off(1);
            let mut rng = Rng::new(seed);
            (0..objects.len()).for_each(|n| {
                let other = rng.below(n as u64 + 1) as usize;
                objects.swap(n, other);
            });
            let changes = async {
                for object in &objects {
                    // The threads of the drive get a turn, so that the snapshot goes on.
                    for _ in 0..50 {
                        std::thread::yield_now();
                        tokio::task::yield_now().await;
                    }
                    write(&store, *object, 0, vec![8; BLOCK as usize]).await.unwrap();
                }
            };
            let (reply, ()) = tokio::join!(perform(&store, snapshot_of(partition)), changes);
            let snapshot = reply.unwrap().current.object.partition;
            let mut changed = Vec::new();
            for object in &objects {
                let copy = ObjectAddress::new(snapshot, object.object);
                let found = sparse(&store, copy).await.unwrap();
                assert_eq!(found.blocks.len(), sparse(&store, *object).await.unwrap().blocks.len());
                changed.push(found.blocks[&0] == 8);
            }
            assert!(changed.is_sorted_by(|a, b| a >= b), "seed {seed}: {changed:?}");
            overlaps += u32::from(changed.contains(&false));
            let ids = list(&store, snapshot, 7).await.unwrap();
            assert_eq!(ids, list(&store, partition, 100).await.unwrap());
            let own = ObjectAddress::partition(snapshot);
            let used = get_number(&store, own, 0x3000_0001, 0x81).await;
            assert_eq!(used, (60 + 6 * 8) * BLOCK);
        });
    }
    assert!(overlaps > 5, "{overlaps} snapshots were made while objects changed");
}

#[test]
fn a_snapshot_that_is_dropped_at_any_moment_leaves_nothing() {
    run(async {
        let volume = memory(64 * MIB);
        let mut store = open_small(&volume).await;
        let partition = create_partition(&store).await;
        let objects = make_objects(&store, partition, 12).await;
        let used = store.statistics().used_bytes;
        let mut dropped = 0;
        for round in 0..60 {
            let mut snapshot = Box::pin(perform(&store, snapshot_of(partition)));
            let mut done = None;
            for _ in 0..=round % 4 {
                done = futures_util::future::poll_immediate(&mut snapshot).await;
                if done.is_some() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(snapshot);
            if let Some(reply) = done {
                let partition = reply.unwrap().current.object.partition;
                let command = Command::RemovePartition { partition, with_contents: true };
                perform(&store, command).await.unwrap();
            } else {
                dropped += 1;
            }
            if round % 3 == 0 {
                flush(&store).await.unwrap();
                drop(store);
                check_sound(&volume).await.unwrap();
                store = open_small(&volume).await;
            }
            write(&store, objects[1], 0, vec![8; BLOCK as usize]).await.unwrap();
            assert_eq!(list(&store, 0, 10).await.unwrap(), [partition]);
            store.finish_freeing().await.unwrap();
            assert_eq!(store.statistics().used_bytes, used, "round {round}");
            assert_eq!(store.statistics().objects, 13);
        }
        assert!(dropped > 5, "{dropped} snapshots were dropped");
        let command = Command::RemovePartition { partition, with_contents: true };
        perform(&store, command).await.unwrap();
        store.finish_freeing().await.unwrap();
        assert_eq!(store.statistics().used_bytes, 0);
    });
}

async fn copy_of(store: &DriveStore, object: ObjectAddress) -> ObjectAddress {
    let (partition, method) = (object.partition, object::CopyMethod(0));
    let command = Command::CopyUserObjects { partition, requested: 0, method };
    let mut request = ObjectRequest::new(command);
    request.continuation = Continuation::CopySource(object::CopySource {
        object,
        with_attributes: false,
        freeze: false,
        time: object::Timestamp::ZERO,
    });
    store.perform(request).await.unwrap().current.object
}

#[test]
fn read_maps_and_compare_names_what_was_changed_since_a_copy() {
    run(async {
        let store = open_small(&memory(64 * MIB)).await;
        let partition = create_partition(&store).await;
        let object = create(&store, partition).await;
        write_chunks(&store, object, 0..40).await;
        let copy = copy_of(&store, object).await;
        let compare = async |start: u64| {
            let allocation_length = 1 << 20;
            let command = Command::ReadMapsAndCompare { object, allocation_length, start };
            let mut request = ObjectRequest::new(command);
            request.continuation = Continuation::UserObject(copy);
            let ReplyData::Map(runs) = store.perform(request).await.unwrap().data else {
                panic!("a map")
            };
            runs
        };
        assert_eq!(compare(0).await, []);
        write(&store, object, 5 * MIB, vec![7; 2 * BLOCK as usize]).await.unwrap();
        perform(&store, Command::Clear { object, length: MIB, start: 7 * MIB }).await.unwrap();
        write(&store, copy, 50 * MIB, vec![7; 100]).await.unwrap();
        let run = |kind, start, length| object::MapRun { kind, start, length };
        let expected = [
            run(MapRunKind::Written, 5 * MIB, 2 * BLOCK),
            run(MapRunKind::Hole, 7 * MIB, BLOCK),
            run(MapRunKind::Hole, 50 * MIB, 100),
        ];
        assert_eq!(compare(0).await, expected);
        assert_eq!(compare(5 * MIB + 100).await[0].start, 5 * MIB + 100);
        assert_eq!(compare(6 * MIB).await, expected[1..]);
        // Chunks that are still to be freed are holes.
        set_length(&store, object, 0).await.unwrap();
        let all: Vec<_> = compare(0).await.iter().map(|run| run.kind).collect();
        assert_eq!(all, [MapRunKind::Hole; 41]);
    });
}

/// Returns the objects of one partition by their identifiers.
async fn objects_of(store: &DriveStore, partition: u64) -> BTreeMap<u64, Sparse> {
    let mut found = BTreeMap::new();
    for id in list(store, partition, 100).await.unwrap() {
        found.insert(id, sparse(store, ObjectAddress::new(partition, id)).await.unwrap());
    }
    found
}

/// Performs `command` up to each moment, restarts the drive, and checks that `partition` has its old objects or those
/// of `source`.
async fn replace_at_each_moment(command: Command, volume: &Stack, partition: u64, source: u64) {
    let mut store = open_small(volume).await;
    let old = objects_of(&store, partition).await;
    let new = objects_of(&store, source).await;
    assert_ne!(old, new);
    for polls in 1..400 {
        let mut replacing = Box::pin(perform(&store, command));
        let mut is_done = false;
        for _ in 0..polls {
            if let Some(reply) = futures_util::future::poll_immediate(&mut replacing).await {
                assert_eq!(reply.unwrap().current.object, ObjectAddress::partition(partition));
                is_done = true;
                break;
            }
            tokio::task::yield_now().await;
            std::thread::yield_now();
        }
        drop(replacing);
        flush(&store).await.unwrap();
        drop(store);
        store = open_small(volume).await;
        let found = objects_of(&store, partition).await;
        assert!(found == new || (found == old && !is_done), "after {polls} polls: {found:?}");
        assert_eq!(objects_of(&store, source).await, new);
        store.finish_freeing().await.unwrap();
        let objects = store.statistics().objects;
        assert_eq!(objects, 2 + (found.len() + new.len()) as u64, "with two collections");
        if found == new {
            return;
        }
    }
    panic!("it is never done");
}

#[test]
fn restore_and_refresh_replace_all_objects_or_none_also_after_a_restart() {
    run(async {
        let volume = memory(64 * MIB);
        let store = open_small(&volume).await;
        let partition = create_partition(&store).await;
        let objects = make_objects(&store, partition, 12).await;
        let snapshot = perform(&store, snapshot_of(partition)).await.unwrap();
        let snapshot = snapshot.current.object.partition;
        let change = async |store: &DriveStore| {
            write(store, objects[1], 0, vec![8; BLOCK as usize]).await.unwrap();
            perform(store, Command::Remove { object: objects[2] }).await.unwrap();
            create(store, partition).await
        };
        change(&store).await;
        let wrong = Command::RestorePartitionFromSnapshot { partition, snapshot: partition };
        assert!(perform(&store, wrong).await.is_err());
        assert!(
            perform(&store, Command::RefreshSnapshotOrClone { copy: partition }).await.is_err()
        );
        flush(&store).await.unwrap();
        drop(store);
        let command = Command::RestorePartitionFromSnapshot { partition, snapshot };
        replace_at_each_moment(command, &volume, partition, snapshot).await;
        let store = open_small(&volume).await;
        change(&store).await;
        flush(&store).await.unwrap();
        drop(store);
        let command = Command::RefreshSnapshotOrClone { copy: snapshot };
        replace_at_each_moment(command, &volume, snapshot, partition).await;
        let store = open_small(&volume).await;
        let frozen = ObjectAddress::new(snapshot, objects[1].object);
        assert!(write(&store, frozen, 0, vec![9; 10]).await.is_err());
        write(&store, objects[1], 0, vec![9; BLOCK as usize]).await.unwrap();
        for partition in [partition, snapshot] {
            let command = Command::RemovePartition { partition, with_contents: true };
            perform(&store, command).await.unwrap();
        }
        store.finish_freeing().await.unwrap();
        assert_eq!((store.statistics().used_bytes, store.statistics().objects), (0, 0));
    });
}
