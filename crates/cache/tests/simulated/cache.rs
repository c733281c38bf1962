//! Tests of the cache as a host sees it, and as the far volume sees it.

use std::{sync::Arc, time::Duration};

use crate::support::{
    far::Far,
    gateway::{Gateway, filled, first_bytes, read, write},
};
use cache::{Cache, Settings, WriteMode};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use volume::{Durability, Error, Extent, Geometry, Lba, Volume};

const LOG: u64 = 4096;

#[tokio::test(start_paused = true)]
async fn a_read_returns_written_data() {
    let gateway = Gateway::new(LOG);
    let cache = gateway.open().await;
    write(&cache, 3, 1, 20).await.unwrap();
    write(&cache, 10, 2, 1).await.unwrap();
    let read = read(&cache, 0, 24).await.unwrap();
    let expected = [vec![0; 3], vec![1; 7], vec![2], vec![1; 12], vec![0]].concat();
    assert_eq!(read, expected);
}

#[tokio::test(start_paused = true)]
async fn data_that_is_only_in_the_log_is_reported_as_mapped() {
    let gateway = Gateway::new(LOG);
    gateway.far.poke(160, vec![9; 4096]).await;
    let cache = gateway.open().await;
    write(&cache, 82, 1, 3).await.unwrap();
    let told = cache.extensions().allocation(Extent { lba: Lba(77), blocks: 100 }).await.unwrap();
    let runs: Vec<_> = told.runs().iter().map(|run| (run.blocks, run.mapped)).collect();
    assert_eq!(runs, [(3, false), (8, true), (72, false), (8, true), (9, false)]);
}

/// A host that receives "unmapped" would not read blocks that the new owner of the claim has
/// written. A fenced cache must therefore refuse the query as it refuses reads.
#[tokio::test(start_paused = true)]
async fn a_fenced_cache_refuses_allocation_queries() {
    let gateway = Gateway::new(LOG);
    let cache = gateway.open().await;
    let extent = Extent { lba: Lba(0), blocks: 8 };
    assert!(cache.extensions().allocation(extent).await.is_ok());
    cache.abandon("another one has it");
    assert!(matches!(cache.read(extent).await, Err(Error::Fenced(_))));
    assert!(matches!(cache.extensions().allocation(extent).await, Err(Error::Fenced(_))));
}

#[tokio::test(start_paused = true)]
async fn part_of_a_slot_is_written_without_reading_the_rest() {
    let gateway = Gateway::new(LOG);
    gateway.far.poke(0, vec![9; 4096]).await;
    let cache = gateway.open().await;
    write(&cache, 2, 1, 3).await.unwrap();
    assert_eq!(gateway.far.take_calls(), []);
    assert_eq!(read(&cache, 2, 3).await.unwrap(), [1, 1, 1]);
    assert_eq!(gateway.far.take_calls(), [], "all of it is here");
    assert_eq!(read(&cache, 0, 8).await.unwrap(), [9, 9, 1, 1, 1, 9, 9, 9]);
    assert_eq!(gateway.far.take_calls(), [("read", 0, 8)]);
    assert_eq!(read(&cache, 0, 8).await.unwrap(), [9, 9, 1, 1, 1, 9, 9, 9]);
    assert_eq!(gateway.far.take_calls(), [], "the rest was kept");
}

#[tokio::test(start_paused = true)]
async fn only_written_sectors_are_destaged() {
    let gateway = Gateway::new(LOG);
    gateway.far.poke(0, vec![9; 4096]).await;
    let cache = gateway.start().await;
    write(&cache, 2, 1, 1).await.unwrap();
    write(&cache, 5, 2, 2).await.unwrap();
    cache.drain().await.unwrap();
    assert_eq!(
        gateway.far.take_calls(),
        [("write", 2, 1), ("write", 5, 2), ("flush", 0, 0)],
        "and nothing is read"
    );
    assert_eq!(first_bytes(&gateway.far.peek(0, 8).await), [9, 9, 1, 9, 9, 2, 2, 9]);
}

#[tokio::test(start_paused = true)]
async fn writes_of_one_batch_share_a_segment() {
    let gateway = Gateway::new(LOG);
    let cache = gateway.open().await;
    join_all((0..32).map(|i| write(&cache, i * 8, 1, 8))).await;
    let statistics = cache.statistics();
    assert_eq!((statistics.log.commits, statistics.log.committed_slots), (1, 32));
}

