//! A disk whose calls fail: one call alone, or all calls until the disk works again.
//!
//! A script performs random commands. A command that fails has its whole effect or none. While the drive runs, no
//! acknowledged change is lost; after a power failure, none is lost that a FLUSH has confirmed.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use drive::{DriveMutation, DriveStore};
use object::{
    Attribute, AttributeId, AttributeSelection, Command, ObjectAddress, ObjectError, ObjectRequest,
    ObjectStore,
};
use sim::{CrashVolume, Rng};
use volume::{
    Data, Durability, Error, Extensions, Extent, FaultCallKind, FaultRule, FaultVolume, Faults,
    Geometry, Io, Lba, Stack, Symptom, Volume,
};

use crate::{drive_model::*, random_requests::*, support::*};

const SIZES: Sizes = Sizes { longest: 60_000, data: 30_000, partitions: 4, objects: 12 };
const VOLUME: u64 = 16 << 20;
const STEPS: u64 = 40;

/// A drive on a disk that fails.
struct FaultyDrive {
    disk: Arc<CrashVolume>,
    faults: Arc<Faults>,
    stack: Stack,
    rng: Rng,
    model: DriveModel,
    /// The states that the drive may have after a power failure, oldest first.
    states: Vec<DriveContent>,
    /// Commands that failed.
    failures: u64,
}

/// How the disk fails.
#[derive(Clone, Debug)]
struct Failure {
    call: FaultCallKind,
    symptom: Symptom,
    /// The first call that fails.
    first: u64,
    /// The number of calls that fail; `None`: all, until two commands have failed.
    count: Option<u64>,
}

impl FaultyDrive {
    fn new(disk: CrashVolume, seed: u64) -> Self {
        let disk = Arc::new(disk);
        let fault = FaultVolume::new(disk.clone());
        let faults = Arc::clone(fault.faults());
        let (rng, model) = (Rng::new(seed), DriveModel::default());
        let states = vec![DriveContent::default()];
        Self { disk, faults, stack: Arc::new(fault), rng, model, states, failures: 0 }
    }

    fn fail(&self, failure: &Failure) {
        let rule = FaultRule::always(failure.call, failure.symptom.clone()).after(failure.first);
        self.faults.add(match failure.count {
            Some(count) => rule.times(count),
            None => rule,
        });
    }

    /// Opens the drive. If the disk fails meanwhile, the drive refuses, and opens when the disk works again.
    async fn open(&mut self) -> Result<DriveStore, String> {
        let opened = open_with(&self.stack, DriveMutation::default()).await;
        let store = match opened {
            Ok(store) => store,
            Err(_) => {
                self.failures += 1;
                self.faults.clear();
                let opened = open_with(&self.stack, DriveMutation::default()).await;
                opened.map_err(|error| format!("the disk works again, but: {error}"))?
            }
        };
        Ok(store)
    }

    /// Notes that everything acknowledged so far is stable.
    fn flushed(&mut self) {
        self.states = vec![self.model.content.clone()];
    }

    async fn step(&mut self, store: &DriveStore) -> Result<(), String> {
        match self.rng.below(20) {
            0 | 1 => match flush(store).await {
                Ok(()) => self.flushed(),
                Err(error) => self.failed(store, None, error).await?,
            },
            2 => {
                let value = self.rng.next_u64().to_le_bytes().to_vec();
                let mut after = self.model.clone();
                after.content.record = Some(value.clone().into());
                match store.put_record("name", value.into()).await {
                    Ok(()) => {
                        self.model = after;
                        self.flushed();
                    }
                    Err(error) => self.failed(store, Some(after), error).await?,
                }
            }
            _ => {
                let mut request = random_request(&mut self.rng, &self.model, SIZES);
                if self.rng.chance(2) {
                    request = ObjectRequest::new(Command::FormatOsd { capacity: 0 });
                }
                request.options.fua = self.rng.chance(20);
                self.perform(store, request).await?;
            }
        }
        Ok(())
    }

