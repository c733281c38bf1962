//! Random commands next to a model in memory, with restarts in between.

use std::collections::BTreeMap;

use drive::DriveStore;
use object::{Attribute, Command, ObjectAddress, ObjectError};
use sim::Rng;
use volume::Stack;

use crate::support::*;

/// A user object of the model: its bytes, and the values of some attributes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct ModelObject {
    bytes: Vec<u8>,
    attributes: BTreeMap<u32, Vec<u8>>,
}

type Model = BTreeMap<ObjectAddress, ModelObject>;

const LONGEST: u64 = 3 << 20;

fn random_range(rng: &mut Rng, length: u64) -> (u64, u64) {
    let start = match rng.below(4) {
        0 => length.min(LONGEST),
        1 => rng.below(length / 4096 + 2) * 4096,
        _ => rng.below(length + 5000),
    };
    let most = [10, 4096, 20_000, 600_000][rng.below(4) as usize];
    let count = match rng.below(3) {
        0 => (rng.below(most / 4096 + 2)) * 4096,
        _ => rng.below(most) + 1,
    };
    (start.min(LONGEST), count)
}

fn put(bytes: &mut Vec<u8>, start: usize, data: &[u8]) {
    if bytes.len() < start + data.len() {
        bytes.resize(start + data.len(), 0);
    }
    bytes[start..start + data.len()].copy_from_slice(data);
}

async fn step(store: &DriveStore, rng: &mut Rng, model: &mut Model, partitions: &[u64]) {
    let objects: Vec<_> = model.keys().copied().collect();
    let Some(&object) = rng.pick(&objects).filter(|_| rng.clone().below(20) > 0) else {
        let object = create(store, *rng.pick(partitions).unwrap()).await;
        assert!(model.insert(object, ModelObject::default()).is_none(), "{object} twice");
        return;
    };
    let known = model.get_mut(&object).unwrap();
    let length = known.bytes.len() as u64;
    let (start, count) = random_range(rng, length);
    match rng.below(12) {
        0..4 => {
            let data = vec![rng.next_u64() as u8 | 1; count as usize];
            if !data.is_empty() {
                put(&mut known.bytes, start as usize, &data);
            }
            write(store, object, start, data).await.unwrap();
        }
        4 => {
            let data = vec![rng.next_u64() as u8 | 1; count as usize];
            let reply = append(store, object, data.clone()).await.unwrap();
            assert_eq!(reply.current.append_start, length);
            known.bytes.extend(data);
        }
        5 => {
            perform(store, Command::Clear { object, length: count, start }).await.unwrap();
            let end = (start + count).min(length) as usize;
            if (start as usize) < end {
                known.bytes[start as usize..end].fill(0);
            }
        }
        6 => {
            perform(store, Command::Punch { object, length: count, start }).await.unwrap();
            let (first, end) = (start.min(length) as usize, (start + count).min(length) as usize);
            known.bytes.drain(first..end);
        }
        7 => {
            set_length(store, object, start).await.unwrap();
            known.bytes.resize(start as usize, 0);
        }
        8 => {
            let number = rng.below(4) as u32 + 1;
            let value = vec![rng.next_u64() as u8; rng.below(300) as usize];
            set(store, object, Attribute::new(0x1_0000, number, value.clone())).await.unwrap();
            known.attributes.insert(number, value);
        }
        9 if rng.chance(30) => {
            perform(store, Command::Remove { object }).await.unwrap();
            model.remove(&object);
            assert_eq!(read(store, object, 0, 1).await, Err(ObjectError::NoSuchObject { object }));
        }
        10 => flush(store).await.unwrap(),
        _ => {
            let bytes = read(store, object, start, count).await.unwrap();
            let (first, end) = (start.min(length) as usize, (start + count).min(length) as usize);
            assert!(bytes == known.bytes[first..end], "{object} {start} {count}");
        }
    }
}

async fn compare(store: &DriveStore, model: &Model, partitions: &[u64]) {
    let mut used = 0;
    for (object, known) in model {
        let length = known.bytes.len() as u64;
        assert_eq!(get_number(store, *object, 1, 0x82).await, length);
        assert!(read(store, *object, 0, u64::MAX >> 1).await.unwrap() == known.bytes, "{object}");
        for (number, value) in &known.attributes {
            assert_eq!(get(store, *object, 0x1_0000, *number).await.unwrap(), value);
        }
        used += get_number(store, *object, 1, 0x81).await;
    }
    assert_eq!(store.statistics().used_bytes, used);
    let mut sum = 0;
    for &partition in partitions {
        let ids = list(store, partition, 3).await.unwrap();
        let expected = model.keys().filter(|object| object.partition == partition);
        assert!(ids.iter().copied().eq(expected.map(|object| object.object)));
        sum += get_number(store, ObjectAddress::partition(partition), 0x3000_0001, 0x81).await;
    }
    assert_eq!(sum, used);
}

async fn script(seed: u64) {
    let mut rng = Rng::new(seed);
    let volume: Stack = memory(256 << 20);
    let mut store = open(&volume).await;
    let partitions = [create_partition(&store).await, create_partition(&store).await];
    let mut model = Model::new();
    for _ in 0..5 {
        for _ in 0..40 {
            step(&store, &mut rng, &mut model, &partitions).await;
        }
        compare(&store, &model, &partitions).await;
        if rng.chance(50) {
            store.close().await.unwrap();
        } else {
            flush(&store).await.unwrap();
        }
        drop(store);
        store = open(&volume).await;
        compare(&store, &model, &partitions).await;
    }
}

#[test]
fn random_commands_have_the_effect_that_the_model_has() {
    let seeds = match std::env::var("FOREBAY_MODEL_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("a number");
            seed..seed + 1
        }
        Err(_) => 0..SCRIPTS,
    };
    for seed in seeds {
        println!("seed {seed}");
        run(script(seed));
    }
}

/// Scripts in the ordinary run, which takes some seconds.
const SCRIPTS: u64 = 40;
