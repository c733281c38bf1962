//! Tests of the opening of a cache: which logs, NVRAMs and volumes it refuses, and which it
//! accepts.

use std::{sync::Arc, time::Duration};

use crate::support::{
    damage::{block, contents, flip, killed, refusal, set_block},
    gateway::{Gateway, read, write},
    memory::Memory,
};
use cache::{
    Cache, CacheOpenError, InspectError, LogVolumeIdentity, Settings, WriteMode, format, inspect,
};
use proptest::prelude::*;
use tokio::time::sleep;
use volume::{Data, Durability, Error, Extent, Geometry, Lba, MemVolume, Stack, Volume};

const LOG: u64 = 1000;
/// The block at which the first segment begins.
const RING: u64 = 2;

#[tokio::test(start_paused = true)]
async fn recovery_after_a_kill_finds_every_write() {
    let gateway = killed(Gateway::new(LOG)).await;
    assert_eq!(contents(&gateway).await, [5, 2, 3, 4]);
    assert_eq!(contents(&gateway).await, [5, 2, 3, 4], "and again");
}

#[tokio::test(start_paused = true)]
async fn the_log_of_another_volume_is_refused_and_both_are_named() {
    let gateway = killed(Gateway::new(LOG)).await;
    let parts =
        cache::Parts { lower: gateway.far.clone(), log: Arc::clone(&gateway.log), nvram: None };
    let identity = LogVolumeIdentity { name: "other".into(), ..gateway.identity() };
    let opened = cache::Cache::open(Settings::default(), parts, identity).await;
    let message = opened.err().expect("it is refused").to_string();
    assert!(message.contains("\"far\"") && message.contains("\"other\""), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_shrank_is_refused_and_one_that_grew_is_not() {
    let mut gateway = killed(Gateway::new(LOG)).await;
    gateway.far = crate::support::far::Far::new(Geometry::with_blocks(32760));
    let error = refusal(&gateway).await;
    assert!(matches!(
        error,
        CacheOpenError::Geometry { recorded_blocks: 32768, blocks: 32760, .. }
    ));
    gateway.far = crate::support::far::Far::new(Geometry::with_blocks(32776));
    let cache = gateway.open().await;
    assert_eq!(cache.geometry().blocks, 32776);
    write(&cache, 32768, 7, 8).await.unwrap();
    drop(cache);
    // After a second kill, blocks beyond the former end must be recovered, and the smaller volume
    // must be refused.
    let cache = gateway.open().await;
    assert_eq!(read(&cache, 32768, 8).await.unwrap(), [7; 8]);
    assert_eq!(read(&cache, 0, 8).await.unwrap(), [5; 8]);
    gateway.far = crate::support::far::Far::new(Geometry::with_blocks(32768));
    assert!(matches!(refusal(&gateway).await, CacheOpenError::Geometry { blocks: 32768, .. }));
}

#[tokio::test(start_paused = true)]
async fn a_truncated_log_disk_is_refused() {
    let mut gateway = killed(Gateway::new(LOG)).await;
    let short = Geometry { block_size: 4096, ..Geometry::with_blocks(LOG - 1) };
    let copy: Stack = Arc::new(MemVolume::new(short));
    for number in 0..LOG - 1 {
        set_block(&copy, number, block(&gateway.log, number).await).await;
    }
    gateway.log = copy;
    let error = refusal(&gateway).await;
    assert!(
        matches!(error, CacheOpenError::Truncated { recorded: LOG, found } if found == LOG - 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_log_disk_that_is_too_small_is_refused() {
    let error = refusal(&Gateway::new(700)).await;
    assert!(matches!(error, CacheOpenError::Size(_)), "{error}");
    assert!(error.to_string().contains("780"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_is_no_log_is_refused() {
    for number in [0, 1, 2] {
        let gateway = Gateway::new(LOG);
        set_block(&gateway.log, number, vec![7; 4096]).await;
        assert!(matches!(refusal(&gateway).await, CacheOpenError::NotALog), "block {number}");
        let formatted = format(&gateway.log, &gateway.identity(), false).await;
        assert!(matches!(formatted, Err(CacheOpenError::NotALog)));
        format(&gateway.log, &gateway.identity(), true).await.unwrap();
        gateway.open().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_newer_version_is_refused() {
    let gateway = killed(Gateway::new(LOG)).await;
    let mut bytes = block(&gateway.log, 0).await;
    bytes[8] = 4;
    let checksum = crc32c::crc32c(&bytes[..508]);
    bytes[508..512].copy_from_slice(&checksum.to_le_bytes());
    set_block(&gateway.log, 0, bytes).await;
    let error = refusal(&gateway).await;
    assert!(matches!(error, CacheOpenError::Version { what: "log", found: 4, .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_log_with_dirty_data_is_formatted_only_with_force() {
    let gateway = killed(Gateway::new(LOG)).await;
    let error = format(&gateway.log, &gateway.identity(), false).await.unwrap_err();
    assert!(matches!(error, CacheOpenError::Dirty { slots: 4, .. }), "{error}");
    format(&gateway.log, &gateway.identity(), true).await.unwrap();
    assert_eq!(contents(&gateway).await, [0; 4], "nothing of the old instance comes back");
}

#[tokio::test(start_paused = true)]
async fn a_blank_log_disk_is_distinguished_from_a_used_one() {
    let gateway = Gateway::new(LOG);
    assert!(matches!(inspect(&gateway.log).await, Err(InspectError::Blank)));
    gateway.open().await;
    assert_eq!(inspect(&gateway.log).await.unwrap().identity, gateway.identity());
}

#[tokio::test(start_paused = true)]
async fn a_damaged_superblock_is_replaced_by_its_other_copy() {
    for number in [0, 1] {
        let gateway = killed(Gateway::new(LOG)).await;
        flip(&gateway.log, number, 500).await;
        assert_eq!(contents(&gateway).await, [5, 2, 3, 4]);
    }
}

#[tokio::test(start_paused = true)]
async fn damage_in_the_middle_is_refused_unless_loss_is_accepted() {
    // Damage the header or the data of the second segment.
    for number in [RING + 2, RING + 3] {
        let mut gateway = killed(Gateway::new(LOG)).await;
        flip(&gateway.log, number, 1000).await;
        let CacheOpenError::Missing(loss) = refusal(&gateway).await else {
            panic!("another error")
        };
        assert_eq!((loss.first_missing, loss.block, loss.intact), (2, RING + 2, 1));
        assert_eq!(inspect(&gateway.log).await.unwrap().loss, Some(loss));
        gateway.settings.accept_loss = true;
        assert_eq!(contents(&gateway).await, [1, 0, 0, 0]);
        gateway.settings.accept_loss = false;
        assert_eq!(contents(&gateway).await, [1, 0, 0, 0], "accepted is accepted");
        // The new segment has the number of the discarded one. Segments that were discarded after
        // it must not be accepted as its successors.
        let cache = gateway.open().await;
        write(&cache, 8, 9, 8).await.unwrap();
        drop(cache);
        assert_eq!(contents(&gateway).await, [1, 9, 0, 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_damaged_last_segment_is_detected_by_the_nvram_or_after_a_clean_stop() {
    let gateway = killed(Gateway::new(LOG).with_nvram()).await;
    flip(&gateway.log, RING + 9, 1000).await;
    let CacheOpenError::Missing(loss) = refusal(&gateway).await else { panic!("another error") };
    assert!(loss.first_missing == 5 && loss.evidence.contains("NVRAM"), "{loss:?}");

    let gateway = killed(Gateway::new(LOG)).await;
    gateway.open().await.stop().await.unwrap();
    flip(&gateway.log, RING + 9, 1000).await;
    let CacheOpenError::Missing(loss) = refusal(&gateway).await else { panic!("another error") };
    assert!(loss.first_missing == 5 && loss.evidence.contains("stopped"), "{loss:?}");

    // Without an NVRAM and without a clean stop, the damage looks like the write during which the
    // power failed.
    let gateway = killed(Gateway::new(LOG)).await;
    flip(&gateway.log, RING + 9, 1000).await;
    assert_eq!(contents(&gateway).await, [1, 2, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn immediate_report_recovers_from_the_nvram_and_not_without_it() {
    let mut gateway = Gateway::new(LOG).with_nvram();
    gateway.settings.report = WriteMode::Immediate;
    let cache = gateway.open().await;
    let data: Data = vec![6; 4096].into();
    let mut write = cache.write(Lba(8), data, Durability::Volatile);
    assert!(futures_util::poll!(&mut write).is_ready(), "it was acknowledged");
    drop(write);
    let memory = gateway.memory.clone().expect("it has one").0.lock().clone();
    drop(cache);

    let without = Gateway { memory: None, settings: Settings::default(), ..copy(&gateway).await };
    assert!(matches!(refusal(&without).await, CacheOpenError::NvramMissing(_)));
    let blank = Gateway { memory: Some(Memory::new(256)), ..copy(&gateway).await };
    assert!(matches!(refusal(&blank).await, CacheOpenError::NvramMissing(_)));
    let mut accepted = Gateway { memory: Some(Memory::new(256)), ..copy(&gateway).await };
    accepted.settings.accept_loss = true;
    assert_eq!(contents(&accepted).await, [0; 4]);

    // Restore the NVRAM to the moment of the acknowledgment, although the log has the write by now.
    *gateway.memory.as_ref().expect("it has one").0.lock() = memory;
    assert_eq!(contents(&gateway).await, [0, 6, 0, 0]);
    assert_eq!(contents(&gateway).await, [0, 6, 0, 0]);
}

/// An NVRAM is abandoned by opening the log with `accept_loss`, and is attached again after later
/// writes. Its data is older than these writes, although its serial numbers are higher, and must
/// never be used.
#[tokio::test(start_paused = true)]
async fn an_nvram_that_was_abandoned_is_never_used_again() {
    let mut gateway = Gateway::new(LOG).with_nvram();
    gateway.settings.report = WriteMode::Immediate;
    let cache = gateway.open().await;
    let immediate = async |cache: &Cache, slot: u64, byte: u8| {
        let data: Data = vec![byte; 4096].into();
        let mut write = cache.write(Lba(slot * 8), data, Durability::Volatile);
        assert!(futures_util::poll!(&mut write).is_ready(), "it was acknowledged");
    };
    // Write often, so that the NVRAM that is abandoned later gets high serial numbers.
    for _ in 0..50 {
        write(&cache, 0, 1, 8).await.unwrap();
    }
    cache.flush().await.unwrap();
    immediate(&cache, 1, 6).await;
    let given_up = gateway.memory.clone().expect("it has one").0.lock().clone();
    drop(cache);

    // Open the log with a new NVRAM and with the loss accepted.
    gateway.memory = Some(Memory::new(256));
    gateway.settings.accept_loss = true;
    let cache = gateway.open().await;
    gateway.settings.accept_loss = false;
    cache.flush().await.unwrap();
    let here = read(&cache, 8, 8).await.unwrap()[0];
    write(&cache, 8, 7, 8).await.unwrap();
    cache.flush().await.unwrap();
    assert!(here == 0 || here == 6);
    // Kill the cache when the new NVRAM holds one write that the log does not have.
    immediate(&cache, 2, 8).await;
    let newer = gateway.memory.clone().expect("it has one").0.lock().clone();
    // Copy the log before it has the write that is in the NVRAM only, so that both copies are of
    // the same moment.
    let killed = copy(&gateway).await;
    drop(cache);

    let with = async |from: &Gateway, bytes: &[u8]| {
        let mut other = copy(from).await;
        let memory = Memory::new(256);
        memory.0.lock().copy_from_slice(bytes);
        other.memory = Some(memory);
        other
    };
    let old = with(&killed, &given_up).await;
    let refused = refusal(&old).await;
    assert!(matches!(refused, CacheOpenError::NvramMissing(_)), "{refused}");
    assert!(refused.to_string().contains("was discarded"), "{refused}");
    let mut accepted = with(&killed, &given_up).await;
    accepted.settings.accept_loss = true;
    assert_eq!(contents(&accepted).await[1], 7, "never older than what was made stable");
    assert_eq!(contents(&with(&killed, &newer).await).await, [1, 7, 8, 0]);

    // A log that was stopped cleanly needs no NVRAM content, so the NVRAM is formatted again.
    let stopped = with(&killed, &newer).await;
    stopped.open().await.stop().await.unwrap();
    let old = with(&stopped, &given_up).await;
    assert_eq!(contents(&old).await, [1, 7, 8, 0]);
}

#[tokio::test(start_paused = true)]
async fn the_nvram_of_another_log_is_refused() {
    let mut other = Gateway::new(LOG).with_nvram();
    other.settings.report = WriteMode::Immediate;
    let cache = other.open().await;
    let data: Data = vec![6; 4096].into();
    let mut write = cache.write(Lba(8), data, Durability::Volatile);
    assert!(futures_util::poll!(&mut write).is_ready());
    let bytes = other.memory.clone().expect("it has one").0.lock().clone();
    let gateway = Gateway::new(LOG).with_nvram();
    *gateway.memory.as_ref().expect("it has one").0.lock() = bytes;
    assert!(matches!(refusal(&gateway).await, CacheOpenError::LogMissing { .. }));
    // A second start is refused too: the first refusal must not have formatted the log.
    assert!(matches!(refusal(&gateway).await, CacheOpenError::LogMissing { .. }));
    // A log with data that does not belong to the NVRAM is refused with another error.
    let used = Gateway::new(LOG);
    used.open().await.stop().await.unwrap();
    let used = Gateway { memory: gateway.memory.clone(), ..used };
    assert!(matches!(refusal(&used).await, CacheOpenError::OtherNvram { held: 1, .. }));
}

#[tokio::test(start_paused = true)]
async fn a_blank_log_with_an_nvram_in_use_is_refused_unless_the_log_was_drained_and_stopped() {
    let mut gateway = Gateway::new(LOG).with_nvram();
    gateway.settings.report = WriteMode::Immediate;
    let cache = gateway.open().await;
    cache.write(Lba(8), Data::from(vec![6; 4096]), Durability::Stable).await.unwrap();
    drop(cache);
    // The NVRAM holds no write, since the log has it, but still names its log.
    let (far, memory) = (gateway.far.clone(), gateway.memory.clone());
    let settings = gateway.settings.clone();
    let blank = Gateway { far, memory, settings, log: Gateway::new(LOG).log };
    assert!(matches!(refusal(&blank).await, CacheOpenError::LogMissing { .. }));
    let cache = gateway.start().await;
    cache.drain().await.unwrap();
    cache.stop().await.unwrap();
    drop(blank.open().await);
}

/// Returns a gateway with a copy of the log on another disk.
async fn copy(gateway: &Gateway) -> Gateway {
    let new = Gateway::new(LOG);
    for number in 0..LOG {
        set_block(&new.log, number, block(&gateway.log, number).await).await;
    }
    Gateway {
        far: gateway.far.clone(),
        log: new.log,
        memory: gateway.memory.clone(),
        settings: gateway.settings.clone(),
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().expect("a runtime without I/O");
    runtime.block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Damages random bits of a log whose NVRAM has recorded the newest segment. The log must be
    /// refused, or must have the right data.
    #[test]
    fn a_flipped_bit_is_harmless_or_refused_never_wrong_data(
        number in 0..RING + 12,
        bits in prop::collection::vec(0..4096 * 8usize, 1..4),
        in_head in any::<bool>(),
    ) {
        block_on(async {
            let gateway = killed(Gateway::new(LOG).with_nvram()).await;
            for bit in bits {
                flip(&gateway.log, number, if in_head { bit % 2048 } else { bit }).await;
            }
            if let Ok(cache) = gateway.try_open().await {
                drop(cache);
                assert_eq!(contents(&gateway).await, [5, 2, 3, 4]);
            }
        });
    }

    #[test]
    fn hostile_blocks_are_refused_without_a_panic(
        blocks in prop::collection::vec((0..20u64, any::<[u8; 32]>(), 0..4064usize), 1..8),
    ) {
        block_on(async {
            let gateway = killed(Gateway::new(LOG).with_nvram()).await;
            for (number, bytes, at) in blocks {
                let mut content = block(&gateway.log, number).await;
                content[at..at + 32].copy_from_slice(&bytes);
                set_block(&gateway.log, number, content).await;
            }
            let _ = inspect(&gateway.log).await;
            if gateway.try_open().await.is_ok() {
                assert_eq!(contents(&gateway).await, [5, 2, 3, 4]);
            }
        });
    }
}

/// The first read flushes, so that the data that it finds cannot be lost any more. It must not fail
/// when the flushes of concurrent discards fail.
#[tokio::test(start_paused = true)]
async fn the_first_read_does_not_fail_with_flushes_of_concurrent_discards() {
    let mut gateway = Gateway::new(LOG).relaxed();
    gateway.settings.discard_log_bytes = 0;
    gateway.far.set_delay(Duration::from_millis(10));
    let cache = gateway.open().await;
    let discard = |after, lba| {
        let cache = cache.clone();
        async move {
            sleep(Duration::from_millis(after)).await;
            cache.discard(Extent { lba: Lba(lba), blocks: 8 }).await
        }
    };
    let losses = async {
        // Fail the flush of the first discard, and that of the second one, which comes after the
        // flush of the reader.
        gateway.far.fail_next_flush();
        sleep(Duration::from_millis(35)).await;
        gateway.far.fail_next_flush();
    };
    let reader = async {
        sleep(Duration::from_millis(12)).await;
        read(&cache, 800, 8).await
    };
    let (first, _, found, ()) = tokio::join!(discard(0, 0), discard(5, 80), reader, losses);
    assert_eq!(found.unwrap(), [0; 8]);
    // The first discard was repeated after its flush had failed, and the second flush failed, too.
    assert!(matches!(first, Err(Error::Device(_))), "{first:?}");
}

/// A far volume that restarts several times reports lost writes each time. The first read must
/// survive some such reports in a row.
#[tokio::test(start_paused = true)]
async fn the_first_read_survives_a_few_lost_write_reports_in_a_row() {
    let gateway = Gateway::new(LOG).relaxed();
    let cache = gateway.open().await;
    gateway.far.fail_flushes(3);
    assert_eq!(read(&cache, 800, 8).await.unwrap(), [0; 8]);
    // A flush that always fails is a broken device.
    let gateway = Gateway::new(LOG).relaxed();
    let cache = gateway.open().await;
    gateway.far.fail_flushes(u32::MAX);
    assert!(matches!(read(&cache, 800, 8).await, Err(Error::Device(_))));
}
