//! Each command, with its connection cut after each of its PDUs: its effect happens once, or its outcome is unknown.

use std::collections::BTreeSet;

use object::{
    Attribute, AttributeSelection, Command, Continuation, CopyMethod, CopySource, FlushScope,
    KeyToSet, ListRequest, MapType, ObjectAddress, ObjectError, ObjectRequest, Query, QueryMatch,
    ReplyData, Timestamp,
};
use volume::Data;

use crate::scene::{PARTITION, Scene};

const LENGTH: usize = 150_000;
const APPENDED: usize = 100_000;
const NAME: object::AttributeId = object::AttributeId::new(0x1_0000, 1);

/// The objects that a command is about. Each cut has objects of its own.
struct Subject {
    object: ObjectAddress,
    /// A collection with `object` as its member, and one without members.
    collection: ObjectAddress,
    empty_collection: ObjectAddress,
    /// A partition with an object.
    partition: u64,
}

/// A drive as the owner sees it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct Seen {
    partitions: BTreeSet<u64>,
    objects: BTreeSet<u64>,
    collections: BTreeSet<u64>,
    members: BTreeSet<u64>,
    bytes: Vec<u8>,
    name: Vec<u8>,
}

type Build = fn(&Scene, &Subject) -> ObjectRequest;
/// Tells from the state before and after if the effect has happened once.
type Once = fn(&Seen, &Seen) -> bool;

impl Subject {
    async fn new(scene: &Scene) -> Self {
        let (partition, requested) = (PARTITION, 0);
        let command =
            Command::CreateAndWrite { partition, requested, length: LENGTH as u64, start: 0 };
        let bytes: Vec<u8> = (0..LENGTH).map(|at| (at % 251) as u8).collect();
        let created = ObjectRequest::new(command).with_data(Data::from(bytes));
        let object = scene.request(created).await.expect("an object").current.object;
        let collection = || async {
            let command = Command::CreateCollection { partition, requested };
            scene.perform(command).await.expect("a collection").current.object
        };
        let (collection, empty_collection) = (collection().await, collection().await);
        let member = Attribute::new(4, 1, collection.object.to_be_bytes().to_vec());
        let join = ObjectRequest::new(Command::SetAttributes { object }).setting(member);
        scene.request(join).await.expect("a member");
        let created = scene.perform(Command::CreatePartition { requested }).await;
        let partition = created.expect("a partition").current.object.partition;
        scene.perform(scene.key(KeyToSet::Partition { partition })).await.expect("its key");
        let working = KeyToSet::Working { partition, version: 0 };
        scene.perform(scene.key(working)).await.expect("its working key");
        Self { object, collection, empty_collection, partition }
    }

    async fn see(&self, scene: &Scene) -> Seen {
        let list = ListRequest { allocation_length: 1 << 16, ..ListRequest::default() };
        let all = |command| async move {
            match scene.perform(command).await.map(|reply| reply.data) {
                Ok(ReplyData::List(found)) => {
                    found.objects.iter().map(|object| object.id).collect()
                }
                Ok(_) => panic!("a list"),
                // The collection was removed.
                Err(_) => BTreeSet::new(),
            }
        };
        let (object, collection) = (self.object, self.collection);
        let length = 1 << 20;
        let read = scene.perform(Command::Read { object, length, start: 0 }).await;
        let bytes = match read.map(|reply| reply.data) {
            Ok(ReplyData::Bytes(data)) => data.into_bytes().to_vec(),
            Ok(_) => panic!("a read returns bytes"),
            Err(_) => Vec::new(),
        };
        let get = ObjectRequest::new(Command::GetAttributes { object })
            .getting(AttributeSelection::One(NAME));
        let name = scene.request(get).await.map(|reply| reply.attributes[0].value.to_vec());
        let whole = ObjectAddress::partition(PARTITION);
        Seen {
            partitions: all(Command::List { partition: 0, list }).await,
            objects: all(Command::List { partition: PARTITION, list }).await,
            collections: all(Command::ListCollection { collection: whole, list }).await,
            members: all(Command::ListCollection { collection, list }).await,
            bytes,
            name: name.unwrap_or_default(),
        }
    }
}

fn with(command: Command, length: usize) -> ObjectRequest {
    ObjectRequest::new(command).with_data(Data::from(vec![9; length]))
}

fn grown(before: &BTreeSet<u64>, after: &BTreeSet<u64>, by: usize) -> bool {
    before.is_subset(after) && after.len() == before.len() + by
}