#[tokio::test(start_paused = true)]
async fn an_aborted_write_does_not_delay_other_writes() {
    let gateway = Gateway::new(LOG);
    let cache = gateway.open().await;
    {
        let mut first = cache.write(Lba(0), filled(1, 8), Durability::Volatile);
        let polled = futures_util::poll!(&mut first);
        assert!(polled.is_pending());
    }
    write(&cache, 8, 2, 8).await.unwrap();
    assert_eq!(read(&cache, 8, 8).await.unwrap(), [2; 8]);
}

#[tokio::test(start_paused = true)]
async fn a_failing_log_disk_fails_writes_and_is_tried_again() {
    let mut gateway = Gateway::new(LOG);
    let disk = Far::new(Geometry { block_size: 4096, ..Geometry::with_blocks(LOG) });
    gateway.log = disk.clone();
    let cache = gateway.start().await;
    write(&cache, 0, 1, 8).await.unwrap();
    disk.set_failing(true);
    assert!(matches!(write(&cache, 0, 2, 8).await, Err(Error::Device(_))));
    assert!(matches!(write(&cache, 8, 3, 8).await, Err(Error::Device(_))), "at once");
    assert!(matches!(cache.admit(4096), Err(Error::Device(_))));
    assert!(matches!(read(&cache, 0, 8).await.unwrap()[0], 1 | 2));
    disk.set_failing(false);
    sleep(Duration::from_secs(10)).await;
    write(&cache, 0, 4, 8).await.unwrap();
    drop(cache);
    let cache = gateway.open().await;
    assert_eq!(read(&cache, 0, 16).await.unwrap(), [[4; 8], [0; 8]].concat());
}

