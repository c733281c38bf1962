//! The crash simulator: a drive loses its power, or is killed, at random operations of its disk.
//!
//! A script performs random commands and remembers, for each version of the drive's state, what the state was. After a
//! crash the drive must be in one of the states since the last flush that was answered: as a whole, so that length,
//! attributes and data of each object agree. `FOREBAY_DRIVE_CRASH_POINTS=n` sets how many points are tried, and
//! `FOREBAY_DRIVE_CRASH_SEED=n` runs a single script.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use drive::{DriveMutant, DriveMutation, DriveStore};
use object::{Attribute, Command, ObjectAddress, ObjectError};
use sim::{CrashVolume, Rng, StableDiskImage};
use volume::Stack;

use crate::support::*;

/// A user object as the script knows it: its bytes and its attribute 10000h/1h.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct Known {
    bytes: Vec<u8>,
    attribute: Vec<u8>,
}

/// The content of a drive: its partitions, its user objects, and the named record of the test.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct DriveContent {
    partitions: BTreeSet<u64>,
    objects: BTreeMap<ObjectAddress, Known>,
    record: Option<Vec<u8>>,
}

/// The states that a drive may have after a crash, oldest first.
#[derive(Clone, Debug, Default)]
struct History {
    states: Vec<DriveContent>,
    /// Partitions that are snapshots. The script does not change objects in them.
    snapshots: BTreeSet<u64>,
    /// Identifiers that the drive has assigned. None may be assigned again.
    given: BTreeSet<u64>,
    boot_epoch: u16,
}

impl History {
    fn last(&self) -> DriveContent {
        self.states.last().cloned().unwrap_or_default()
    }

    /// Notes that the newest state is stable: after a crash no older state is permitted.
    fn flushed(&mut self) {
        let last = self.last();
        self.states = vec![last];
    }
}

/// The outcome of one step of the script: an error means that the simulated disk failed.
type Done = Result<(), ObjectError>;

struct ScriptRun<'a> {
    store: &'a DriveStore,
    rng: Rng,
    history: &'a mut History,
}

