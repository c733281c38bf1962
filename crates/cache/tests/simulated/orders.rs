//! Tests of the operator's commands for destage: pause, resume, a rate, a drain. Also tests reads as of the last
//! flush.

use std::{sync::Arc, time::Duration};

use crate::support::{
    far::Far,
    gateway::{Gateway, first_bytes, read, write},
};
use cache::{Cache, WriteMode};
use tokio::time::{Instant, sleep, timeout};
use volume::{Error, Extent, Geometry, Lba, Volume};

const LOG: u64 = 4096;
const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn a_pause_keeps_the_link_free_and_writes_continue() {
    let gateway = Gateway::new(LOG);
    let cache = gateway.start().await;
    cache.pause();
    for slot in 0..100 {
        write(&cache, slot * 8, 1, 8).await.unwrap();
    }
    sleep(MINUTE).await;
    assert_eq!(gateway.far.take_calls(), []);
    let statistics = cache.statistics();
    assert_eq!((statistics.destage.dirty_slots, statistics.destage.paused_ms), (100, Some(60_000)));
    cache.pause();
    assert_eq!(cache.statistics().destage.paused_ms, Some(60_000), "it counts from the first");
    cache.resume();
    sleep(Duration::from_secs(1)).await;
    let statistics = cache.statistics();
    assert_eq!((statistics.destage.dirty_slots, statistics.destage.paused_ms), (0, None));
    assert_eq!(first_bytes(&gateway.far.peek(0, 800).await), [1; 800]);
}

#[tokio::test(start_paused = true)]
async fn a_pause_in_the_middle_of_a_round_lets_writes_in_flight_finish() {
    let mut gateway = Gateway::new(LOG);
    gateway.settings.destage_in_flight = 2;
    gateway.settings.destage_run_bytes = 4096;
    gateway.far.set_delay(Duration::from_millis(50));
    let cache = gateway.start().await;
    for slot in 0..100 {
        write(&cache, slot * 16, 1, 8).await.unwrap();
    }
    while gateway.far.take_calls().is_empty() {
        sleep(Duration::from_millis(1)).await;
    }
    cache.pause();
    sleep(Duration::from_secs(1)).await;
    gateway.far.take_calls();
    sleep(MINUTE).await;
    assert_eq!(gateway.far.take_calls(), []);
    assert_eq!(cache.statistics().destage.dirty_slots, 100, "the tail has not moved");
    write(&cache, 0, 2, 8).await.unwrap();
    assert_eq!(read(&cache, 0, 8).await.unwrap(), [2; 8]);
    cache.resume();
    cache.drain().await.unwrap();
    assert_eq!(first_bytes(&gateway.far.peek(0, 8).await), [2; 8]);
}

/// Scattered writes are destaged in short runs. Many of them must be in flight at once; a few would leave most
/// of a long link empty.
#[tokio::test(start_paused = true)]
async fn short_runs_are_sent_with_more_calls_in_flight() {
    let gateway = Gateway::new(LOG);
    gateway.far.set_delay(Duration::from_millis(10));
    let cache = gateway.start().await;
    cache.pause();
    for slot in 0..800 {
        write(&cache, slot * 16, 1, 8).await.unwrap();
    }
    cache.resume();
    let started = Instant::now();
    cache.drain().await.unwrap();
    // With at most eight destage writes in flight, the drain would take a second.
    assert!(started.elapsed() < Duration::from_millis(400), "{:?}", started.elapsed());
    assert_eq!(cache.statistics().destage.dirty_slots, 0);
}

#[tokio::test(start_paused = true)]
async fn writes_bypass_a_full_log_also_while_destage_is_paused() {
    let gateway = Gateway::new(1200).relaxed();
    let cache = gateway.start().await;
    cache.pause();
    for slot in 0..1000 {
        write(&cache, slot * 8, 1, 8).await.unwrap();
    }
    let statistics = cache.statistics();
    assert!(statistics.traffic.bypassed > 100, "{statistics:?}");
    assert_eq!(first_bytes(&gateway.far.peek(7992, 8).await), [1; 8]);
}

