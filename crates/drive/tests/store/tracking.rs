//! Tracking collections, and the command tracking page of commands that are at work, aborted or interrupted.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use drive::{DriveMutation, DriveStore};
use object::{
    Attribute, AttributeId, Command, Continuation, CopyMethod, ObjectAddress, ObjectError,
    ObjectReply, ObjectRequest, ObjectStore, Query, QueryCriterion, QueryMatch, RefusedField,
};
use sim::{CrashVolume, Rng};
use volume::Stack;

use crate::support::*;

const MIB: u64 = 1 << 20;
const PAGE: u32 = 0x6000_0004;
const ACTIVE: u32 = 2;
const ENDED: u32 = 3;
const REMOVE_MEMBER_OBJECTS: [u8; 2] = [0x88, 0xa1];
const NONE: [u8; 2] = [0, 0];
const GOOD: [u8; 2] = [0, 0];
const CHECK_CONDITION: [u8; 2] = [0, 2];
const TASK_ABORTED: [u8; 2] = [0, 0x40];
const NOT_ENDED: [u8; 2] = [0xff, 0xff];

async fn status(store: &DriveStore, collection: ObjectAddress, number: u32) -> Vec<u8> {
    get(store, collection, PAGE, number).await.unwrap().to_vec()
}

/// Returns the numbers of objects that were processed, skipped because they are newer, and missing.
async fn counts(store: &DriveStore, collection: ObjectAddress) -> [u64; 3] {
    let mut counts = [0; 3];
    for (count, number) in counts.iter_mut().zip(0x11..) {
        *count = get_number(store, collection, PAGE, number).await;
    }
    counts
}

/// Returns a query for objects whose attribute 10000h/1h is 1.
fn query(collection: ObjectAddress, matches: ObjectAddress, immediate: bool) -> ObjectRequest {
    let matches = matches.object;
    let criterion = QueryCriterion {
        id: AttributeId::new(0x1_0000, 1),
        minimum: vec![1].into(),
        maximum: vec![1].into(),
    };
    let mut request =
        ObjectRequest::new(Command::Query { collection, allocation_length: 0, matches, immediate });
    let query = Query { match_type: QueryMatch::All, criteria: vec![criterion] };
    request.continuation = Continuation::Query(query);
    request
}

/// Creates `count` objects, every second of which matches the query. Returns the matching ones.
async fn create_matches(store: &DriveStore, partition: u64, count: u64) -> Vec<u64> {
    let mut matches = Vec::new();
    for n in 0..count {
        let object = create(store, partition).await;
        set(store, object, Attribute::new(0x1_0000, 1, vec![(n % 2) as u8])).await.unwrap();
        if n % 2 == 1 {
            matches.push(object.object);
        }
    }
    matches
}

/// Reads the page until no command is at work. Each read makes room for the worker.
async fn wait_for_end(store: &DriveStore, collection: ObjectAddress) {
    let begin = Instant::now();
    while status(store, collection, ACTIVE).await != NONE {
        assert!(begin.elapsed() < Duration::from_secs(120), "the command does not end");
        std::thread::yield_now();
        tokio::task::yield_now().await;
    }
}

#[test]
fn a_tracking_collection_has_the_members_of_its_source_and_they_do_not_know_it() {
    run(async {
        let store = open(&memory(64 * MIB)).await;
        let partition = create_partition(&store).await;
        let (linked, members) = linked_collection(&store, partition, 200).await;
        let ids: Vec<_> = members.iter().map(|member| member.object).collect();
        let first = tracking_collection(&store, partition, linked.object).await.unwrap();
        let second = tracking_collection(&store, partition, first.object).await.unwrap();
        for collection in [first, second] {
            assert_eq!(list_collection(&store, collection).await.unwrap(), ids);
            assert_eq!(get(&store, collection, 0x6000_0001, 0xa).await.unwrap(), [1][..]);
            assert_eq!(get_number(&store, collection, PAGE, 0x10).await, 200);
            assert_eq!(counts(&store, collection).await, [200, 0, 0]);
            assert_eq!(status(&store, collection, ENDED).await, GOOD);
            assert_eq!(status(&store, collection, 1).await, [100]);
        }
        assert!(get(&store, members[0], 4, 2).await.unwrap().is_empty());
        let join = Attribute::new(4, 2, first.object.to_be_bytes().to_vec());
        assert!(set(&store, members[0], join).await.is_err(), "it has no such attribute");
        let empty = tracking_collection(&store, partition, 0).await.unwrap();
        assert_eq!(status(&store, empty, ACTIVE).await, NONE);
        assert!(status(&store, empty, ENDED).await.is_empty(), "no command has ended");
        for source in [members[0].object, 0x99_9999] {
            let refused = tracking_collection(&store, partition, source).await;
            assert_eq!(refused, Err(ObjectError::InvalidField { field: RefusedField::Start }));
        }
    });
}

