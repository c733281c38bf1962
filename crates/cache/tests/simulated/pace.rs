//! Tests when destage continues although the host is never idle.

use std::{sync::Arc, time::Duration};

use crate::support::gateway::{Gateway, read, write};
use cache::Cache;
use tokio::time::{Instant, sleep, timeout};

/// Number of slots that the test writes. They fill a log of 16 MiB beyond the threshold of destage.
const SLOTS: u64 = 3072;
/// Number of slots in one write.
const TOGETHER: usize = 64;

async fn fill(cache: &Arc<Cache>) {
    for slot in (0..SLOTS).step_by(TOGETHER) {
        write(cache, slot * 8, 1, 8 * TOGETHER).await.unwrap();
    }
}

async fn until_clean(cache: &Arc<Cache>) {
    while cache.statistics().destage.dirty_slots > SLOTS / 2 {
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_that_fills_up_does_not_wait_for_an_idle_host() {
    let mut gateway = Gateway::new(4096);
    (gateway.settings.idle_ms, gateway.settings.max_dirty_age_ms) = (60_000, 3_600_000);
    let cache = gateway.start().await;
    // Destage begins to wait for the idle period now, while the log is nearly empty. It must notice
    // that the log fills up.
    write(&cache, 0, 1, 8).await.unwrap();
    sleep(Duration::from_millis(10)).await;
    fill(&cache).await;
    let round = async {
        while cache.statistics().destage.rounds == 0 {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(Duration::from_secs(1), round).await.expect("it does not wait");
}

#[tokio::test(start_paused = true)]
async fn continuous_reads_of_the_lower_volume_do_not_stop_destage_of_a_full_log() {
    let mut gateway = Gateway::new(4096);
    (gateway.settings.idle_ms, gateway.settings.max_dirty_age_ms) = (60_000, 3_600_000);
    gateway.settings.destage_threshold = 0.1;
    gateway.settings.destage_run_bytes = 4096;
    gateway.far.set_delay(Duration::from_millis(10));
    let cache = gateway.open().await;
    fill(&cache).await;
    let reader = tokio::spawn({
        let cache = Arc::clone(&cache);
        async move {
            for slot in SLOTS.. {
                read(&cache, slot % 4096 * 8, 8).await.unwrap();
            }
        }
    });
    tokio::spawn(cache.run());
    let begun = Instant::now();
    until_clean(&cache).await;
    // Regression test: when destage sent one write at a time, the drain took 15 s.
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    reader.abort();
}

#[tokio::test(start_paused = true)]
async fn a_round_joins_epochs_that_are_short_for_the_link() {
    rounds_of_short_epochs(Gateway::new(4096)).await;
}

/// Each round after the first one begins while the flush of the previous round is running.
#[tokio::test(start_paused = true)]
async fn a_round_that_follows_a_flush_joins_short_epochs_too() {
    let gateway = Gateway::new(4096);
    gateway.far.set_epoch_blocks(4096 * 8);
    gateway.far.keep_order();
    rounds_of_short_epochs(gateway).await;
}

async fn rounds_of_short_epochs(gateway: Gateway) {
    gateway.far.set_delay(Duration::from_millis(40));
    let cache = gateway.start().await;
    cache.pause();
    // The speed of the link is unknown, so epochs are short: there are at least eleven.
    fill(&cache).await;
    cache.resume();
    cache.drain().await.unwrap();
    // The first round measures the link. Each later round may have a quarter of the log.
    let rounds = cache.statistics().destage.rounds;
    assert!(rounds < 8, "{rounds} rounds");
}
