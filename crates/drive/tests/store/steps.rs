//! Tests of changes to many chunks (of 1 MiB) of an object: their effect is seen at once, and their blocks are freed in
//! steps, also after a crash.

use std::{collections::BTreeMap, sync::Arc};

use drive::{DriveMutation, DriveOptions, DriveStore};
use object::{Command, MapRunKind, MapType, ObjectAddress, ObjectError, ReplyData};
use sim::{CrashVolume, Rng, StableDiskImage};
use volume::Stack;

use crate::support::*;

pub const MIB: u64 = 1 << 20;
pub const BLOCK: u64 = 4096;

/// Returns options with which the drive frees the blocks of at most two chunks in one step.
fn small_steps() -> DriveOptions {
    let mut options = options();
    options.limits.step_chunks = 2;
    options
}

pub async fn open_small(volume: &Stack) -> DriveStore {
    DriveStore::open(volume.clone(), small_steps()).await.expect("opened")
}

/// The expected content of a sparse object: its length in bytes, and the byte that fills each written block.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Sparse {
    pub length: u64,
    pub blocks: BTreeMap<u64, u8>,
}

impl Sparse {
    fn clear(&mut self, range: std::ops::Range<u64>) {
        self.blocks.retain(|block, _| !range.contains(block));
    }

    fn shorten(&mut self, blocks: u64) {
        self.length = blocks * BLOCK;
        self.clear(blocks..u64::MAX);
    }
}

/// Reads an object whose blocks have equal bytes.
pub async fn sparse(store: &DriveStore, object: ObjectAddress) -> Result<Sparse, ObjectError> {
    let length = get(store, object, 1, 0x82).await?;
    let length = u64::from_be_bytes(length.as_ref().try_into().expect("8 bytes"));
    let mut found = Sparse { length, blocks: BTreeMap::new() };
    let map = Command::ReadMap {
        object,
        allocation_length: 1 << 20,
        start: 0,
        map_type: MapType::Written,
    };
    let ReplyData::Map(runs) = perform(store, map).await?.data else { panic!("a map") };
    for run in runs {
        assert_eq!(run.kind, MapRunKind::Written);
        let bytes = read(store, object, run.start, run.length).await?;
        for (n, block) in bytes.chunks(BLOCK as usize).enumerate() {
            assert!(block.iter().all(|byte| *byte == block[0]), "{object} block {n} is torn");
            found.blocks.insert(run.start / BLOCK + n as u64, block[0]);
        }
    }
    Ok(found)
}

/// Writes a block into each of some chunks.
pub async fn write_chunks(store: &DriveStore, object: ObjectAddress, chunks: std::ops::Range<u64>) {
    for chunk in chunks {
        write(store, object, chunk * MIB, vec![7; BLOCK as usize]).await.unwrap();
    }
}

#[test]
fn a_cleared_range_reads_as_zeros_while_its_blocks_are_still_to_be_freed() {
    run(async {
        let volume = memory(64 * MIB);
        let store = open_small(&volume).await;
        let partition = create_partition(&store).await;
        let object = create(&store, partition).await;
        write_chunks(&store, object, 0..100).await;
        let before = sparse(&store, object).await.unwrap();
        perform(&store, Command::Clear { object, length: 79 * MIB, start: 10 * MIB })
            .await
            .unwrap();
        let mut expected = before.clone();
        expected.clear(10 * 256..89 * 256);
        assert_eq!(sparse(&store, object).await.unwrap(), expected);
        // A write into the cleared range is seen, and the rest of its chunk reads as zeros.
        write(&store, object, 50 * MIB + BLOCK, vec![9; BLOCK as usize]).await.unwrap();
        expected.blocks.insert(50 * 256 + 1, 9);
        assert_eq!(sparse(&store, object).await.unwrap(), expected);
        set_length(&store, object, 5 * MIB).await.unwrap();
        set_length(&store, object, 100 * MIB).await.unwrap();
        expected.shorten(5 * 256);
        expected.length = 100 * MIB;
        assert_eq!(sparse(&store, object).await.unwrap(), expected);
        store.finish_freeing().await.unwrap();
        assert_eq!(sparse(&store, object).await.unwrap(), expected);
        assert_eq!(store.statistics().used_bytes, 5 * BLOCK);
        assert_eq!(get_number(&store, object, 1, 0x81).await, 5 * BLOCK);
        let partition = ObjectAddress::partition(partition);
        assert_eq!(get_number(&store, partition, 0x3000_0001, 0x81).await, 5 * BLOCK);
    });
}

