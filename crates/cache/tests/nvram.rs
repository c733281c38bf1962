//! An NVRAM that survives the loss of power: what is in it is stable, and nothing waits for the log disk.

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use cache::{Cache, MappedFile, NvramSurvives, OpenError, Parts, Report, StableMemory};
use sim::{CrashVolume, Rng};
use support::{
    gateway::{Gateway, filled, read},
    memory::Memory,
};
use tokio::time::timeout;
use volume::{
    Call, Durability, Error, Extent, Fault, Faults, Geometry, Lba, Rule, Stack, Symptom, Volume,
};

/// A gateway whose log disk can be hung and loses its power.
struct Site {
    gateway: Gateway,
    disk: Arc<CrashVolume>,
    faults: Arc<Faults>,
}

impl Site {
    fn new(survives: NvramSurvives) -> Self {
        let log = Geometry { block_size: 4096, ..Geometry::with_blocks(1024) };
        let disk = Arc::new(CrashVolume::new(log, 1));
        let mut gateway = Gateway::new(1024).with_nvram();
        gateway.settings.report = Report::Immediate;
        gateway.settings.nvram_survives = survives;
        let faults = connect(&mut gateway, disk.clone());
        Self { gateway, disk, faults }
    }

    fn hang_log(&self) {
        self.faults.add(Rule::always(Call::Any, Symptom::Hangs));
    }

    /// The power goes, and comes back.
    fn power_cut(&mut self, seed: u64) {
        let left = self.disk.crash(&mut Rng::new(seed));
        self.disk = Arc::new(CrashVolume::reopen(left, seed));
        self.faults = connect(&mut self.gateway, self.disk.clone());
    }
}

fn connect(gateway: &mut Gateway, disk: Stack) -> Arc<Faults> {
    let fault = Fault::new(disk);
    let faults = fault.faults().clone();
    gateway.log = Arc::new(fault);
    faults
}

/// Whether a call is done without the log disk.
async fn is_done<T>(call: impl Future<Output = Result<T, Error>>) -> bool {
    timeout(Duration::from_secs(60), call).await.is_ok_and(|done| done.is_ok())
}

fn stable(cache: &Cache, lba: u64, byte: u8) -> impl Future<Output = Result<(), Error>> {
    cache.write(Lba(lba), filled(byte, 8), Durability::Stable)
}

#[tokio::test(start_paused = true)]
async fn with_it_a_write_is_stable_at_once_and_there_after_a_power_cut() {
    for seed in 0..10 {
        let mut site = Site::new(NvramSurvives::PowerLoss);
        let cache = site.gateway.open().await;
        assert!(!cache.geometry().volatile_cache);
        stable(&cache, 0, 1).await.unwrap();
        site.hang_log();
        assert!(is_done(stable(&cache, 8, 2)).await);
        assert!(is_done(cache.write(Lba(9), filled(3, 2), Durability::Volatile)).await);
        assert!(is_done(cache.flush()).await);
        // What is not in the NVRAM is not stable before it is in the log.
        let mut discard = Box::pin(cache.discard(Extent { lba: Lba(0), blocks: 8 }));
        assert!(futures_util::poll!(&mut discard).is_pending());
        // Nor is it told of.
        assert!(!is_done(read(&cache, 0, 8)).await);
        assert!(is_done(read(&cache, 8, 8)).await);
        drop(discard);
        drop(cache);
        site.power_cut(seed);
        let cache = site.gateway.open().await;
        assert_eq!(read(&cache, 0, 8).await.unwrap(), [1; 8]);
        assert_eq!(read(&cache, 8, 8).await.unwrap(), [2, 3, 3, 2, 2, 2, 2, 2]);
    }
}

#[tokio::test(start_paused = true)]
async fn without_it_a_flush_waits_for_the_log_disk() {
    let site = Site::new(NvramSurvives::Restart);
    let cache = site.gateway.open().await;
    assert!(cache.geometry().volatile_cache);
    site.hang_log();
    assert!(is_done(cache.write(Lba(0), filled(1, 8), Durability::Volatile)).await);
    assert!(!is_done(cache.flush()).await);
    assert!(!is_done(stable(&cache, 8, 2)).await);
}

