//! Commands whose future is dropped after each number of polls, as ABORT TASK and the loss of a session do.
//!
//! A command on one object then has had its whole effect or none, together with the attributes that it sets. A command
//! on members has changed a prefix of them. No block stays in use without an object.

use std::sync::Arc;

use drive::DriveStore;
use object::{
    Attribute, Command, Continuation, CopySource, ObjectAddress, ObjectError, ObjectRequest,
    ObjectStore, Query, QueryMatch, Timestamp,
};
use sim::CrashVolume;
use volume::{Data, Stack};

use crate::support::*;

const MIB: u64 = 1 << 20;
const LENGTH: usize = 10_000;

/// The bytes of an object, and its attribute 10000h/1h.
type Content = (Vec<u8>, Vec<u8>);

async fn content(store: &DriveStore, object: ObjectAddress) -> Result<Content, ObjectError> {
    let bytes = read(store, object, 0, MIB).await?;
    Ok((bytes, get(store, object, 0x1_0000, 1).await?.to_vec()))
}

/// A command on an object, and the bytes of the object after it.
type Change = (&'static str, fn(ObjectAddress) -> ObjectRequest, fn() -> Vec<u8>);

fn with_data(command: Command, length: usize) -> ObjectRequest {
    ObjectRequest::new(command).with_data(Data::from(vec![2; length]))
}

fn bytes(parts: &[(u8, usize)]) -> Vec<u8> {
    parts.iter().flat_map(|(byte, count)| std::iter::repeat_n(*byte, *count)).collect()
}

const CHANGES: [Change; 6] = [
    (
        "WRITE",
        |object| with_data(Command::Write { object, length: 9000, start: 500 }, 9000),
        || bytes(&[(1, 500), (2, 9000), (1, 500)]),
    ),
    (
        "WRITE behind the end",
        |object| with_data(Command::Write { object, length: 9000, start: 20_000 }, 9000),
        || bytes(&[(1, LENGTH), (0, 10_000), (2, 9000)]),
    ),
    (
        "APPEND",
        |object| with_data(Command::Append { object, length: 9000 }, 9000),
        || bytes(&[(1, LENGTH), (2, 9000)]),
    ),
    (
        "CLEAR",
        |object| ObjectRequest::new(Command::Clear { object, length: 5000, start: 100 }),
        || bytes(&[(1, 100), (0, 5000), (1, 4900)]),
    ),
    (
        "PUNCH",
        |object| ObjectRequest::new(Command::Punch { object, length: 5000, start: 100 }),
        || bytes(&[(1, 5000)]),
    ),
    (
        "SET ATTRIBUTES",
        |object| {
            let length = Attribute::new(1, 0x82, 500_u64.to_be_bytes().to_vec());
            ObjectRequest::new(Command::SetAttributes { object }).setting(length)
        },
        || bytes(&[(1, 500)]),
    ),
];

/// Opens a drive on a disk whose calls often wait.
async fn slow_drive(seed: u64) -> (DriveStore, Stack) {
    let disk = CrashVolume::new(geometry(64 * MIB), seed).with_yields(50);
    let volume: Stack = Arc::new(disk);
    (open(&volume).await, volume)
}

/// Restarts a drive without its last changes being lost, removes a partition, and checks that nothing is left.
async fn check_empty(store: DriveStore, volume: &Stack, partition: u64) {
    flush(&store).await.unwrap();
    store.close().await.unwrap();
    drop(store);
    let store = open(volume).await;
    assert!(store.scrub().await.unwrap().damaged.is_empty());
    perform(&store, Command::RemovePartition { partition, with_contents: true }).await.unwrap();
    let left = store.statistics();
    assert_eq!((left.used_bytes, left.objects, left.partitions), (0, 0, 0));
}

#[test]
fn a_dropped_command_on_one_object_had_its_whole_effect_or_none() {
    run(async {
        let (store, volume) = slow_drive(1).await;
        let partition = create_partition(&store).await;
        let set = Attribute::new(0x1_0000, 1, vec![9]);
        let mut dropped = 0;
        for (name, request, after) in CHANGES {
            let mut polls = 1;
            loop {
                let object = create(&store, partition).await;
                append(&store, object, vec![1; LENGTH]).await.unwrap();
                flush(&store).await.unwrap();
                let before = content(&store, object).await.unwrap();
                let request = request(object).setting(set.clone());
                let done = polled(store.perform(request), polls).await;
                let found = content(&store, object).await.unwrap();
                let after = (after(), vec![9]);
                if let Some(done) = done {
                    done.unwrap();
                    assert!(found == after, "{name} is done");
                    break;
                }
                assert!(found == before || found == after, "{name} after {polls} polls");
                polls += 1;
            }
            dropped += polls - 1;
        }
        // How often a command waits depends on the rows that are in memory already.
        assert!(dropped > CHANGES.len(), "{dropped} commands were dropped");
        check_empty(store, &volume, partition).await;
    });
}

#[test]
fn a_dropped_creation_or_copy_leaves_a_whole_object_or_none() {
    run(async {
        let (store, volume) = slow_drive(2).await;
        let partition = create_partition(&store).await;
        let source = create(&store, partition).await;
        append(&store, source, vec![2; LENGTH]).await.unwrap();
        let set = Attribute::new(0x1_0000, 1, vec![9]);
        let creation = || {
            let (requested, length, start) = (0, LENGTH as u64, 0);
            let command = Command::CreateAndWrite { partition, requested, length, start };
            with_data(command, LENGTH)
        };
        let copy = || {
            let method = object::CopyMethod(0);
            let command = Command::CopyUserObjects { partition, requested: 0, method };
            let mut request = ObjectRequest::new(command);
            request.continuation = Continuation::CopySource(CopySource {
                object: source,
                with_attributes: true,
                freeze: false,
                time: Timestamp::ZERO,
            });
            request
        };
        let mut known = 1;
        for is_copy in [false, true] {
            let mut polls = 1;
            loop {
                flush(&store).await.unwrap();
                let request = if is_copy { copy() } else { creation() };
                let done = polled(store.perform(request.setting(set.clone())), polls).await;
                let ids = list(&store, partition, 100).await.unwrap();
                assert!(ids.len() == known || ids.len() == known + 1, "{ids:x?}");
                assert!(done.is_none() || ids.len() > known, "{is_copy}: nothing was created");
                known = ids.len();
                for id in ids.into_iter().filter(|id| *id != source.object) {
                    let found = content(&store, ObjectAddress::new(partition, id)).await.unwrap();
                    assert!(found == (vec![2; LENGTH], vec![9]), "{is_copy}: {polls} polls");
                }
                if let Some(done) = done {
                    done.unwrap();
                    break;
                }
                polls += 1;
            }
            // A copy waits only for rows that are not in memory.
            assert!(is_copy || polls > 1, "it never waits");
        }
        check_empty(store, &volume, partition).await;
    });
}

#[test]
fn a_dropped_command_on_members_has_changed_a_prefix_of_them() {
    run(async {
        let (store, volume) = slow_drive(3).await;
        let partition = create_partition(&store).await;
        let mut prefixes = std::collections::BTreeSet::new();
        for command in 0..3 {
            for polls in 1.. {
                let (collection, members) = linked_collection(&store, partition, 150).await;
                let target = tracking_collection(&store, partition, 0).await.unwrap();
                let ids: Vec<_> = members.iter().map(|member| member.object).collect();
                flush(&store).await.unwrap();
                let mut request = ObjectRequest::new(match command {
                    0 => Command::RemoveMemberObjects { collection },
                    1 => Command::SetMemberAttributes { collection },
                    _ => Command::Query {
                        collection,
                        allocation_length: 0,
                        matches: target.object,
                        immediate: false,
                    },
                });
                if command == 1 {
                    request = request.setting(Attribute::new(0x1_0000, 1, vec![9]));
                }
                let query = Query { match_type: QueryMatch::All, criteria: Vec::new() };
                request.continuation = Continuation::Query(query);
                let done = polled(store.perform(request), polls).await;
                let tracked = if command == 2 { target } else { collection };
                let count = get(&store, tracked, 0x6000_0004, 0x11).await.unwrap();
                let count = count.as_ref().try_into().map_or(0, u64::from_be_bytes) as usize;
                prefixes.insert(count);
                let mut changed = Vec::new();
                for member in &members {
                    if command == 1 && get(&store, *member, 0x1_0000, 1).await.unwrap() == [9][..] {
                        changed.push(member.object);
                    }
                }
                match command {
                    0 => {
                        let left = list_collection(&store, collection).await.unwrap();
                        assert_eq!(left, ids[count..], "{polls} polls");
                    }
                    1 => assert_eq!(changed, ids[..count], "{polls} polls"),
                    _ => {
                        let found = list_collection(&store, target).await.unwrap();
                        assert_eq!(found, ids[..count], "{polls} polls");
                    }
                }
                let is_done = done.map(Result::unwrap).is_some();
                assert!(!is_done || count == ids.len());
                perform(&store, Command::RemoveMemberObjects { collection }).await.unwrap();
                for collection in [collection, target] {
                    let command = Command::RemoveCollection { collection, force: true };
                    perform(&store, command).await.unwrap();
                }
                if is_done {
                    break;
                }
            }
        }
        assert!(prefixes.len() > 3, "{prefixes:?}");
        check_empty(store, &volume, partition).await;
    });
}
