//! Tests of the log's index: which segments recovery does not have to read, and that a damaged index costs time
//! but no data.

use std::{sync::Arc, time::Instant};

use crate::support::gateway::{Gateway, read, write};
use cache::{Cache, CacheOpenError, LogVolumeIdentity, Parts, Settings, inspect};
use proptest::prelude::*;
use volume::{
    Data, Durability, Error, Extent, FileVolume, FileVolumeOptions, Geometry, Lba, MemVolume,
    ObserveVolume, Stack, Volume,
};

/// Number of blocks of the log. The index takes the last six, one frame each.
const LOG: u64 = 1000;
const INDEX: std::ops::Range<u64> = 994..1000;

/// Returns a gateway that was killed with twenty segments of one slot each in its log: slots 0 to 9 with the
/// bytes 1 to 10, then again with 11 to 20. A frame of the index describes four segments.
async fn killed() -> Gateway {
    let mut gateway = Gateway::new(LOG).with_nvram();
    gateway.settings.index_segments = 4;
    let cache = gateway.open().await;
    for byte in 1..=20 {
        write(&cache, u64::from(byte - 1) % 10 * 8, byte, 8).await.unwrap();
    }
    gateway
}

async fn contents(cache: &Cache) -> Vec<u8> {
    let mut bytes = Vec::new();
    for slot in 0..10 {
        bytes.push(read(cache, slot * 8, 8).await.unwrap()[0]);
    }
    bytes
}

fn newest() -> Vec<u8> {
    (11..=20).collect()
}

async fn change(log: &Stack, number: u64, change: impl FnOnce(&mut [u8])) {
    let read = log.read(Extent { lba: Lba(number), blocks: 1 }).await;
    let mut bytes = read.expect("memory does not fail").into_bytes().to_vec();
    change(&mut bytes);
    let written = log.write(Lba(number), bytes.into(), Durability::Stable).await;
    written.expect("memory does not fail");
}

/// Returns the first block of segment `number` of [`killed`].
const fn segment(number: u64) -> u64 {
    2 + 2 * (number - 1)
}

#[tokio::test(start_paused = true)]
async fn recovery_does_not_read_segments_that_the_index_describes() {
    let gateway = killed().await;
    // Overwrite the headers of all segments in the index: recovery must not need them.
    for number in 1..=16 {
        change(&gateway.log, segment(number), |block| block.fill(7)).await;
    }
    assert_eq!(inspect(&gateway.log).await.unwrap().dirty_slots, 10);
    let cache = gateway.open().await;
    assert_eq!(contents(&cache).await, newest());
    assert_eq!(cache.statistics().recovery.segments, 20);
}

#[tokio::test(start_paused = true)]
async fn an_index_frame_is_freed_with_the_segments_that_it_describes() {
    let gateway = killed().await;
    let cache = gateway.start().await;
    // Write many times the capacity of the index. Drain each time, so that the tail of the log advances.
    for round in 0..20u8 {
        for slot in 0..10 {
            write(&cache, slot * 8, round + slot as u8, 8).await.unwrap();
        }
        cache.drain().await.unwrap();
    }
    for slot in 0..10 {
        write(&cache, slot * 8, 100 + slot as u8, 8).await.unwrap();
    }
    drop(cache);
    let cache = gateway.open().await;
    assert_eq!(contents(&cache).await, (100..110).collect::<Vec<_>>());
    assert!(cache.statistics().recovery.segments < 20, "what was drained is not in it");
}

#[tokio::test(start_paused = true)]
async fn more_segments_than_the_index_can_describe_are_recovered() {
    let gateway = killed().await;
    let cache = gateway.open().await;
    for round in 0..10u8 {
        for slot in 0..10 {
            write(&cache, slot * 8, round + slot as u8, 8).await.unwrap();
        }
    }
    drop(cache);
    let cache = gateway.open().await;
    assert_eq!(contents(&cache).await, (9..19).collect::<Vec<_>>());
    assert_eq!(cache.statistics().recovery.segments, 120);
}

