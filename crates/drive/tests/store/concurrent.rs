//! Many tasks on few objects. Each test has an invariant that holds whatever the order of the commands.
//!
//! The disk lets calls wait, so that tasks overtake each other, and some commands are dropped at work. The tasks run on
//! one thread with a seed; only the two threads of the tables run in an order of their own.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
};

use drive::{DriveMutation, DriveStore};
use object::{
    Attribute, AttributeId, AttributeSelection, Command, CopyMethod, ObjectAddress, ObjectError,
    ObjectRequest, ObjectResult, ObjectStore,
};
use sim::{CrashVolume, Rng};
use tokio::task::JoinSet;
use volume::{Data, Stack};

use crate::{drive_model::content, support::*};

const SEEDS: std::ops::Range<u64> = 0..12;
const TASKS: u64 = 8;
const STEPS: u64 = 40;

/// A drive that several tasks use.
#[derive(Clone)]
struct Shared {
    store: Arc<DriveStore>,
    /// Counts the begins and ends of commands.
    time: Arc<AtomicU64>,
}

impl Shared {
    fn now(&self) -> u64 {
        self.time.fetch_add(1, Ordering::SeqCst)
    }

    async fn perform(&self, command: Command) -> ObjectResult {
        perform(&self.store, command).await
    }
}

async fn shared(seed: u64) -> (Shared, Stack) {
    let disk = CrashVolume::new(geometry(64 << 20), seed).with_yields(40);
    let stack: Stack = Arc::new(disk);
    let store = Arc::new(open(&stack).await);
    (Shared { store, time: Arc::default() }, stack)
}

/// Runs `body` as [`TASKS`] tasks with different numbers and random generators.
async fn run_tasks<F>(seed: u64, body: impl Fn(u64, Rng) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for number in 0..TASKS {
        tasks.spawn(body(number, Rng::new(seed * 1000 + number)));
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no task panics");
    }
}

/// Polls a command up to `polls` times, and drops it then. Returns `None` if it was dropped.
async fn perform_in_part(
    store: &DriveStore,
    request: ObjectRequest,
    polls: u64,
) -> Option<ObjectResult> {
    let mut reply = store.perform(request);
    let mut left = polls;
    poll_fn(move |context| {
        if let Poll::Ready(done) = std::pin::Pin::new(&mut reply).poll(context) {
            return Poll::Ready(Some(done));
        }
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        Poll::Pending
    })
    .await
}

/// Reads everything, starts the drive again after a FLUSH, and checks that nothing has changed.
async fn restart(shared: Shared, stack: Stack) {
    let before = content(&shared.store).await.unwrap();
    flush(&shared.store).await.unwrap();
    drop(shared);
    let store = open_with(&stack, DriveMutation::default()).await.unwrap();
    assert!(content(&store).await.unwrap() == before);
    assert_eq!(store.scrub().await.unwrap().damaged, []);
}

/// Returns a record of 100 bytes that is found again by its number. Records do not end with a block.
fn record(number: u64) -> Vec<u8> {
    let mut record = vec![number as u8 | 1; 100];
    record[..8].copy_from_slice(&number.to_be_bytes());
    record
}

fn number_in(record: &[u8]) -> u64 {
    assert!(record[8..].iter().all(|byte| *byte == record[8]), "a torn record");
    u64::from_be_bytes(record[..8].try_into().unwrap())
}