#[test]
fn a_removed_object_is_freed_after_a_restart_and_its_space_is_had_for_the_asking() {
    run(async {
        let volume = memory(16 * MIB);
        let store = open_small(&volume).await;
        let partition = create_partition(&store).await;
        let object = create(&store, partition).await;
        let blocks = store.statistics().capacity_bytes / BLOCK;
        for chunk in 0..blocks {
            write(&store, object, chunk * MIB, vec![7; BLOCK as usize]).await.unwrap();
        }
        perform(&store, Command::Remove { object }).await.unwrap();
        let removed = ObjectAddress::partition(partition);
        assert_eq!(get_number(&store, removed, 0x3000_0001, 0x81).await, 0);
        // The background task has not freed all blocks yet. A write that needs blocks must not fail for that.
        let other = create(&store, partition).await;
        write(&store, other, 0, vec![8; MIB as usize]).await.unwrap();
        flush(&store).await.unwrap();
        drop(store);
        let store = open_small(&volume).await;
        store.finish_freeing().await.unwrap();
        assert_eq!(store.statistics().used_bytes, MIB);
        assert_eq!(read(&store, other, 0, MIB).await.unwrap(), vec![8; MIB as usize]);
    });
}

#[test]
fn a_tebibyte_is_cleared_with_one_commit() {
    run(async {
        let volume = memory(64 * MIB);
        let store = open(&volume).await;
        let partition = create_partition(&store).await;
        let object = create(&store, partition).await;
        set_length(&store, object, 1 << 40).await.unwrap();
        for n in 0..100 {
            write(&store, object, n * (10 << 30), vec![7; BLOCK as usize]).await.unwrap();
        }
        flush(&store).await.unwrap();
        let before = store.statistics();
        assert!(before.used_bytes < MIB);
        perform(&store, Command::Clear { object, length: 1 << 40, start: 0 }).await.unwrap();
        flush(&store).await.unwrap();
        assert!(store.statistics().commits - before.commits <= 3);
        assert!(read(&store, object, 0, 64 * MIB).await.unwrap().iter().all(|byte| *byte == 0));
        store.finish_freeing().await.unwrap();
        assert_eq!(store.statistics().used_bytes, 0);
    });
}

#[test]
fn a_partition_with_many_stable_objects_is_removed_without_another_commit() {
    run(async {
        let store = open_small(&memory(64 * MIB)).await;
        let partition = create_partition(&store).await;
        let command = Command::Create { partition, requested: 0, count: 1000 };
        perform(&store, command).await.unwrap();
        let command = Command::CreateCollection { partition, requested: 0 };
        perform(&store, command).await.unwrap();
        flush(&store).await.unwrap();
        let command = Command::RemovePartition { partition, with_contents: true };
        perform(&store, command).await.unwrap();
        assert_eq!((store.statistics().objects, store.statistics().partitions), (0, 0));
    });
}

pub fn snapshot_of(source: u64) -> Command {
    Command::CreateSnapshot { source, requested: 0, method: object::CopyMethod(0) }
}

#[test]
fn a_punch_that_would_move_too_many_chunks_is_refused_and_changes_nothing() {
    run(async {
        let store = open_small(&memory(64 * MIB)).await;
        let partition = create_partition(&store).await;
        let object = create(&store, partition).await;
        write_chunks(&store, object, 0..4100).await;
        let refused = perform(&store, Command::Punch { object, length: MIB, start: 0 }).await;
        let field = object::RefusedField::Length;
        assert_eq!(refused.err(), Some(ObjectError::InvalidField { field }));
        assert_eq!(get_number(&store, object, 1, 0x82).await, 4099 * MIB + BLOCK);
        assert_eq!(get_number(&store, object, 1, 0x81).await, 4100 * BLOCK);
        perform(&store, Command::Punch { object, length: MIB, start: 100 * MIB }).await.unwrap();
        assert_eq!(get_number(&store, object, 1, 0x82).await, 4098 * MIB + BLOCK);
        assert_eq!(get_number(&store, object, 1, 0x81).await, 4099 * BLOCK);
    });
}

type Objects = BTreeMap<ObjectAddress, Sparse>;

/// Performs random commands on sparse objects, and notes the states that the drive may have after a crash.
struct SparseScript<'a> {
    store: &'a DriveStore,
    rng: Rng,
    states: &'a mut Vec<Objects>,
    partition: u64,
}

