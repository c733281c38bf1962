//! Tests which optional calls a cache passes to its lower volume. A call that the cache answers itself does
//! not arrive there.

use std::sync::Arc;

use cache::{Cache, Coherent, CommonMember, LogVolumeIdentity, Parts, Settings};
use sim::AbilityProbe;
use volume::{Geometry, MemVolume, Stack, Volume};

fn settings() -> Settings {
    Settings {
        dram_bytes: 4 << 20,
        nvram_bytes: 1 << 20,
        read_ahead_bytes: 0,
        ..Settings::default()
    }
}

fn probe() -> Arc<AbilityProbe> {
    Arc::new(AbilityProbe::new(Geometry::with_blocks(4096)))
}

fn log() -> Stack {
    Arc::new(MemVolume::new(Geometry { block_size: 4096, ..Geometry::with_blocks(1024) }))
}

async fn open(settings: Settings, lower: &Arc<AbilityProbe>) -> Arc<Cache> {
    let geometry = Geometry { atomic_blocks: 0, ..lower.geometry() };
    let identity = LogVolumeIdentity { name: "probe".into(), geometry };
    let parts = Parts { lower: lower.clone(), log: log(), nvram: None };
    Cache::open(settings, parts, identity).await.expect("it opens")
}

#[tokio::test(start_paused = true)]
async fn a_cache_passes_queries_of_space_size_and_claim() {
    let lower = probe();
    let cache = open(settings(), &lower).await;
    let expected = [
        "allocation",
        "examine -> read",
        "refresh -> refresh, holding",
        "holding -> holding, holding",
    ];
    assert_eq!(lower.calls_through(&*cache).await, expected);
}

/// Other gateways may have written blocks that the node reports as unmapped, so the cache must not use the
/// node's answer.
#[tokio::test(start_paused = true)]
async fn a_shared_cache_answers_queries_of_space_itself() {
    let lower = probe();
    let cache = open(Settings { shares: true, ..settings() }, &lower).await;
    let shared = Coherent::new(cache, lower.clone());
    let mut arrived = lower.calls_through(&*shared).await;
    // Ignore `examine`: a shared cache does not examine copies.
    arrived.retain(|call| !call.starts_with("examine"));
    assert_eq!(arrived, ["refresh -> refresh, holding", "holding -> holding, holding"]);
}

#[tokio::test(start_paused = true)]
async fn a_volume_of_a_common_cache_passes_queries_of_space_and_size() {
    let lower = probe();
    let member = CommonMember { name: "probe".into(), key: 1, lower: lower.clone() };
    let opened = Cache::open_common(settings(), vec![member], log(), None).await;
    let (_cache, above) = opened.expect("it opens");
    let arrived = lower.calls_through(&*above[0]).await;
    assert_eq!(arrived, ["allocation", "examine -> read", "refresh -> refresh, holding"]);
}