/// A file whose newest bytes the system had not written back when the power went, or one that had failed.
#[tokio::test(start_paused = true)]
async fn an_older_nvram_replaces_nothing_that_went_down_since() {
    let mut gateway = Gateway::new(1024).with_nvram();
    gateway.settings.report = Report::Immediate;
    let cache = gateway.start().await;
    cache.write(Lba(0), filled(1, 8), Durability::Volatile).await.unwrap();
    let memory = gateway.memory.clone().expect("it has one");
    // The first write is in it: the log has its turn when something waits.
    let before = memory.0.lock().clone();
    cache.write(Lba(0), filled(2, 8), Durability::Stable).await.unwrap();
    cache.drain().await.unwrap();
    drop(cache);
    *memory.0.lock() = before;
    let cache = gateway.open().await;
    assert_eq!(read(&cache, 0, 8).await.unwrap(), [2; 8]);
}

/// A memory whose storage fails when it is told to: after that, what is written is seen, and some of it may
/// get to the storage all the same.
struct Failing {
    seen: Memory,
    stable: Memory,
    /// Writes until it fails.
    left: Arc<AtomicUsize>,
    error: Option<std::io::Error>,
}

impl Failing {
    fn new(left: &Arc<AtomicUsize>) -> Self {
        let (seen, stable) = (Memory::new(256), Memory::new(256));
        Self { seen, stable, left: Arc::clone(left), error: None }
    }

    /// What the power leaves: of what did not get to the storage, whole lines of the processor's cache or none.
    fn after_power_cut(seen: &Memory, stable: &Memory, random: &mut Rng) -> Memory {
        let mut left = stable.0.lock().clone();
        let seen = seen.0.lock();
        for (left, seen) in left.chunks_mut(64).zip(seen.chunks(64)) {
            if random.below(2) == 0 {
                left.copy_from_slice(seen);
            }
        }
        Memory(Arc::new(left.into()))
    }
}

impl StableMemory for Failing {
    fn len(&self) -> usize {
        self.seen.len()
    }

    fn read(&self, offset: usize, to: &mut [u8]) {
        self.seen.read(offset, to);
    }

    fn write(&mut self, offset: usize, from: &[u8]) {
        self.seen.write(offset, from);
        if self.error.is_none() && self.left.load(Ordering::Relaxed) > 0 {
            self.left.fetch_sub(1, Ordering::Relaxed);
            self.stable.write(offset, from);
        } else {
            self.error = Some(std::io::Error::other("no more"));
        }
    }

    fn error(&self) -> Option<&std::io::Error> {
        self.error.as_ref()
    }
}

async fn open_with(gateway: &Gateway, nvram: impl StableMemory) -> Result<Arc<Cache>, OpenError> {
    let (lower, log) = (gateway.far.clone(), gateway.log.clone());
    let parts = Parts { lower, log, nvram: Some(Box::new(nvram)) };
    Cache::open(gateway.settings.clone(), parts, gateway.identity()).await
}

#[tokio::test(start_paused = true)]
async fn when_it_fails_every_write_waits_for_the_log_disk() {
    let site = Site::new(NvramSurvives::PowerLoss);
    let left = Arc::new(AtomicUsize::new(usize::MAX));
    let cache = open_with(&site.gateway, Failing::new(&left)).await.unwrap();
    assert_eq!(cache.statistics().nvram_error, None);
    left.store(0, Ordering::Relaxed);
    let write = |byte| cache.write(Lba(0), filled(byte, 8), Durability::Volatile);
    assert!(is_done(write(1)).await);
    assert!(cache.statistics().nvram_error.is_some_and(|error| error.starts_with("no more; ")));
    site.hang_log();
    assert!(!is_done(write(2)).await);
    // No host is told of a volatile cache, and none has to flush.
    assert!(!cache.geometry().volatile_cache && is_done(cache.flush()).await);
}

