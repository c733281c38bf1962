//! Tests of destage: the data that it sends to the far volume, in which order, and when.

use std::time::Duration;

use crate::support::gateway::{Gateway, first_bytes, read, write};
use tokio::time::{Instant, sleep};

const LOG: u64 = 4096;

#[tokio::test(start_paused = true)]
async fn adjacent_slots_are_destaged_as_one_run_and_overwritten_slots_once() {
    let gateway = Gateway::new(LOG);
    let cache = gateway.start().await;
    for version in 1..=5 {
        for slot in [3, 1, 0, 2, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 16] {
            write(&cache, slot * 8, version, 8).await.unwrap();
        }
    }
    cache.drain().await.unwrap();
    let calls = gateway.far.take_calls();
    assert_eq!(calls, [("write", 0, 128), ("write", 128, 8), ("flush", 0, 0)]);
    assert_eq!(first_bytes(&gateway.far.peek(0, 136).await), [5; 136]);
    let statistics = cache.statistics();
    assert_eq!((statistics.destage.absorbed_slots, statistics.destage.dirty_slots), (68, 0));
    assert_eq!(statistics.destage.joined_slots, 15, "16 in the first run, one in the other");
}

#[tokio::test(start_paused = true)]
async fn after_a_round_the_far_volume_has_the_versions_from_the_start_of_the_round() {
    let gateway = Gateway::new(LOG);
    gateway.far.set_delay(Duration::from_millis(50));
    let cache = gateway.open().await;
    for slot in 0..64 {
        write(&cache, slot * 16, 1, 8).await.unwrap();
    }
    let running = tokio::spawn(cache.run());
    let rounds = || cache.statistics().destage.rounds;
    // Overwrite the slots while the round is running: the round must send its own versions.
    while gateway.far.take_calls().is_empty() {
        sleep(Duration::from_millis(1)).await;
    }
    for slot in 0..64 {
        write(&cache, slot * 16, 2, 8).await.unwrap();
    }
    while rounds() == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    running.abort();
    for slot in 0..64 {
        assert_eq!(first_bytes(&gateway.far.peek(slot * 16, 8).await), [1; 8]);
        assert_eq!(read(&cache, slot * 16, 8).await.unwrap(), [2; 8]);
    }
}

#[tokio::test(start_paused = true)]
async fn destage_waits_for_a_busy_host_until_data_is_too_old() {
    let mut gateway = Gateway::new(LOG);
    gateway.settings.max_dirty_age_ms = 1000;
    let cache = gateway.start().await;
    write(&cache, 0, 1, 8).await.unwrap();
    let started = Instant::now();
    while gateway.far.take_calls().is_empty() {
        read(&cache, 0, 8).await.unwrap();
        sleep(Duration::from_millis(5)).await;
    }
    let waited = started.elapsed().as_millis();
    assert!((1000..1100).contains(&waited), "{waited} ms");
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_though_the_host_continues_to_write() {
    let gateway = Gateway::new(LOG);
    gateway.far.set_delay(Duration::from_millis(8));
    let cache = gateway.start().await;
    write(&cache, 0, 1, 8).await.unwrap();
    let host = async {
        loop {
            write(&cache, 8, 2, 8).await.unwrap();
            sleep(Duration::from_millis(3)).await;
        }
    };
    tokio::select! {
        drained = cache.drain() => drained.unwrap(),
        () = host => unreachable!("it goes on for ever"),
        () = sleep(Duration::from_secs(10)) => panic!("the drain does not end"),
    }
    assert_eq!(first_bytes(&gateway.far.peek(0, 8).await), [1; 8]);
}

#[tokio::test(start_paused = true)]
async fn an_idle_period_is_enough_for_destage() {
    let gateway = Gateway::new(LOG);
    let cache = gateway.start().await;
    write(&cache, 0, 1, 8).await.unwrap();
    sleep(Duration::from_millis(100)).await;
    assert_eq!(cache.statistics().destage.dirty_slots, 0);
    assert_eq!(first_bytes(&gateway.far.peek(0, 8).await), [1; 8]);
}