#[test]
fn appends_get_offsets_of_their_own_without_gaps_and_dropped_ones_happen_once_or_never() {
    for seed in SEEDS {
        run(async {
            let (shared, stack) = shared(seed).await;
            let partition = create_partition(&shared.store).await;
            let object = create(&shared.store, partition).await;
            let offsets = Arc::new(Mutex::new(BTreeMap::new()));
            let dropped = Arc::new(AtomicU64::new(0));
            run_tasks(seed, |task, mut rng| {
                let (shared, offsets, dropped) = (shared.clone(), offsets.clone(), dropped.clone());
                async move {
                    for step in 0..STEPS {
                        let number = task * STEPS + step + 1;
                        let command = Command::Append { object, length: 100 };
                        let mut request =
                            ObjectRequest::new(command).with_data(Data::from(record(number)));
                        request.options.fua = rng.chance(5);
                        let polls = if rng.chance(20) { rng.below(4) } else { u64::MAX };
                        match perform_in_part(&shared.store, request, polls).await {
                            Some(reply) => {
                                let start = reply.unwrap().current.append_start;
                                assert!(offsets.lock().unwrap().insert(start, number).is_none());
                            }
                            None => drop(dropped.fetch_add(1, Ordering::SeqCst)),
                        }
                    }
                }
            })
            .await;
            let bytes = read(&shared.store, object, 0, 1 << 30).await.unwrap();
            assert_eq!(bytes.len() % 100, 0);
            let mut found: Vec<_> = bytes.chunks(100).map(number_in).collect();
            for (offset, number) in &*offsets.lock().unwrap() {
                assert_eq!(found[*offset as usize / 100], *number, "offset {offset}");
            }
            let (all, known) = (found.len() as u64, offsets.lock().unwrap().len() as u64);
            assert!(known <= all && all <= known + dropped.load(Ordering::SeqCst));
            found.sort_unstable();
            found.dedup();
            assert_eq!(found.len() as u64, all, "a record came twice");
            restart(shared, stack).await;
        });
    }
}

/// The writes and reads of one value, with the time at which each began and ended.
#[derive(Default)]
struct Register {
    /// Begin and end of the write of each value. Value 0 was there before all others.
    writes: BTreeMap<u64, (u64, u64)>,
    reads: Vec<(u64, u64, u64)>,
}

impl Register {
    /// Checks that each read has found a value that some order of the commands allows.
    fn check(&self) {
        for (value, begin, end) in &self.reads {
            let (write_begin, write_end) = self.writes[value];
            assert!(write_begin < *end, "value {value} was read before it was written");
            let newer = self
                .writes
                .values()
                .find(|(other_begin, other_end)| *other_begin > write_end && *other_end < *begin);
            assert_eq!(newer, None, "value {value} was overwritten before the read at {begin}");
        }
    }
}

const REGISTER_BYTES: u64 = 3 * 4096 + 100;
const PAIR: [AttributeId; 2] = [AttributeId::new(0x1_0000, 1), AttributeId::new(0x1_0000, 2)];

/// Returns a WRITE of one value all over the object, which also sets two attributes to the value.
fn write_value(object: ObjectAddress, value: u64) -> ObjectRequest {
    let data: Vec<u8> = value.to_be_bytes().repeat(REGISTER_BYTES as usize / 8 + 1);
    let data = Data::from(data[..REGISTER_BYTES as usize].to_vec());
    let mut request =
        ObjectRequest::new(Command::Write { object, length: REGISTER_BYTES, start: 0 });
    request.set =
        PAIR.map(|id| Attribute { id, value: value.to_be_bytes().to_vec().into() }).into();
    request.with_data(data)
}

/// Reads a value, and checks that all of its bytes and both attributes agree.
async fn read_value(store: &DriveStore, object: ObjectAddress) -> u64 {
    let mut request =
        ObjectRequest::new(Command::Read { object, length: REGISTER_BYTES, start: 0 });
    request.get = PAIR.map(AttributeSelection::One).into();
    let reply = store.perform(request).await.unwrap();
    let object::ReplyData::Bytes(data) = reply.data else { panic!("READ returns bytes") };
    let bytes = data.into_bytes();
    let first: [u8; 8] = bytes[..8].try_into().unwrap();
    assert!(bytes.chunks(8).all(|part| *part == first[..part.len()]), "a torn write was read");
    assert!(reply.attributes.iter().all(|attribute| attribute.value == first[..]));
    u64::from_be_bytes(first)
}