#[tokio::test(start_paused = true)]
async fn a_drain_fails_at_once_while_destage_is_paused_or_its_rate_is_0() {
    let gateway = Gateway::new(LOG);
    let cache = gateway.start().await;
    write(&cache, 0, 1, 8).await.unwrap();
    cache.pause();
    assert!(matches!(cache.drain().await, Err(Error::Busy("destage is paused"))));
    cache.resume();
    cache.set_destage_rate(Some(0));
    assert!(matches!(cache.drain().await, Err(Error::Busy(_))));
    cache.set_destage_rate(Some(1 << 20));
    cache.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_drain_under_way_ends_with_a_pause() {
    let gateway = Gateway::new(LOG);
    gateway.far.set_delay(MINUTE);
    let cache = gateway.start().await;
    write(&cache, 0, 1, 8).await.unwrap();
    let paused = async {
        sleep(Duration::from_secs(1)).await;
        cache.pause();
    };
    let (drained, ()) = tokio::join!(timeout(Duration::from_secs(2), cache.drain()), paused);
    assert!(matches!(drained, Ok(Err(Error::Busy("destage is paused")))));
}

#[tokio::test(start_paused = true)]
async fn destage_keeps_its_rate_limit_whether_urgent_or_not() {
    for urgent in [false, true] {
        let gateway = Gateway::new(LOG);
        let cache = gateway.start().await;
        cache.set_destage_rate(Some(1 << 20));
        // Write 4 MiB, which destage sends in runs of 64 KiB.
        for slot in 0..1024 {
            write(&cache, slot * 8, 1, 8).await.unwrap();
        }
        let started = Instant::now();
        let dirty = || cache.statistics().destage.dirty_slots;
        if urgent {
            cache.drain().await.unwrap();
        } else {
            while dirty() > 0 {
                sleep(Duration::from_millis(10)).await;
            }
        }
        let took = started.elapsed().as_millis();
        assert!((3900..4300).contains(&took), "{took} ms for 4 MiB");
    }
}

#[tokio::test(start_paused = true)]
async fn the_destage_rate_is_reported_and_can_be_changed_while_a_round_waits_for_it() {
    let gateway = Gateway::new(LOG);
    let cache = gateway.start().await;
    cache.set_destage_rate(Some(64 << 10));
    for slot in 0..1024 {
        write(&cache, slot * 8, 1, 8).await.unwrap();
    }
    sleep(Duration::from_secs(10)).await;
    let statistics = cache.statistics();
    assert!((50 << 10..=96 << 10).contains(&statistics.destage.rate), "{statistics:?}");
    assert_eq!(statistics.destage.rate_limit, Some(64 << 10));
    assert_eq!(statistics.destage.dirty_slots, 1024);
    cache.set_destage_rate(None);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(cache.statistics().destage.dirty_slots, 0);
}

#[tokio::test(start_paused = true)]
async fn a_paused_cache_stops_at_once_and_recovers_its_dirty_data() {
    let gateway = Gateway::new(LOG);
    let cache = gateway.start().await;
    cache.pause();
    write(&cache, 0, 1, 8).await.unwrap();
    sleep(MINUTE).await;
    cache.stop().await.unwrap();
    let cache = gateway.start().await;
    assert_eq!(cache.statistics().destage.paused_ms, None);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(first_bytes(&gateway.far.peek(0, 8).await), [1; 8]);
}

#[tokio::test(start_paused = true)]
async fn a_log_is_not_exported_while_it_may_still_be_written() {
    let gateway = Gateway::new(LOG).relaxed();
    gateway.far.set_delay(MINUTE);
    let cache = gateway.start().await;
    write(&cache, 0, 1, 8).await.unwrap();
    // The long discard below bypasses the log. The cache voids the slots in the log only after the far volume has
    // answered the discard.
    let long = Extent { lba: Lba(0), blocks: 32768 };
    let discarding = tokio::spawn({
        let cache = cache.clone();
        async move { cache.discard(long).await }
    });
    while gateway.far.take_calls().is_empty() {
        sleep(Duration::from_millis(1)).await;
    }
    let error = cache.export().await.expect_err("it would not be whole");
    assert!(matches!(error, Error::Busy(why) if why.contains("not answered")), "{error}");
    let error = write(&cache, 0, 2, 8).await.expect_err("it takes nothing more all the same");
    assert!(matches!(error, Error::Fenced(_)), "{error}");
    discarding.await.unwrap().unwrap();
    cache.export().await.expect("asked again, when that has come");
    let before = log(&gateway).await;
    sleep(10 * MINUTE).await;
    assert!(before == log(&gateway).await, "it is written to no more");
}

async fn log(gateway: &Gateway) -> Vec<u8> {
    let whole = Extent { lba: Lba(0), blocks: LOG as u32 };
    gateway.log.read(whole).await.unwrap().into_bytes().to_vec()
}

/// With report at flush, a flush by the drain would end an epoch of the host in the middle. The drain must
/// therefore destage only data that the host has flushed.
#[tokio::test(start_paused = true)]
async fn with_report_at_flush_a_drain_does_not_act_as_a_flush() {
    let mut gateway = Gateway::new(LOG);
    gateway.settings.report = WriteMode::AtFlush;
    let cache = gateway.start().await;
    write(&cache, 0, 1, 8).await.unwrap();
    cache.flush().await.unwrap();
    write(&cache, 0, 2, 8).await.unwrap();
    write(&cache, 8, 2, 8).await.unwrap();
    cache.drain().await.unwrap();
    assert!(cache.is_drained(), "as far as it was flushed");
    assert_eq!(first_bytes(&gateway.far.peek(0, 16).await), [[1; 8], [0; 8]].concat());
    let mark = cache.mark().await.unwrap();
    cache.drain_to(mark).await.unwrap();
    cache.extensions().roll_back().await.unwrap();
    assert_eq!(read(&cache, 0, 16).await.unwrap(), [[1; 8], [0; 8]].concat());
    write(&cache, 8, 3, 8).await.unwrap();
    cache.flush().await.unwrap();
    assert!(!cache.is_drained());
    cache.drain().await.unwrap();
    assert_eq!(first_bytes(&gateway.far.peek(0, 16).await), [[1; 8], [3; 8]].concat());
}

/// Returns the first byte of each block as of the last flush.
async fn read_flushed(cache: &Cache, lba: u64, blocks: u32) -> Vec<u8> {
    let data = cache.extensions().read_flushed(Extent { lba: Lba(lba), blocks }).await.unwrap();
    first_bytes(&data.into_bytes())
}

/// Puts content into each place in which a cache with report at flush can hold it. Blocks 0 to 7 are flushed to
/// the log, 8 to 15 are at the lower volume, and 16 to 23 are zeros in the log. The first half of 24 to 31 is in
/// the log and the rest at the lower volume. Blocks 32 to 39 were never written. Returns the expected content.
async fn in_all_places(gateway: &Gateway, cache: &Cache) -> Vec<u8> {
    for lba in [8, 16, 24] {
        write(cache, lba, 1, 8).await.unwrap();
    }
    cache.flush().await.unwrap();
    cache.drain().await.unwrap();
    gateway.far.set_away(true);
    write(cache, 0, 2, 8).await.unwrap();
    cache.discard(Extent { lba: Lba(16), blocks: 8 }).await.unwrap();
    write(cache, 24, 2, 4).await.unwrap();
    cache.flush().await.unwrap();
    [[2; 8], [1; 8], [0; 8], [2, 2, 2, 2, 1, 1, 1, 1], [0; 8]].concat()
}

#[tokio::test(start_paused = true)]
async fn a_read_of_flushed_data_sees_no_write_after_the_flush() {
    for dram_bytes in [4 << 20, 256 << 10] {
        let mut gateway = Gateway::new(LOG);
        gateway.settings.report = WriteMode::AtFlush;
        gateway.settings.dram_bytes = dram_bytes;
        gateway.settings.nvram_bytes = dram_bytes / 4;
        let cache = gateway.start().await;
        let flushed = in_all_places(&gateway, &cache).await;
        gateway.far.set_away(false);
        cache.pause();
        assert_eq!(read_flushed(&cache, 0, 40).await, flushed);
        // Make each kind of change over each kind of content; then write so much that memory evicts the pages.
        write(&cache, 2, 3, 8).await.unwrap();
        cache.discard(Extent { lba: Lba(11), blocks: 7 }).await.unwrap();
        write(&cache, 20, 3, 1).await.unwrap();
        write(&cache, 25, 3, 6).await.unwrap();
        write(&cache, 32, 3, 8).await.unwrap();
        assert_eq!(read_flushed(&cache, 0, 40).await, flushed);
        for slot in 10..200 {
            write(&cache, slot * 8, 3, 8).await.unwrap();
        }
        assert_eq!(read_flushed(&cache, 0, 40).await, flushed);
        assert_eq!(read_flushed(&cache, 3, 30).await, flushed[3..33]);
        assert_eq!(read(&cache, 32, 8).await.unwrap(), [3; 8], "the owner reads its own");
        // Destage sends the flushed epoch. The open epoch with the later writes stays in the log.
        cache.resume();
        cache.drain().await.unwrap();
        assert_eq!(read_flushed(&cache, 0, 40).await, flushed);
        cache.extensions().roll_back().await.unwrap();
        assert_eq!(read_flushed(&cache, 0, 40).await, flushed);
        assert_eq!(read(&cache, 0, 40).await.unwrap(), flushed);
        write(&cache, 0, 4, 8).await.unwrap();
        cache.flush().await.unwrap();
        assert_eq!(read_flushed(&cache, 0, 8).await, [4; 8]);
    }
}

/// The read as of the last flush makes many calls to the lower volume. A round that began during the read would
/// destage a later epoch, and the read would find parts of it.
#[tokio::test(start_paused = true)]
async fn a_round_does_not_begin_during_a_read_of_flushed_data() {
    let mut gateway = Gateway::new(LOG);
    gateway.settings.report = WriteMode::AtFlush;
    let cache = gateway.start().await;
    write(&cache, 0, 1, 8 * 128).await.unwrap();
    cache.flush().await.unwrap();
    cache.drain().await.unwrap();
    // Write every other slot, so that the read needs one call to the lower volume for each slot between them.
    for slot in (0..128).step_by(2) {
        write(&cache, slot * 8, 2, 8).await.unwrap();
    }
    cache.flush().await.unwrap();
    cache.drain().await.unwrap();
    let before: Vec<u8> = (0..1024).map(|block| 2 - (block / 8 % 2) as u8).collect();
    write(&cache, 0, 3, 8).await.unwrap();
    let pages: Vec<u64> = (0..64).map(|slot| slot * 16).collect();
    for lba in pages {
        assert!(cache.forget(lba * 512 + 4096, 4096));
    }
    gateway.far.set_delay(Duration::from_millis(10));
    let reader = tokio::spawn({
        let cache = Arc::clone(&cache);
        async move { read_flushed(&cache, 0, 1024).await }
    });
    sleep(Duration::from_millis(5)).await;
    write(&cache, 127 * 8, 3, 8).await.unwrap();
    cache.flush().await.unwrap();
    cache.drain().await.unwrap();
    assert_eq!(reader.await.unwrap(), before);
    assert_eq!(read_flushed(&cache, 127 * 8, 8).await, [3; 8]);
}

#[tokio::test(start_paused = true)]
async fn without_report_at_flush_a_read_of_flushed_data_is_refused() {
    let gateway = Gateway::new(LOG);
    let cache = gateway.start().await;
    let read = cache.extensions().read_flushed(Extent { lba: Lba(0), blocks: 8 }).await;
    assert!(matches!(read, Err(Error::Device(_))), "{read:?}");
}

/// A discard takes one block in the log but stands for thousands of slots, and an epoch keeps an entry for each.
/// Discards must be refused before these entries exceed the memory.
#[tokio::test(start_paused = true)]
async fn the_memory_for_repeated_discards_is_bounded() {
    let blocks = 1 << 18;
    let mut gateway = Gateway::new(LOG);
    gateway.far = Far::new(Geometry::with_blocks(blocks));
    gateway.far.set_away(true);
    let cache = gateway.start().await;
    let whole = Extent { lba: Lba(0), blocks: blocks as u32 };
    let mut taken = 0;
    let refused = loop {
        match cache.discard(whole).await {
            Ok(()) => taken += 1,
            Err(error) => break error,
        }
    };
    // The refused discard had begun, and then waited a minute for the far volume. The error must not be BUSY,
    // which would mean that no block was changed.
    assert!(refused.to_string().contains("a part of the blocks was changed"), "{refused}");
    assert!(
        matches!(cache.discard(whole).await, Err(Error::Busy(_))),
        "and this one has not begun"
    );
    assert!((1..=2).contains(&taken), "{taken}, of 32768 slots each");
    let used = cache.statistics().log.used_bytes;
    assert!(used < (LOG << 12) / 2, "it is not the log that is full: {used}");
    drop(cache);
    let cache = gateway.start().await;
    gateway.far.set_away(false);
    cache.drain().await.unwrap();
    cache.discard(whole).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn write_through_promises_no_order_before_the_log_is_empty() {
    let mut gateway = Gateway::new(LOG);
    let cache = gateway.open().await;
    write(&cache, 0, 1, 8).await.unwrap();
    drop(cache);
    gateway.settings.report = WriteMode::Through;
    let cache = gateway.start().await;
    cache.pause();
    assert_eq!(cache.statistics().order.order, "none (the log holds older writes)");
    cache.resume();
    cache.drain().await.unwrap();
    assert_eq!(cache.statistics().order.order, "every write that was answered");
}