impl ScriptRun<'_> {
    /// Notes the state after a command, before the command is sent. If the command fails, the old and the new state are
    /// both permitted.
    fn note(&mut self, state: DriveContent) {
        self.history.states.push(state);
    }

    fn give(&mut self, id: u64) {
        assert!(self.history.given.insert(id), "identifier {id:x} was given twice");
    }

    async fn step(&mut self) -> Done {
        let now = self.history.last();
        let is_live = |partition: &u64| !self.history.snapshots.contains(partition);
        let live = now.objects.keys().filter(|object| is_live(&object.partition));
        let objects: Vec<_> = live.copied().collect();
        let all: Vec<_> = now.partitions.iter().copied().collect();
        let partitions: Vec<_> = all.iter().copied().filter(is_live).collect();
        match self.rng.below(16) {
            _ if partitions.is_empty() => self.create_partition(now).await,
            0 if partitions.len() < 3 => self.create_partition(now).await,
            1 if self.rng.chance(30) => self.remove_partition(now, &all).await,
            1 if all.len() < 6 => self.snapshot(now, &partitions).await,
            2 => self.put_record(now).await,
            3 | 4 => self.flush().await,
            5 if self.rng.chance(5) => self.format(now).await,
            _ if objects.is_empty() || self.rng.chance(15) => self.create(now, &partitions).await,
            _ => {
                let object = *self.rng.pick(&objects).expect("there is one");
                self.change(now, object).await
            }
        }
    }

    async fn create_partition(&mut self, mut state: DriveContent) -> Done {
        // The drive chooses the identifier, so the new state can be noted only after the command.
        let reply = perform(self.store, Command::CreatePartition { requested: 0 }).await?;
        let id = reply.current.object.partition;
        self.give(id);
        state.partitions.insert(id);
        self.note(state);
        Ok(())
    }

    async fn snapshot(&mut self, mut state: DriveContent, partitions: &[u64]) -> Done {
        let source = *self.rng.pick(partitions).expect("there is one");
        let method = object::CopyMethod(0);
        let is_clone = self.rng.chance(50);
        let command = match is_clone {
            true => Command::CreateClone { source, requested: 0, method },
            false => Command::CreateSnapshot { source, requested: 0, method },
        };
        let id = perform(self.store, command).await?.current.object.partition;
        self.give(id);
        if !is_clone {
            self.history.snapshots.insert(id);
        }
        state.partitions.insert(id);
        let own = state.objects.iter().filter(|(address, _)| address.partition == source);
        let copies: Vec<_> = own
            .map(|(address, known)| (ObjectAddress::new(id, address.object), known.clone()))
            .collect();
        state.objects.extend(copies);
        self.note(state);
        Ok(())
    }

    async fn remove_partition(&mut self, mut state: DriveContent, partitions: &[u64]) -> Done {
        let partition = *self.rng.pick(partitions).expect("there is one");
        state.partitions.remove(&partition);
        state.objects.retain(|address, _| address.partition != partition);
        self.note(state);
        perform(self.store, Command::RemovePartition { partition, with_contents: true }).await?;
        self.history.flushed();
        Ok(())
    }

    async fn put_record(&mut self, mut state: DriveContent) -> Done {
        let value = self.rng.next_u64().to_le_bytes().to_vec();
        state.record = Some(value.clone());
        self.note(state);
        self.store.put_record("name", value.into()).await?;
        self.history.flushed();
        Ok(())
    }

    async fn format(&mut self, mut state: DriveContent) -> Done {
        state.partitions.clear();
        state.objects.clear();
        self.note(state);
        perform(self.store, Command::FormatOsd { capacity: 0 }).await?;
        self.history.flushed();
        Ok(())
    }

    async fn flush(&mut self) -> Done {
        flush(self.store).await?;
        self.history.flushed();
        Ok(())
    }

    async fn create(&mut self, mut state: DriveContent, partitions: &[u64]) -> Done {
        let partition = *self.rng.pick(partitions).expect("there is one");
        let reply =
            perform(self.store, Command::Create { partition, requested: 0, count: 1 }).await?;
        let object = reply.current.object;
        self.give(object.object);
        state.objects.insert(object, Known::default());
        self.note(state);
        Ok(())
    }

    async fn change(&mut self, mut state: DriveContent, object: ObjectAddress) -> Done {
        let known = state.objects.get_mut(&object).expect("it is there");
        let length = known.bytes.len() as u64;
        let start =
            [0, length, self.rng.below(length + 9000)][self.rng.below(3) as usize].min(60_000);
        let count = [100, 4096, 9000, 30_000][self.rng.below(4) as usize];
        let value = vec![self.rng.next_u64() as u8 | 1; count as usize];
        let end = (start + count).min(length).max(start.min(length)) as usize;
        let first = start.min(length) as usize;
        let is_done = match self.rng.below(9) {
            0..4 => {
                let end = start as usize + value.len();
                known.bytes.resize(known.bytes.len().max(end), 0);
                known.bytes[start as usize..end].copy_from_slice(&value);
                self.note(state);
                write(self.store, object, start, value).await
            }
            4 if length < 100_000 => {
                known.bytes.extend(&value);
                self.note(state);
                append(self.store, object, value).await
            }
            5 => {
                known.bytes[first..end].fill(0);
                self.note(state);
                perform(self.store, Command::Clear { object, length: count, start }).await
            }
            6 => {
                known.bytes.drain(first..end);
                self.note(state);
                perform(self.store, Command::Punch { object, length: count, start }).await
            }
            7 => {
                known.bytes.resize(start as usize, 0);
                self.note(state);
                set_length(self.store, object, start).await
            }
            _ if self.rng.chance(40) => {
                state.objects.remove(&object);
                self.note(state);
                perform(self.store, Command::Remove { object }).await
            }
            _ => {
                known.attribute = value[..100].to_vec();
                let attribute = Attribute::new(0x1_0000, 1, known.attribute.clone());
                self.note(state);
                set(self.store, object, attribute).await
            }
        };
        is_done.map(drop)
    }
}

/// Reads all partitions, objects and the named record of a drive.
async fn content(store: &DriveStore) -> Result<DriveContent, ObjectError> {
    let mut found = DriveContent::default();
    found.partitions.extend(list(store, 0, 100).await?);
    let mut used = 0;
    for &partition in &found.partitions.clone() {
        for id in list(store, partition, 100).await? {
            let object = ObjectAddress::new(partition, id);
            let bytes = read(store, object, 0, 1 << 30).await?;
            let attribute = get(store, object, 0x1_0000, 1).await?.to_vec();
            used += get_number(store, object, 1, 0x81).await;
            found.objects.insert(object, Known { bytes, attribute });
        }
    }
    found.record = store.record("name").await?.map(|record| record.to_vec());
    // Copies share blocks with their source, so the sum over all objects may exceed the used bytes, but not be less.
    if used < store.statistics().used_bytes {
        let counted = store.statistics().used_bytes;
        return Err(ObjectError::Storage(format!("{used} bytes used, {counted} counted")));
    }
    Ok(found)
}