#[tokio::test(start_paused = true)]
async fn with_the_far_volume_unreachable_writes_continue_until_the_log_is_full_and_none_is_lost() {
    let mut gateway = Gateway::new(1200);
    gateway.settings.busy_after_ms = 0;
    let cache = gateway.start().await;
    gateway.far.set_away(true);
    assert!(matches!(read(&cache, 30000, 8).await, Err(Error::Unreachable(_))));
    let mut written = 0;
    let refusal = loop {
        match write(&cache, written * 8, 1, 8).await {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert_eq!(read(&cache, 0, 8).await.unwrap(), [1; 8], "what is cached is served");
        sleep(Duration::from_millis(1)).await;
    };
    assert!(matches!(refusal, Error::Busy(_)), "{refusal}");
    assert!(matches!(cache.admit(4096), Err(Error::Busy(_))), "before data is accepted");
    assert!(written > 400, "{written} slots in 1200 blocks, a header each");
    assert!(cache.statistics().lower.errors > 0);
    gateway.far.set_away(false);
    cache.drain().await.unwrap();
    for slot in 0..written {
        assert_eq!(first_bytes(&gateway.far.peek(slot * 8, 8).await), [1; 8]);
    }
    write(&cache, 0, 2, 8).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn with_a_full_log_writes_are_refused_before_calls_on_a_lost_link_time_out() {
    let mut gateway = Gateway::new(1200).relaxed();
    gateway.settings.busy_after_ms = 0;
    let cache = gateway.open().await;
    // Fill the log. No destage runs, so the log stays full.
    let mut slot = 0;
    while cache.statistics().traffic.bypassed == 0 {
        write(&cache, slot * 8, 1, 8).await.unwrap();
        slot += 1;
    }
    cache.admit(4096).unwrap();
    // From here on, every call to the far volume hangs, as during attempts to reconnect.
    gateway.far.set_delay(Duration::from_secs(15));
    let lost = Instant::now();
    let mut held = Box::pin(write(&cache, 0, 2, 8));
    assert!(futures_util::poll!(&mut held).is_pending(), "the lost link is not noticed yet");
    let overlapping = write(&cache, 0, 3, 8).await;
    assert!(matches!(overlapping, Err(Error::Busy(_))), "{overlapping:?}");
    let waited = lost.elapsed();
    assert!((Duration::from_secs(1)..=Duration::from_secs(2)).contains(&waited), "{waited:?}");
    assert!(matches!(cache.admit(4096), Err(Error::Busy(_))), "before data is accepted");
    let other = write(&cache, 20000, 3, 8).await;
    assert!(matches!(other, Err(Error::Busy(_))), "{other:?}");
    assert_eq!(lost.elapsed(), waited, "without waiting");
    assert_eq!(read(&cache, 8, 8).await.unwrap(), [1; 8], "what is cached is served");
    gateway.far.set_delay(Duration::ZERO);
    held.await.unwrap();
    cache.admit(4096).unwrap();
    write(&cache, 20000, 3, 8).await.unwrap();
    assert_eq!(read(&cache, 0, 8).await.unwrap(), [2; 8]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_lower_volume_that_answers_is_not_unreachable() {
    let gateway = Gateway::new(1200).relaxed();
    let cache = gateway.open().await;
    let mut slot = 0;
    while cache.statistics().traffic.bypassed == 0 {
        write(&cache, slot * 8, 1, 8).await.unwrap();
        slot += 1;
    }
    gateway.far.set_delay(Duration::from_secs(1));
    // Each write waits two seconds: for the far volume and for the write before it.
    let writes = (0..8).map(|i| write(&cache, 20000 + i / 2 * 8, 3, 8));
    for written in join_all(writes).await {
        written.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_far_volume_counts_as_refusing_until_a_round_completes_though_it_answers_reads() {
    let gateway = Gateway::new(LOG);
    let cache = gateway.start().await;
    read(&cache, 0, 8).await.unwrap();
    gateway.far.set_failing(true);
    write(&cache, 0, 1, 8).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    for slot in 1..=60 {
        read(&cache, slot * 8, 8).await.expect("it fails writes only");
        let told = cache.statistics();
        assert!(told.lower.refuses_ms.is_some_and(|ms| ms >= (slot - 1) * 1000), "{told:?}");
        assert!(told.lower.away_ms.is_none() && told.lower.error.is_some(), "{told:?}");
        sleep(Duration::from_secs(1)).await;
    }
    gateway.far.set_failing(false);
    sleep(Duration::from_secs(6)).await;
    let told = cache.statistics();
    assert_eq!(
        (told.destage.dirty_slots, told.lower.refuses_ms, told.lower.error),
        (0, None, None)
    );
}

#[tokio::test(start_paused = true)]
async fn a_failing_far_device_is_tried_again_for_ever() {
    let gateway = Gateway::new(LOG);
    let cache = gateway.start().await;
    gateway.far.set_failing(true);
    write(&cache, 0, 1, 8).await.unwrap();
    sleep(Duration::from_secs(60)).await;
    let statistics = cache.statistics();
    assert!(statistics.lower.errors > 5 && statistics.lower.error.is_some());
    assert_eq!(statistics.destage.dirty_slots, 1);
    gateway.far.set_failing(false);
    sleep(Duration::from_secs(6)).await;
    assert_eq!(cache.statistics().destage.dirty_slots, 0);
    assert_eq!(cache.statistics().lower.error, None);
}

#[tokio::test(start_paused = true)]
async fn writes_bypass_a_full_log_and_stay_the_newest() {
    let gateway = Gateway::new(1200).relaxed();
    let cache = gateway.open().await;
    // Fill the log. No destage runs, so the log stays full.
    let mut slot = 0;
    while cache.statistics().traffic.bypassed == 0 {
        write(&cache, slot * 8, 1, 8).await.unwrap();
        slot += 1;
    }
    // Write the second half of slot 0 and the first half of slot 1. The bypassing write must also
    // send the other halves, which are only in the log.
    write(&cache, 4, 2, 8).await.unwrap();
    assert_eq!(read(&cache, 0, 16).await.unwrap(), [vec![1; 4], vec![2; 8], vec![1; 4]].concat());
    drop(cache);
    let cache = gateway.start().await;
    let expected = [vec![1; 4], vec![2; 8], vec![1; 4]].concat();
    assert_eq!(read(&cache, 0, 16).await.unwrap(), expected, "nor after a recovery");
    cache.drain().await.unwrap();
    assert_eq!(first_bytes(&gateway.far.peek(0, 16).await), expected);
}

#[tokio::test(start_paused = true)]
async fn memory_is_never_exceeded() {
    let mut gateway = Gateway::new(LOG);
    gateway.settings.dram_bytes = 256 << 10;
    gateway.settings.nvram_bytes = 64 << 10;
    let cache = gateway.start().await;
    let writes = (0..8).map(|i| {
        let cache = Arc::clone(&cache);
        async move { cache.write(Lba(i * 2048), filled(i as u8, 2048), Durability::Volatile).await }
    });
    // Eight writes of 1 MiB each pass through 256 KiB of memory.
    for result in join_all(writes).await {
        result.unwrap();
    }
    assert!(cache.statistics().log.dram_used_bytes <= 256 << 10);
    for i in 0..8 {
        assert_eq!(read(&cache, i * 2048, 2048).await.unwrap(), [i as u8; 2048]);
    }
    let statistics = cache.statistics();
    assert!(statistics.hits.hits_log + statistics.hits.misses > 1800, "{statistics:?}");
}

#[tokio::test(start_paused = true)]
async fn small_discards_go_through_the_log_and_large_ones_bypass_it() {
    let gateway = Gateway::new(LOG).relaxed();
    gateway.far.poke(0, vec![9; 16 << 20]).await;
    let cache = gateway.start().await;
    write(&cache, 0, 1, 64).await.unwrap();
    cache.discard(Extent { lba: Lba(4), blocks: 40 }).await.unwrap();
    let expected = [vec![1; 4], vec![0; 40], vec![1; 20]].concat();
    assert_eq!(read(&cache, 0, 64).await.unwrap(), expected);
    assert_eq!(gateway.far.take_calls(), []);
    cache.drain().await.unwrap();
    assert_eq!(first_bytes(&gateway.far.peek(0, 64).await), expected);
    assert!(gateway.far.take_calls().contains(&("discard", 8, 32)));

    write(&cache, 100, 2, 8).await.unwrap();
    cache.discard(Extent { lba: Lba(0), blocks: 32764 }).await.unwrap();
    assert_eq!(read(&cache, 0, 32768).await.unwrap(), [vec![0; 32764], vec![9; 4]].concat());
    assert!(gateway.far.take_calls().starts_with(&[("discard", 0, 32760), ("flush", 0, 0)]));
    drop(cache);
    let cache = gateway.open().await;
    assert_eq!(read(&cache, 96, 16).await.unwrap(), [0; 16], "nor after a recovery");
}

#[tokio::test(start_paused = true)]
async fn a_discard_is_repeated_if_the_far_volume_restarts_during_it() {
    let gateway = Gateway::new(LOG).relaxed();
    gateway.far.poke(0, vec![9; 16 << 20]).await;
    let cache = gateway.open().await;
    gateway.far.fail_next_flush();
    cache.discard(Extent { lba: Lba(0), blocks: 32768 }).await.unwrap();
    let calls = gateway.far.take_calls();
    let both = [("discard", 0, 32768), ("flush", 0, 0)];
    assert_eq!(calls, [both, both].concat());
}

/// Regression: a slot with holes is destaged in several runs. A discard between two runs was undone
/// by the second run, which sent the discarded content again.
#[tokio::test(start_paused = true)]
async fn a_discard_between_two_runs_of_a_slot_holds() {
    let mut gateway = Gateway::new(LOG).relaxed();
    gateway.settings.destage_in_flight = 1;
    gateway.far.set_delay(Duration::from_millis(10));
    let cache = gateway.start().await;
    write(&cache, 0, 1, 1).await.unwrap();
    write(&cache, 7, 2, 1).await.unwrap();
    while gateway.far.take_calls() != [("write", 0, 1)] {
        sleep(Duration::from_millis(1)).await;
    }
    // The host is not idle, so the second run waits. The discard does not wait.
    cache.discard(Extent { lba: Lba(0), blocks: 32768 }).await.unwrap();
    sleep(Duration::from_secs(20)).await;
    assert_eq!(first_bytes(&gateway.far.peek(0, 8).await), [0; 8]);
    assert_eq!(cache.statistics().destage.dirty_slots, 0);
}

/// Regression: destage waited for the first dirty slot after the cache was clean. If a discard
/// removed all dirty slots after a failed round, destage was not woken and slept for ever.
#[tokio::test(start_paused = true)]
async fn destage_continues_after_a_discard_of_all_dirty_slots() {
    let gateway = Gateway::new(LOG);
    let cache = gateway.start().await;
    gateway.far.set_failing(true);
    write(&cache, 0, 1, 8).await.unwrap();
    sleep(Duration::from_secs(10)).await;
    assert!(cache.statistics().lower.errors > 0, "a round has failed");
    gateway.far.set_failing(false);
    cache.discard(Extent { lba: Lba(0), blocks: 32768 }).await.unwrap();
    sleep(Duration::from_secs(10)).await;
    write(&cache, 8, 2, 8).await.unwrap();
    sleep(Duration::from_secs(10)).await;
    assert_eq!(cache.statistics().destage.dirty_slots, 0);
    assert_eq!(first_bytes(&gateway.far.peek(8, 8).await), [2; 8]);
}

/// A far volume reports lost writes once, to the next flush. The test lets the flush of a discard
/// receive the report. The round whose writes were lost must send them again all the same.
#[tokio::test(start_paused = true)]
async fn a_loss_reported_to_the_flush_of_a_discard_makes_the_round_send_again() {
    let mut gateway = Gateway::new(LOG);
    gateway.settings.destage_in_flight = 1;
    gateway.far.set_delay(Duration::from_millis(10));
    let cache = gateway.start().await;
    write(&cache, 0, 1, 8).await.unwrap();
    write(&cache, 32760, 2, 8).await.unwrap();
    while gateway.far.take_calls().is_empty() {
        sleep(Duration::from_millis(1)).await;
    }
    gateway.far.fail_next_flush();
    cache.discard(Extent { lba: Lba(8), blocks: 32744 }).await.unwrap();
    sleep(Duration::from_secs(20)).await;
    let calls = gateway.far.take_calls();
    let again = calls.iter().filter(|call| **call == ("write", 0, 8)).count();
    assert!(again >= 1, "the round is done again: {calls:?}");
    assert_eq!(cache.statistics().destage.dirty_slots, 0);
}

#[tokio::test(start_paused = true)]
async fn write_through_is_stable_at_the_far_volume_and_kept_in_memory() {
    let mut gateway = Gateway::new(LOG);
    gateway.settings.report = WriteMode::Through;
    let cache = gateway.open().await;
    write(&cache, 0, 1, 16).await.unwrap();
    assert_eq!(gateway.far.take_calls(), [("write stable", 0, 16)]);
    assert_eq!(read(&cache, 0, 16).await.unwrap(), [1; 16]);
    assert_eq!(gateway.far.take_calls(), []);
    assert_eq!(cache.statistics().destage.dirty_slots, 0);
}

#[tokio::test(start_paused = true)]
async fn write_around_is_stable_at_the_far_volume_and_invalidates_memory() {
    let mut gateway = Gateway::new(LOG);
    gateway.settings.report = WriteMode::Around;
    let cache = gateway.open().await;
    assert_eq!(read(&cache, 0, 16).await.unwrap(), [0; 16]);
    // The flush is necessary: the read may find a write that was in progress when an earlier
    // process was killed.
    assert_eq!(gateway.far.take_calls(), [("flush", 0, 0), ("read", 0, 16)]);
    write(&cache, 0, 1, 8).await.unwrap();
    let statistics = cache.statistics();
    assert_eq!((statistics.destage.dirty_slots, statistics.log.dram_used_bytes), (0, 4096));
    assert_eq!(read(&cache, 0, 16).await.unwrap(), [[1; 8], [0; 8]].concat());
    assert_eq!(gateway.far.take_calls(), [("write stable", 0, 8), ("read", 0, 8)]);
    assert_eq!(read(&cache, 0, 16).await.unwrap(), [[1; 8], [0; 8]].concat());
    assert_eq!(gateway.far.take_calls(), [], "what was read is kept");
}

#[tokio::test(start_paused = true)]
async fn immediate_report_waits_for_the_log_only_for_stable_writes_and_flushes() {
    let mut gateway = Gateway::new(LOG).with_nvram();
    gateway.settings.report = WriteMode::Immediate;
    let cache = gateway.open().await;
    assert!(cache.geometry().volatile_cache);
    let commits = || cache.statistics().log.commits;
    let mut plain = cache.write(Lba(0), filled(1, 8), Durability::Volatile);
    assert!(futures_util::poll!(&mut plain).is_ready());
    assert_eq!(commits(), 0);
    cache.write(Lba(8), filled(2, 8), Durability::Stable).await.unwrap();
    assert_eq!(commits(), 1);
    write(&cache, 16, 3, 8).await.unwrap();
    cache.flush().await.unwrap();
    assert_eq!(commits(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_write_cache_is_reported_where_there_is_one() {
    let gateway = Gateway::new(LOG);
    let cache = gateway.open().await;
    assert!(!cache.geometry().volatile_cache);
    assert_eq!(cache.geometry().blocks, 32768);
    assert_eq!(cache.geometry().physical_block_size, 4096);
}

#[tokio::test(start_paused = true)]
async fn a_clean_stop_leaves_dirty_data_safe_in_the_log() {
    let gateway = Gateway::new(LOG);
    let cache = gateway.open().await;
    write(&cache, 0, 1, 8).await.unwrap();
    let started = Instant::now();
    cache.stop().await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(5));
    assert!(matches!(write(&cache, 8, 1, 8).await, Err(Error::Busy(_))));
    let info = cache::inspect(&gateway.log).await.unwrap();
    assert!(info.clean && info.loss.is_none());
    assert_eq!((info.dirty_slots, info.segments, info.identity), (1, 1, gateway.identity()));
    drop(cache);
    let cache = gateway.open().await;
    assert_eq!(cache.statistics().recovery.slots, 1);
    assert_eq!(read(&cache, 0, 8).await.unwrap(), [1; 8]);
    assert!(!cache::inspect(&gateway.log).await.unwrap().clean);
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_in_time_though_the_far_volume_hangs() {
    let gateway = Gateway::new(LOG);
    let cache = gateway.start().await;
    write(&cache, 0, 1, 8).await.unwrap();
    gateway.far.set_delay(Duration::from_secs(3600));
    sleep(Duration::from_millis(500)).await;
    let started = Instant::now();
    cache.stop().await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn out_of_range_is_refused() {
    let gateway = Gateway::new(LOG);
    let cache = gateway.open().await;
    assert!(matches!(write(&cache, 32767, 1, 2).await, Err(Error::OutOfRange(_))));
    assert!(matches!(read(&cache, 32768, 1).await, Err(Error::OutOfRange(_))));
}

/// Several hosts on several threads use one cache with little memory and a small log. Each host
/// must read its own writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_hosts_on_many_threads_each_read_their_own_writes() {
    let mut gateway = Gateway::new(1200);
    gateway.settings = Settings {
        dram_bytes: 512 << 10,
        nvram_bytes: 256 << 10,
        idle_ms: 1,
        max_dirty_age_ms: 5,
        read_ahead_bytes: 65536,
        ..Settings::default()
    };
    let cache = gateway.start().await;
    let hosts = (0..8).map(|host| tokio::spawn(one_host(Arc::clone(&cache), host)));
    for result in join_all(hosts).await {
        result.unwrap();
    }
    cache.drain().await.unwrap();
    assert_eq!(cache.statistics().destage.dirty_slots, 0);
    for host in 0..8 {
        let far = gateway.far.peek(host * 4096, 4096).await;
        let near = read(&cache, host * 4096, 4096).await.unwrap();
        assert_eq!(first_bytes(&far), near);
    }
}

/// Reads and writes random blocks in the host's own 2 MiB, and compares reads with its own record.
async fn one_host(cache: Arc<Cache>, host: u64) {
    let mut rng = sim::Rng::new(host);
    let base = host * 4096;
    let mut truth = vec![0; 4096];
    for step in 0..600 {
        let first = rng.below(4096) as usize;
        let count = (rng.within(1..65) as usize).min(4096 - first);
        let range = first..first + count;
        let lba = base + first as u64;
        match rng.below(10) {
            0..6 => {
                let byte = (step % 255) as u8 + 1;
                write(&cache, lba, byte, count).await.unwrap();
                truth[range].fill(byte);
            }
            6 => {
                let extent = Extent { lba: Lba(lba), blocks: count as u32 };
                cache.discard(extent).await.unwrap();
                truth[range].fill(0);
            }
            _ => {
                let bytes = read(&cache, lba, count as u32).await.unwrap();
                assert_eq!(bytes, truth[range], "host {host}, step {step}");
            }
        }
    }
}