/// The commands with an effect that must not happen twice.
const UNREPEATABLE: [(&str, Build, Once); 15] = [
    (
        "CREATE",
        |_, _| ObjectRequest::new(Command::Create { partition: PARTITION, requested: 0, count: 2 }),
        |before, after| grown(&before.objects, &after.objects, 2),
    ),
    (
        "CREATE AND WRITE",
        |_, _| {
            let (partition, requested, length) = (PARTITION, 0, APPENDED as u64);
            with(Command::CreateAndWrite { partition, requested, length, start: 0 }, APPENDED)
        },
        |before, after| grown(&before.objects, &after.objects, 1),
    ),
    (
        "CREATE PARTITION",
        |_, _| ObjectRequest::new(Command::CreatePartition { requested: 0 }),
        |before, after| grown(&before.partitions, &after.partitions, 1),
    ),
    (
        "CREATE COLLECTION",
        |_, _| ObjectRequest::new(Command::CreateCollection { partition: PARTITION, requested: 0 }),
        |before, after| grown(&before.collections, &after.collections, 1),
    ),
    (
        "APPEND",
        |_, subject| {
            let (object, length) = (subject.object, APPENDED as u64);
            with(Command::Append { object, length }, APPENDED)
        },
        |before, after| after.bytes == [&before.bytes[..], &[9; APPENDED]].concat(),
    ),
    (
        "PUNCH",
        |_, subject| {
            let (object, length, start) = (subject.object, 1001, 0);
            ObjectRequest::new(Command::Punch { object, length, start })
        },
        |before, after| after.bytes == before.bytes[1001..],
    ),
    (
        "REMOVE",
        |_, subject| ObjectRequest::new(Command::Remove { object: subject.object }),
        |before, after| grown(&after.objects, &before.objects, 1),
    ),
    (
        "REMOVE COLLECTION",
        |_, subject| {
            let (collection, force) = (subject.collection, true);
            ObjectRequest::new(Command::RemoveCollection { collection, force })
        },
        |before, after| grown(&after.collections, &before.collections, 1),
    ),
    (
        "REMOVE MEMBER OBJECTS",
        |_, subject| {
            ObjectRequest::new(Command::RemoveMemberObjects { collection: subject.collection })
        },
        |before, after| grown(&after.objects, &before.objects, 1) && after.members.is_empty(),
    ),
    (
        "REMOVE PARTITION",
        |_, subject| {
            let (partition, with_contents) = (subject.partition, true);
            ObjectRequest::new(Command::RemovePartition { partition, with_contents })
        },
        |before, after| grown(&after.partitions, &before.partitions, 1),
    ),
    (
        "COPY USER OBJECTS",
        |_, subject| {
            let (partition, requested, method) = (PARTITION, 0, CopyMethod(0));
            let command = Command::CopyUserObjects { partition, requested, method };
            let mut request = ObjectRequest::new(command);
            request.continuation = Continuation::CopySource(CopySource {
                object: subject.object,
                with_attributes: true,
                freeze: false,
                time: Timestamp::ZERO,
            });
            request
        },
        |before, after| grown(&before.objects, &after.objects, 1),
    ),
    (
        "CREATE SNAPSHOT",
        |_, subject| {
            let (source, requested, method) = (subject.partition, 0, CopyMethod(0));
            ObjectRequest::new(Command::CreateSnapshot { source, requested, method })
        },
        |before, after| grown(&before.partitions, &after.partitions, 1),
    ),
    (
        "SET KEY",
        |scene, subject| {
            let key = KeyToSet::Working { partition: subject.partition, version: 3 };
            ObjectRequest::new(scene.key(key))
        },
        |before, after| before == after,
    ),
    (
        "SET MEMBER ATTRIBUTES",
        |_, subject| {
            let collection = subject.collection;
            ObjectRequest::new(Command::SetMemberAttributes { collection })
                .setting(Attribute { id: NAME, value: "name".into() })
        },
        |_, after| after.name == b"name",
    ),
    (
        "SET MEMBER ATTRIBUTES without members",
        |_, subject| {
            let collection = subject.empty_collection;
            ObjectRequest::new(Command::SetMemberAttributes { collection })
                .setting(Attribute { id: NAME, value: "name".into() })
        },
        |before, after| before == after,
    ),
];