#[test]
fn a_reader_sees_the_old_or_the_new_content_of_a_write_with_its_attributes() {
    for seed in SEEDS {
        run(async {
            let (shared, stack) = shared(seed).await;
            let partition = create_partition(&shared.store).await;
            let mut objects = Vec::new();
            let registers: Arc<Mutex<BTreeMap<_, Register>>> = Arc::default();
            for _ in 0..3 {
                let object = create(&shared.store, partition).await;
                shared.store.perform(write_value(object, 0)).await.unwrap();
                let mut register = Register::default();
                register.writes.insert(0, (0, shared.now()));
                registers.lock().unwrap().insert(object, register);
                objects.push(object);
            }
            run_tasks(seed, |task, mut rng| {
                let (shared, registers, objects) =
                    (shared.clone(), registers.clone(), objects.clone());
                async move {
                    for step in 0..STEPS {
                        let object = *rng.pick(&objects).unwrap();
                        let begin = shared.now();
                        if rng.chance(10) {
                            flush(&shared.store).await.unwrap();
                        } else if rng.chance(50) {
                            let value = task * STEPS + step + 1;
                            // A read may find the value before the write has ended.
                            let unended = (begin, u64::MAX);
                            let note = |times| {
                                let mut all = registers.lock().unwrap();
                                all.get_mut(&object).unwrap().writes.insert(value, times);
                            };
                            note(unended);
                            shared.store.perform(write_value(object, value)).await.unwrap();
                            note((begin, shared.now()));
                        } else {
                            let value = read_value(&shared.store, object).await;
                            let end = shared.now();
                            let mut all = registers.lock().unwrap();
                            all.get_mut(&object).unwrap().reads.push((value, begin, end));
                        }
                    }
                }
            })
            .await;
            registers.lock().unwrap().values().for_each(Register::check);
            restart(shared, stack).await;
        });
    }
}

#[test]
fn a_list_misses_and_repeats_no_object_that_exists_throughout() {
    for seed in SEEDS {
        run(async {
            let (shared, stack) = shared(seed).await;
            let partition = create_partition(&shared.store).await;
            let mut lasting = Vec::new();
            for n in 0..30 {
                let object = create(&shared.store, partition).await;
                match n % 3 {
                    0 => lasting.push(object.object),
                    _ => drop(shared.perform(Command::Remove { object }).await.unwrap()),
                }
            }
            run_tasks(seed, |_, mut rng| {
                let (shared, lasting) = (shared.clone(), lasting.clone());
                async move {
                    for _ in 0..STEPS / 2 {
                        if rng.chance(50) {
                            let ids =
                                list(&shared.store, partition, rng.below(5) + 1).await.unwrap();
                            assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
                            assert!(lasting.iter().all(|id| ids.contains(id)), "{ids:?}");
                        } else {
                            let command = Command::Create { partition, requested: 0, count: 3 };
                            let first = shared.perform(command).await.unwrap().current.object;
                            for n in 0..3 {
                                let object = ObjectAddress::new(partition, first.object + n);
                                shared.perform(Command::Remove { object }).await.unwrap();
                            }
                        }
                    }
                }
            })
            .await;
            assert_eq!(list(&shared.store, partition, 4).await.unwrap(), lasting);
            restart(shared, stack).await;
        });
    }
}

