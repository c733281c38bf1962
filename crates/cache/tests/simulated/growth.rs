//! Tests of a far volume that grows: the cache uses the new blocks, and they survive a crash at any
//! moment.

use std::{sync::Arc, time::Duration};

use crate::support::{
    far::Far,
    gateway::{Gateway, read, write},
    tier::Rotting,
};
use cache::Cache;
use sim::{CrashVolume, Rng};
use volume::{Error, Extent, Geometry, Lba, Stack, Volume};

const LOG: u64 = 1000;
const BLOCKS: u64 = 32768;
const MORE: u64 = 40960;

/// Waits, for ten seconds of virtual time, until the cache reports this number of blocks. Returns
/// false if it does not.
async fn has(cache: &Cache, blocks: u64) -> bool {
    for _ in 0..100 {
        cache.extensions().refresh();
        if cache.geometry().blocks == blocks {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    false
}

#[tokio::test(start_paused = true)]
async fn new_blocks_are_usable_while_the_volume_is_in_use() {
    let gateway = Gateway::new(LOG);
    let cache = gateway.start().await;
    write(&cache, BLOCKS - 8, 1, 8).await.unwrap();
    let beyond = write(&cache, BLOCKS - 4, 2, 8).await;
    assert!(matches!(beyond, Err(Error::OutOfRange(_))));
    gateway.far.set_blocks(MORE);
    assert!(has(&cache, MORE).await);
    write(&cache, BLOCKS - 4, 2, 8).await.unwrap();
    write(&cache, MORE - 8, 3, 8).await.unwrap();
    assert!(matches!(write(&cache, MORE, 4, 8).await, Err(Error::OutOfRange(_))));
    assert_eq!(read(&cache, BLOCKS - 8, 12).await.unwrap(), [1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2]);
    cache.drain().await.unwrap();
    assert_eq!(gateway.far.peek(MORE - 8, 8).await, [3; 8 * 512]);
    assert_eq!(gateway.far.peek(BLOCKS, 4).await, [2; 4 * 512]);
    // A far volume that shrinks is not followed: the removed blocks may hold data of hosts.
    gateway.far.set_blocks(BLOCKS);
    cache.extensions().refresh();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(cache.geometry().blocks, MORE);
}

/// The former end of the volume is inside of a slot. After the growth, all sectors of the slot must be
/// usable.
#[tokio::test(start_paused = true)]
async fn a_partial_last_slot_becomes_whole_when_the_volume_grows() {
    for (known, zeros) in [(false, false), (true, false), (true, true)] {
        let mut gateway = Gateway::new(LOG);
        gateway.far = Far::new(Geometry::with_blocks(BLOCKS + 3));
        gateway.far.poke(BLOCKS, vec![9; 3 * 512]).await;
        let cache = gateway.start().await;
        if known {
            assert_eq!(read(&cache, BLOCKS, 3).await.unwrap(), [9; 3]);
        }
        if zeros {
            let extent = Extent { lba: Lba(BLOCKS), blocks: 3 };
            cache.discard(extent).await.unwrap();
        }
        gateway.far.set_blocks(MORE);
        assert!(has(&cache, MORE).await);
        write(&cache, BLOCKS + 6, 5, 2).await.unwrap();
        let old = if zeros { 0 } else { 9 };
        let expected = [old, old, old, 0, 0, 0, 5, 5];
        assert_eq!(read(&cache, BLOCKS, 8).await.unwrap(), expected, "{known} {zeros}");
        cache.drain().await.unwrap();
        let there = gateway.far.peek(BLOCKS, 8).await;
        assert_eq!(crate::support::gateway::first_bytes(&there), expected, "{known} {zeros}");
    }
}

/// The last slot of the volume is incomplete and has dirty data. After the growth, the cache must not
/// treat its copy as the content of the whole slot: the sectors behind the former end are unknown to the
/// log, to memory and to the tier, and must be read from the far volume.
#[tokio::test(start_paused = true)]
async fn dirty_data_of_a_partial_last_slot_does_not_hide_its_new_sectors() {
    for (is_read, is_discarded) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut gateway = Gateway::new(LOG);
        gateway.settings.dram_bytes = 256 << 10;
        gateway.settings.nvram_bytes = 64 << 10;
        gateway.far = Far::new(Geometry::with_blocks(BLOCKS + 3));
        gateway.far.poke(BLOCKS, vec![9; 3 * 512]).await;
        let cache = gateway.start().await;
        cache.use_tier(Rotting::new(640, 0, 1)).await.unwrap();
        cache.pause();
        if is_read {
            assert_eq!(read(&cache, BLOCKS, 3).await.unwrap(), [9; 3]);
        }
        let expected = if is_discarded {
            let extent = Extent { lba: Lba(BLOCKS), blocks: 3 };
            cache.discard(extent).await.unwrap();
            [0, 0, 0, 7, 7, 7, 7, 7]
        } else {
            write(&cache, BLOCKS + 1, 5, 1).await.unwrap();
            [9, 5, 9, 7, 7, 7, 7, 7]
        };
        assert!(cache.statistics().destage.dirty_bytes > 0);
        gateway.far.set_blocks(MORE);
        gateway.far.poke(BLOCKS + 3, vec![7; 5 * 512]).await;
        assert!(has(&cache, MORE).await);
        let how = format!("read {is_read}, discarded {is_discarded}");
        assert_eq!(read(&cache, BLOCKS, 8).await.unwrap(), expected, "{how}");
        cache.resume();
        cache.drain().await.unwrap();
        let there = gateway.far.peek(BLOCKS, 8).await;
        assert_eq!(
            crate::support::gateway::first_bytes(&there),
            expected,
            "{how}, at the far volume"
        );
        // In the second round the slot has left memory and is read from the tier.
        for round in 0..2 {
            assert_eq!(read(&cache, BLOCKS, 8).await.unwrap(), expected, "{how}, {round}");
            for slot in 0..200 {
                read(&cache, slot * 8, 8).await.unwrap();
            }
        }
    }
}

/// Runs a gateway whose far volume grows. Returns which of its two writes were acknowledged.
async fn live(gateway: &Gateway) -> (bool, bool) {
    let Ok(cache) = gateway.try_open().await else { return (false, false) };
    let destage = tokio::spawn(cache.run());
    let first = write(&cache, 0, 1, 8).await.is_ok();
    gateway.far.set_blocks(MORE);
    let second = has(&cache, MORE).await && write(&cache, MORE - 8, 2, 8).await.is_ok();
    destage.abort();
    (first, second)
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_moment_of_growing_loses_nothing() {
    let mut grown = 0;
    for operations in 0..200 {
        let mut gateway = Gateway::new(LOG);
        let geometry = Geometry { block_size: 4096, ..Geometry::with_blocks(LOG) };
        let disk = Arc::new(CrashVolume::new(geometry, operations));
        gateway.log = Arc::clone(&disk) as Stack;
        disk.crash_after(operations);
        let (first, second) = live(&gateway).await;
        let over = !disk.power().is_off();
        let image = disk.crash(&mut Rng::new(operations));
        gateway.log = Arc::new(CrashVolume::reopen(image, operations));
        // The crash may have come while the log was formatted; then no write was acknowledged.
        let cache = match gateway.try_open().await {
            Ok(cache) => cache,
            Err(error) => {
                assert!(!first && !second, "{operations}: {error}");
                continue;
            }
        };
        if first {
            assert_eq!(read(&cache, 0, 8).await.unwrap(), [1; 8], "{operations}");
        }
        if second {
            assert_eq!(read(&cache, MORE - 8, 8).await.unwrap(), [2; 8], "{operations}");
            grown += 1;
        }
        if over {
            assert!(grown > 0, "the last moments were after it had grown");
            return;
        }
    }
    panic!("it ends long before");
}