#[test]
fn members_that_were_removed_or_replaced_are_skipped_and_counted() {
    run(async {
        let store = open(&memory(64 * MIB)).await;
        let partition = create_partition(&store).await;
        let (linked, members) = linked_collection(&store, partition, 5).await;
        let collection = tracking_collection(&store, partition, linked.object).await.unwrap();
        for object in &members[..2] {
            perform(&store, Command::Remove { object: *object }).await.unwrap();
        }
        let requested = members[1].object;
        perform(&store, Command::Create { partition, requested, count: 1 }).await.unwrap();
        let command = Command::SetMemberAttributes { collection };
        let request = ObjectRequest::new(command).setting(Attribute::new(0x1_0000, 1, vec![7]));
        store.perform(request).await.unwrap();
        assert_eq!(counts(&store, collection).await, [3, 1, 1]);
        assert!(get(&store, members[1], 0x1_0000, 1).await.unwrap().is_empty());
        assert_eq!(get(&store, members[2], 0x1_0000, 1).await.unwrap(), [7][..]);
        let reply = perform(&store, Command::RemoveMemberObjects { collection }).await.unwrap();
        assert_eq!(reply.members.len(), 3);
        assert_eq!(counts(&store, collection).await, [3, 1, 1]);
        assert_eq!(get_number(&store, collection, PAGE, 0x10).await, 0);
        assert_eq!(list(&store, partition, 10).await.unwrap(), [requested]);
        perform(&store, Command::RemoveCollection { collection, force: false }).await.unwrap();
    });
}

#[test]
fn the_tracking_page_shows_the_progress_of_a_command_at_work() {
    run(async {
        let store = open(&memory(64 * MIB)).await;
        let partition = create_partition(&store).await;
        let (collection, _) = linked_collection(&store, partition, 300).await;
        flush(&store).await.unwrap();
        let mut removal = Box::pin(perform(&store, Command::RemoveMemberObjects { collection }));
        let mut seen = Vec::new();
        let removed = loop {
            if let Some(removed) = polled(&mut removal, 1).await {
                break removed;
            }
            if status(&store, collection, ACTIVE).await == NONE {
                continue;
            }
            assert_eq!(status(&store, collection, ACTIVE).await, REMOVE_MEMBER_OBJECTS);
            assert_eq!(status(&store, collection, ENDED).await, NOT_ENDED);
            let second = perform(&store, Command::RemoveMemberObjects { collection }).await;
            let refused = ObjectError::InvalidField { field: RefusedField::Object };
            assert_eq!(second.err(), Some(refused));
            let [processed, ..] = counts(&store, collection).await;
            assert_eq!(get_number(&store, collection, PAGE, 0x10).await, 300 - processed);
            // A command that is still at work has done at most 99 %.
            let percent = u64::from(status(&store, collection, 1).await[0]);
            assert_eq!(percent, (processed / 3).min(99));
            seen.push(processed);
        };
        removed.unwrap();
        assert!(seen.iter().any(|processed| (1..300).contains(processed)), "{seen:?}");
        assert!(seen.is_sorted());
        assert_eq!(status(&store, collection, ACTIVE).await, NONE);
        assert_eq!(status(&store, collection, ENDED).await, GOOD);
        assert_eq!(status(&store, collection, 1).await, [100]);
    });
}