    async fn perform(&mut self, store: &DriveStore, request: ObjectRequest) -> Result<(), String> {
        let always_stable =
            matches!(request.command, Command::FormatOsd { .. } | Command::RemovePartition { .. });
        match store.perform(request.clone()).await {
            Ok(reply) => {
                self.model.check_reply(&request, &reply);
                self.model.perform(&request, reply.current.object);
                self.states.push(self.model.content.clone());
                if request.options.fua || always_stable {
                    self.flushed();
                }
                Ok(())
            }
            // A snapshot and a quota refuse some of the commands.
            Err(ObjectError::InvalidField { .. })
            | Err(ObjectError::InvalidAttribute { .. })
            | Err(ObjectError::NotEmpty { .. })
            | Err(ObjectError::Quota { .. }) => Ok(()),
            Err(error) if always_stable => {
                // Such a command goes on after the next start. Repeating it now must work, too.
                self.failures += 1;
                self.faults.clear();
                let mut after = self.model.clone();
                after.perform(&request, ObjectAddress::ROOT);
                self.states.push(after.content.clone());
                let again = store.perform(request.clone()).await;
                match again {
                    Ok(_) | Err(ObjectError::NoSuchObject { .. }) => {}
                    Err(again) => return Err(format!("{error}, then {again}: {request:?}")),
                }
                self.model = after;
                flush(store).await.map_err(|error| format!("flush: {error}"))?;
                self.flushed();
                self.compare(store).await
            }
            Err(error) => {
                let found = self.read_all(store).await?;
                let created = created_in(&found, &self.model.content);
                let is_possible = !request.command.creates() || created.is_some();
                let after = is_possible.then(|| {
                    let mut after = self.model.clone();
                    after.perform(&request, created.unwrap_or(ObjectAddress::ROOT));
                    after
                });
                self.failed(store, after, error).await
            }
        }
    }

    /// Checks the drive after a command has failed: it has the state before or after that command.
    async fn failed(
        &mut self,
        store: &DriveStore,
        after: Option<DriveModel>,
        error: ObjectError,
    ) -> Result<(), String> {
        self.failures += 1;
        if !matches!(error, ObjectError::Storage(_) | ObjectError::Damaged { .. }) {
            return Err(format!("a disk error became: {error}"));
        }
        let found = self.read_all(store).await?;
        if let Some(after) = after
            && found == after.content
        {
            self.model = after;
            self.states.push(found);
            return Ok(());
        }
        self.compare(store).await
    }

    /// Lets the disk work again and reads everything.
    async fn read_all(&mut self, store: &DriveStore) -> Result<DriveContent, String> {
        self.faults.clear();
        content(store).await.map_err(|error| format!("the disk works again, but: {error}"))
    }

    async fn compare(&mut self, store: &DriveStore) -> Result<(), String> {
        match self.read_all(store).await? == self.model.content {
            true => Ok(()),
            false => Err("the drive has not the state of the model".into()),
        }
    }

    /// Ends the drive in one of three ways, and opens it again. The disk works.
    async fn end(mut self, store: DriveStore) -> Result<u64, String> {
        let way = self.rng.below(3);
        if way == 0 {
            store.close().await.map_err(|error| format!("close: {error}"))?;
            self.flushed();
        } else if self.rng.chance(50) {
            flush(&store).await.map_err(|error| format!("flush: {error}"))?;
            self.flushed();
        }
        drop(store);
        if way == 2 {
            let image = self.disk.crash(&mut self.rng);
            self.stack = Arc::new(CrashVolume::reopen(image, 0));
        }
        let store = open_with(&self.stack, DriveMutation::default()).await;
        let store = store.map_err(|error| format!("after the end: {error}"))?;
        let found = content(&store).await.map_err(|error| format!("after the end: {error}"))?;
        match self.states.contains(&found) {
            true => Ok(self.failures),
            false => Err(format!("after end {way}: not one of {} states", self.states.len())),
        }
    }
}

