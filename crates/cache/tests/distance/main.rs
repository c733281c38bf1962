//! Measures how much delay and congestion a cache hides, depending on its size: figures 5, 6 and 7 of
//! the paper on storage outsourcing (section 4.4), in virtual time, with the real cache.
//!
//! `cargo test -p cache --test distance -- --ignored --nocapture` prints the tables of
//! docs/results/distance.md; the other tests check the shape of the figures. `full_link` measures
//! destage.

mod far_node;
mod full_link;
mod host;

use std::time::Duration;

use cache::{Cache, DestageOrder, LogVolumeIdentity, Parts, Settings};
use far_node::{Disks, Wire};
use host::{Host, SET_BLOCKS, SET_BYTES};
use std::sync::Arc;
use volume::{Geometry, MemVolume, Stack};

/// OC-3, the backbone of the paper's congestion testbed, in bits per second.
const BACKBONE: u64 = 155_000_000;
/// One-way delay through the routers of the testbed; the round trip takes 0.46 ms.
const ROUTERS: Duration = Duration::from_micros(230);
/// Rate of the delay testbed (gigabit Ethernet), in bits per second.
const GIGABIT: u64 = 1_000_000_000;

/// The size of a cache, as fractions of the working set.
#[derive(Clone, Copy, Debug)]
struct Size {
    dram: f64,
    log: f64,
}

impl Size {
    /// Uses half of the cache for reads and half for writes.
    const fn of(share: f64) -> Self {
        Self { dram: share / 2.0, log: share / 2.0 }
    }

    /// Uses the cache for reads, in addition to a log that is large enough.
    const fn for_reads(share: f64) -> Self {
        Self { dram: share, log: 0.05 }
    }
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Nowhere,
    /// The cache is next to the disks, behind the link.
    Far(Size),
    /// The cache is at the host, in front of the link.
    Near(Size),
    /// The cache is at the host, and keeps strict order: the far volume always holds a consistent
    /// prefix, which the paper's cache does not guarantee.
    Ordered(Size),
}

/// Returns the transactions per second of a host on a link with this one-way delay and rate.
async fn measure(host: Host, place: Place, delay: Duration, rate: u64) -> f64 {
    let memory: Stack = Arc::new(MemVolume::new(Geometry::with_blocks(SET_BLOCKS)));
    let disks: Stack = Arc::new(Disks::new(memory));
    let wire = |lower: Stack| -> Stack { Arc::new(Wire::new(lower, delay, rate)) };
    let (stack, cache) = match place {
        Place::Nowhere => (wire(disks), None),
        Place::Far(size) => {
            let cache = cached(disks, size, DestageOrder::Relaxed).await;
            (wire(Arc::clone(&cache) as Stack), Some(cache))
        }
        Place::Near(size) | Place::Ordered(size) => {
            let is_ordered = matches!(place, Place::Ordered(_));
            let order = if is_ordered { DestageOrder::Strict } else { DestageOrder::Relaxed };
            let cache = cached(wire(disks), size, order).await;
            (Arc::clone(&cache) as Stack, Some(cache))
        }
    };
    let destage = cache.as_ref().map(|cache| tokio::spawn(cache.run()));
    let speed = host.transactions_per_second(&stack).await;
    if let Some(destage) = destage {
        destage.abort();
    }
    speed
}

async fn cached(lower: Stack, size: Size, order: DestageOrder) -> Arc<Cache> {
    let bytes = |share: f64| (SET_BYTES as f64 * share) as u64;
    let log_blocks = bytes(size.log) / 4096;
    let log = Geometry { block_size: 4096, ..Geometry::with_blocks(log_blocks) };
    let settings = Settings {
        dram_bytes: bytes(size.dram),
        nvram_bytes: 64 << 10,
        read_ahead_bytes: 0,
        // Destage only when it is necessary, so that blocks that are soon overwritten are not sent.
        destage_threshold: 0.5,
        max_dirty_age_ms: 3_600_000,
        idle_ms: 60_000,
        order,
        segment_slots: if log_blocks < 1024 { 8 } else { 128 },
        ..Settings::default()
    };
    let identity = LogVolumeIdentity { name: "far".into(), geometry: lower.geometry() };
    let parts = Parts { lower, log: Arc::new(MemVolume::new(log)), nvram: None };
    Cache::open(settings, parts, identity).await.expect("it opens")
}