#[test]
fn a_removal_that_is_aborted_or_interrupted_says_so_and_a_repeated_one_ends_it() {
    run(async {
        let volume = memory(64 * MIB);
        let mut store = open(&volume).await;
        let partition = create_partition(&store).await;
        let (linked, members) = linked_collection(&store, partition, 200).await;
        let collection = tracking_collection(&store, partition, linked.object).await.unwrap();
        flush(&store).await.unwrap();
        let command = Command::RemoveMemberObjects { collection };
        let mut removal = Box::pin(perform(&store, command));
        while status(&store, collection, ACTIVE).await == NONE
            || counts(&store, collection).await[0] == 0
        {
            assert!(polled(&mut removal, 1).await.is_none(), "it ends within one step");
        }
        drop(removal);
        for is_restarted in [false, true] {
            if is_restarted {
                flush(&store).await.unwrap();
                drop(store);
                store = open(&volume).await;
            }
            assert_eq!(status(&store, collection, ACTIVE).await, NONE);
            assert_eq!(status(&store, collection, ENDED).await, TASK_ABORTED);
            let [processed, ..] = counts(&store, collection).await;
            assert!((1..200).contains(&processed), "{processed}");
            let left: Vec<_> = members.iter().map(|member| member.object).collect();
            let left = &left[processed as usize..];
            assert_eq!(list_collection(&store, collection).await.unwrap(), left);
            assert_eq!(list_collection(&store, linked).await.unwrap(), left);
        }
        perform(&store, command).await.unwrap();
        assert!(list(&store, partition, 10).await.unwrap().is_empty());
        assert_eq!(status(&store, collection, ENDED).await, GOOD);
    });
}

#[test]
fn a_command_that_fails_at_a_member_ends_with_its_sense_data() {
    run(async {
        let store = open(&memory(64 * MIB)).await;
        let partition = create_partition(&store).await;
        let (collection, members) = linked_collection(&store, partition, 3).await;
        append(&store, members[1], vec![1; 100]).await.unwrap();
        // The second member is longer than this maximum.
        let request = ObjectRequest::new(Command::SetMemberAttributes { collection })
            .setting(Attribute::new(2, 1, 10_u64.to_be_bytes().to_vec()));
        let refused = ObjectError::InvalidAttribute { page: 2, number: 1 };
        assert_eq!(store.perform(request).await.err(), Some(refused));
        assert_eq!(status(&store, collection, ENDED).await, CHECK_CONDITION);
        assert_eq!(counts(&store, collection).await, [1, 0, 0]);
        let sense = status(&store, collection, 4).await;
        assert_eq!(sense[..4], [0x72, 5, 0x26, 0]);
    });
}

#[test]
fn a_query_fills_a_tracking_collection_in_place_of_its_old_members() {
    run(async {
        let store = open(&memory(64 * MIB)).await;
        let partition = create_partition(&store).await;
        let (linked, _) = linked_collection(&store, partition, 70).await;
        let matches = create_matches(&store, partition, 150).await;
        let source = ObjectAddress::partition(partition);
        for immediate in [false, true] {
            let target = tracking_collection(&store, partition, linked.object).await.unwrap();
            store.perform(query(source, target, immediate)).await.unwrap();
            wait_for_end(&store, target).await;
            assert_eq!(list_collection(&store, target).await.unwrap(), matches);
            assert_eq!(counts(&store, target).await, [220, 0, 0]);
            assert_eq!(status(&store, target, ENDED).await, GOOD);
        }
        let refused = store.perform(query(source, linked, true)).await.err();
        assert_eq!(refused, Some(ObjectError::InvalidField { field: RefusedField::Start }));
    });
}

