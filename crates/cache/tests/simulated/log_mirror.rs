//! Tests of a log on a mirror: one leg is lost, replaced or corrupt, or both get another size, and hosts must
//! not notice.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::support::{
    confirmed::Confirmed,
    gateway::{Gateway, read, write},
};
use cache::{Cache, CacheOpenError, inspect};
use sim::{CrashVolume, Outage, Power, Rng, StableDiskImage};
use tokio::time::sleep;
use volume::{
    Durability, Error, Extent, FaultCallKind, FaultRule, FaultVolume, Faults, Geometry, Lba,
    MemVolume, Mirror, MirrorError, MirrorLegStatus, Stack, Symptom, Volume,
};

const LOG: u64 = 1000;
/// Number of blocks of a leg in front of the log's own blocks.
const LABELS: u64 = 2;

struct Halves {
    memory: [Stack; 2],
    faults: [Arc<Faults>; 2],
    mirror: Arc<Mirror>,
}

async fn halves() -> Halves {
    halves_of(LOG).await
}

async fn halves_of(log_blocks: u64) -> Halves {
    let geometry = Geometry { block_size: 4096, ..Geometry::with_blocks(log_blocks + LABELS) };
    let memory: [Stack; 2] = [0, 1].map(|_| Arc::new(MemVolume::new(geometry)) as Stack);
    let faulty = memory.clone().map(|half| Arc::new(FaultVolume::new(half)));
    let faults = faulty.clone().map(|half| Arc::clone(half.faults()));
    let mirror = Mirror::open(faulty.map(|half| Some(half as Stack)), [7; 16], false).await;
    Halves { memory, faults, mirror: Arc::new(mirror.expect("new halves")) }
}

async fn gateway(halves: &Halves) -> (Gateway, Arc<Cache>) {
    let mut gateway = Gateway::new(LOG);
    gateway.log = Arc::clone(&halves.mirror) as Stack;
    let cache = gateway.open().await;
    for slot in 0..10 {
        write(&cache, slot * 8, 1 + slot as u8, 8).await.unwrap();
    }
    (gateway, cache)
}

async fn check(cache: &Cache) {
    for slot in 0..10 {
        assert_eq!(read(cache, slot * 8, 8).await.unwrap(), [1 + slot as u8; 8]);
    }
}