#[test]
fn writes_at_the_same_time_never_exceed_the_quota_of_their_partition() {
    const QUOTA_BLOCKS: u64 = 20;
    for seed in SEEDS {
        run(async {
            let (shared, stack) = shared(seed).await;
            let partition = create_partition(&shared.store).await;
            let address = ObjectAddress::partition(partition);
            let quota = (QUOTA_BLOCKS * 4096).to_be_bytes().to_vec();
            let quota = Attribute::new(0x3000_0002, 0x1_0001, quota);
            set(&shared.store, address, quota).await.unwrap();
            let refused = Arc::new(AtomicU64::new(0));
            run_tasks(seed, |_, mut rng| {
                let (shared, refused) = (shared.clone(), refused.clone());
                async move {
                    let object = create(&shared.store, partition).await;
                    for _ in 0..STEPS / 2 {
                        let start = rng.below(8) * 4096;
                        let done = match rng.below(4) {
                            0 => set_length(&shared.store, object, start).await,
                            1 => append(&shared.store, object, vec![1; 5000]).await,
                            _ => write(&shared.store, object, start, vec![2; 8192]).await,
                        };
                        match done {
                            Ok(_) => {}
                            Err(ObjectError::Quota { .. }) => {
                                refused.fetch_add(1, Ordering::SeqCst);
                            }
                            Err(error) => panic!("{error}"),
                        }
                        let used = get_number(&shared.store, address, 0x3000_0001, 0x81).await;
                        assert!(used <= QUOTA_BLOCKS * 4096, "{used} bytes are used");
                    }
                }
            })
            .await;
            assert!(refused.load(Ordering::SeqCst) > 0, "no write met the quota");
            restart(shared, stack).await;
        });
    }
}

#[test]
fn a_snapshot_has_each_write_that_ended_before_an_other_one_that_it_has() {
    for seed in SEEDS {
        run(async {
            let (shared, stack) = shared(seed).await;
            let partition = create_partition(&shared.store).await;
            let mut pairs = Vec::new();
            for _ in 0..TASKS - 1 {
                let pair = [
                    create(&shared.store, partition).await,
                    create(&shared.store, partition).await,
                ];
                for object in pair {
                    shared.store.perform(write_value(object, 0)).await.unwrap();
                }
                pairs.push(pair);
            }
            run_tasks(seed, |task, mut rng| {
                let (shared, pairs) = (shared.clone(), pairs.clone());
                async move {
                    let Some([first, second]) = pairs.get(task as usize).copied() else {
                        for _ in 0..6 {
                            take_snapshot(&shared, partition, &pairs, rng.chance(50)).await;
                        }
                        return;
                    };
                    for value in 1..STEPS / 2 {
                        shared.store.perform(write_value(first, value)).await.unwrap();
                        shared.store.perform(write_value(second, value)).await.unwrap();
                    }
                }
            })
            .await;
            restart(shared, stack).await;
        });
    }
}

/// Makes a snapshot or clone while its source changes, checks it, and removes some of them.
async fn take_snapshot(
    shared: &Shared,
    source: u64,
    pairs: &[[ObjectAddress; 2]],
    is_snapshot: bool,
) {
    let (requested, method) = (0, CopyMethod(0));
    let command = match is_snapshot {
        true => Command::CreateSnapshot { source, requested, method },
        false => Command::CreateClone { source, requested, method },
    };
    let copy = shared.perform(command).await.unwrap().current.object.partition;
    let mut values = Vec::new();
    for _ in 0..2 {
        let mut now = Vec::new();
        for pair in pairs {
            let copies = pair.map(|object| ObjectAddress::new(copy, object.object));
            let first = read_value(&shared.store, copies[0]).await;
            let second = read_value(&shared.store, copies[1]).await;
            assert!(first == second || first == second + 1, "{first} and {second}");
            now.push((first, second));
        }
        values.push(now);
    }
    assert_eq!(values[0], values[1], "the copy has changed");
    if !is_snapshot {
        let command = Command::RemovePartition { partition: copy, with_contents: true };
        shared.perform(command).await.unwrap();
    }
}

