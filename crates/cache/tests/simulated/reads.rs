//! Tests of reads: which are answered from memory, and which are fetched from the far volume.

use std::{sync::Arc, time::Duration};

use crate::support::gateway::{Gateway, read, write};
use cache::WriteMode;
use tokio::time::Instant;
use volume::{Data, DelayVolume, Extent, Latency, Lba, Volume};

const LOG: u64 = 4096;

#[tokio::test(start_paused = true)]
async fn reads_answer_with_references_to_the_cached_pages() {
    let gateway = Gateway::new(LOG);
    let cache = gateway.open().await;
    write(&cache, 0, 1, 16).await.unwrap();
    let extent = Extent { lba: Lba(0), blocks: 16 };
    let (a, b) = (cache.read(extent).await.unwrap(), cache.read(extent).await.unwrap());
    let places = |data: &Data| data.parts().iter().map(|p| p.as_ptr()).collect::<Vec<_>>();
    assert_eq!(places(&a), places(&b));
}

#[tokio::test(start_paused = true)]
async fn two_readers_of_a_slot_share_one_fetch() {
    let gateway = Gateway::new(LOG);
    gateway.far.poke(0, vec![7; 8192]).await;
    gateway.far.set_delay(Duration::from_millis(8));
    let cache = gateway.open().await;
    let results = tokio::join!(read(&cache, 0, 16), read(&cache, 8, 8), read(&cache, 4, 2));
    assert_eq!(results.0.unwrap(), [7; 16]);
    assert_eq!(results.1.unwrap(), [7; 8]);
    assert_eq!(results.2.unwrap(), [7; 2]);
    assert_eq!(gateway.far.take_calls(), [("read", 0, 16)]);
}