/// The commands that an initiator repeats after a lost session.
const REPEATABLE: [(&str, Build, Once); 11] = [
    (
        "WRITE",
        |_, subject| {
            let (object, length, start) = (subject.object, APPENDED as u64, 10);
            with(Command::Write { object, length, start }, APPENDED)
        },
        |_, after| after.bytes[10..10 + APPENDED] == [9; APPENDED],
    ),
    (
        "READ",
        |_, subject| {
            let (object, length, start) = (subject.object, LENGTH as u64, 0);
            ObjectRequest::new(Command::Read { object, length, start })
        },
        |before, after| before == after,
    ),
    (
        "CLEAR",
        |_, subject| {
            let (object, length, start) = (subject.object, 1000, 10);
            ObjectRequest::new(Command::Clear { object, length, start })
        },
        |_, after| after.bytes[10..1010] == [0; 1000],
    ),
    (
        "SET ATTRIBUTES",
        |_, subject| {
            ObjectRequest::new(Command::SetAttributes { object: subject.object })
                .setting(Attribute { id: NAME, value: "name".into() })
        },
        |_, after| after.name == b"name",
    ),
    (
        "GET ATTRIBUTES",
        |_, subject| {
            ObjectRequest::new(Command::GetAttributes { object: subject.object })
                .getting(AttributeSelection::One(NAME))
        },
        |before, after| before == after,
    ),
    (
        "LIST",
        |_, _| {
            let list = ListRequest { allocation_length: 1 << 16, ..ListRequest::default() };
            ObjectRequest::new(Command::List { partition: PARTITION, list })
        },
        |before, after| before == after,
    ),
    (
        "LIST with attributes",
        |_, _| {
            let with_attributes = true;
            let allocation_length = 1 << 16;
            let list = ListRequest { allocation_length, with_attributes, ..Default::default() };
            ObjectRequest::new(Command::List { partition: PARTITION, list })
                .getting(AttributeSelection::One(NAME))
        },
        |before, after| before == after,
    ),
    (
        "GET MEMBER ATTRIBUTES",
        |_, subject| {
            let collection = subject.collection;
            ObjectRequest::new(Command::GetMemberAttributes { collection })
                .getting(AttributeSelection::One(NAME))
        },
        |before, after| before == after,
    ),
    (
        "FLUSH OSD",
        |_, _| ObjectRequest::new(Command::FlushOsd { scope: FlushScope::RangeOrEverything }),
        |before, after| before == after,
    ),
    (
        "READ MAP",
        |_, subject| {
            let (object, allocation_length, start) = (subject.object, 4096, 0);
            let map_type = MapType::All;
            ObjectRequest::new(Command::ReadMap { object, allocation_length, start, map_type })
        },
        |before, after| before == after,
    ),
    (
        "QUERY",
        |_, subject| {
            let (collection, allocation_length) = (subject.collection, 4096);
            let (matches, immediate) = (0, false);
            let command = Command::Query { collection, allocation_length, matches, immediate };
            let mut request = ObjectRequest::new(command);
            let query = Query { match_type: QueryMatch::All, criteria: Vec::new() };
            request.continuation = Continuation::Query(query);
            request
        },
        |before, after| before == after,
    ),
];

/// Cuts the connection of a command after each number of PDUs, until the command ends before the cut. Returns the
/// number of cuts, and that of unknown outcomes.
async fn cut_everywhere(scene: &Scene, name: &str, build: Build, once: Once) -> (u64, u64) {
    let mut unknown = 0;
    for pdus in 0..MOST_PDUS {
        scene.prepare().await;
        let subject = Subject::new(scene).await;
        assert_ne!(subject.collection, subject.empty_collection);
        let before = subject.see(scene).await;
        scene.proxy.cut_after(pdus);
        let done = scene.through.request(build(scene, &subject)).await;
        let was_cut = scene.proxy.stop_cutting();
        let after = subject.see(scene).await;
        match done {
            Ok(_) => assert!(once(&before, &after), "{name} cut after {pdus} PDUs"),
            Err(ObjectError::OutcomeUnknown) => {
                unknown += 1;
                assert!(once(&before, &after) || before == after, "{name} cut after {pdus} PDUs");
            }
            Err(error) => panic!("{name} cut after {pdus} PDUs: {error}"),
        }
        if !was_cut {
            return (pdus, unknown);
        }
    }
    panic!("{name} does not end within {MOST_PDUS} PDUs");
}

#[tokio::test]
async fn a_command_cut_at_any_pdu_has_its_effect_once_or_an_unknown_outcome() {
    let scene = Scene::new().await;
    let mut all = (0, 0);
    for (name, build, once) in UNREPEATABLE {
        let (cuts, unknown) = cut_everywhere(&scene, name, build, once).await;
        println!("{name}: {cuts} cuts, {unknown} unknown");
        assert!(cuts >= 2, "{name} has a command and an answer");
        all = (all.0 + cuts, all.1 + unknown);
    }
    // The drive keeps the results of the tags, so that the outcome is known.
    assert_eq!(all.1, 0, "of {} cuts", all.0);
}

#[tokio::test]
async fn a_repeatable_command_cut_at_any_pdu_is_repeated() {
    let scene = Scene::new().await;
    for (name, build, once) in REPEATABLE {
        let (cuts, unknown) = cut_everywhere(&scene, name, build, once).await;
        println!("{name}: {cuts} cuts");
        assert!(cuts >= 2 && unknown == 0, "{name}: {cuts} cuts, {unknown} unknown");
    }
}

/// PDUs of the longest command and its lookups, with room to spare.
const MOST_PDUS: u64 = 60;
