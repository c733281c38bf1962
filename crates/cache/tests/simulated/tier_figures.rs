//! Measures the benefit of a read tier: the shares of reads that are answered from each place, and their mean time, in
//! virtual time.
//!
//! `cargo test -p cache --test simulated tier_figures:: -- --ignored --nocapture` prints a table.

use std::{sync::Arc, time::Duration};

use crate::support::{tier::Rotting, workload::runtime};
use cache::{Cache, CacheStatistics, LogVolumeIdentity, Parts, Settings};
use sim::Rng;
use tokio::time::Instant;
use volume::{DelayVolume, Extent, Geometry, Latency, Lba, MemVolume, Volume};

/// Number of slots of the far volume: 781 MiB.
const SLOTS: u64 = 200_000;
/// Bytes of memory: 2 % of the volume.
const DRAM: u64 = 16 << 20;
const READS: u64 = 400_000;

async fn open(tier: u64) -> Arc<Cache> {
    let far = MemVolume::new(Geometry::with_blocks(SLOTS * 8));
    let geometry = far.geometry();
    let round_trip = Latency::uniform(Duration::from_millis(8));
    let lower = Arc::new(DelayVolume::new(Arc::new(far), round_trip));
    let log = Geometry { block_size: 4096, ..Geometry::with_blocks(2000) };
    let settings = Settings { dram_bytes: DRAM, ..Settings::default() };
    let parts = Parts { lower, log: Arc::new(MemVolume::new(log)), nvram: None };
    let identity = LogVolumeIdentity { name: "far".into(), geometry };
    let cache = Cache::open(settings, parts, identity).await.expect("opened");
    tokio::spawn(cache.run());
    if tier > 0 {
        let disk = Rotting::slow(tier, Duration::from_micros(100));
        cache.use_tier(disk).await.expect("it is blank");
    }
    cache
}

/// Returns a slot with a Zipf distribution. Popular slots are far apart from each other.
fn zipf(rng: &mut Rng) -> u64 {
    let part = rng.share();
    let power = 0.1;
    let most = (SLOTS as f64 + 1.0).powf(power) - 1.0;
    let number = ((part * most + 1.0).powf(1.0 / power) - 1.0) as u64;
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % SLOTS
}

async fn read(cache: &Cache, slot: u64) {
    let extent = Extent { lba: Lba(slot * 8), blocks: 8 };
    cache.read(extent).await.expect("it can be read");
}

/// The results of the second half of the reads: their number by place and their mean time; and the bytes written to
/// the tier in the whole run.
struct Figures {
    places: [u64; 3],
    mean: Duration,
    written_bytes: u64,
}

/// Runs one reader. With `backups`, the whole volume is read in order before each quarter of the reads; these reads
/// are not measured.
async fn run(tier: u64, backups: bool) -> Figures {
    let cache = open(tier).await;
    let mut rng = Rng::new(9);
    let (mut taken, mut places) = (Duration::ZERO, [0; 3]);
    let found = |s: CacheStatistics| {
        [s.hits.hits_dram + s.hits.hits_nvram, s.hits.hits_tier, s.hits.misses]
    };
    for quarter in 0..4 {
        if backups {
            for slot in (0..SLOTS).step_by(16) {
                let extent = Extent { lba: Lba(slot * 8), blocks: 128 };
                cache.read(extent).await.expect("it can be read");
            }
        }
        let (before, begun) = (found(cache.statistics()), Instant::now());
        for _ in 0..READS / 4 {
            read(&cache, zipf(&mut rng)).await;
        }
        if quarter >= 2 {
            taken += begun.elapsed();
            let after = found(cache.statistics());
            (0..3).for_each(|place| places[place] += after[place] - before[place]);
        }
    }
    let written_bytes = cache.statistics().tier.admitted_slots * 4096;
    Figures { places, mean: taken / (READS / 2) as u32, written_bytes }
}

#[test]
#[ignore = "figures, a minute"]
fn a_zipf_load_over_a_far_volume() {
    println!("| load | read tier | memory | tier | far volume | mean read | written to the tier |");
    println!("|---|---|---|---|---|---|---|");
    for (name, backups) in [("Zipf 0.9", false), ("Zipf 0.9 with four backups", true)] {
        for tier in [0, 20_000, 40_000, 100_000] {
            let Figures { places, mean, written_bytes } = runtime().block_on(run(tier, backups));
            let all: u64 = places.iter().sum();
            let share = |hits: u64| format!("{:.1} %", hits as f64 * 100.0 / all as f64);
            let [memory, near, far] = places.map(share);
            let (size, written) = ((tier * 4096) >> 20, written_bytes >> 20);
            let mean = mean.as_secs_f64() * 1e3;
            println!(
                "| {name} | {size} MiB | {memory} | {near} | {far} | {mean:.2} ms | {written} MiB |"
            );
        }
    }
}