/// Returns the first partition, object or collection that `before` does not have.
fn created_in(found: &DriveContent, before: &DriveContent) -> Option<ObjectAddress> {
    for (id, partition) in &found.partitions {
        let Some(known) = before.partitions.get(id) else {
            return Some(ObjectAddress::partition(*id));
        };
        let objects = partition.objects.keys().find(|object| !known.objects.contains_key(object));
        let created =
            objects.or_else(|| partition.collections.difference(&known.collections).next());
        if let Some(created) = created {
            return Some(ObjectAddress::new(*id, *created));
        }
    }
    None
}

/// Runs one script on a disk that fails. Returns the number of commands that failed.
async fn script(seed: u64, failure: Failure) -> Result<u64, String> {
    let mut drive = FaultyDrive::new(CrashVolume::new(geometry(VOLUME), seed), seed);
    drive.fail(&failure);
    let store = drive.open().await?;
    drive.flushed();
    for _ in 0..STEPS {
        drive.step(&store).await?;
    }
    drive.faults.clear();
    drive.compare(&store).await?;
    drive.end(store).await
}

/// Runs a script, makes the power fail, and lets the disk fail while the drive opens and goes on.
async fn script_with_recovery(seed: u64, failure: Failure) -> Result<u64, String> {
    let mut drive = FaultyDrive::new(CrashVolume::new(geometry(VOLUME), seed), seed);
    let store = drive.open().await?;
    for _ in 0..STEPS / 2 {
        drive.step(&store).await?;
    }
    drop(store);
    let image = drive.disk.crash(&mut drive.rng);
    let next = FaultyDrive::new(CrashVolume::reopen(image, seed), seed + 1);
    let mut drive = FaultyDrive { model: drive.model, states: drive.states, ..next };
    drive.fail(&failure);
    let store = drive.open().await?;
    drive.faults.clear();
    let found = drive.read_all(&store).await?;
    if !drive.states.contains(&found) {
        return Err("the drive is in none of the states since the last flush".into());
    }
    // Whatever was found is stable: opening the drive made it so.
    let partitions = &found.partitions;
    drive.model.frozen.retain(|frozen| partitions.contains_key(&frozen.partition));
    drive.model.content = found;
    drive.flushed();
    for _ in 0..STEPS / 4 {
        drive.step(&store).await?;
    }
    drive.compare(&store).await?;
    drive.end(store).await
}

fn device() -> Error {
    Error::Device("the disk failed".into())
}

/// Runs `script` with each failure. Returns the number of scripts and of failed commands.
fn run_all<F>(failures: &[(u64, Failure)], script: impl Fn(u64, Failure) -> F + Sync) -> (u64, u64)
where
    F: Future<Output = Result<u64, String>>,
{
    let (mut count, mut failed) = (0, 0);
    for (seed, failure) in failures {
        match run(script(*seed, failure.clone())) {
            Ok(more) => failed += more,
            Err(fault) => panic!("seed {seed}, {failure:?}: {fault}"),
        }
        count += 1;
    }
    (count, failed)
}

/// Returns each way to fail at each of the first `calls` calls of a kind.
fn failures(calls: std::ops::Range<u64>, counts: &[Option<u64>]) -> Vec<(u64, Failure)> {
    let kinds = [
        (FaultCallKind::Write, Symptom::Fails(device())),
        (FaultCallKind::Write, Symptom::FailsAfter(device())),
        (FaultCallKind::Write, Symptom::Fails(Error::NoSpace)),
        (FaultCallKind::Flush, Symptom::Fails(device())),
        (FaultCallKind::Flush, Symptom::FailsAfter(device())),
        (FaultCallKind::Read, Symptom::Fails(device())),
        (FaultCallKind::Discard, Symptom::Fails(device())),
        (FaultCallKind::Any, Symptom::Fails(Error::Unreachable("the disk is away".into()))),
    ];
    let mut all = Vec::new();
    for first in calls {
        for (call, symptom) in &kinds {
            // Scripts have fewer flushes, discards and reads than writes.
            let is_rare = !matches!(call, FaultCallKind::Write | FaultCallKind::Any);
            let count = counts[(first % counts.len() as u64) as usize];
            let first = if is_rare { first / 3 } else { first };
            let failure = Failure { call: *call, symptom: symptom.clone(), first, count };
            all.push((first % 17 + 1, failure));
        }
    }
    all
}