/// The paper's small cache: 1 MB for a working set of 500 MB.
const SMALL: Size = Size::of(0.002);
const MIDDLE: Size = Size::of(0.1);

fn ms(delay: u64) -> Duration {
    Duration::from_millis(delay)
}

/// Returns the free rate of the backbone under a load in per cent.
fn left(load: u64) -> u64 {
    BACKBONE / 100 * (100 - load)
}

/// Figure 5: a small cache at the host hides most of the delay; a cache next to the disks hides none of
/// it.
#[tokio::test(start_paused = true)]
async fn a_small_cache_hides_delay_at_the_host_and_not_at_the_disks() {
    let host = Host::with_large_buffers();
    let kept = async |place| {
        let [idle, far] = [0, 8].map(|delay| measure(host, place, ms(delay), GIGABIT));
        far.await / idle.await
    };
    let (near, beside, none) =
        (kept(Place::Near(SMALL)).await, kept(Place::Far(SMALL)).await, kept(Place::Nowhere).await);
    assert!(near > 0.6, "{near}");
    assert!(beside < 0.4 && none < 0.4, "{beside} and {none}");
}

/// Figure 6: with the larger cache the host keeps its speed on a busy link. With the small cache the
/// link limits it, as without a cache.
#[tokio::test(start_paused = true)]
async fn a_larger_cache_hides_a_busier_link() {
    let host = Host::with_large_buffers();
    let at = async |place, load| measure(host, place, ROUTERS, left(load)).await;
    for (place, least, most) in [
        (Place::Near(SMALL), 1.4, 2.0),
        (Place::Near(MIDDLE), 2.5, 4.0),
        (Place::Ordered(MIDDLE), 2.5, 4.0),
    ] {
        let gain = at(place, 55).await / at(Place::Nowhere, 55).await;
        assert!((least..most).contains(&gain), "{place:?}: {gain}");
    }
}

/// Figure 7: a host with small buffers of its own needs a large part of its working set in the cache.
#[tokio::test(start_paused = true)]
async fn a_host_that_rereads_needs_a_large_cache() {
    let host = Host::with_small_buffers();
    let near = |share| Place::Near(Size::for_reads(share));
    let at = async |place, delay| measure(host, place, ms(delay), GIGABIT).await;
    let local = at(Place::Nowhere, 0).await;
    let none = at(Place::Nowhere, 8).await;
    assert!(none < 0.6 * local);
    let (tenth, most) = (at(near(0.1), 8).await, at(near(0.6), 8).await);
    assert!(none < tenth && tenth < local, "{none}, {tenth}, {local}");
    assert!(most > local, "{most}, {local}");
}

#[tokio::test(start_paused = true)]
#[ignore = "prints tables"]
async fn tables() {
    let delays = [0, 1, 2, 4, 8].map(|delay| (ms(delay), GIGABIT));
    let loads = [0, 30, 55, 70, 75].map(|load| (ROUTERS, left(load)));
    let row = async |host: Host, name: String, place: Place, lines: &[(Duration, u64)]| {
        print!("| {name} |");
        for (delay, rate) in lines {
            print!(" {:.0} |", measure(host, place, *delay, *rate).await);
        }
        println!();
    };
    let places = [
        ("none", Place::Nowhere),
        ("0.2 %, beside the disks", Place::Far(SMALL)),
        ("0.2 %, at the host", Place::Near(SMALL)),
        ("0.2 %, at the host, strict order", Place::Ordered(SMALL)),
        ("10 %, at the host", Place::Near(MIDDLE)),
        ("10 %, at the host, strict order", Place::Ordered(MIDDLE)),
    ];
    println!("large buffers; ms one way 0, 1, 2, 4, 8; load 0, 30, 55, 70, 75 %");
    let lines = [delays, loads].concat();
    for (name, place) in places {
        row(Host::with_large_buffers(), name.into(), place, &lines).await;
    }
    println!("small buffers");
    for share in [0.0, 0.002, 0.1, 0.3, 0.6, 1.0] {
        let near = Place::Near(Size::for_reads(share));
        let place = if share == 0.0 { Place::Nowhere } else { near };
        let name = format!("{:.1} %", share * 100.0);
        row(Host::with_small_buffers(), name, place, &lines).await;
    }
}
