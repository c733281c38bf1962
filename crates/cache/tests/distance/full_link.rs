//! Measures how much destage keeps in flight over a link with a large bandwidth × delay product.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use std::time::Duration;

use cache::{Cache, LogVolumeIdentity, Parts, Settings};
use tokio::time::{Instant, sleep};
use volume::{Data, Durability, Geometry, Lba, MemVolume, Stack, Volume};

use crate::{GIGABIT, far_node::Wire};

const BYTES: u64 = 256 << 20;
const PIECE: u64 = 1 << 20;
/// The one-way delay of the link.
const ONE_WAY: Duration = Duration::from_millis(50);
/// Bytes that a link of 1 Gbit/s holds in a round trip of 100 ms (bandwidth × delay).
const HELD: u64 = GIGABIT / 8 / 10;

#[tokio::test(start_paused = true)]
async fn the_default_settings_fill_a_gigabit_over_a_round_trip_of_100_ms() {
    let (most, time) = drained(|wire| wire).await;
    assert!(most > HELD, "{most} bytes were under way at most, in {time:?}");
    // The window needs some round trips to grow, and the link is idle for two round trips between two destage rounds.
    let full = Duration::from_secs_f64(BYTES as f64 * 8.0 / GIGABIT as f64);
    assert!(time < full + 20 * 2 * ONE_WAY, "{time:?}, with a full link {full:?}");
}

#[tokio::test(start_paused = true)]
async fn destage_leaves_a_quarter_of_the_calls_of_the_far_volume_to_hosts() {
    let (most, _) = drained(|wire| wire.with_most_calls(16)).await;
    let longest = 256 << 10;
    assert!(most > 0 && most <= 12 * longest, "{most} bytes in twelve calls");
}

/// Drains a full log with the default settings. Returns the most bytes that were in flight, and the time.
async fn drained(change: impl FnOnce(Wire) -> Wire) -> (u64, Duration) {
    let memory: Stack = Arc::new(MemVolume::new(Geometry::with_blocks(BYTES / 512)));
    let lower: Stack = Arc::new(change(Wire::new(memory, ONE_WAY, GIGABIT)));
    let log = Geometry { block_size: 4096, ..Geometry::with_blocks(2 * BYTES / 4096) };
    let identity = LogVolumeIdentity { name: "far".into(), geometry: lower.geometry() };
    let parts = Parts { lower, log: Arc::new(MemVolume::new(log)), nvram: None };
    let cache = Cache::open(Settings::default(), parts, identity).await.expect("it opens");
    let destage = tokio::spawn(cache.run());
    cache.pause();
    for at in (0..BYTES).step_by(PIECE as usize) {
        let data = Data::from(vec![1; PIECE as usize]);
        cache.write(Lba(at / 512), data, Durability::Volatile).await.expect("written");
    }
    let most = Arc::new(AtomicU64::new(0));
    let watch = tokio::spawn({
        let (cache, most) = (Arc::clone(&cache), Arc::clone(&most));
        async move {
            loop {
                most.fetch_max(cache.statistics().link.write_under_way, Ordering::Relaxed);
                sleep(Duration::from_millis(10)).await;
            }
        }
    });
    cache.resume();
    let begun = Instant::now();
    cache.drain().await.expect("drained");
    let (time, most) = (begun.elapsed(), most.load(Ordering::Relaxed));
    watch.abort();
    destage.abort();
    (most, time)
}
