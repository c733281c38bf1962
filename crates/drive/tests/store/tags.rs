//! Tests of request tags: the results that a drive keeps, the largest tag that it has forgotten (the horizon), and the
//! boot epoch.

use bytes::Bytes;
use drive::DriveStore;
use object::{
    Attribute, Command, ObjectAddress, ObjectError, ObjectRequest, ObjectStore, Timestamp,
};
use volume::Stack;

use crate::support::*;

const MIB: u64 = 1 << 20;

/// Creates two objects with the request tag of [`tag_value`]. Returns the first object.
async fn create_tagged(
    store: &DriveStore,
    partition: u64,
    tag: u8,
) -> Result<ObjectAddress, ObjectError> {
    let command = Command::Create { partition, requested: 0, count: 2 };
    let tag = Attribute::new(0xf001_0000, 1, tag_value(tag));
    let reply = store.perform(ObjectRequest::new(command).setting(tag)).await?;
    Ok(reply.current.object)
}

async fn open_with_tags(volume: &Stack, request_tags: u64) -> DriveStore {
    let mut options = options();
    options.limits.request_tags = request_tags;
    DriveStore::open(volume.clone(), options).await.expect("opened")
}

async fn horizon(store: &DriveStore) -> Bytes {
    get(store, ObjectAddress::ROOT, 0xf001_0000, 3).await.unwrap()
}

#[test]
fn the_horizon_is_the_largest_tag_that_was_forgotten_also_after_a_start() {
    run(async {
        let volume = memory(16 * MIB);
        let store = open_with_tags(&volume, 2).await;
        let partition = create_partition(&store).await;
        let refused = Err(ObjectError::InvalidAttribute { page: 0xf001_0000, number: 1 });
        assert_eq!(horizon(&store).await, [0; 16][..]);
        assert_eq!(create_tagged(&store, partition, 0).await, refused);
        for (tag, expected) in [(7, 0), (3, 0), (8, 7), (9, 7)] {
            create_tagged(&store, partition, tag).await.unwrap();
            assert_eq!(horizon(&store).await, tag_value(expected), "after tag {tag}");
        }
        let kept = create_tagged(&store, partition, 9).await.unwrap();
        flush(&store).await.unwrap();
        drop(store);
        let store = open_with_tags(&volume, 2).await;
        assert_eq!(horizon(&store).await, tag_value(7));
        let objects = store.statistics().objects;
        for tag in [3, 5, 7] {
            assert_eq!(create_tagged(&store, partition, tag).await, refused, "tag {tag}");
        }
        assert_eq!(create_tagged(&store, partition, 9).await, Ok(kept));
        assert_eq!(store.statistics().objects, objects);
    });
}

#[test]
fn format_osd_forgets_the_results_of_all_tags() {
    run(async {
        let volume = memory(16 * MIB);
        let store = open(&volume).await;
        let partition = create_partition(&store).await;
        for tag in [9, 4] {
            create_tagged(&store, partition, tag).await.unwrap();
        }
        let command = Command::FormatOsd { capacity: 0 };
        let tag = |tag| Attribute::new(0xf001_0000, 1, tag_value(tag));
        store.perform(ObjectRequest::new(command).setting(tag(6))).await.unwrap();
        assert_eq!(horizon(&store).await, tag_value(9));
        drop(store);
        let store = open(&volume).await;
        assert_eq!(horizon(&store).await, tag_value(9));
        let partition = create_partition(&store).await;
        assert!(create_tagged(&store, partition, 9).await.is_err());
        assert!(create_tagged(&store, partition, 10).await.is_ok());
    });
}

#[test]
fn a_tag_from_the_future_is_refused_and_moves_no_horizon() {
    run(async {
        let mut options = options();
        options.limits.request_tags = 1;
        let now = options.clock.now().as_ms();
        let store = DriveStore::open(memory(16 * MIB), options).await.expect("opened");
        let partition = create_partition(&store).await;
        let tagged = |command, minutes: u64| {
            let time = Timestamp::from_ms(now + minutes * 60_000);
            let tag = osd::RequestTag { time, random: [1; 10] }.to_bytes().to_vec();
            store.perform(ObjectRequest::new(command).setting(Attribute::new(0xf001_0000, 1, tag)))
        };
        let create = || Command::Create { partition, requested: 0, count: 1 };
        let refused = Err(ObjectError::InvalidAttribute { page: 0xf001_0000, number: 1 });
        for minutes in [11, 1 << 30] {
            assert_eq!(tagged(create(), minutes).await.map(drop), refused);
            let format = Command::FormatOsd { capacity: 0 };
            assert_eq!(tagged(format, minutes).await.map(drop), refused);
        }
        // The second tag pushes out the first one.
        tagged(create(), 8).await.expect("created");
        tagged(create(), 9).await.expect("created");
        assert_eq!(store.statistics().objects, 2);
        let horizon = horizon(&store).await;
        let horizon = osd::RequestTag::parse(&horizon).expect("a tag");
        assert_eq!(horizon.time.as_ms(), now + 8 * 60_000);
    });
}

#[test]
fn a_format_is_never_looked_up_as_not_performed() {
    run(async {
        let volume = memory(16 * MIB);
        let store = open(&volume).await;
        let tag = Attribute::new(0xf001_0000, 1, tag_value(9));
        let format = ObjectRequest::new(Command::FormatOsd { capacity: 0 });
        store.perform(format.setting(tag)).await.unwrap();
        // FORMAT OSD raises the horizon in the commit that removes the objects. If a crash follows at once, the tag
        // must not look like that of a command that was not performed.
        assert_eq!(horizon(&store).await, tag_value(9));
    });
}

#[test]
fn a_tagged_command_that_is_sent_again_with_fua_is_stable_when_it_is_answered() {
    run(async {
        let volume = memory(16 * MIB);
        let store = open(&volume).await;
        let partition = create_partition(&store).await;
        flush(&store).await.unwrap();
        let command = Command::Create { partition, requested: 0, count: 1 };
        let tag = Attribute::new(0xf001_0000, 1, tag_value(5));
        let request = ObjectRequest::new(command).setting(tag);
        let first = store.perform(request.clone()).await.unwrap().current.object;
        let again = store.perform(request.with_fua()).await.unwrap().current.object;
        assert_eq!(first, again);
        drop(store);
        let store = open(&volume).await;
        assert!(get(&store, first, 1, 0x82).await.is_ok(), "an acknowledged object was lost");
    });
}

#[test]
fn a_tag_on_several_objects_is_kept_once_with_the_first_one() {
    run(async {
        let store = open_with_tags(&memory(16 * MIB), 1).await;
        let partition = create_partition(&store).await;
        let first = create_tagged(&store, partition, 5).await.unwrap();
        assert_eq!(create_tagged(&store, partition, 5).await, Ok(first));
        assert_eq!(horizon(&store).await, [0; 16][..]);
    });
}

#[test]
fn each_start_has_a_boot_epoch_of_its_own() {
    run(async {
        let volume = memory(16 * MIB);
        let mut epochs = Vec::new();
        for _ in 0..2 {
            let store = open(&volume).await;
            let epoch = get(&store, ObjectAddress::ROOT, 0xf001_0000, 4).await.unwrap();
            assert_eq!(epoch, store.boot_epoch().to_be_bytes()[..]);
            epochs.push(epoch);
        }
        assert!(epochs[0] < epochs[1]);
    });
}
