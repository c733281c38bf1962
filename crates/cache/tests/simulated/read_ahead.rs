//! Tests of reads over a link with a rate: read-ahead for sequential readers, and long reads in
//! pieces.

use std::{sync::Arc, time::Duration};

use crate::support::gateway::{Gateway, read};
use cache::{Cache, Parts};
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};
use volume::{Data, Durability, Error, Extensions, Extent, Geometry, Io, Lba, Stack, Volume};

/// Round trip time of the link.
const DELAY: Duration = Duration::from_millis(8);
/// Rate of the link: 1 Gbit/s.
const BYTES_PER_SECOND: u64 = 125_000_000;
const VOLUME: u64 = 16 << 20;

/// A link that sends one answer after the other, at a fixed rate.
struct Line {
    lower: Stack,
    bytes_per_second: u64,
    free: Mutex<Instant>,
}

impl Volume for Line {
    fn geometry(&self) -> Geometry {
        self.lower.geometry()
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        Io::new(async move {
            let data = self.lower.read(extent).await?;
            let arrival = {
                let mut free = self.free.lock();
                let time =
                    Duration::from_secs_f64(data.len() as f64 / self.bytes_per_second as f64);
                *free = (Instant::now() + DELAY).max(*free) + time;
                *free
            };
            sleep_until(arrival).await;
            Ok(data)
        })
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        self.lower.write(lba, data, durability)
    }

    fn flush(&self) -> Io<'_, ()> {
        self.lower.flush()
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        self.lower.discard(extent)
    }

    fn admit(&self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions::default()
    }
}

async fn over_a_line(gateway: &Gateway) -> Arc<Cache> {
    over_a_line_of(gateway, BYTES_PER_SECOND).await
}

async fn over_a_line_of(gateway: &Gateway, bytes_per_second: u64) -> Arc<Cache> {
    let lower: Stack = Arc::clone(&gateway.far) as Stack;
    let line = Line { lower, bytes_per_second, free: Mutex::new(Instant::now()) };
    let parts = Parts { lower: Arc::new(line), log: Arc::clone(&gateway.log), nvram: None };
    Cache::open(gateway.settings.clone(), parts, gateway.identity()).await.expect("it opens")
}

#[tokio::test(start_paused = true)]
async fn a_sequential_reader_that_waits_for_each_read_gets_the_rate_of_the_link() {
    let mut gateway = Gateway::new(4096);
    gateway.settings.dram_bytes = 64 << 20;
    gateway.settings.read_ahead_bytes = 8 << 20;
    gateway.far.poke(0, vec![5; VOLUME as usize]).await;
    let cache = over_a_line(&gateway).await;
    let started = Instant::now();
    for slot in 0..4096 {
        assert_eq!(read(&cache, slot * 8, 8).await.unwrap(), [5; 8]);
    }
    let took = started.elapsed().as_secs_f64();
    let least = VOLUME as f64 / BYTES_PER_SECOND as f64;
    assert!(took < least * 1.5, "{took} s where the link needs {least} s");
    assert_eq!(cache.statistics().hits.fetched_bytes, VOLUME, "nothing twice");
}

#[tokio::test(start_paused = true)]
async fn read_ahead_serves_a_sequential_reader_with_many_requests_in_flight_to_the_end() {
    let mut gateway = Gateway::new(4096);
    gateway.settings.dram_bytes = 8 << 20;
    gateway.settings.read_ahead_bytes = 1 << 20;
    gateway.far.poke(0, vec![5; VOLUME as usize]).await;
    let cache = over_a_line(&gateway).await;
    for first in (0..4096).step_by(128) {
        let reads = (first..first + 128).step_by(16);
        let all = reads.map(|slot| read(&cache, slot * 8, 128));
        futures_util::future::join_all(all).await.into_iter().for_each(|data| drop(data.unwrap()));
    }
    let statistics = cache.statistics();
    let used = statistics.hits.read_ahead_used_slots;
    assert!(used > 3500, "{used} of 4096 slots were read ahead and used");
    assert_eq!(statistics.hits.fetched_bytes, VOLUME, "nothing twice");
}

#[tokio::test(start_paused = true)]
async fn read_ahead_for_a_slow_reader_uses_little_memory() {
    let mut gateway = Gateway::new(4096);
    gateway.settings.read_ahead_bytes = 8 << 20;
    let cache = over_a_line(&gateway).await;
    for slot in 0..2000 {
        read(&cache, slot * 8, 8).await.unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
        let statistics = cache.statistics();
        let ahead = statistics.hits.read_ahead_bytes / 4096 - statistics.hits.read_ahead_used_slots;
        // Unused read-ahead is limited to the first window (160 slots) until the speed of the reader is known, then
        // to 64 slots.
        let most = if slot < 300 { 160 } else { 64 };
        assert!(ahead <= most, "{ahead} slots at {slot}");
    }
}