impl SparseScript<'_> {
    async fn step(&mut self) -> Result<(), ObjectError> {
        let mut state = self.states.last().cloned().unwrap_or_default();
        let own = state.keys().filter(|object| object.partition == self.partition);
        let objects: Vec<_> = own.copied().collect();
        let snapshots: std::collections::BTreeSet<_> = state
            .keys()
            .map(|object| object.partition)
            .filter(|id| *id != self.partition)
            .collect();
        let Some(&object) = self.rng.pick(&objects).filter(|_| objects.len() > 2) else {
            let create = Command::Create { partition: self.partition, requested: 0, count: 1 };
            let object = perform(self.store, create).await?.current.object;
            state.insert(object, Sparse::default());
            self.states.push(state);
            return Ok(());
        };
        let known = state.get_mut(&object).expect("it is there");
        let start = self.rng.below(CHUNKS) * 256 + self.rng.below(3);
        let count = self.rng.below(CHUNKS * 256);
        match self.rng.below(14) {
            0 => {
                self.states.push(state);
                flush(self.store).await?;
                self.states.drain(..self.states.len() - 1);
                Ok(())
            }
            1 | 2 => {
                known.clear(start..start + count);
                self.states.push(state);
                let (start, length) = (start * BLOCK, count * BLOCK);
                perform(self.store, Command::Clear { object, length, start }).await.map(drop)
            }
            3 => {
                known.shorten(start);
                self.states.push(state);
                set_length(self.store, object, start * BLOCK).await.map(drop)
            }
            5 if snapshots.len() < 3 => self.snapshot(state).await,
            6 if !snapshots.is_empty() => {
                let partition = *snapshots.first().expect("there is one");
                state.retain(|object, _| object.partition != partition);
                self.states.push(state);
                let command = Command::RemovePartition { partition, with_contents: true };
                perform(self.store, command).await.map(drop)
            }
            7 | 8 if !snapshots.is_empty() => {
                let snapshot = *snapshots.first().expect("there is one");
                self.replace(state, snapshot).await
            }
            4 => {
                state.remove(&object);
                self.states.push(state);
                perform(self.store, Command::Remove { object }).await.map(drop)
            }
            _ => {
                let byte = self.rng.next_u64() as u8 | 1;
                for chunk in 0..self.rng.below(8) {
                    let block = start + chunk * 256;
                    let known = state.get_mut(&object).expect("it is there");
                    known.blocks.insert(block, byte);
                    known.length = known.length.max((block + 1) * BLOCK);
                    self.states.push(state.clone());
                    write(self.store, object, block * BLOCK, vec![byte; BLOCK as usize]).await?;
                }
                Ok(())
            }
        }
    }

    async fn snapshot(&mut self, mut state: Objects) -> Result<(), ObjectError> {
        let reply = perform(self.store, snapshot_of(self.partition)).await?;
        put_copies(&mut state, self.partition, reply.current.object.partition);
        self.states.push(state);
        Ok(())
    }

    /// Restores the partition from a snapshot, or refreshes the snapshot.
    async fn replace(&mut self, mut state: Objects, snapshot: u64) -> Result<(), ObjectError> {
        let partition = self.partition;
        let (from, to, command) = match self.rng.chance(50) {
            true => {
                let command = Command::RestorePartitionFromSnapshot { partition, snapshot };
                (snapshot, partition, command)
            }
            false => (partition, snapshot, Command::RefreshSnapshotOrClone { copy: snapshot }),
        };
        state.retain(|object, _| object.partition != to);
        put_copies(&mut state, from, to);
        self.states.push(state);
        perform(self.store, command).await.map(drop)
    }
}

/// Adds the objects of one partition to another one.
fn put_copies(state: &mut Objects, from: u64, to: u64) {
    let own = state.iter().filter(|(object, _)| object.partition == from);
    let copies: Vec<_> =
        own.map(|(object, known)| (ObjectAddress::new(to, object.object), known.clone())).collect();
    state.extend(copies);
}