/// Performs `steps` commands of a script on a drive, or fewer if its disk fails. Returns an error only if the content
/// of the drive is wrong.
async fn perform_script(
    volume: &Stack,
    mutant: Option<DriveMutant>,
    history: &mut History,
    mut rng: Rng,
    steps: u64,
) -> Result<(), String> {
    let mutation = mutant.map_or_else(DriveMutation::default, DriveMutation::of);
    // Some scripts fold their log often, others only when the drive is opened.
    let mutation = mutation.folding_after([0, 1, 3, 10][rng.below(4) as usize]);
    let Ok(store) = open_with(volume, mutation).await else { return Ok(()) };
    check(&store, history).await?;
    let mut run = ScriptRun { store: &store, rng, history };
    for _ in 0..steps {
        if run.step().await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// Checks that a drive that was just opened has a permitted state. If its disk fails meanwhile, there is nothing to
/// check.
async fn check(store: &DriveStore, history: &mut History) -> Result<(), String> {
    if store.boot_epoch() <= history.boot_epoch {
        return Err(format!("boot epoch {} came twice", store.boot_epoch()));
    }
    history.boot_epoch = store.boot_epoch();
    let found = match content(store).await {
        Ok(found) => found,
        Err(ObjectError::Storage(reason))
            if reason.contains("power") || reason.contains("closed") =>
        {
            return Ok(());
        }
        Err(error) => return Err(error.to_string()),
    };
    if !history.states.is_empty() && !history.states.contains(&found) {
        return Err(format!(
            "the drive is in none of {} states: {:?}",
            history.states.len(),
            differences(&found, &history.last())
        ));
    }
    // Opening the drive made its content stable, so no other state is permitted any more.
    history.states = vec![found];
    Ok(())
}

/// Describes how the content of a drive differs from the newest state.
fn differences(found: &DriveContent, last: &DriveContent) -> Vec<String> {
    let mut all: BTreeSet<_> = found.objects.keys().collect();
    all.extend(last.objects.keys());
    let text =
        |known: Option<&Known>| known.map(|known| (known.bytes.len(), known.attribute.len()));
    let objects =
        all.into_iter().filter(|object| found.objects.get(object) != last.objects.get(object));
    objects
        .map(|o| {
            format!("{o}: {:?}, last {:?}", text(found.objects.get(o)), text(last.objects.get(o)))
        })
        .chain([format!("{:?} last {:?}", found.partitions, last.partitions)])
        .collect()
}

/// Returns the disk on which a script begins. One script in eight formats a volume of zeros; the others begin with a
/// drive that was formatted before, because the format takes longer than the script. Half of the disks tear a block of
/// 4 KiB.
fn new_disk(seed: u64) -> CrashVolume {
    static FORMATTED: [OnceLock<StableDiskImage>; 2] = [const { OnceLock::new() }; 2];
    let (atoms, is_zero) = ([512, 4096][(seed % 2) as usize], (seed / 2).is_multiple_of(8));
    let zeros = || CrashVolume::new(geometry(VOLUME), seed).with_atoms(atoms);
    if is_zero {
        return zeros();
    }
    let image = FORMATTED[(seed % 2) as usize].get_or_init(|| {
        let volume = Arc::new(zeros());
        let stack: Stack = volume.clone();
        runtime().block_on(async { open(&stack).await.close().await.expect("closed") });
        volume.contents()
    });
    CrashVolume::reopen(image.clone(), seed)
}

/// Runs one script up to a crash during operation `point`, and tries several outcomes of this crash.
fn crash(seed: u64, point: u64, mutant: Option<DriveMutant>) -> Result<(), String> {
    let mut rng = Rng::new(seed.wrapping_mul(0x1_0001).wrapping_add(point));
    let mut history = History::default();
    let volume = Arc::new(new_disk(seed));
    volume.crash_after(point);
    run_script(&volume, seed, mutant, &mut history)?;
    for _ in 0..OUTCOMES {
        let image = volume.crash(&mut rng);
        go_on(image, seed, &mut rng, mutant, history.clone())?;
    }
    Ok(())
}

/// Goes on after a crash: mostly with scripts that crash again, and at last with a check of everything.
fn go_on(
    mut image: StableDiskImage,
    seed: u64,
    rng: &mut Rng,
    mutant: Option<DriveMutant>,
    mut history: History,
) -> Result<(), String> {
    for round in 1..=rng.below(3) {
        let volume = Arc::new(CrashVolume::reopen(image, seed));
        // The next crash is often during the recovery of this one.
        volume.crash_after([rng.below(30), rng.below(200)][rng.below(2) as usize]);
        run_script(&volume, seed.wrapping_add(round << 32), mutant, &mut history)?;
        image = volume.crash(rng);
    }
    let stack: Stack = Arc::new(CrashVolume::reopen(image, seed));
    runtime().block_on(async {
        let report = drive::examine_drive(stack.clone(), options(), Box::new(|_, _| {})).await;
        let report = report.map_err(|error| error.to_string())?;
        if let Some(unsound) = report.filter(|report| !report.is_sound()) {
            return Err(format!("an examination finds {:?}", unsound.findings));
        }
        let store = open_with(&stack, DriveMutation::default()).await.map_err(|e| e.to_string())?;
        check(&store, &mut history).await?;
        if rng.chance(50) {
            return Ok(());
        }
        // Without objects, no block may be in use.
        for partition in history.last().partitions {
            let command = Command::RemovePartition { partition, with_contents: true };
            perform(&store, command).await.map_err(|error| error.to_string())?;
        }
        match store.statistics() {
            drive::DriveStatistics { used_bytes: 0, objects: 0, partitions: 0, .. } => Ok(()),
            left => Err(format!("after the removal of everything: {left:?}")),
        }
    })
}

fn run_script(
    volume: &Arc<CrashVolume>,
    seed: u64,
    mutant: Option<DriveMutant>,
    history: &mut History,
) -> Result<(), String> {
    let stack: Stack = volume.clone();
    runtime().block_on(perform_script(&stack, mutant, history, Rng::new(seed), STEPS))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime")
}

/// Returns the number of disk operations of the script `seed` if it runs without a crash.
fn operations(seed: u64) -> u64 {
    let volume = Arc::new(new_disk(seed));
    run_script(&volume, seed, None, &mut History::default()).expect("no fault without a crash");
    volume.power().operations()
}

/// Tries `count` crashes of a script. Returns this number.
fn crash_often(seed: u64, count: u64, mutant: Option<DriveMutant>) -> Result<u64, String> {
    let all = operations(seed);
    let mut rng = Rng::new(seed);
    for _ in 0..count / OUTCOMES {
        let point = rng.below(all);
        crash(seed, point, mutant)
            .map_err(|fault| format!("seed {seed}, point {point}: {fault}"))?;
    }
    Ok(count)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn after_a_crash_the_drive_is_as_it_was_at_some_moment_since_the_last_flush() {
    if let Some(seed) = number("FOREBAY_DRIVE_CRASH_SEED") {
        println!("{} crash points", crash_often(seed, 500, None).unwrap());
        return;
    }
    let wanted = number("FOREBAY_DRIVE_CRASH_POINTS").unwrap_or(POINTS);
    let (next, done) = (AtomicU64::new(1), AtomicU64::new(0));
    let failure = Mutex::new(None);
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while done.load(Ordering::Relaxed) < wanted && failure.lock().unwrap().is_none() {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    match crash_often(seed, POINTS_PER_SCRIPT, None) {
                        Ok(count) => drop(done.fetch_add(count, Ordering::Relaxed)),
                        Err(fault) => drop(failure.lock().unwrap().get_or_insert(fault)),
                    }
                }
            });
        }
    });
    let (points, scripts) = (done.load(Ordering::Relaxed), next.load(Ordering::Relaxed) - 1);
    let seconds = started.elapsed().as_secs_f64();
    writeln!(std::io::stdout(), "{points} crash points in {scripts} scripts, {seconds:.1} s")
        .expect("stdout is there");
    assert_eq!(
        failure.into_inner().unwrap(),
        None,
        "set FOREBAY_DRIVE_CRASH_SEED to see that script alone"
    );
    assert!(points >= wanted);
}

