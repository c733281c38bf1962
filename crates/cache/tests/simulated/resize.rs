//! Tests of a log that is resized while it is in use. Crashes during a resize are tested in
//! `crash.rs`.

use std::{sync::Arc, time::Duration};

use crate::support::gateway::{Gateway, read, write};
use cache::{LogKey, ResizeError, WriteMode, inspect};
use tokio::time::sleep;
use volume::{Error, FaultCallKind, FaultRule, FaultVolume, Symptom};

const LARGE: u64 = 4000;
const SMALL: u64 = 1000;

/// Returns a gateway whose log uses `SMALL` blocks of a disk of `LARGE` blocks.
async fn small() -> Gateway {
    let gateway = Gateway::new(LARGE);
    let cache = gateway.start().await;
    cache.resize(SMALL).await.unwrap();
    assert_eq!(cache.log_blocks().await, SMALL);
    cache.stop().await.unwrap();
    gateway
}

/// Writes slots until the log is full. Returns the number of slots.
async fn fill(cache: &cache::Cache, byte: u8) -> u64 {
    let mut slot = 0;
    while write(cache, slot * 8, byte, 8).await.is_ok() {
        slot += 1;
    }
    slot
}

#[tokio::test(start_paused = true)]
async fn a_full_log_has_room_at_once_when_it_grows_though_the_far_volume_is_unreachable() {
    for key in [None, Some(LogKey::new(&[1; 64]))] {
        let mut gateway = small().await;
        gateway.settings.log_key = key;
        let cache = gateway.start().await;
        // Move the live segments to the middle of the ring, so that later writes wrap around its end.
        for round in 0..2 {
            for slot in 0..200 {
                write(&cache, slot * 8, round, 8).await.unwrap();
            }
            cache.drain().await.unwrap();
        }
        gateway.far.set_away(true);
        let took = fill(&cache, 7).await;
        assert!((300..500).contains(&took), "{took}");
        cache.resize(LARGE).await.unwrap();
        assert_eq!(cache.log_blocks().await, LARGE);
        let more = fill(&cache, 8).await;
        assert!(more > 1200, "{more}");
        assert_eq!(inspect(&gateway.log).await.unwrap().log_blocks, LARGE);
        // Kill the gateway; recovery must find all data in the larger log.
        drop(cache);
        let cache = gateway.start().await;
        assert_eq!(cache.statistics().recovery.slots, more);
        for slot in [0, 100, more - 1] {
            assert_eq!(read(&cache, slot * 8, 8).await.unwrap(), [8; 8], "{slot}");
        }
        gateway.far.set_away(false);
        cache.drain().await.unwrap();
        assert_eq!(gateway.far.peek((more - 1) * 8, 1).await, [8; 512]);
        cache.stop().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_shrinks_when_data_behind_its_new_end_has_been_destaged() {
    let gateway = Gateway::new(LARGE);
    let cache = gateway.start().await;
    gateway.far.set_away(true);
    for slot in 0..1000 {
        write(&cache, slot * 8, 3, 8).await.unwrap();
    }
    let resizing = tokio::spawn({
        let cache = Arc::clone(&cache);
        async move { cache.resize(SMALL).await }
    });
    sleep(Duration::from_secs(60)).await;
    assert!(!resizing.is_finished(), "it waits for the far volume");
    assert_eq!(cache.log_blocks().await, LARGE);
    assert_eq!(read(&cache, 0, 8).await.unwrap(), [3; 8]);
    gateway.far.set_away(false);
    resizing.await.unwrap().unwrap();
    assert_eq!(cache.log_blocks().await, SMALL);
    assert!(cache.statistics().log.bytes < SMALL * 4096);
    // Write again: the log must not need the blocks beyond its new end any more.
    crate::support::gateway::write(&cache, 0, 4, 8).await.unwrap();
    drop(cache);
    let found = inspect(&gateway.log).await.unwrap();
    assert_eq!((found.log_blocks, found.loss), (SMALL, None));
    assert_eq!(read(gateway.open().await.as_ref(), 0, 8).await.unwrap(), [4; 8]);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_shrink_is_undone_by_growing_or_by_the_next_opening() {
    let gateway = Gateway::new(LARGE);
    let cache = gateway.start().await;
    let whole = cache.statistics().log.bytes;
    gateway.far.set_away(true);
    write(&cache, 0, 3, 8).await.unwrap();
    let shrinking = cache.resize(SMALL);
    assert!(tokio::time::timeout(Duration::from_secs(5), shrinking).await.is_err());
    assert!(cache.statistics().log.bytes < whole / 2);
    cache.resize(LARGE).await.unwrap();
    assert_eq!(cache.statistics().log.bytes, whole);
    let shrinking = cache.resize(SMALL);
    assert!(tokio::time::timeout(Duration::from_secs(5), shrinking).await.is_err());
    drop(cache);
    let cache = gateway.open().await;
    assert_eq!(cache.statistics().log.bytes, whole);
    assert_eq!(read(&cache, 0, 8).await.unwrap(), [3; 8]);
}

#[tokio::test(start_paused = true)]
async fn impossible_sizes_are_refused_and_change_nothing() {
    let mut gateway = small().await;
    let cache = gateway.start().await;
    for (blocks, why) in [(LARGE + 1, "its disk has 4000"), (100, "the minimum is"), (1010, "grow")]
    {
        let error = cache.resize(blocks).await.unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    assert_eq!(cache.log_blocks().await, SMALL);
    cache.stop().await.unwrap();
    drop(cache);
    gateway.settings.report = WriteMode::AtFlush;
    let cache = gateway.start().await;
    cache.resize(LARGE).await.unwrap();
    assert!(matches!(cache.resize(SMALL).await, Err(ResizeError::AtFlush)));
}

/// A superblock write fails, but may have reached the disk. The cache must overwrite it before it
/// writes anything that relies on the old or the new size.
#[tokio::test(start_paused = true)]
async fn a_failed_superblock_write_leaves_the_log_with_its_old_size() {
    for passes in [0, 1] {
        let mut gateway = small().await;
        let plain = Arc::clone(&gateway.log);
        let faulty = Arc::new(FaultVolume::new(Arc::clone(&plain)));
        let faults = Arc::clone(faulty.faults());
        gateway.log = faulty;
        let cache = gateway.open().await;
        write(&cache, 0, 1, 8).await.unwrap();
        // With 0 passes, the write of the first superblock copy fails; with 1, that of the second copy.
        let broken = Symptom::Fails(Error::Device("broken".into()));
        faults.add(FaultRule::always(FaultCallKind::Write, broken).after(passes).times(3));
        assert!(cache.resize(LARGE).await.is_err());
        assert_eq!(cache.log_blocks().await, SMALL);
        write(&cache, 8, 2, 8).await.unwrap();
        drop(cache);
        gateway.log = plain;
        let cache = gateway.open().await;
        assert_eq!(cache.log_blocks().await, SMALL);
        assert_eq!(read(&cache, 0, 16).await.unwrap()[7..9], [1, 2]);
    }
}