/// Opens the drive, checks its content, and performs random commands until the disk fails. Returns an error only if the
/// content is wrong.
async fn perform_script(
    volume: &Stack,
    states: &mut Vec<Objects>,
    rng: Rng,
    steps: u64,
) -> Result<(), String> {
    let mutation = DriveMutation::default();
    let Ok(store) = DriveStore::open_with(volume.clone(), small_steps(), mutation).await else {
        return Ok(());
    };
    let found = match content(&store).await {
        Ok(found) => found,
        Err(ObjectError::Storage(reason)) if reason.contains("power") => return Ok(()),
        Err(ObjectError::Storage(reason)) if reason.contains("closed") => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    if !states.is_empty() && !states.contains(&found) {
        return Err(format!(
            "none of {} states: {found:?}\nlast {:?}",
            states.len(),
            states.last()
        ));
    }
    *states = vec![found];
    let partitions = match list(&store, 0, 100).await {
        Ok(partitions) => partitions,
        Err(_) => return Ok(()),
    };
    let partition = match partitions.first() {
        Some(partition) => *partition,
        None => match perform(&store, Command::CreatePartition { requested: 0 }).await {
            Ok(reply) => reply.current.object.partition,
            Err(_) => return Ok(()),
        },
    };
    let mut script = SparseScript { store: &store, rng, states, partition };
    for _ in 0..steps {
        if script.step().await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

async fn content(store: &DriveStore) -> Result<Objects, ObjectError> {
    let mut found = Objects::new();
    for partition in list(store, 0, 100).await? {
        for id in list(store, partition, 100).await? {
            let object = ObjectAddress::new(partition, id);
            found.insert(object, sparse(store, object).await?);
        }
    }
    Ok(found)
}

/// Checks that the drive counts exactly the blocks of its objects as used when all freeing is done, and no block after
/// all objects were removed.
async fn check_space(store: &DriveStore) -> Result<(), String> {
    let text = |error: ObjectError| error.to_string();
    store.finish_freeing().await.map_err(text)?;
    let objects = content(store).await.map_err(text)?;
    let partitions = list(store, 0, 100).await.map_err(text)?;
    let blocks: usize = objects.values().map(|object| object.blocks.len()).sum();
    let used = store.statistics().used_bytes;
    let all = blocks as u64 * BLOCK;
    // Snapshots share blocks.
    let is_alone =
        objects.keys().all(|object| Some(object.partition) == partitions.first().copied());
    if used > all || (is_alone && used != all) {
        return Err(format!("{used} bytes are used, and the objects have {blocks} blocks"));
    }
    for partition in partitions {
        let command = Command::RemovePartition { partition, with_contents: true };
        perform(store, command).await.map_err(text)?;
    }
    store.finish_freeing().await.map_err(text)?;
    match store.statistics().used_bytes {
        0 => Ok(()),
        used => Err(format!("{used} bytes are used without objects")),
    }
}

/// Fails if an examination of the crashed drive has a finding.
pub async fn check_sound(volume: &Stack) -> Result<(), String> {
    let report = drive::examine_drive(volume.clone(), small_steps(), Box::new(|_, _| {})).await;
    match report.map_err(|error| error.to_string())? {
        Some(report) if report.found > 0 => Err(format!("an examination finds {report:?}")),
        _ => Ok(()),
    }
}

fn crash(seed: u64, point: u64) -> Result<(), String> {
    let mut rng = Rng::new(seed.wrapping_mul(0x1_0001).wrapping_add(point));
    let mut states = Vec::new();
    let mut image: Option<StableDiskImage> = None;
    let mut at = point;
    for round in 0..4 {
        let volume = Arc::new(match image.take() {
            Some(image) => CrashVolume::reopen(image, seed),
            None => CrashVolume::new(geometry(VOLUME), seed),
        });
        if round == 3 {
            let stack: Stack = volume;
            return run(async {
                check_sound(&stack).await?;
                perform_script(&stack, &mut states, Rng::new(0), 0).await?;
                check_space(&open_small(&stack).await).await
            });
        }
        volume.crash_after(at);
        let stack: Stack = volume.clone();
        let script = Rng::new(seed.wrapping_add(round << 32));
        run(perform_script(&stack, &mut states, script, STEPS))?;
        drop(stack);
        image = Some(volume.crash(&mut rng));
        at = [rng.below(40), rng.below(200)][rng.below(2) as usize];
    }
    Ok(())
}

#[test]
fn after_a_crash_during_steps_objects_are_as_they_were_and_no_block_is_lost() {
    let seeds = match std::env::var("FOREBAY_DRIVE_STEPS_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("a number");
            seed..seed + 1
        }
        Err(_) => 0..SCRIPTS,
    };
    for seed in seeds {
        for n in 0..POINTS {
            let point = Rng::new(seed * 1000 + n).below(MOST_OPERATIONS);
            let crashed = crash(seed, point);
            assert_eq!(crashed, Ok(()), "seed {seed}, point {point}");
        }
    }
}

const VOLUME: u64 = 32 << 20;
/// Length of the longest object, in chunks of 1 MiB.
const CHUNKS: u64 = 40;
/// Number of commands in a script.
const STEPS: u64 = 60;
const SCRIPTS: u64 = 10;
/// Number of crash points that are tried with each script.
const POINTS: u64 = 10;
/// About the number of disk operations of a script: crash points are below it.
const MOST_OPERATIONS: u64 = 1500;
