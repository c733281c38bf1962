//! An NVRAM that survives the loss of power: what is in it is stable, and nothing waits for the log disk.

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cache::{Cache, MappedFile, NvramSurvives, Parts, Report, StableMemory};
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
async fn is_done(call: impl Future<Output = Result<(), Error>>) -> bool {
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
        assert!(!is_done(cache.discard(Extent { lba: Lba(0), blocks: 8 })).await);
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

/// A memory that fails when it is told to.
struct Failing(Memory, Arc<AtomicBool>);

impl StableMemory for Failing {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn read(&self, offset: usize, to: &mut [u8]) {
        self.0.read(offset, to);
    }

    fn write(&mut self, offset: usize, from: &[u8]) {
        self.0.write(offset, from);
    }

    fn is_sound(&self) -> bool {
        !self.1.load(Ordering::Relaxed)
    }
}

#[tokio::test(start_paused = true)]
async fn when_it_fails_every_write_waits_for_the_log_disk() {
    let site = Site::new(NvramSurvives::PowerLoss);
    let fails = Arc::new(AtomicBool::new(false));
    let parts = Parts {
        lower: site.gateway.far.clone(),
        log: site.gateway.log.clone(),
        nvram: Some(Box::new(Failing(Memory::new(256), fails.clone()))),
    };
    let opened = Cache::open(site.gateway.settings.clone(), parts, site.gateway.identity());
    let cache = opened.await.unwrap();
    fails.store(true, Ordering::Relaxed);
    let write = |byte| cache.write(Lba(0), filled(byte, 8), Durability::Volatile);
    assert!(is_done(write(1)).await);
    site.hang_log();
    assert!(!is_done(write(2)).await);
    // No host is told of a volatile cache, and none has to flush.
    assert!(!cache.geometry().volatile_cache && is_done(cache.flush()).await);
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
    assert!(file.is_sound());
    let found = std::fs::read(&path).unwrap();
    assert_eq!((&found[4090..9090], found[found.len() - 1]), (&[7; 5000][..], 8));
    assert_eq!(found.iter().filter(|byte| **byte != 0).count(), 5001);
}