/// Crashes at once after an answer that was stable.
#[test]
fn an_immediate_query_goes_on_after_a_crash() {
    run(async {
        let disk = Arc::new(CrashVolume::new(geometry(64 * MIB), 1));
        let volume: Stack = disk.clone();
        let store = open(&volume).await;
        let partition = create_partition(&store).await;
        let target = tracking_collection(&store, partition, 0).await.unwrap();
        let matches = create_matches(&store, partition, 3000).await;
        let request = query(ObjectAddress::partition(partition), target, true).with_fua();
        store.perform(request).await.unwrap();
        let image = disk.crash(&mut Rng::new(1));
        drop(store);
        let volume: Stack = Arc::new(CrashVolume::reopen(image, 2));
        let store = open(&volume).await;
        wait_for_end(&store, target).await;
        assert_eq!(status(&store, target, ENDED).await, GOOD);
        assert_eq!(list_collection(&store, target).await.unwrap(), matches);
        flush(&store).await.unwrap();
        store.close().await.unwrap();
    });
}

#[test]
fn a_creation_that_is_aborted_leaves_no_tracking_collection() {
    run(async {
        let volume = memory(64 * MIB);
        let store = open(&volume).await;
        let partition = create_partition(&store).await;
        let (linked, _) = linked_collection(&store, partition, 300).await;
        let all = ObjectAddress::partition(partition);
        flush(&store).await.unwrap();
        let mut aborted = 0;
        for polls in 1.. {
            match polled(tracking_collection(&store, partition, linked.object), polls).await {
                Some(created) => {
                    let collection = created.unwrap();
                    let command = Command::RemoveCollection { collection, force: true };
                    perform(&store, command).await.unwrap();
                    break;
                }
                None => aborted += 1,
            }
            for n in 0.. {
                if list_collection(&store, all).await.unwrap() == [linked.object] {
                    break;
                }
                assert!(n < 1_000_000, "the collection stays");
                tokio::task::yield_now().await;
            }
        }
        assert!(aborted > 3);
        assert_eq!(store.statistics().objects, 301);
    });
}

/// The drive is closed before the worker can remove the new collection.
#[test]
fn a_creation_that_a_stop_interrupts_leaves_no_tracking_collection() {
    run(async {
        let volume = memory(64 * MIB);
        let store = open(&volume).await;
        let partition = create_partition(&store).await;
        let (linked, _) = linked_collection(&store, partition, 300).await;
        flush(&store).await.unwrap();
        let mut creation = Box::pin(tracking_collection(&store, partition, linked.object));
        while list_collection(&store, ObjectAddress::partition(partition)).await.unwrap().len() < 2
        {
            assert!(polled(&mut creation, 1).await.is_none());
        }
        flush(&store).await.unwrap();
        store.close().await.unwrap();
        drop(creation);
        drop(store);
        let store = open(&volume).await;
        for n in 0.. {
            let left = list_collection(&store, ObjectAddress::partition(partition)).await.unwrap();
            if left == [linked.object] {
                break;
            }
            assert!(n < 1_000_000, "the collection stays");
            tokio::task::yield_now().await;
        }
        assert_eq!(store.statistics().objects, 301);
    });
}

#[test]
fn a_collection_is_removed_under_a_command_only_by_force_and_the_command_ends() {
    run(async {
        let store = open(&memory(64 * MIB)).await;
        let partition = create_partition(&store).await;
        let (collection, members) = linked_collection(&store, partition, 300).await;
        flush(&store).await.unwrap();
        let request = ObjectRequest::new(Command::SetMemberAttributes { collection })
            .setting(Attribute::new(0x1_0000, 1, vec![7]));
        let mut change = Box::pin(store.perform(request));
        while status(&store, collection, ACTIVE).await == NONE {
            assert!(polled(&mut change, 1).await.is_none());
        }
        let refused = perform(&store, Command::RemoveCollection { collection, force: false }).await;
        let field = RefusedField::Object;
        assert_eq!(refused.err(), Some(ObjectError::InvalidField { field }));
        perform(&store, Command::RemoveCollection { collection, force: true }).await.unwrap();
        let gone = Some(ObjectError::NoSuchObject { object: collection });
        assert_eq!(change.await.err(), gone);
        assert_eq!(list(&store, partition, 100).await.unwrap().len(), members.len());
        assert!(get(&store, members[299], 4, 1).await.unwrap().is_empty());
    });
}