/// Returns the number of calls of each kind that fail.
fn calls_or(default: u64) -> u64 {
    match std::env::var("FOREBAY_DISK_ERROR_CALLS") {
        Ok(calls) => calls.parse().expect("a number"),
        Err(_) => default,
    }
}

#[test]
fn a_disk_error_at_any_call_loses_nothing_and_leaves_nothing_half_done() {
    let (scripts, failed) =
        run_all(&failures(0..calls_or(CALLS), &[Some(1), None, Some(3)]), script);
    println!("{scripts} scripts, {failed} commands failed");
    // A script has some hundred calls. Failures behind its last one do not happen.
    assert!(failed > CALLS * 8 / 3, "only {failed} commands failed in {scripts} scripts");
}

#[test]
fn a_disk_error_while_a_drive_opens_after_a_crash_loses_nothing() {
    let all = failures(0..calls_or(RECOVERY_CALLS), &[Some(1), None]);
    let (scripts, failed) = run_all(&all, script_with_recovery);
    println!("{scripts} scripts, {failed} failures");
    // Failures behind the last call of a script do not happen.
    assert!(failed > RECOVERY_CALLS * 8 / 3, "only {failed} failures in {scripts} scripts");
}

/// The threads of a drive that cannot be opened write to the volume when they end. They must have ended when the failure
/// is reported, because the drive may be opened again at once.
#[test]
fn a_drive_that_cannot_be_opened_has_left_the_volume_when_that_is_reported() {
    run(async {
        let mut refused = 0;
        for first in 0.. {
            let mut drive = FaultyDrive::new(CrashVolume::new(geometry(VOLUME), 1), 1);
            let store = drive.open().await.unwrap();
            create_partition(&store).await;
            flush(&store).await.unwrap();
            drop(store);
            let users = Arc::strong_count(&drive.stack);
            let (call, symptom) = (FaultCallKind::Write, Symptom::Fails(device()));
            drive.fail(&Failure { call, symptom, first, count: Some(1) });
            if open_with(&drive.stack, DriveMutation::default()).await.is_ok() {
                break;
            }
            assert_eq!(Arc::strong_count(&drive.stack), users, "write {first}");
            refused += 1;
        }
        assert!(refused > 3, "only {refused} writes");
    });
}

/// Lets FORMAT OSD fail at each of its writes and flushes. The drive is then as before, or empty, or it refuses every
/// command until FORMAT OSD is repeated. A start brings one of the two states.
#[test]
fn a_format_that_fails_is_done_wholly_or_not_at_all() {
    let mut refused = 0;
    for call in [FaultCallKind::Write, FaultCallKind::Flush] {
        for first in 0..6 {
            for symptom in [Symptom::Fails(device()), Symptom::FailsAfter(device())] {
                let failure = Failure { call, symptom, first, count: Some(1) };
                refused += u64::from(run(format_with(&failure)));
            }
        }
    }
    assert!(refused > 0, "no FORMAT OSD failed at its commit");
}