#[tokio::test(start_paused = true)]
async fn corrupt_data_of_an_indexed_segment_is_detected_when_it_is_read() {
    let gateway = killed().await;
    // Damage the data of segment 13, which holds the newest version of slot 2.
    change(&gateway.log, segment(13) + 1, |block| block[100] ^= 1).await;
    let cache = gateway.open().await;
    let error = read(&cache, 16, 8).await.unwrap_err();
    assert!(matches!(error, Error::Medium { extent, .. } if extent.lba == Lba(16)), "{error}");
    assert_eq!(read(&cache, 24, 8).await.unwrap(), [14; 8]);
    // The damaged slot must not be destaged, and the log must keep it.
    tokio::spawn(cache.run());
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    assert!(cache.statistics().destage.dirty_slots == 10 && cache.statistics().destage.rounds == 0);
    assert!(
        gateway.far.read(Extent { lba: Lba(16), blocks: 1 }).await.unwrap() == Data::zeros(512)
    );
    // The other slots of the round are destaged and made stable at the far volume.
    assert_eq!(gateway.far.peek(8, 1).await, [12; 512]);
    assert_eq!(gateway.far.peek(24, 1).await, [14; 512]);
    assert!(gateway.far.take_calls().contains(&("flush", 0, 0)));
    // Write newer content to the damaged slot: after that, everything is destaged.
    write(&cache, 16, 99, 8).await.unwrap();
    write(&cache, 800, 98, 8).await.unwrap();
    tokio::time::timeout(std::time::Duration::from_secs(60), cache.drain()).await.unwrap().unwrap();
    assert_eq!(cache.statistics().destage.dirty_slots, 0);
    assert_eq!(gateway.far.peek(16, 1).await, [99; 512]);
    assert_eq!(gateway.far.peek(800, 1).await, [98; 512]);
}

#[tokio::test(start_paused = true)]
async fn a_scrub_checks_overwritten_slots_that_are_not_destaged_yet() {
    let gateway = killed().await;
    let cache = gateway.open().await;
    gateway.far.set_failing(true);
    tokio::spawn(cache.run());
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    // The epoch of segment 13 has ended, so the segment is still needed although its slot is overwritten.
    write(&cache, 16, 99, 8).await.unwrap();
    change(&gateway.log, segment(13) + 1, |block| block[100] ^= 1).await;
    tokio::time::sleep(std::time::Duration::from_secs(601)).await;
    let counted = cache.statistics();
    assert_eq!(
        (counted.scrub.passes, counted.scrub.scrubbed_slots, counted.scrub.rotten_slots),
        (1, 11, 1)
    );
}

