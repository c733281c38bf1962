//! A drive whose tables are full refuses new rows. Everything that it has admitted becomes stable, and removals make
//! room.

use drive::DriveStore;
use object::{
    Attribute, AttributeId, Command, ObjectAddress, ObjectError, ObjectRequest, ObjectStore,
};
use sim::Rng;

use crate::support::*;

/// Creates an object with an attribute of this length.
async fn create_with(
    store: &DriveStore,
    partition: u64,
    length: usize,
) -> Result<ObjectAddress, ObjectError> {
    let create = Command::Create { partition, requested: 0, count: 1 };
    let attribute = Attribute::new(0x1_0000, 1, vec![7; length]);
    let request = ObjectRequest::new(create).setting(attribute);
    Ok(store.perform(request).await?.current.object)
}

/// Calls `create` until the drive is full, with a flush after each `batch` calls. Returns the objects.
async fn fill(
    store: &DriveStore,
    batch: usize,
    mut create: impl AsyncFnMut() -> Result<ObjectAddress, ObjectError>,
) -> Vec<ObjectAddress> {
    let mut objects = Vec::new();
    loop {
        match create().await {
            Ok(object) => objects.push(object),
            Err(ObjectError::Quota { .. }) => {
                flush(store).await.expect("flushed when full");
                return objects;
            }
            Err(error) => panic!("object {}: {error}", objects.len()),
        }
        if objects.len() % batch == 0 {
            flush(store).await.unwrap_or_else(|error| panic!("{} objects: {error}", objects.len()));
        }
    }
}

async fn remove(store: &DriveStore, object: ObjectAddress) {
    perform(store, Command::Remove { object }).await.expect("removed");
}

#[test]
fn a_drive_full_of_attributes_refuses_new_ones_and_changes_and_removes_old_ones() {
    run(async {
        let volume = memory(256 << 20);
        let store = open(&volume).await;
        let partition = create_partition(&store).await;
        let objects = fill(&store, 100, async || create_with(&store, partition, 2048).await).await;
        assert!(objects.len() > 1000, "{}", objects.len());
        store.close().await.expect("closed");
        drop(store);
        let store = open(&volume).await;
        // Every page of the tables changes.
        for (n, object) in objects.iter().enumerate() {
            set(&store, *object, Attribute::new(0x1_0000, 1, vec![8; 2048])).await.expect("set");
            if n % 500 == 0 {
                flush(&store).await.expect("flushed");
            }
        }
        flush(&store).await.expect("flushed");
        let full = create_with(&store, partition, 2048).await;
        assert!(matches!(full, Err(ObjectError::Quota { .. })), "{full:?}");
        for object in &objects[..100] {
            remove(&store, *object).await;
        }
        flush(&store).await.expect("flushed");
        for _ in 0..50 {
            create_with(&store, partition, 2048).await.expect("there is room again");
        }
        store.close().await.expect("closed");
        drop(store);
        let store = open(&volume).await;
        let found = list(&store, partition, 1000).await.expect("listed");
        assert_eq!(found.len(), objects.len() - 50);
        let id = AttributeId::new(0x1_0000, 1);
        let value = get(&store, objects[100], id.page, id.number).await.expect("there");
        assert_eq!(value, vec![8; 2048]);
    });
}

#[test]
fn a_drive_full_of_small_objects_refuses_new_ones_and_removes_old_ones() {
    run(async {
        let volume = memory(800_000_000);
        let store = open(&volume).await;
        let partition = create_partition(&store).await;
        let objects = fill(&store, 1000, async || {
            let command =
                Command::CreateAndWrite { partition, requested: 0, length: 4096, start: 0 };
            let request = ObjectRequest::new(command).with_data(vec![5; 4096].into());
            Ok(store.perform(request).await?.current.object)
        })
        .await;
        assert!(objects.len() > 10_000, "{}", objects.len());
        for object in objects.iter().step_by(2) {
            remove(&store, *object).await;
        }
        flush(&store).await.expect("flushed");
        create_with(&store, partition, 100).await.expect("there is room again");
        store.close().await.expect("closed");
    });
}

#[test]
fn random_attributes_never_make_the_tables_of_a_small_drive_overflow() {
    run(async {
        for seed in 0..6 {
            let mut rng = Rng::new(seed);
            let longest = [100, 1400, 2100, 5000, 20_000, 65_000][seed as usize];
            let volume = memory(16 << 20);
            let mut store = open(&volume).await;
            let partition = create_partition(&store).await;
            let mut objects = Vec::new();
            let mut refused = 0;
            for step in 0..20_000 {
                let length = 1 + rng.below(longest) as usize;
                match create_with(&store, partition, length).await {
                    Ok(object) => objects.push(object),
                    Err(ObjectError::Quota { .. }) => {
                        refused += 1;
                        // Leaves pages of the tables that are partly empty.
                        for _ in 0..objects.len() / 3 {
                            let at = rng.below(objects.len() as u64) as usize;
                            remove(&store, objects.swap_remove(at)).await;
                        }
                    }
                    Err(error) => panic!("seed {seed}, step {step}: {error}"),
                }
                if rng.chance(1) {
                    let flushed = flush(&store).await;
                    flushed.unwrap_or_else(|error| panic!("seed {seed}, step {step}: {error}"));
                }
                if refused == 12 {
                    break;
                }
            }
            assert!(refused > 0);
            store.close().await.expect("closed");
            drop(store);
            store = open(&volume).await;
            assert_eq!(list(&store, partition, 1000).await.expect("listed").len(), objects.len());
        }
    });
}