/// Returns true if the drive refused commands after FORMAT OSD had failed.
async fn format_with(failure: &Failure) -> bool {
    let mut drive = FaultyDrive::new(CrashVolume::new(geometry(VOLUME), 1), 1);
    let store = drive.open().await.unwrap();
    let partition = create_partition(&store).await;
    let object = create(&store, partition).await;
    write(&store, object, 0, vec![7; 10_000]).await.unwrap();
    flush(&store).await.unwrap();
    let before = content(&store).await.unwrap();
    let format = || perform(&store, Command::FormatOsd { capacity: 0 });
    drive.fail(failure);
    let formatted = format().await;
    drive.faults.clear();
    let is_refused = match (formatted, content(&store).await) {
        (Ok(_), Ok(found)) => {
            assert_eq!(found, DriveContent::default());
            return false;
        }
        (Err(_), Ok(found)) => {
            assert!(found == before || found == DriveContent::default(), "{failure:?}");
            false
        }
        (Err(_), Err(error)) => {
            assert!(matches!(error, ObjectError::Storage(_)), "{error}");
            assert!(flush(&store).await.is_err());
            true
        }
        (Ok(_), Err(error)) => panic!("{error}"),
    };
    drop(store);
    let store = drive.open().await.unwrap();
    let found = content(&store).await.unwrap();
    assert!(found == before || found == DriveContent::default(), "{failure:?}");
    is_refused
}

/// A command with FUA was applied, but is not stable, because the commit failed. Neither its repetition nor the lookup
/// of its result may end well before it is stable.
#[test]
fn a_tagged_command_with_fua_is_answered_when_it_is_stable_also_if_it_is_repeated_or_looked_up() {
    run(async {
        let mut drive = FaultyDrive::new(CrashVolume::new(geometry(VOLUME), 1), 1);
        let store = drive.open().await.unwrap();
        let partition = create_partition(&store).await;
        let object = create(&store, partition).await;
        flush(&store).await.unwrap();
        let tag = Attribute::new(0xf001_0000, 1, tag_value(5));
        let append = Command::Append { object, length: 3 };
        let append = ObjectRequest::new(append).with_data(Data::from(b"abc".to_vec()));
        let append = append.setting(tag.clone()).with_fua();
        let root = Command::GetAttributes { object: ObjectAddress::ROOT };
        let result = AttributeSelection::One(AttributeId::new(0xf001_0000, 2));
        let look_up = ObjectRequest::new(root).setting(tag).getting(result);
        let (call, symptom) = (FaultCallKind::Flush, Symptom::Fails(device()));
        drive.fail(&Failure { call, symptom, first: 0, count: None });
        for request in [&append, &append, &look_up] {
            let refused = store.perform(request.clone()).await;
            assert!(matches!(refused, Err(ObjectError::Storage(_))), "{refused:?}");
        }
        drive.faults.clear();
        let found = store.perform(look_up).await.unwrap();
        assert!(!found.attributes[0].value.is_empty(), "the command was performed");
        drop(store);
        let image = drive.disk.crash(&mut drive.rng);
        let stack: Stack = Arc::new(CrashVolume::reopen(image, 0));
        let store = open(&stack).await;
        assert_eq!(read(&store, object, 0, 10).await.unwrap(), b"abc");
        assert_eq!(store.perform(append).await.unwrap().current.append_start, 0);
        assert_eq!(read(&store, object, 0, 10).await.unwrap(), b"abc");
    });
}

/// A disk with room for fewer blocks of 4 KiB than its size says, like a thin volume in a pool that is full.
struct ThinDisk {
    lower: Stack,
    written: Mutex<BTreeSet<u64>>,
    most: usize,
}

impl Volume for ThinDisk {
    fn geometry(&self) -> Geometry {
        self.lower.geometry()
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        self.lower.read(extent)
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        let (first, count) = (lba.0 / 8, data.len() as u64 / 4096);
        let mut written = self.written.lock().unwrap();
        let new: Vec<_> = (first..first + count).filter(|block| !written.contains(block)).collect();
        if written.len() + new.len() > self.most {
            return Io::done(Err(Error::NoSpace));
        }
        written.extend(new);
        self.lower.write(lba, data, durability)
    }