/// A frame of the index is unreadable when the operator accepts a loss, and becomes readable later. It then
/// describes segments that were discarded with the loss, and must be ignored.
#[tokio::test(start_paused = true)]
async fn an_index_frame_that_was_not_found_is_never_used_later() {
    let mut gateway = killed().await;
    change(&gateway.log, INDEX.start, |block| block[100] ^= 1).await;
    change(&gateway.log, segment(2) + 1, |block| block[100] ^= 1).await;
    let refused = gateway.try_open().await.err().expect("segment 2 is missing");
    assert!(matches!(refused, CacheOpenError::Missing(_)), "{refused}");
    gateway.settings.accept_loss = true;
    drop(gateway.open().await);
    change(&gateway.log, INDEX.start, |block| block[100] ^= 1).await;
    let cache = gateway.open().await;
    assert_eq!(contents(&cache).await, [1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    // New segments get the numbers of the discarded segments.
    write(&cache, 8, 99, 8).await.unwrap();
    drop(cache);
    gateway.settings.accept_loss = false;
    let cache = gateway.open().await;
    assert_eq!(contents(&cache).await, [1, 99, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_segment_that_the_index_implies_and_the_log_lacks_is_reported_missing() {
    let gateway = Gateway { memory: None, ..killed().await };
    // Forge the index so that no frame describes the first four segments, and erase one of these.
    change(&gateway.log, segment(1), |block| block.fill(0)).await;
    let frame = gateway.log.read(Extent { lba: Lba(INDEX.start + 1), blocks: 1 }).await.unwrap();
    let mut bytes = frame.into_bytes().to_vec();
    bytes[40..48].copy_from_slice(&0u64.to_le_bytes());
    let checksum = crc32c::crc32c(&bytes[..4092]);
    bytes[4092..].copy_from_slice(&checksum.to_le_bytes());
    change(&gateway.log, INDEX.start, |block| block.copy_from_slice(&bytes)).await;
    let CacheOpenError::Missing(loss) = gateway.try_open().await.err().expect("it is refused")
    else {
        panic!("another error")
    };
    assert!(loss.first_missing == 1 && loss.evidence.contains("index"), "{loss:?}");
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().expect("a runtime without I/O");
    runtime.block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn damage_to_the_index_costs_only_time(
        damage in prop::collection::vec((INDEX, any::<[u8; 8]>(), 0..4088usize), 1..8),
    ) {
        block_on(async {
            let gateway = killed().await;
            for (number, bytes, at) in damage {
                change(&gateway.log, number, |block| block[at..at + 8].copy_from_slice(&bytes)).await;
            }
            let cache = gateway.open().await;
            assert_eq!(contents(&cache).await, newest());
        });
    }

    /// Damages fields of the frame's header and entries, with a correct checksum.
    #[test]
    fn a_forged_index_causes_no_panic(
        damage in prop::collection::vec((INDEX, any::<u8>(), 0..200usize), 1..20),
    ) {
        block_on(async {
            let gateway = killed().await;
            for (number, byte, at) in damage {
                change(&gateway.log, number, |block| {
                    block[at] = byte;
                    let checksum = crc32c::crc32c(&block[..4092]);
                    block[4092..].copy_from_slice(&checksum.to_le_bytes());
                })
                .await;
            }
            if let Ok(cache) = gateway.try_open().await {
                let _ = cache.read(Extent { lba: Lba(0), blocks: 80 }).await;
            }
        });
    }
}

/// Recovers a full log of 8 GiB with a million dirty slots from a real file, and counts the reads. Run it with
/// `cargo test --release -p cache --test simulated index:: -- --ignored --nocapture`. It needs 8 GiB in `TMPDIR`.
#[tokio::test]
#[ignore = "writes 8 GiB"]
async fn recovery_of_a_full_large_log_reads_little_of_it() {
    const LOG_BYTES: u64 = 8 << 30;
    const SLOTS: u64 = 1 << 20;
    let folder = tempfile::tempdir().expect("a folder");
    let options = FileVolumeOptions {
        block_size: 4096,
        create: Some(LOG_BYTES),
        direct: true,
        ..FileVolumeOptions::new(folder.path().join("log"))
    };
    let observed = ObserveVolume::new(Arc::new(FileVolume::open(&options).expect("there is room")));
    let counters = Arc::clone(observed.counters());
    let log: Stack = Arc::new(observed);
    let lower: Stack = Arc::new(MemVolume::new(Geometry::with_blocks(SLOTS * 8)));
    let open = async || {
        let identity = LogVolumeIdentity { name: "far".into(), geometry: lower.geometry() };
        let (lower, log) = (Arc::clone(&lower), Arc::clone(&log));
        let settings = Settings { dram_bytes: 64 << 20, ..Settings::default() };
        Cache::open(settings, Parts { lower, log, nvram: None }, identity).await.expect("it opens")
    };
    let cache = open().await;
    let mut slot = 0;
    // Write the volume repeatedly until only the space that is reserved for bypassing writes is free.
    loop {
        let statistics = cache.statistics();
        if statistics.log.used_bytes + (64 << 20) > statistics.log.bytes {
            break;
        }
        let data = Data::from(vec![(slot >> 10) as u8; 128 << 12]);
        cache.write(Lba(slot * 8), data, Durability::Volatile).await.expect("there is room");
        slot = (slot + 128) % SLOTS;
    }
    assert_eq!(cache.statistics().destage.dirty_slots, SLOTS);
    let written = counters.counts();
    drop(cache);
    let before = counters.counts().bytes_read;
    let started = Instant::now();
    let cache = open().await;
    let took = started.elapsed();
    let read = counters.counts().bytes_read - before;
    println!(
        "{} dirty slots in {} segments: {:.1} MiB read ({:.2} %), {took:.2?}; {:.3} bytes written \
         for each byte of segments",
        cache.statistics().recovery.slots,
        cache.statistics().recovery.segments,
        read as f64 / f64::from(1 << 20),
        read as f64 * 100.0 / LOG_BYTES as f64,
        written.bytes_written as f64 / cache.statistics().log.used_bytes as f64,
    );
    assert_eq!(cache.statistics().recovery.slots, SLOTS);
    assert!(read < LOG_BYTES / 50, "{read} bytes");
    assert!(took.as_secs_f64() < 2.0, "{took:?}");
}