#[tokio::test(start_paused = true)]
async fn hot_pages_stay_in_memory_while_a_whole_volume_is_read() {
    let mut gateway = Gateway::new(4096);
    gateway.settings.read_ahead_bytes = 8 << 20;
    let cache = gateway.open().await;
    // 300 of the 1024 pages of memory are hot. They are scattered, so that their reads are not
    // sequential.
    let hot: Vec<u64> = (0..300).map(|i| i * 13 % 4096).collect();
    for _ in 0..4 {
        for slot in &hot {
            read(&cache, slot * 8, 8).await.unwrap();
        }
        for i in 0..20 {
            read(&cache, (i * 191 + 7) % 4096 * 8, 8).await.unwrap();
        }
    }
    for slot in (0..4096).step_by(16) {
        read(&cache, slot * 8, 128).await.unwrap();
    }
    let before = cache.statistics().hits.misses;
    for slot in &hot {
        read(&cache, slot * 8, 8).await.unwrap();
    }
    let missed = cache.statistics().hits.misses - before;
    assert!(missed < 15, "{missed} of 300");
}

#[tokio::test(start_paused = true)]
async fn read_ahead_ends_where_it_is_wasted() {
    let mut gateway = Gateway::new(4096);
    gateway.settings.read_ahead_bytes = 8 << 20;
    let cache = gateway.open().await;
    for i in 0..1000 {
        let slot = i * 37 * 37 % 4000;
        read(&cache, slot * 8, 8).await.unwrap();
        read(&cache, slot * 8 + 8, 8).await.unwrap();
        // Give read-ahead the time to arrive.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let ahead = cache.statistics().hits.read_ahead_bytes / 4096;
    assert!((64..4000).contains(&ahead), "{ahead} slots, where 32,000 would be");
}

#[tokio::test(start_paused = true)]
async fn a_slot_of_a_long_read_is_available_before_the_whole_read() {
    let gateway = Gateway::new(4096);
    gateway.far.poke(0, vec![5; VOLUME as usize]).await;
    let cache = over_a_line(&gateway).await;
    let started = Instant::now();
    let whole = async {
        read(&cache, 0, 8192).await.unwrap();
        started.elapsed()
    };
    let part = async {
        assert_eq!(read(&cache, 8, 8).await.unwrap(), [5; 8]);
        started.elapsed()
    };
    let (whole, part) = tokio::join!(whole, part);
    // 4 MiB take 34 ms on the link, and a piece of 256 KiB takes 2 ms.
    assert!(part < DELAY + Duration::from_millis(5), "{part:?}");
    assert!(whole < DELAY + Duration::from_millis(36), "{whole:?}: all pieces side by side");
}

#[tokio::test(start_paused = true)]
async fn random_reads_concurrent_with_a_stream_find_a_short_queue() {
    let mut gateway = Gateway::new(4096);
    gateway.settings.dram_bytes = 64 << 20;
    gateway.settings.read_ahead_bytes = 8 << 20;
    gateway.far.poke(0, vec![5; VOLUME as usize]).await;
    // At 200 Mbit/s, 200 KB are in flight during one round trip.
    let cache = over_a_line_of(&gateway, 25_000_000).await;
    let started = Instant::now();
    // A host reads three quarters of the volume sequentially, with 32 requests of 64 KiB in flight.
    let stream = async {
        let reads = (0..3072).step_by(16).map(|slot| read(&cache, slot * 8, 128));
        let mut reads = futures_util::stream::iter(reads).buffered(32);
        while let Some(data) = reads.next().await {
            data.unwrap();
        }
        started.elapsed()
    };
    let mut times = Vec::new();
    let random = async {
        for number in 0.. {
            let started = Instant::now();
            read(&cache, (3072 + number * 127 % 1024) * 8, 8).await.unwrap();
            times.push(started.elapsed());
        }
    };
    let took = tokio::select! {
        took = stream => took,
        () = random => unreachable!("it reads until the stream ends"),
    };
    times.sort();
    let median = times[times.len() / 2];
    let part = (VOLUME / 4 * 3) as f64 / took.as_secs_f64() / 25e6;
    assert!(median < DELAY * 3 / 2, "{median:?} of {}", times.len());
    assert!(part > 0.85, "the stream has {part} of the link");
}