#[tokio::test(start_paused = true)]
async fn a_reader_whose_fetch_is_abandoned_fetches_for_itself() {
    let gateway = Gateway::new(LOG);
    gateway.far.poke(0, vec![7; 4096]).await;
    gateway.far.set_delay(Duration::from_millis(8));
    let cache = gateway.open().await;
    let mut first = Box::pin(read(&cache, 0, 8));
    assert!(futures_util::poll!(&mut first).is_pending());
    let mut second = Box::pin(read(&cache, 0, 8));
    assert!(futures_util::poll!(&mut second).is_pending());
    drop(first);
    assert_eq!(second.await.unwrap(), [7; 8]);
    assert_eq!(gateway.far.take_calls().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_fetch_does_not_bring_back_data_that_was_overwritten_meanwhile() {
    let gateway = Gateway::new(LOG);
    gateway.far.poke(0, vec![7; 4096]).await;
    gateway.far.set_delay(Duration::from_millis(8));
    let cache = gateway.open().await;
    let (old, written) = tokio::join!(read(&cache, 0, 8), write(&cache, 0, 8, 8));
    written.unwrap();
    // The write and the first read were in progress at once, so the old value would be a correct result of this read,
    // too.
    assert_eq!(old.unwrap(), [8; 8]);
    assert_eq!(read(&cache, 0, 8).await.unwrap(), [8; 8]);
}

/// A host relies on data that it has read. With these modes a read must therefore not return a
/// write that a crash could still lose.
#[tokio::test(start_paused = true)]
async fn no_read_returns_a_write_that_a_crash_could_still_lose() {
    for report in [WriteMode::AfterComplete, WriteMode::Immediate] {
        let mut gateway = Gateway::new(LOG).with_nvram();
        gateway.settings.report = report;
        let delay = Duration::from_millis(5);
        gateway.log = Arc::new(DelayVolume::new(gateway.log, Latency::uniform(delay)));
        let cache = gateway.open().await;
        let begun = Instant::now();
        let mut writing = Box::pin(write(&cache, 0, 2, 8));
        let is_acknowledged = futures_util::poll!(&mut writing).is_ready();
        assert_eq!(is_acknowledged, report == WriteMode::Immediate);
        assert_eq!(read(&cache, 0, 8).await.unwrap(), [2; 8]);
        assert_eq!(begun.elapsed() >= delay, !is_acknowledged, "{:?}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_does_not_replace_data_that_was_destaged_and_evicted_meanwhile() {
    let mut gateway = Gateway::new(LOG);
    gateway.settings.dram_bytes = 128 << 10;
    gateway.settings.nvram_bytes = 64 << 10;
    gateway.far.poke(0, vec![9; 4096]).await;
    let cache = gateway.start().await;
    write(&cache, 0, 1, 4).await.unwrap();
    gateway.far.set_delay(Duration::from_secs(10));
    let mut late = Box::pin(read(&cache, 0, 8));
    assert!(futures_util::poll!(&mut late).is_pending());
    gateway.far.set_delay(Duration::ZERO);
    cache.drain().await.unwrap();
    for slot in 1..100 {
        read(&cache, slot * 8, 8).await.unwrap();
    }
    assert_eq!(late.await.unwrap(), [1, 1, 1, 1, 9, 9, 9, 9]);
    assert_eq!(read(&cache, 0, 8).await.unwrap(), [1, 1, 1, 1, 9, 9, 9, 9]);
}

#[tokio::test(start_paused = true)]
async fn a_long_read_costs_one_round_trip() {
    let gateway = Gateway::new(LOG);
    gateway.far.poke(0, vec![5; 16 << 20]).await;
    gateway.far.set_delay(Duration::from_millis(8));
    let cache = gateway.open().await;
    let started = Instant::now();
    assert_eq!(read(&cache, 3, 32760).await.unwrap(), vec![5; 32760]);
    assert_eq!(started.elapsed(), Duration::from_millis(8));
}

#[tokio::test(start_paused = true)]
async fn a_sequential_reader_waits_for_the_link_a_few_times_only() {
    let mut gateway = Gateway::new(LOG);
    gateway.settings.read_ahead_bytes = 1 << 20;
    gateway.far.poke(0, vec![5; 4 << 20]).await;
    gateway.far.set_delay(Duration::from_millis(8));
    let cache = gateway.open().await;
    let started = Instant::now();
    for slot in 0..1024 {
        assert_eq!(read(&cache, slot * 8, 8).await.unwrap(), [5; 8]);
    }
    let waits = started.elapsed().as_millis() / 8;
    assert!(waits < 20, "{waits} round trips");
    let reads = gateway.far.take_calls().len();
    // 64 KiB per read, an eighth of the first window of 512 KiB, make 64 reads for 4 MiB.
    assert!(reads < 80, "{reads} reads for 1024 slots");
}

#[tokio::test(start_paused = true)]
async fn requests_are_counted_by_where_they_were_answered() {
    let gateway = Gateway::new(LOG);
    gateway.far.set_delay(Duration::from_millis(8));
    let cache = gateway.open().await;
    write(&cache, 0, 1, 16).await.unwrap();
    read(&cache, 0, 16).await.unwrap();
    // Bring one half of the extent that is read below into memory.
    read(&cache, 8, 16).await.unwrap();
    // Read other slots until memory evicts the page of slot 0. The log still has its content.
    for slot in 2..1400 {
        read(&cache, slot * 8, 8).await.unwrap();
    }
    let before = cache.statistics();
    read(&cache, 0, 8).await.unwrap();
    let statistics = cache.statistics();
    assert_eq!(
        (statistics.hits.reads_dram, statistics.hits.reads_lower),
        (2, 1398),
        "{statistics:?}"
    );
    assert_eq!((before.hits.reads_log, statistics.hits.reads_log), (0, 1));
    assert_eq!(statistics.traffic.reads, 1401);
    let times = cache.times();
    let of = |name| &times.iter().find(|(found, _)| *found == name).unwrap().1;
    assert_eq!(of("write").count(), 4, "one that stands for four");
    assert_eq!(of("lower_read").count(), 1398);
    assert!(of("lower_read").mean() >= Duration::from_millis(8));
    // One in sixteen reads from memory is measured, so of two reads none or one was measured, which
    // counts as sixteen.
    assert!([1399, 1415].contains(&of("read").count()), "{}", of("read").count());
    assert!((8..=10).contains(&of("read").quantile(0.5).as_millis()));
}