    fn flush(&self) -> Io<'_, ()> {
        self.lower.flush()
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        let freed = extent.lba.0 / 8..extent.end().0 / 8;
        self.written.lock().unwrap().retain(|block| !freed.contains(block));
        self.lower.discard(extent)
    }

    fn admit(&self, bytes: usize) -> Result<(), Error> {
        self.lower.admit(bytes)
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions::default()
    }
}

#[test]
fn objects_can_be_removed_when_the_pool_below_the_drive_is_full() {
    const PIECE: usize = 2 << 20;
    run(async {
        let lower = memory(64 << 20);
        let stack: Stack = Arc::new(ThinDisk { lower, written: Mutex::default(), most: 5000 });
        let store = open(&stack).await;
        let partition = create_partition(&store).await;
        let mut objects = Vec::new();
        let error = loop {
            let object = create(&store, partition).await;
            match write(&store, object, 0, vec![7; PIECE]).await {
                Ok(_) => objects.push(object),
                Err(error) => break error,
            }
            flush(&store).await.unwrap();
        };
        assert!(matches!(error, ObjectError::Storage(_)), "{error}");
        assert!(objects.len() > 4, "{} objects", objects.len());
        for object in &objects {
            assert!(read(&store, *object, 0, 1 << 30).await.unwrap() == vec![7; PIECE]);
        }
        for object in objects.drain(2..) {
            perform(&store, Command::Remove { object }).await.unwrap();
        }
        flush(&store).await.unwrap();
        let object = create(&store, partition).await;
        // The drive discards freed blocks right after it has answered the flush.
        let begin = std::time::Instant::now();
        while let Err(error) = write(&store, object, 0, vec![8; PIECE]).await {
            assert!(begin.elapsed().as_secs() < 10, "{error}");
            tokio::task::yield_now().await;
        }
        flush(&store).await.unwrap();
        drop(store);
        let store = open(&stack).await;
        assert!(read(&store, object, 0, 1 << 30).await.unwrap() == vec![8; PIECE]);
        assert!(read(&store, objects[0], 0, 1 << 30).await.unwrap() == vec![7; PIECE]);
    });
}

/// A disk that takes no write fails every commit: no FLUSH is answered, and nothing is lost when it works again.
#[test]
fn a_disk_that_takes_no_write_makes_flush_fail_and_loses_nothing() {
    run(async {
        let mut drive = FaultyDrive::new(CrashVolume::new(geometry(VOLUME), 1), 1);
        let store = drive.open().await.unwrap();
        let partition = create_partition(&store).await;
        let mut objects = Vec::new();
        for _ in 0..20 {
            let object = create(&store, partition).await;
            write(&store, object, 0, vec![7; 40_000]).await.unwrap();
            objects.push(object);
        }
        flush(&store).await.unwrap();
        let used = store.statistics().used_bytes;
        let (call, symptom) = (FaultCallKind::Write, Symptom::Fails(device()));
        drive.fail(&Failure { call, symptom, first: 0, count: None });
        let refused = write(&store, objects[0], 0, vec![8; 40_000]).await;
        assert!(matches!(refused, Err(ObjectError::Storage(_))), "{refused:?}");
        for object in &objects[1..] {
            perform(&store, Command::Remove { object: *object }).await.unwrap();
        }
        assert!(flush(&store).await.is_err());
        drive.faults.clear();
        flush(&store).await.unwrap();
        assert_eq!(read(&store, objects[0], 0, 40_000).await.unwrap(), [7; 40_000]);
        drop(store);
        let store = drive.open().await.unwrap();
        assert_eq!(list(&store, partition, 10).await.unwrap(), [objects[0].object]);
        assert_eq!(store.statistics().used_bytes, used / 20);
    });
}

/// The number of calls of each kind that fail in the ordinary run.
const CALLS: u64 = 60;
const RECOVERY_CALLS: u64 = 24;
