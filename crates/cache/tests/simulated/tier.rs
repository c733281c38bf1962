//! Tests of the read tier: slots that have left memory are found there again, and a read never returns
//! anything but the content of the volume, whatever the tier's disk does.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::support::{
    gateway::{Gateway, first_bytes, read, write},
    tier::{LABEL, Rotting},
    workload::runtime,
};
use cache::{
    Cache, CacheStatistics, DestageOrder, LogKey, Mutant, OversizedEpoch, Settings, TierError,
    WriteMode,
};
use sim::Rng;
use volume::{
    Data, Durability, Error, Extent, FaultCallKind, FaultRule, FaultVolume, Geometry, Lba,
    MemVolume, Stack, Symptom, Volume,
};

const BLOCKS: u64 = 8;

fn gateway() -> Gateway {
    let mut gateway = Gateway::new(2000);
    // Give the tier's disk time to write between two reads.
    gateway.far.set_delay(Duration::from_millis(1));
    (gateway.settings.dram_bytes, gateway.settings.nvram_bytes) = (256 << 10, 64 << 10);
    gateway
}

/// Reads slots one by one, and checks that all bytes of a slot are `byte(slot)`.
async fn read_slots(cache: &Cache, slots: impl IntoIterator<Item = u64>, byte: impl Fn(u64) -> u8) {
    for slot in slots {
        let bytes = read(cache, slot * BLOCKS, BLOCKS as u32).await.expect("it can be read");
        assert_eq!(bytes, [byte(slot); BLOCKS as usize], "slot {slot}");
    }
}

/// Waits until the tier has written all slots that it has admitted.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

async fn far_bytes(gateway: &Gateway, slots: u64, byte: impl Fn(u64) -> u8) {
    for slot in 0..slots {
        gateway.far.poke(slot * BLOCKS, vec![byte(slot); 4096]).await;
    }
}

fn kind(slot: u64) -> u8 {
    (slot % 251) as u8 + 1
}

/// Returns a cache with a tier on `disk`. The first 200 slots of the far volume were read; memory has
/// room for 64 of them.
async fn filled(gateway: &Gateway, disk: Stack) -> Arc<Cache> {
    far_bytes(gateway, 300, kind).await;
    let cache = gateway.start().await;
    cache.use_tier(disk).await.expect("it is blank");
    read_slots(&cache, 0..200, kind).await;
    settle().await;
    gateway.far.take_calls();
    cache
}