/// The capability of the query was checked against the tag.
#[test]
fn a_new_policy_tag_ends_immediate_queries_and_no_restart_resumes_them() {
    run(async {
        let volume = memory(64 * MIB);
        let store = open(&volume).await;
        let partition = create_partition(&store).await;
        let target = tracking_collection(&store, partition, 0).await.unwrap();
        create_matches(&store, partition, 3000).await;
        let source = ObjectAddress::partition(partition);
        store.perform(query(source, target, true)).await.unwrap();
        let tag = Attribute::new(0x3000_0005, 0x4000_0001, vec![0, 0, 0, 9]);
        set(&store, source, tag).await.unwrap();
        let [seen, ..] = counts(&store, target).await;
        wait_for_end(&store, target).await;
        assert_eq!(counts(&store, target).await[0], seen, "it goes on after the change");
        assert_eq!(status(&store, target, ENDED).await, TASK_ABORTED);
        drop(store);
        let store = open(&volume).await;
        assert_eq!(status(&store, target, ACTIVE).await, NONE);
        assert_eq!(status(&store, target, ENDED).await, TASK_ABORTED);
    });
}

#[test]
fn a_tagged_command_on_members_keeps_its_result() {
    run(async {
        let store = open(&memory(64 * MIB)).await;
        let partition = create_partition(&store).await;
        let (collection, _) = linked_collection(&store, partition, 2).await;
        let tag = Attribute::new(0xf001_0000, 1, tag_value(5));
        let removal =
            || ObjectRequest::new(Command::RemoveMemberObjects { collection }).setting(tag.clone());
        let removed: ObjectReply = store.perform(removal()).await.unwrap();
        assert_eq!(removed.members.len(), 2);
        let again = store.perform(removal()).await.unwrap();
        assert_eq!(again.current.object, collection);
        assert!(again.members.is_empty(), "it was not performed again");
        let command = Command::GetAttributes { object: ObjectAddress::ROOT };
        let lookup = ObjectRequest::new(command)
            .setting(tag.clone())
            .getting(object::AttributeSelection::One(AttributeId::new(0xf001_0000, 2)));
        let found = store.perform(lookup).await.unwrap();
        assert!(!found.attributes[0].value.is_empty(), "the drive says that it was not performed");
    });
}

#[test]
fn the_members_and_collections_of_a_snapshot_do_not_change() {
    run(async {
        let store = open_with(&memory(64 * MIB), DriveMutation::default()).await.unwrap();
        let source = create_partition(&store).await;
        let (linked, _) = linked_collection(&store, source, 3).await;
        let tracked = tracking_collection(&store, source, linked.object).await.unwrap();
        let command = Command::CreateSnapshot { source, requested: 0, method: CopyMethod(0) };
        let snapshot = perform(&store, command).await.unwrap().current.object.partition;
        for collection in [linked, tracked] {
            let collection = ObjectAddress::new(snapshot, collection.object);
            let command = Command::RemoveMemberObjects { collection };
            assert!(perform(&store, command).await.is_err());
            let request = ObjectRequest::new(Command::SetMemberAttributes { collection })
                .setting(Attribute::new(0x1_0000, 1, vec![7]));
            assert!(store.perform(request).await.is_err());
            let command = Command::RemoveCollection { collection, force: true };
            assert!(perform(&store, command).await.is_err());
            assert_eq!(list_collection(&store, collection).await.unwrap().len(), 3);
        }
        assert_eq!(list(&store, snapshot, 10).await.unwrap().len(), 3);
    });
}

#[test]
fn a_partition_is_removed_with_its_tracking_collections() {
    run(async {
        let volume = memory(64 * MIB);
        let store = open(&volume).await;
        let partition = create_partition(&store).await;
        let (linked, _) = linked_collection(&store, partition, 300).await;
        tracking_collection(&store, partition, linked.object).await.unwrap();
        perform(&store, Command::RemovePartition { partition, with_contents: true }).await.unwrap();
        assert_eq!(store.statistics().objects, 0);
        // A new partition with this identifier finds nothing of the old one.
        perform(&store, Command::CreatePartition { requested: partition }).await.unwrap();
        let requested = linked.object;
        perform(&store, Command::CreateCollection { partition, requested }).await.unwrap();
        assert!(list_collection(&store, linked).await.unwrap().is_empty());
    });
}