#[test]
fn a_queue_of_appends_and_punches_keeps_whole_records_in_their_order() {
    for seed in SEEDS {
        run(async {
            let (shared, stack) = shared(seed).await;
            let partition = create_partition(&shared.store).await;
            let object = create(&shared.store, partition).await;
            let begin: Vec<u8> = (0..1000).flat_map(record).collect();
            write(&shared.store, object, 0, begin).await.unwrap();
            let appended = Arc::new(AtomicU64::new(1000));
            let punched = Arc::new(AtomicU64::new(0));
            run_tasks(seed, |task, mut rng| {
                let (shared, appended, punched) =
                    (shared.clone(), appended.clone(), punched.clone());
                async move {
                    for step in 0..STEPS / 2 {
                        match rng.below(5) {
                            0 | 1 => {
                                let number = 1000 + task * STEPS + step;
                                append(&shared.store, object, record(number)).await.unwrap();
                                appended.fetch_add(1, Ordering::SeqCst);
                            }
                            2 | 3 => {
                                let command = Command::Punch { object, length: 100, start: 0 };
                                shared.perform(command).await.unwrap();
                                punched.fetch_add(1, Ordering::SeqCst);
                            }
                            _ => {
                                let bytes = read(&shared.store, object, 0, 1 << 30).await.unwrap();
                                assert_eq!(bytes.len() % 100, 0);
                                let _numbers: Vec<_> = bytes.chunks(100).map(number_in).collect();
                            }
                        }
                    }
                }
            })
            .await;
            let bytes = read(&shared.store, object, 0, 1 << 30).await.unwrap();
            let found: Vec<_> = bytes.chunks(100).map(number_in).collect();
            let punched = punched.load(Ordering::SeqCst);
            assert_eq!(found.len() as u64, appended.load(Ordering::SeqCst) - punched);
            let old: Vec<_> = found.iter().copied().filter(|number| *number < 1000).collect();
            assert!(old.iter().copied().eq(punched..1000), "the oldest records are punched first");
            for task in 0..TASKS {
                let own = 1000 + task * STEPS..1000 + (task + 1) * STEPS;
                let own: Vec<_> = found.iter().filter(|number| own.contains(number)).collect();
                assert!(own.is_sorted_by(|a, b| a < b), "records of task {task}: {own:?}");
            }
            restart(shared, stack).await;
        });
    }
}

#[test]
fn a_format_that_is_aborted_loses_no_change_that_is_acknowledged_afterwards() {
    for polls in 0..6 {
        run(async {
            let (shared, stack) = shared(polls).await;
            let partition = create_partition(&shared.store).await;
            let object = create(&shared.store, partition).await;
            append(&shared.store, object, vec![1; 5000]).await.unwrap();
            let request = ObjectRequest::new(Command::FormatOsd { capacity: 0 });
            let mut done = perform_in_part(&shared.store, request, polls).await;
            // The first command that the drive accepts again finds it as before or empty.
            let partition = loop {
                let command = Command::CreatePartition { requested: 0 };
                match shared.perform(command).await {
                    Ok(reply) => break reply.current.object.partition,
                    Err(ObjectError::FormatInProgress) => tokio::task::yield_now().await,
                    Err(error) => panic!("{error}, FORMAT OSD: {:?}", done.take()),
                }
            };
            let kept = create(&shared.store, partition).await;
            append(&shared.store, kept, record(1)).await.unwrap();
            flush(&shared.store).await.unwrap();
            assert_eq!(read(&shared.store, kept, 0, 1000).await.unwrap(), record(1));
            restart(shared, stack).await;
        });
    }
}

#[test]
fn a_tagged_command_that_is_sent_twice_at_the_same_time_is_performed_once_and_answered_twice() {
    for seed in SEEDS {
        run(async {
            let (shared, stack) = shared(seed).await;
            let partition = create_partition(&shared.store).await;
            let object = create(&shared.store, partition).await;
            run_tasks(seed, |task, _| {
                let shared = shared.clone();
                async move {
                    // Two tasks have each tag, and append the same record.
                    let number = task / 2 + 1;
                    let tag = Attribute::new(0xf001_0000, 1, tag_value(number as u8));
                    let command = Command::Append { object, length: 100 };
                    let request = ObjectRequest::new(command).with_data(Data::from(record(number)));
                    let reply = shared.store.perform(request.setting(tag.clone())).await.unwrap();
                    let start = reply.current.append_start;
                    let found = read(&shared.store, object, start, 100).await.unwrap();
                    assert_eq!(found, record(number));
                }
            })
            .await;
            assert_eq!(get_number(&shared.store, object, 1, 0x82).await, 100 * TASKS / 2);
            restart(shared, stack).await;
        });
    }
}
