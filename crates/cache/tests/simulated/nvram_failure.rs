//! Tests of immediate report from an NVRAM whose memory fails: no acknowledged write is lost, and later writes wait
//! for the log disk.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::support::{
    gateway::{Gateway, filled, read},
    hanging_log::{Site, copy_of, is_done, stable},
    memory::Memory,
};
use cache::{Cache, CacheOpenError, MappedFile, NvramSurvival, Parts, StableMemory};
use sim::Rng;
use volume::{Durability, Lba, Stack, Volume};

/// A memory whose storage fails after a number of writes. Later writes are still read back, and some of them may
/// reach the storage all the same.
struct Failing {
    seen: Memory,
    stable: Memory,
    /// Number of writes until the storage fails.
    left: Arc<AtomicUsize>,
    error: Option<std::io::Error>,
}

impl Failing {
    fn new(left: &Arc<AtomicUsize>) -> Self {
        let (seen, stable) = (Memory::new(256), Memory::new(256));
        Self { seen, stable, left: Arc::clone(left), error: None }
    }

    /// Returns the memory after a power failure: each cache line of 64 bytes reached the storage as a whole or not at
    /// all.
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

async fn open_with(
    gateway: &Gateway,
    nvram: impl StableMemory,
) -> Result<Arc<Cache>, CacheOpenError> {
    let (lower, log) = (gateway.far.clone(), gateway.log.clone());
    let parts = Parts { lower, log, nvram: Some(Box::new(nvram)) };
    Cache::open(gateway.settings.clone(), parts, gateway.identity()).await
}

/// A page that cannot be loaded reads as zeros, which look like free slots. The start must be refused, because
/// acknowledged writes may be in that page.
#[tokio::test(start_paused = true)]
async fn an_nvram_page_that_cannot_be_read_at_the_start_is_not_treated_as_free_slots() {
    let mut site = Site::new(NvramSurvival::PowerLoss);
    let folder = tempfile::tempdir().unwrap();
    let (path, left) = (folder.path().join("nvram"), folder.path().join("left"));
    let open = |path| MappedFile::open(path, 1 << 20).unwrap();
    let cache = open_with(&site.gateway, open(&path)).await.unwrap();
    site.hang_log();
    assert!(is_done(stable(&cache, 0, 7)).await);
    std::fs::copy(&path, &left).unwrap();
    site.power_cut(1);
    let nvram = open(&left);
    let file = std::fs::File::options().write(true).open(&left).unwrap();
    let length = file.metadata().unwrap().len();
    // The NVRAM file keeps its header and loses its slot headers.
    file.set_len(4096).unwrap();
    let refused = open_with(&site.gateway, nvram).await;
    assert!(matches!(refused, Err(CacheOpenError::Nvram(_))), "{:?}", refused.err());
    file.set_len(length).unwrap();
}

#[tokio::test(start_paused = true)]
async fn when_the_nvram_fails_every_write_waits_for_the_log_disk() {
    let site = Site::new(NvramSurvival::PowerLoss);
    let left = Arc::new(AtomicUsize::new(usize::MAX));
    let cache = open_with(&site.gateway, Failing::new(&left)).await.unwrap();
    assert_eq!(cache.statistics().log.nvram_error, None);
    left.store(0, Ordering::Relaxed);
    let write = |byte| cache.write(Lba(0), filled(byte, 8), Durability::Volatile);
    assert!(is_done(write(1)).await);
    assert!(cache.statistics().log.nvram_error.is_some_and(|error| error.starts_with("no more; ")));
    site.hang_log();
    assert!(!is_done(write(2)).await);
    // The cache must still report that it has no volatile cache, so hosts need not flush.
    assert!(!cache.geometry().volatile_cache && is_done(cache.flush()).await);
}

/// An NVRAM file that was truncated does not survive a restart, so later writes must wait for the log disk.
#[tokio::test(start_paused = true)]
async fn when_an_nvram_that_survives_only_restarts_fails_writes_wait_for_the_log_disk() {
    let site = Site::new(NvramSurvival::Restart);
    let left = Arc::new(AtomicUsize::new(usize::MAX));
    let cache = open_with(&site.gateway, Failing::new(&left)).await.unwrap();
    site.hang_log();
    let write = |byte| cache.write(Lba(0), filled(byte, 8), Durability::Volatile);
    assert!(is_done(write(1)).await, "it is in the NVRAM");
    left.store(0, Ordering::Relaxed);
    assert!(!is_done(write(2)).await);
    assert!(cache.statistics().log.nvram_error.is_some());
}

#[tokio::test(start_paused = true)]
async fn the_start_is_refused_if_the_nvram_fails_at_the_opening() {
    let site = Site::new(NvramSurvival::PowerLoss);
    let left = Arc::new(AtomicUsize::new(100));
    let refused = open_with(&site.gateway, Failing::new(&left)).await.err();
    assert!(matches!(refused, Some(CacheOpenError::Nvram(_))), "{refused:?}");
}

/// If a write to the NVRAM fails, the NVRAM keeps the older version until the log has the newer one. Regression:
/// the older version's slot was freed although the newer one was not stable.
#[tokio::test(start_paused = true)]
async fn writes_acknowledged_before_the_nvram_failed_survive_a_power_cut() {
    // A write to the cache makes three writes to the memory: data, slot header, and the older version's release.
    for (writes, seed) in (0..8).flat_map(|writes| (0..20).map(move |seed| (writes, seed))) {
        let mut random = Rng::new(seed);
        let mut site = Site::new(NvramSurvival::PowerLoss);
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
        assert!(cache.statistics().log.nvram_error.is_some());
        drop(cache);
        site.power_cut(seed);
        // In one of four runs the process was killed; in the others the power failed.
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

/// Regression: a start with a new, blank NVRAM file was refused although the log had every write.
#[tokio::test(start_paused = true)]
async fn a_failed_nvram_is_not_needed_once_the_log_has_all_its_writes() {
    let mut site = Site::new(NvramSurvival::PowerLoss);
    let left = Arc::new(AtomicUsize::new(usize::MAX));
    let cache = open_with(&site.gateway, Failing::new(&left)).await.unwrap();
    tokio::spawn(cache.run());
    stable(&cache, 0, 1).await.unwrap();
    left.store(0, Ordering::Relaxed);
    stable(&cache, 8, 2).await.unwrap();
    let before = copy_of(&(site.disk.clone() as Stack)).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    drop(cache);
    // A blank memory replaces the NVRAM that has failed.
    site.gateway.memory = Some(Memory::new(256));
    site.gateway.log = before;
    let refused = site.gateway.try_open().await.err();
    assert!(matches!(refused, Some(CacheOpenError::NvramMissing(_))), "{refused:?}");
    site.gateway.log = site.disk.clone();
    let cache = site.gateway.open().await;
    assert_eq!(read(&cache, 0, 16).await.unwrap(), [[1; 8], [2; 8]].concat());
}