/// Leaves out each sync on which the drive relies, one at a time, and injects other faults. The simulator must notice
/// each of them; otherwise it would not notice such a bug.
#[test]
fn every_omitted_sync_is_detected() {
    let all = [
        DriveMutant::FirstSync,
        DriveMutant::SecondSync,
        DriveMutant::FreedAtOnce,
        DriveMutant::FlushAnsweredEarly,
        DriveMutant::IdentifiersNotReserved,
        DriveMutant::SuperblockNotStable,
        DriveMutant::LogSync,
        DriveMutant::DataUnchecked,
        DriveMutant::GenerationNotAdvanced,
    ];
    let noticed = |mutant| {
        (1..=MUTANT_SCRIPTS).find(|&seed| {
            // A fault may also show as a panic, such as that of an identifier given twice.
            let crashed = std::panic::catch_unwind(|| crash_often(seed, 40, Some(mutant)));
            !matches!(crashed, Ok(Ok(_)))
        })
    };
    let first = all.map(|mutant| (mutant, noticed(mutant)));
    println!("{first:?}");
    assert!(first.iter().all(|(_, seed)| seed.is_some()), "{first:?}");
}

const VOLUME: u64 = 16 << 20;
/// Number of commands in a script.
const STEPS: u64 = 40;
/// Number of crash points if FOREBAY_DRIVE_CRASH_POINTS is not set.
const POINTS: u64 = 20_000;
const POINTS_PER_SCRIPT: u64 = 40;
/// Outcomes of one crash that are tried: which of the last writes survive differs.
const OUTCOMES: u64 = 5;
/// Number of threads: a small machine has as many cores.
const THREADS: usize = 2;
/// Maximum number of scripts with which a mutant may stay unnoticed.
const MUTANT_SCRIPTS: u64 = 150;