#[tokio::test(start_paused = true)]
async fn one_that_fails_at_the_opening_is_not_used() {
    let site = Site::new(NvramSurvives::PowerLoss);
    let left = Arc::new(AtomicUsize::new(100));
    let refused = open_with(&site.gateway, Failing::new(&left)).await.err();
    assert!(matches!(refused, Some(OpenError::Nvram(_))), "{refused:?}");
}

/// The version before a write that it failed at is there until the log has the newer one: its place was
/// freed as soon as the newer one was put beside it, stable or not.
#[tokio::test(start_paused = true)]
async fn what_was_acknowledged_before_it_failed_outlasts_a_power_cut() {
    // Of a write: data, its header, the end of the older version.
    for (writes, seed) in (0..8).flat_map(|writes| (0..20).map(move |seed| (writes, seed))) {
        let mut random = Rng::new(seed);
        let mut site = Site::new(NvramSurvives::PowerLoss);
        let left = Arc::new(AtomicUsize::new(usize::MAX));
        let memory = Failing::new(&left);
        let (seen, stable_bytes) = (memory.seen.clone(), memory.stable.clone());
        let cache = open_with(&site.gateway, memory).await.unwrap();
        site.hang_log();
        let mut acknowledged = [1; 4];
        for slot in 0..4 {
            assert!(is_done(stable(&cache, slot * 8, 1)).await);
        }
        left.store(writes, Ordering::Relaxed);
        for (byte, slot) in [(2, 0), (2, 1), (3, 0), (2, 2)] {
            if is_done(stable(&cache, slot * 8, byte)).await {
                acknowledged[slot as usize] = byte;
            }
        }
        assert!(cache.statistics().nvram_error.is_some());
        drop(cache);
        site.power_cut(seed);
        // Either the power went, or the process alone.
        let found = match seed % 4 {
            0 => seen,
            _ => Failing::after_power_cut(&seen, &stable_bytes, &mut random),
        };
        let cache = open_with(&site.gateway, found).await.unwrap_or_else(|error| {
            panic!("after {writes} writes, seed {seed}: {error}");
        });
        for (slot, least) in (0..4).zip(acknowledged) {
            let bytes = read(&cache, slot * 8, 8).await.unwrap();
            let is_one = bytes.iter().all(|byte| *byte == bytes[0]);
            assert!(
                is_one && (least..=3).contains(&bytes[0]),
                "slot {slot}, after {writes} writes, seed {seed}: {bytes:?}"
            );
        }
    }
}

#[test]
fn with_it_a_synced_file_has_every_byte_that_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nvram");
    let mut file = MappedFile::open(&path, 65536).unwrap().synced().unwrap();
    // Across pages, nothing, and at the end.
    file.write(4090, &[7; 5000]);
    file.write(0, &[]);
    file.write(file.len() - 1, &[8]);
    assert!(file.error().is_none());
    let found = std::fs::read(&path).unwrap();
    assert_eq!((&found[4090..9090], found[found.len() - 1]), (&[7; 5000][..], 8));
    assert_eq!(found.iter().filter(|byte| **byte != 0).count(), 5001);
}

/// A page that an earlier process could not bring to the disk is clean for the kernel all the same: what is
/// found is brought there anew. Told by the time of the last change, which storage keeps that takes writes back.
#[test]
fn what_is_found_in_a_synced_file_is_written_anew() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("nvram");
    let mut file = MappedFile::open(&path, 65536).unwrap().synced().unwrap();
    file.write(5000, &[7; 100]);
    drop(file);
    let before = std::fs::read(&path).unwrap();
    let long_ago = std::time::UNIX_EPOCH;
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
    drop(MappedFile::open(&path, 65536).unwrap().synced().unwrap());
    assert_ne!(std::fs::metadata(&path).unwrap().modified().unwrap(), long_ago);
    assert_eq!(std::fs::read(&path).unwrap(), before);
}