#[tokio::test(start_paused = true)]
async fn slots_evicted_from_memory_are_read_from_the_tier_and_not_over_the_link() {
    let gateway = gateway();
    let cache = filled(&gateway, Rotting::new(640, 0, 1)).await;
    let before = cache.statistics();
    assert_eq!((before.hits.hits_tier, before.hits.misses), (0, 200));
    assert!(before.tier.used_bytes >= 130 * 4096, "{before:?}");
    read_slots(&cache, 0..100, kind).await;
    let after = cache.statistics();
    assert_eq!((after.hits.reads_tier, after.hits.hits_tier, after.hits.misses), (100, 100, 200));
    assert_eq!(gateway.far.take_calls(), []);
    // The tier is used also while the far volume is unreachable.
    gateway.far.set_away(true);
    read_slots(&cache, 100..130, kind).await;
    assert!(read(&cache, 250 * BLOCKS, 1).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn one_read_takes_cached_slots_from_the_tier_and_memory() {
    let gateway = gateway();
    let cache = filled(&gateway, Rotting::new(640, 0, 1)).await;
    // The read covers slots in the tier and in memory.
    let data = cache.read(Extent { lba: Lba(112 * BLOCKS), blocks: 256 }).await.unwrap();
    let expected: Vec<u8> = (112..144).flat_map(|slot| [kind(slot); 8]).collect();
    assert_eq!(first_bytes(&data.into_bytes()), expected);
    let hits = cache.statistics().hits.hits_tier;
    assert!(hits >= 16, "{hits}");
    // If only few of the slots are in the tier, one call to the far volume reads all.
    let gateway = self::gateway();
    far_bytes(&gateway, 300, kind).await;
    let cache = gateway.start().await;
    cache.use_tier(Rotting::new(640, 0, 1)).await.unwrap();
    read_slots(&cache, [10, 20], kind).await;
    read_slots(&cache, 100..200, kind).await;
    settle().await;
    gateway.far.take_calls();
    let data = cache.read(Extent { lba: Lba(0), blocks: 256 }).await.unwrap();
    let expected: Vec<u8> = (0..32).flat_map(|slot| [kind(slot); 8]).collect();
    assert_eq!(first_bytes(&data.into_bytes()), expected);
    assert_eq!(gateway.far.take_calls(), [("read", 0, 256)]);
}

#[tokio::test(start_paused = true)]
async fn writes_discards_and_foreign_writes_invalidate_slots_of_the_tier() {
    for report in [WriteMode::AfterComplete, WriteMode::Through] {
        let mut gateway = gateway();
        gateway.settings.report = report;
        let cache = filled(&gateway, Rotting::new(640, 0, 1)).await;
        write(&cache, 8, 200, 8).await.unwrap();
        write(&cache, 17, 201, 1).await.unwrap();
        cache.discard(Extent { lba: Lba(24), blocks: 8 }).await.unwrap();
        gateway.far.poke(32, vec![202; 4096]).await;
        assert!(cache.forget(4 * 4096, 4096));
        cache.drain().await.unwrap();
        // Read other slots until memory has evicted all slots that were changed above.
        read_slots(&cache, 100..200, kind).await;
        let expected = [vec![200; 8], vec![3, 201], vec![3; 6], vec![0; 8], vec![202; 8]].concat();
        assert_eq!(read(&cache, 8, 32).await.unwrap(), expected, "{report:?}");
        // The read tier still holds the slots that were not changed.
        let before = cache.statistics();
        read_slots(&cache, 5..20, kind).await;
        assert_eq!(cache.statistics().hits.hits_tier, before.hits.hits_tier + 15);
    }
}

/// A bypassing write first removes the slot from memory and then from the tier. A concurrent read must
/// not bring the old content back from the tier.
#[tokio::test]
async fn a_read_concurrent_with_a_bypassing_write_brings_no_old_content_back() {
    let mut gateway = gateway();
    gateway.settings.report = WriteMode::Around;
    let cache = filled(&gateway, Rotting::new(640, 0, 1)).await;
    let is_written = Arc::new(AtomicBool::new(false));
    let reading = tokio::spawn({
        let (cache, is_written) = (Arc::clone(&cache), Arc::clone(&is_written));
        async move {
            while !is_written.load(Ordering::Relaxed) {
                read(&cache, 8, 8).await.unwrap();
                tokio::task::yield_now().await;
            }
        }
    });
    write(&cache, 8, 200, 8).await.unwrap();
    is_written.store(true, Ordering::Relaxed);
    reading.await.unwrap();
    assert_eq!(read(&cache, 8, 8).await.unwrap(), [200; 8]);
}

#[tokio::test(start_paused = true)]
async fn slots_that_were_read_ahead_and_used_once_are_not_admitted() {
    let mut gateway = gateway();
    (gateway.settings.read_ahead_bytes, gateway.settings.dram_bytes) = (1 << 20, 4 << 20);
    far_bytes(&gateway, 4000, kind).await;
    let cache = gateway.start().await;
    cache.use_tier(Rotting::new(8192, 0, 1)).await.unwrap();
    read_slots(&cache, 0..4000, kind).await;
    settle().await;
    let statistics = cache.statistics();
    assert!(statistics.hits.read_ahead_used_slots > 3800, "{statistics:?}");
    assert!(statistics.tier.admitted_slots < 200, "{statistics:?}");
}

#[tokio::test(start_paused = true)]
async fn a_corrupt_slot_is_a_miss_and_is_counted() {
    let gateway = gateway();
    let cache = filled(&gateway, Rotting::new(640, 30, 3)).await;
    for _ in 0..3 {
        read_slots(&cache, 0..200, kind).await;
    }
    let statistics = cache.statistics();
    assert!(statistics.tier.rotten_slots > 20, "{statistics:?}");
    assert_eq!(statistics.tier.error, None);
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_fails_ends_the_tier_and_no_read() {
    let device = || Error::Device("broken".into());
    for symptom in [Symptom::Fails(device()), Symptom::Hangs] {
        for call in [FaultCallKind::Read, FaultCallKind::Write] {
            let hangs_writing = matches!((&symptom, call), (Symptom::Hangs, FaultCallKind::Write));
            let gateway = gateway();
            let disk = FaultVolume::new(Rotting::new(640, 0, 1));
            let faults = Arc::clone(disk.faults());
            let cache = filled(&gateway, Arc::new(disk)).await;
            faults.add(FaultRule::always(call, symptom.clone()));
            for _ in 0..3 {
                read_slots(&cache, 0..300, kind).await;
            }
            settle().await;
            let statistics = cache.statistics();
            // If writes of the tier's disk hang, the tier admits no more slots. The slots that it has
            // are still valid.
            assert_eq!(statistics.tier.error.is_none(), hangs_writing, "{statistics:?}");
            assert_eq!(statistics.tier.dropped_slots > 0, hangs_writing, "{statistics:?}");
            assert_eq!(statistics.tier.bytes > 0, hangs_writing);
            write(&cache, 0, 9, 8).await.unwrap();
            cache.stop().await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_fails_at_the_start_is_not_used() {
    let gateway = gateway();
    let cache = gateway.start().await;
    let disk = FaultVolume::new(Rotting::new(640, 0, 1));
    disk.faults()
        .add(FaultRule::always(FaultCallKind::Any, Symptom::Fails(Error::Device("broken".into()))));
    cache.use_tier(Arc::new(disk)).await.expect("no error");
    assert!(cache.statistics().tier.error.is_some());
}

#[tokio::test(start_paused = true)]
async fn the_tier_is_empty_after_a_restart_and_unusable_for_another_log() {
    let gateway = gateway();
    let disk = Rotting::new(640, 0, 1);
    let cache = filled(&gateway, disk.clone()).await;
    cache.stop().await.unwrap();
    drop(cache);
    // Simulate another gateway that writes to the far volume.
    far_bytes(&gateway, 200, |_| 77).await;
    let cache = gateway.start().await;
    cache.use_tier(disk.clone()).await.expect("it is ours");
    read_slots(&cache, 0..200, |_| 77).await;
    assert_eq!(cache.statistics().hits.hits_tier, 0);

    let other = self::gateway().start().await;
    let refused = other.use_tier(disk.clone()).await;
    assert!(matches!(refused, Err(TierError::OtherLog(log)) if log == cache.instance().await.0));
    let geometry = Geometry { block_size: 4096, ..Geometry::with_blocks(LABEL + 640) };
    let foreign = MemVolume::new(geometry);
    foreign.write(Lba(16), vec![1; 4096].into(), Durability::Stable).await.unwrap();
    let refused = other.use_tier(Arc::new(foreign)).await;
    assert!(matches!(refused, Err(TierError::NotATier)));
    let refused = other.use_tier(Arc::new(MemVolume::new(Geometry::with_blocks(1 << 16)))).await;
    assert!(matches!(refused, Err(TierError::Size)), "blocks of 512 bytes");
}

#[tokio::test(start_paused = true)]
async fn with_an_encrypted_log_the_tier_holds_no_clear_text() {
    let mut gateway = gateway();
    gateway.settings.log_key = Some(LogKey::new(&[7; 64]));
    let disk = Rotting::new(640, 0, 1);
    let cache = filled(&gateway, disk.clone()).await;
    read_slots(&cache, 0..200, kind).await;
    assert!(cache.statistics().hits.hits_tier > 100);
    let image = disk.image().await;
    let is_clear = |bytes: &[u8]| bytes[0] != 0 && bytes.iter().all(|byte| *byte == bytes[0]);
    assert!(!image.windows(16).any(is_clear));
    let different: HashSet<&[u8]> = image[LABEL as usize * 4096..].chunks(4096).collect();
    assert!(different.len() > 100);

    // A tier with data in clear must not be used for an encrypted log.
    let in_clear = self::gateway();
    let clear_disk = Rotting::new(640, 0, 1);
    let clear = filled(&in_clear, clear_disk.clone()).await;
    clear.stop().await.unwrap();
    drop(clear);
    let mut sealed = in_clear;
    sealed.settings.log_key = Some(LogKey::new(&[7; 64]));
    let cache = sealed.start().await;
    assert!(matches!(cache.use_tier(clear_disk).await, Err(TierError::Clear)));
}

#[tokio::test(start_paused = true)]
async fn slots_in_use_outlive_unused_slots() {
    // Each round reads 60 hot slots and 90 others; the tier has room for 256 slots.
    let gateway = gateway();
    far_bytes(&gateway, 1000, kind).await;
    let cache = gateway.start().await;
    cache.use_tier(Rotting::new(256, 0, 1)).await.unwrap();
    let mut hot = 0;
    for round in 0..12 {
        let before = cache.statistics().hits.misses;
        read_slots(&cache, 0..60, kind).await;
        hot += if round > 0 { cache.statistics().hits.misses - before } else { 0 };
        read_slots(&cache, (0..90).map(|at| 100 + (round * 90 + at) % 900), kind).await;
    }
    assert!(hot < 100, "{hot} of 660");
}

/// The parameters of a random run.
#[derive(Clone)]
struct Tale {
    seed: u64,
    settings: Settings,
    log_blocks: u64,
    rot: u32,
    /// The tier's disk fails after this number of calls.
    fails_after: Option<u64>,
    mutated: bool,
}

impl Tale {
    fn new(seed: u64) -> Self {
        let reports =
            [WriteMode::AfterComplete, WriteMode::Through, WriteMode::AtFlush, WriteMode::Around];
        let report = reports[(seed % 7).min(3) as usize];
        let is_early = report == WriteMode::AtFlush;
        Self {
            seed,
            settings: Settings {
                dram_bytes: 256 << 10,
                nvram_bytes: 64 << 10,
                read_ahead_bytes: [0, 64 << 10][(seed / 2 % 2) as usize],
                report,
                order: if seed.is_multiple_of(2) || is_early {
                    DestageOrder::Strict
                } else {
                    DestageOrder::Relaxed
                },
                too_large: if is_early { OversizedEpoch::Split } else { OversizedEpoch::Refused },
                segment_slots: 8,
                max_dirty_age_ms: 20,
                log_key: seed.is_multiple_of(3).then(|| LogKey::new(&[seed as u8; 64])),
                ..Settings::default()
            },
            log_blocks: [200, 2000][(seed / 3 % 2) as usize],
            rot: [0, 5, 50][(seed % 3) as usize],
            fails_after: seed.is_multiple_of(5).then_some(seed * 7 % 400),
            mutated: false,
        }
    }

    /// Runs the workload in a runtime of its own. The only host makes one call after the other, and
    /// every read must return exactly the data that was written last.
    fn tell(&self) -> Result<CacheStatistics, String> {
        runtime().block_on(self.run())
    }

    async fn run(&self) -> Result<CacheStatistics, String> {
        let mut gateway = Gateway::new(self.log_blocks);
        gateway.settings = self.settings.clone();
        let cache = gateway.start().await;
        let disk = FaultVolume::new(Rotting::new(256, self.rot, self.seed));
        if let Some(calls) = self.fails_after {
            let broken = Symptom::Fails(Error::Device("broken".into()));
            disk.faults().add(FaultRule::always(FaultCallKind::Any, broken).after(2 + calls));
        }
        cache.use_tier(Arc::new(disk)).await.map_err(|error| error.to_string())?;
        if self.mutated {
            cache.mutate(Mutant::TierKeepsOverwritten);
        }
        let mut rng = Rng::new(self.seed);
        let mut truth = vec![0; SLOTS as usize * BLOCKS as usize];
        let mut flushed = truth.clone();
        let told = |error: Error| error.to_string();
        for step in 0..STEPS {
            let most = [1, 8, 20, 64, 300][rng.below(5) as usize];
            let count = rng.within(1..most + 1);
            // Half of all calls use an eighth of the volume.
            let all = SLOTS * BLOCKS;
            let near = if rng.chance(50) { all / 8 } else { all };
            let first = rng.below(near - count.min(near - 1));
            let range = first as usize..(first + count) as usize;
            let extent = Extent { lba: Lba(first), blocks: count as u32 };
            match rng.below(100) {
                0..70 => {
                    let data = cache.read(extent).await.map_err(told)?;
                    let found = first_bytes(&data.into_bytes());
                    if found != truth[range.clone()] {
                        return Err(format!("step {step}: blocks {range:?} are wrong"));
                    }
                }
                70..90 => {
                    let byte = rng.below(255) as u8 + 1;
                    let data = Data::from(vec![byte; count as usize * 512]);
                    cache.write(Lba(first), data, Durability::Volatile).await.map_err(told)?;
                    truth[range].fill(byte);
                }
                90..95 => {
                    cache.discard(extent).await.map_err(told)?;
                    truth[range].fill(0);
                }
                95..98 if self.settings.report == WriteMode::AtFlush => {
                    if rng.chance(50) {
                        cache.flush().await.map_err(told)?;
                        flushed.clone_from(&truth);
                    } else if cache.statistics().order.split_epochs == 0 {
                        cache.extensions().roll_back().await.map_err(told)?;
                        truth.clone_from(&flushed);
                    }
                }
                _ => tokio::time::sleep(Duration::from_millis(rng.below(100))).await,
            }
        }
        Ok(cache.statistics())
    }
}

#[test]
fn reads_are_correct_whatever_faults_the_tier_disk_has() {
    let mut sum = CacheStatistics::default();
    for seed in 1..=TALES {
        let told = Tale::new(seed).tell().map_err(|fault| format!("seed {seed}: {fault}")).unwrap();
        sum.hits.hits_tier += told.hits.hits_tier;
        sum.tier.rotten_slots += told.tier.rotten_slots;
        sum.tier.admitted_slots += told.tier.admitted_slots;
        sum.traffic.bypassed += told.traffic.bypassed;
        sum.order.rolled_back += told.order.rolled_back;
        sum.hits.read_ahead_used_slots += told.hits.read_ahead_used_slots;
        sum.lower.errors += u64::from(told.tier.error.is_some());
    }
    println!("{sum:?}");
    let reached = [
        sum.hits.hits_tier / 100,
        sum.tier.rotten_slots,
        sum.tier.admitted_slots / 100,
        sum.traffic.bypassed,
        sum.order.rolled_back,
        sum.hits.read_ahead_used_slots,
        sum.lower.errors,
    ];
    assert!(reached.iter().all(|reached| *reached > 5), "{reached:?}");
}

#[test]
fn a_tier_that_keeps_overwritten_slots_is_detected() {
    for report in [WriteMode::AfterComplete, WriteMode::Through] {
        let noticed = (1..=10).find(|seed| {
            let mut tale = Tale { mutated: true, rot: 0, fails_after: None, ..Tale::new(*seed) };
            (tale.settings.report, tale.settings.order) = (report, DestageOrder::Strict);
            tale.tell().is_err()
        });
        assert!(noticed.is_some(), "{report:?}");
    }
}

/// Number of slots of the volume: twice as many as tier and memory hold together.
const SLOTS: u64 = 640;
const STEPS: u64 = 1500;
const TALES: u64 = 40;