/// Flips bits of the data block of segment `number` in one leg.
async fn corrupt_segment(half: &Stack, number: u64) {
    let lba = Lba(LABELS + 2 + 2 * (number - 1) + 1);
    let read = half.read(Extent { lba, blocks: 1 }).await.unwrap();
    let bytes: Vec<u8> = read.into_bytes().iter().map(|byte| byte ^ 0x10).collect();
    half.write(lba, bytes.into(), Durability::Stable).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn hosts_see_no_error_when_a_mirror_leg_is_lost_and_replaced() {
    let halves = halves().await;
    let (mut gateway, cache) = gateway(&halves).await;
    halves.faults[0]
        .add(FaultRule::always(FaultCallKind::Any, Symptom::Fails(Error::Device("gone".into()))));
    write(&cache, 80, 11, 8).await.unwrap();
    check(&cache).await;
    assert_eq!(cache.statistics().log.errors, 0);
    assert!(matches!(
        halves.mirror.standings(),
        [MirrorLegStatus::Out(_), MirrorLegStatus::InSync]
    ));

    let geometry = Geometry { block_size: 4096, ..Geometry::with_blocks(LOG + LABELS) };
    let new: Stack = Arc::new(MemVolume::new(geometry));
    halves.mirror.replace(0, Arc::clone(&new)).await.unwrap();
    write(&cache, 88, 12, 8).await.unwrap();
    while halves.mirror.standings()[0] != MirrorLegStatus::InSync {
        sleep(Duration::from_millis(10)).await;
    }
    // Open the log with the new leg alone: that leg must hold all data.
    drop(cache);
    let alone = Mirror::open([Some(new), None], [7; 16], true).await.unwrap();
    gateway.log = Arc::new(alone);
    let cache = gateway.open().await;
    check(&cache).await;
    assert_eq!(read(&cache, 80, 16).await.unwrap()[7..9], [11, 12]);
}

#[tokio::test(start_paused = true)]
async fn a_corrupt_block_is_repaired_when_it_is_read() {
    let halves = halves().await;
    let (gateway, cache) = gateway(&halves).await;
    // Open the cache again, so that its memory is empty. With the index, an opening does not read the data of
    // segments.
    drop(cache);
    let mut gateway = gateway;
    gateway.settings.index_segments = 1;
    let cache = gateway.open().await;
    for slot in 0..10 {
        write(&cache, slot * 8, 1 + slot as u8, 8).await.unwrap();
    }
    drop(cache);
    corrupt_segment(&halves.memory[0], 13).await;
    let cache = gateway.open().await;
    check(&cache).await;
    assert_eq!(cache.statistics().log.mended, 1);
    assert_eq!(halves.mirror.mended(), 1);
    drop(cache);
    let cache = gateway.open().await;
    check(&cache).await;
    assert_eq!(halves.mirror.mended(), 1, "once is enough");
}

#[tokio::test(start_paused = true)]
async fn segments_that_are_corrupt_on_one_leg_are_repaired_by_recovery() {
    let halves = halves().await;
    let (gateway, cache) = gateway(&halves).await;
    drop(cache);
    corrupt_segment(&halves.memory[0], 3).await;
    corrupt_segment(&halves.memory[0], 8).await;
    let cache = gateway.open().await;
    check(&cache).await;
    assert_eq!(halves.mirror.mended(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_scrub_repairs_blocks_that_are_not_read_and_reports_lost_ones() {
    let halves = halves().await;
    let (gateway, cache) = gateway(&halves).await;
    corrupt_segment(&halves.memory[1], 3).await;
    corrupt_segment(&halves.memory[0], 7).await;
    corrupt_segment(&halves.memory[1], 7).await;
    // Keep all data in the log: without the far volume, destage sends none of it.
    gateway.far.set_away(true);
    tokio::spawn(cache.run());
    sleep(Duration::from_secs(700)).await;
    let counted = cache.statistics();
    assert_eq!(
        (counted.scrub.passes, counted.scrub.scrubbed_slots, counted.scrub.rotten_slots),
        (1, 10, 1)
    );
    assert_eq!(halves.mirror.mended(), 1);
    drop(cache);
    // Open the second leg alone: the scrub has repaired its segment 3. Segment 7 is lost on both legs.
    let second = Mirror::look([None, Some(halves.memory[1].clone())], true).await.unwrap();
    let error = inspect(&second).await;
    assert!(error.is_ok_and(|info| info.loss.is_some_and(|loss| loss.first_missing == 7)));
    let error = gateway.try_open().await.err().expect("segment 7 is lost in both");
    assert!(matches!(error, CacheOpenError::Missing(_)));
}

async fn corrupt_block(half: &Stack, block: u64) {
    let lba = Lba(LABELS + block);
    let read = half.read(Extent { lba, blocks: 1 }).await.unwrap();
    let bytes: Vec<u8> = read.into_bytes().iter().map(|byte| byte ^ 0x10).collect();
    half.write(lba, bytes.into(), Durability::Stable).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_the_intact_copy_is_kept_on_whichever_leg_it_is() {
    for index_segments in [0, 1] {
        for corrupt in [0, 1] {
            // These blocks hold a superblock, header and data of a segment in the middle, and header and data of the
            // last segment.
            for block in [0, 6, 7, 20, 21] {
                let case = format!("index {index_segments}, leg {corrupt}, block {block}");
                let halves = halves().await;
                let mut gateway = Gateway::new(LOG);
                gateway.log = Arc::clone(&halves.mirror) as Stack;
                if index_segments > 0 {
                    gateway.settings.index_segments = index_segments;
                }
                let cache = gateway.open().await;
                for slot in 0..10 {
                    write(&cache, slot * 8, 1 + slot as u8, 8).await.unwrap();
                }
                drop(cache);
                corrupt_block(&halves.memory[corrupt], block).await;
                if block == 0 {
                    corrupt_block(&halves.memory[corrupt], 1).await;
                }
                // The labels of the mirror mark the region as dirty.
                let again = Mirror::open(halves.memory.clone().map(Some), [7; 16], false).await;
                let mirror = Arc::new(again.unwrap_or_else(|error| panic!("{case}: {error}")));
                assert!(!mirror.extensions().divergent().is_empty(), "{case}");
                gateway.log = Arc::clone(&mirror) as Stack;
                let opened = gateway.try_open().await;
                let cache = opened.unwrap_or_else(|error| panic!("{case}: {error}"));
                check(&cache).await;
                assert_eq!(cache.statistics().recovery.slots, 10, "{case}");
                assert!(mirror.extensions().divergent().is_empty(), "{case}");
                // Open the log with each leg alone: both legs must be complete now.
                drop(cache);
                for half in 0..2 {
                    let mut alone = [None, None];
                    alone[half] = Some(halves.memory[half].clone());
                    let alone = Mirror::look(alone, true).await.unwrap();
                    let info = inspect(&alone).await.unwrap_or_else(|e| panic!("{case}: {e}"));
                    assert!(info.loss.is_none(), "{case}, alone {half}: {:?}", info.loss);
                }
            }
        }
    }
}

const LARGE: u64 = 4000;
const SMALL: u64 = 1000;

/// Returns the disks of both legs, for a log of `LARGE` blocks, on one power supply.
fn disks(images: Option<[StableDiskImage; 2]>, seed: u64) -> ([Arc<CrashVolume>; 2], Arc<Power>) {
    let geometry = Geometry { block_size: 4096, ..Geometry::with_blocks(LARGE + LABELS) };
    let power = Power::new();
    let disks = match images {
        Some(images) => images.map(|image| CrashVolume::reopen(image, seed)),
        None => [CrashVolume::new(geometry, seed), CrashVolume::new(geometry, seed + 1)],
    };
    let wired = |disk: CrashVolume| disk.powered_by(&power).with_outage(Outage::Hangs);
    (disks.map(|disk| Arc::new(wired(disk).with_yields(20))), power)
}

async fn mirrored(disks: &[Arc<CrashVolume>; 2]) -> Arc<Mirror> {
    let halves = disks.clone().map(|disk| Some(disk as Stack));
    Arc::new(Mirror::open(halves, [7; 16], false).await.expect("two halves"))
}

/// Resizes the mirror and then the log to grow, or the log and then the mirror to shrink. Returns true if both
/// succeed.
async fn resize(mirror: &Mirror, cache: &Cache, blocks: u64) -> bool {
    let grows = blocks > mirror.geometry().blocks;
    if grows && mirror.resize(blocks).await.is_err() {
        return false;
    }
    cache.resize(blocks).await.is_ok() && (grows || mirror.resize(blocks).await.is_ok())
}

/// Runs a gateway whose log grows and shrinks, and records the slots that it has acknowledged.
async fn live(gateway: &Gateway, mirror: &Mirror, written: &Mutex<Vec<u64>>) -> Option<()> {
    let cache = gateway.try_open().await.ok()?;
    tokio::spawn(cache.run());
    for (turn, blocks) in [LARGE, SMALL, LARGE].into_iter().enumerate() {
        for slot in 0..12 {
            let slot = slot + turn as u64 * 9;
            write(&cache, slot * 8, 1 + slot as u8, 8).await.ok()?;
            written.lock().unwrap().push(slot);
        }
        resize(mirror, &cache, blocks).await.then_some(())?;
    }
    Some(())
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_moment_of_another_size_loses_nothing_and_leaves_a_mirror() {
    let mut sizes = Vec::new();
    for operations in 0.. {
        let mut gateway = Gateway::new(SMALL);
        gateway.settings.segment_slots = 8;
        let (halves, power) = disks(None, operations);
        let mirror = mirrored(&halves).await;
        mirror.resize(SMALL).await.unwrap();
        gateway.log = Arc::clone(&mirror) as Stack;
        power.fail_after(power.operations() + operations);
        let written = Mutex::new(Vec::new());
        let ended = tokio::select! {
            biased;
            ended = live(&gateway, &mirror, &written) => ended.is_some(),
            () = async { while !power.is_off() { sleep(Duration::from_millis(7)).await } } => false,
        };
        let mut rng = Rng::new(operations);
        let images = [0, 1].map(|half: usize| halves[half].crash(&mut rng));
        let (halves, _) = disks(Some(images), operations);
        let mirror = mirrored(&halves).await;
        gateway.log = Arc::clone(&mirror) as Stack;
        let written = written.into_inner().unwrap();
        let cache = match gateway.try_open().await {
            Ok(cache) => cache,
            // The log may have been formatted in part only.
            Err(error) => {
                assert!(written.is_empty(), "after {operations}: {error}");
                continue;
            }
        };
        for slot in written {
            let found = read(&cache, slot * 8, 8).await.unwrap();
            assert_eq!(found, [1 + slot as u8; 8], "slot {slot} after {operations}");
        }
        sizes.push((mirror.geometry().blocks, cache.log_blocks().await));
        // The log must be usable and resizable at any size that the crash has left.
        tokio::spawn(cache.run());
        assert!(resize(&mirror, &cache, LARGE).await, "after {operations}");
        write(&cache, 0, 99, 8).await.unwrap();
        if ended {
            break;
        }
    }
    assert!(sizes.iter().all(|(mirror, log)| mirror >= log), "{sizes:?}");
    for seen in [(SMALL, SMALL), (LARGE, SMALL), (LARGE, LARGE)] {
        assert!(sizes.contains(&seen), "{seen:?} in {sizes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_leg_that_is_lost_during_a_resize_can_be_replaced_afterwards() {
    for (lost, operations) in (0..2).flat_map(|lost| (0..25).map(move |n| (lost, n))) {
        let halves = halves_of(LARGE).await;
        halves.mirror.resize(SMALL).await.unwrap();
        let mut gateway = Gateway::new(SMALL);
        gateway.log = Arc::clone(&halves.mirror) as Stack;
        gateway.settings.segment_slots = 8;
        let cache = gateway.start().await;
        write(&cache, 0, 1, 8).await.unwrap();
        let gone = Symptom::Fails(Error::Device("gone".into()));
        halves.faults[lost].add(FaultRule::always(FaultCallKind::Write, gone).after(operations));
        // Each resize must change both legs or neither, and must not affect other data.
        for blocks in [LARGE, SMALL, LARGE] {
            let done = resize(&halves.mirror, &cache, blocks).await;
            write(&cache, 8, 2, 8).await.unwrap();
            if !done {
                break;
            }
        }
        if halves.mirror.standings()[lost] != MirrorLegStatus::InSync {
            let refused = halves.mirror.resize(SMALL).await;
            assert!(matches!(refused, Err(MirrorError::Size(_))), "{refused:?}");
        }
        halves.faults[lost].clear();
        let geometry = Geometry { block_size: 4096, ..Geometry::with_blocks(LARGE + LABELS) };
        halves.mirror.replace(lost, Arc::new(MemVolume::new(geometry))).await.unwrap();
        while halves.mirror.standings()[lost] != MirrorLegStatus::InSync {
            sleep(Duration::from_millis(10)).await;
        }
        assert!(resize(&halves.mirror, &cache, LARGE).await, "half {lost} after {operations}");
        assert_eq!(cache.log_blocks().await, LARGE);
        drop(cache);
        let cache = gateway.open().await;
        assert_eq!(read(&cache, 0, 16).await.unwrap()[7..9], [1, 2]);
    }
}

async fn copy_of(half: &Stack) -> Vec<u8> {
    let blocks = half.geometry().blocks as u32;
    let read = half.read(Extent { lba: Lba(0), blocks }).await;
    read.unwrap().into_bytes().to_vec()
}

/// If one mirror leg is restored from an older copy, the other leg repairs it. If both are restored, the log
/// must be refused.
#[tokio::test(start_paused = true)]
async fn legs_restored_from_an_older_copy_lose_nothing_or_are_refused() {
    for put_back in [&[0][..], &[1], &[0, 1]] {
        let halves = halves().await;
        let confirmed = Confirmed::default();
        let mut gateway = Gateway::new(LOG);
        gateway.log = Arc::clone(&halves.mirror) as Stack;
        gateway.settings.confirmed_in = Some(confirmed.store());
        let cache = gateway.open().await;
        write(&cache, 0, 1, 8).await.unwrap();
        cache.flush().await.unwrap();
        let copies = [copy_of(&halves.memory[0]).await, copy_of(&halves.memory[1]).await];
        for byte in 2..9 {
            write(&cache, 0, byte, 8).await.unwrap();
            write(&cache, u64::from(byte) * 8, byte, 8).await.unwrap();
        }
        cache.flush().await.unwrap();
        drop(cache);
        for &half in put_back {
            let written =
                halves.memory[half].write(Lba(0), copies[half].clone().into(), Durability::Stable);
            written.await.unwrap();
        }
        let memory = halves.memory.clone().map(Some);
        gateway.log = Arc::new(Mirror::open(memory, [7; 16], false).await.unwrap());
        let opened = gateway.try_open().await;
        if put_back.len() == 2 {
            let refused = opened.err();
            assert!(matches!(refused, Some(CacheOpenError::Behind { .. })), "{refused:?}");
            continue;
        }
        let cache = opened.unwrap();
        assert_eq!(read(&cache, 0, 8).await.unwrap(), [8; 8], "half {put_back:?} was put back");
        for byte in 2..9 {
            assert_eq!(read(&cache, u64::from(byte) * 8, 8).await.unwrap(), [byte; 8]);
        }
    }
}
