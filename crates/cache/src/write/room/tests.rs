//! Tests of reservations of room in the log.

use std::future::Future;

use futures_util::future::join_all;
use sim::Rng;
use tokio::time::{sleep, timeout};
use volume::{
    Data, DelayVolume, Durability, Error, Extent, FaultCallKind, FaultRule, FaultVolume, Faults,
    Geometry, Latency, Lba, MemVolume, Stack, Symptom, Volume,
};

use super::*;
use crate::{Cache, LogVolumeIdentity, Parts, Settings, nvram::StableMemory, settings::WriteMode};

const MIB: usize = 1 << 20;

struct Site {
    cache: Arc<Cache>,
    far: Arc<Faults>,
}

struct Nvram(Vec<u8>);

impl StableMemory for Nvram {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn read(&self, offset: usize, to: &mut [u8]) {
        to.copy_from_slice(&self.0[offset..][..to.len()]);
    }

    fn write(&mut self, offset: usize, from: &[u8]) {
        self.0[offset..][..from.len()].copy_from_slice(from);
    }
}

impl Site {
    /// Opens a cache with a log of `log_blocks` blocks over a far volume of 16 MiB, and runs destage.
    async fn new(log_blocks: u64, settings: Settings) -> Self {
        Self::slow(log_blocks, settings, Duration::ZERO).await
    }

    /// Opens a cache like [`Self::new`], with a far volume whose writes take the time `write`.
    async fn slow(log_blocks: u64, settings: Settings, write: Duration) -> Self {
        let far = Arc::new(MemVolume::new(Geometry::with_blocks(32768)));
        let far = FaultVolume::new(Arc::new(DelayVolume::new(
            far,
            Latency { write, ..Latency::default() },
        )));
        let faults = Arc::clone(far.faults());
        let log = Geometry { block_size: 4096, ..Geometry::with_blocks(log_blocks) };
        let lower: Stack = Arc::new(far);
        let identity = LogVolumeIdentity { name: "far".into(), geometry: lower.geometry() };
        let log = Arc::new(MemVolume::new(log));
        let settings = Settings { read_ahead_bytes: 0, nvram_bytes: 1 << 20, ..settings };
        let nvram = || Box::new(Nvram(vec![0; 1 << 20])) as Box<dyn StableMemory>;
        let nvram = (settings.report == WriteMode::Immediate).then(nvram);
        let parts = Parts { lower, log, nvram };
        let cache = Cache::open(settings, parts, identity).await.expect("opened");
        tokio::spawn(cache.run());
        Self { cache, far: faults }
    }

    fn set_away(&self, away: bool) {
        self.far.clear();
        if away {
            let error = Error::Unreachable("the link is down".into());
            self.far.add(FaultRule::always(FaultCallKind::Any, Symptom::Fails(error)));
        }
    }

    async fn write(&self, lba: u64, byte: u8, bytes: usize) -> Result<(), Error> {
        let data: Data = vec![byte; bytes].into();
        self.cache.write(Lba(lba), data, Durability::Volatile).await
    }

    async fn drain(&self) {
        self.cache.flush().await.expect("flushed");
        self.cache.drain().await.expect("drained");
    }

    /// Returns the byte that all of these blocks are filled with. Panics if they hold different bytes.
    async fn one(&self, lba: u64, bytes: usize) -> u8 {
        let extent = Extent { lba: Lba(lba), blocks: (bytes / 512) as u32 };
        let data = self.cache.read(extent).await.expect("it is cached").into_bytes();
        assert!(data.iter().all(|byte| *byte == data[0]), "blocks {lba}.. are of two writes");
        data[0]
    }

    #[track_caller]
    fn assert_nothing_is_reserved(&self) {
        let state = self.cache.shared().state.lock();
        let reserved = &state.room.reserved;
        assert_eq!((reserved.live, reserved.slots, reserved.headers), (0, 0, 0));
        assert_eq!(
            (state.room.held_bytes, state.queue.copying_slots, state.queue.copying),
            (0, 0, 0)
        );
        assert!(state.room.log_line.is_empty() && state.room.step_line.is_empty());
    }
}

fn small() -> Settings {
    Settings { dram_bytes: 8 << 20, ..Settings::default() }
}

#[tokio::test(start_paused = true)]
async fn a_large_write_that_ends_in_busy_has_changed_no_block() {
    for (bytes, busy_after_ms) in [(64 << 10, 0), (256 << 10, 0), (MIB, 0), (MIB, 15_000)] {
        let site = Site::new(2000, Settings { busy_after_ms, ..small() }).await;
        site.set_away(true);
        let mut version = 0;
        let refused = loop {
            match site.write(0, version + 1, bytes).await {
                Ok(()) => version += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, Error::Busy(_)), "{refused}");
        assert!(version > 0);
        assert_eq!(site.one(0, bytes).await, version);
        site.assert_nothing_is_reserved();
        site.set_away(false);
        site.cache.drain().await.expect("drained");
        site.write(0, version + 1, bytes).await.expect("there is room again");
        assert_eq!(site.one(0, bytes).await, version + 1);
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Done,
    Refused,
    GivenUp,
}

async fn ended(write: impl Future<Output = Result<(), Error>>, time: Duration) -> End {
    match timeout(time, write).await {
        Ok(Ok(())) => End::Done,
        Ok(Err(Error::Busy(_))) => End::Refused,
        Ok(Err(error)) => panic!("{error}"),
        Err(_) => End::GivenUp,
    }
}

/// Writes as one host to blocks of its own, and aborts some of the writes. Counts how the writes ended.
async fn host(site: &Site, number: u64, seed: u64) -> [usize; 3] {
    let mut rng = Rng::new(seed * 100 + number);
    let (first, most) = (number * 2048, MIB);
    let mut blocks = vec![0; most / 512];
    let mut ends = [0; 3];
    for turn in 1..=40 {
        let count = 1 << rng.below(12);
        let at = rng.below((blocks.len() - count + 1) as u64) as usize;
        let patience = if rng.chance(25) { rng.below(200) } else { 60_000 };
        let time = Duration::from_millis(patience);
        let end = ended(site.write(first + at as u64, turn, count * 512), time).await;
        ends[end as usize] += 1;
        let extent = Extent { lba: Lba(first), blocks: blocks.len() as u32 };
        let found = loop {
            match site.cache.read(extent).await {
                Ok(found) => break found.into_bytes(),
                // The block was evicted from memory, and the far volume is away.
                Err(_) => sleep(Duration::from_millis(50)).await,
            }
        };
        for (block, (bytes, known)) in found.chunks(512).zip(&mut blocks).enumerate() {
            let is_new = (at..at + count).contains(&block) && bytes[0] == turn;
            let may_be_new = is_new && end != End::Refused;
            let must_be_new = (at..at + count).contains(&block) && end == End::Done;
            assert!(may_be_new || bytes[0] == *known, "seed {seed}: {end:?}, block {block}");
            assert!(is_new || !must_be_new, "seed {seed}: block {block} of a write that is done");
            *known = bytes[0];
        }
        if rng.chance(25) {
            // The flush may fail while the far volume is away.
            let _ = timeout(Duration::from_millis(200), site.cache.flush()).await;
        }
        sleep(Duration::from_millis(rng.below(500))).await;
    }
    ends
}

#[tokio::test(start_paused = true)]
async fn at_a_full_log_acknowledged_writes_are_done_and_refused_writes_changed_nothing() {
    for report in [WriteMode::AfterComplete, WriteMode::Immediate, WriteMode::AtFlush] {
        let mut all = [0; 3];
        for seed in 0..3 {
            let busy_after_ms = [0, 500, 15_000][seed as usize];
            let settings =
                Settings { busy_after_ms, report, too_large: OversizedEpoch::Split, ..small() };
            for ends in many_hosts(settings, seed).await {
                all = std::array::from_fn(|end| all[end] + ends[end]);
            }
        }
        assert!(all.iter().all(|count| *count > 20), "{report:?}: each end happened: {all:?}");
    }
}

/// Runs eight hosts at a full log while the link goes up and down. Counts how the writes of each host ended.
async fn many_hosts(settings: Settings, seed: u64) -> Vec<[usize; 3]> {
    let site = Site::new(1500, settings).await;
    // Every block gets known content, so that reads do not need the far volume.
    for number in 0..8 {
        site.write(number * 2048, 0, MIB).await.expect("written");
        site.drain().await;
    }
    let link = async {
        let mut rng = Rng::new(seed);
        loop {
            site.set_away(true);
            sleep(Duration::from_millis(rng.below(20_000))).await;
            site.set_away(false);
            sleep(Duration::from_millis(rng.below(2000))).await;
        }
    };
    let hosts = join_all((0..8).map(|number| host(&site, number, seed)));
    let ends = tokio::select! {
        ends = hosts => ends,
        () = link => unreachable!("it goes on for ever"),
    };
    site.assert_nothing_is_reserved();
    site.set_away(false);
    site.drain().await;
    site.assert_nothing_is_reserved();
    ends
}

#[tokio::test(start_paused = true)]
async fn a_large_write_is_not_starved_by_small_ones() {
    let settings = Settings { dram_bytes: 64 << 20, ..Settings::default() };
    // A slow round gives the small writes the time to use up all room that the previous round has freed.
    let site = Site::slow(1500, settings, Duration::from_millis(100)).await;
    site.set_away(true);
    let mut slot = 0;
    while timeout(Duration::from_millis(10), site.write(slot * 8 % 8192, 1, 4096)).await.is_ok() {
        slot += 1;
    }
    let large = async {
        sleep(Duration::from_millis(5)).await;
        site.write(0, 2, 2 * MIB).await
    };
    // The small writes take each slot that becomes free, and are repeated at once.
    let small = join_all((0..32).map(|number| {
        let site = &site;
        async move {
            loop {
                let written = site.write(16384 + number * 8, 3, 4096).await;
                written.expect("it is held until there is room");
            }
        }
    }));
    let back = async {
        sleep(Duration::from_secs(1)).await;
        site.set_away(false);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        written = timeout(Duration::from_secs(12), large) => {
            written.expect("it gets its turn").expect("written");
        }
        _ = small => unreachable!("they go on for ever"),
        () = back => unreachable!("it waits for ever"),
    }
    assert_eq!(site.one(0, 2 * MIB).await, 2);
    site.assert_nothing_is_reserved();
}

#[tokio::test(start_paused = true)]
async fn a_write_larger_than_the_log_is_refused_for_good_and_not_with_busy() {
    let site = Site::new(1500, small()).await;
    let error = site.write(0, 1, 8 * MIB).await.expect_err("the log has 6 MiB");
    let Error::TooLong { bytes, most } = error else { panic!("{error}") };
    assert_eq!(bytes, 8 << 20);
    site.write(0, 2, most as usize).await.expect("so much it takes");
    assert_eq!(site.one(0, most as usize).await, 2);
    site.assert_nothing_is_reserved();
}

#[tokio::test(start_paused = true)]
async fn waiting_writes_keep_no_more_memory_than_their_share() {
    let site = Site::new(1500, small()).await;
    site.set_away(true);
    while timeout(Duration::from_millis(10), site.write(0, 1, 4096)).await.is_ok() {}
    let waiting = join_all((0..8).map(|n| {
        let site = &site;
        async move { timeout(Duration::from_secs(1), site.write(n * 2048, 2, MIB)).await }
    }));
    let ended = waiting.await;
    let held = ended.iter().filter(|ended| ended.is_err()).count();
    assert_eq!(held, 2, "of 8 MiB a quarter");
    assert!(ended.iter().flatten().all(|ended| matches!(ended, Err(Error::Busy(_)))));
    site.assert_nothing_is_reserved();
    assert!(site.cache.admit(MIB).is_ok(), "the next one is held");
}

#[tokio::test(start_paused = true)]
async fn a_write_that_waits_for_a_resize_does_not_make_the_log_full() {
    let site = Site::new(1500, small()).await;
    let shared = site.cache.shared();
    shared.state.lock().queue.is_frozen = true;
    let mut waiting = pin!(site.write(0, 1, 4096));
    assert!(timeout(Duration::from_secs(1), waiting.as_mut()).await.is_err());
    assert!(!shared.state.lock().room.log_line.is_empty());
    assert!(site.cache.statistics().log.fill_percent < 5);
    shared.state.lock().queue.is_frozen = false;
    shared.signals.changed.notify_waiters();
    waiting.await.expect("written");
}

#[tokio::test(start_paused = true)]
async fn the_time_until_the_log_is_full_is_estimated_in_the_first_seconds_of_an_outage() {
    let site = Site::new(1500, Settings { busy_after_ms: 0, ..small() }).await;
    let mut second = 0;
    let mut turn = async || {
        // The log takes four slots and a header per second.
        let written = site.write(second * 32 % 16384, 1, 16 << 10).await;
        sleep(Duration::from_secs(1)).await;
        second += 1;
        written.map(|()| site.cache.statistics())
    };
    for _ in 0..120 {
        let told = turn().await.expect("written");
        assert!(told.log.fill_percent < 50, "destage keeps up: {told:?}");
    }
    site.set_away(true);
    for _ in 0..3 {
        turn().await.expect("written");
    }
    let (told, begun) = (turn().await.expect("written"), Instant::now());
    let lasts = told.log.lasts_s.expect("it fills") as f64;
    while turn().await.is_ok() {}
    let lasted = begun.elapsed().as_secs_f64();
    // Regression: the estimate used the growth of a minute with destage, and was 30 minutes or more.
    assert!((lasted - lasts).abs() < 0.2 * lasted, "{lasted} s, estimated as {lasts} s");
}

#[tokio::test(start_paused = true)]
async fn the_fill_of_the_log_and_the_time_until_it_is_full_are_reported() {
    let site = Site::new(1500, Settings { busy_after_ms: 0, ..small() }).await;
    site.set_away(true);
    let begun = Instant::now();
    let (mut seconds, mut percent, mut full_at) = (0, 0, None);
    // The log takes four slots and a header per second.
    while site.write(seconds * 32 % 16384, 1, 16 << 10).await.is_ok() {
        sleep(Duration::from_secs(1)).await;
        seconds += 1;
        let told = site.cache.statistics();
        assert!((percent..=100).contains(&told.log.fill_percent), "{told:?}");
        percent = told.log.fill_percent;
        if seconds == 70 {
            full_at = told.log.lasts_s.map(|lasts| lasts + 70);
            assert!(told.lower.away_ms.is_some_and(|ms| ms > 60_000), "{told:?}");
            assert!(told.lower.error.is_some_and(|error| error.contains("link is down")));
        }
    }
    let full_at = full_at.expect("it fills") as f64;
    let error = (begun.elapsed().as_secs_f64() - full_at).abs();
    assert!(error < 0.1 * full_at, "estimated to be full at {full_at} s, {error} s off");
    while site.write(0, 2, 4096).await.is_ok() {}
    let told = site.cache.statistics();
    assert_eq!((told.log.fill_percent, told.log.lasts_s), (100, None));
    site.set_away(false);
    site.cache.drain().await.expect("drained");
    let told = site.cache.statistics();
    assert!(told.log.fill_percent < 5 && told.log.lasts_s.is_none(), "{told:?}");
    assert_eq!(told.lower.away_ms, None);
}

#[tokio::test(start_paused = true)]
async fn the_start_of_an_outage_does_not_move_when_the_first_waiting_call_fails() {
    const TIMEOUT: Duration = Duration::from_secs(15);
    let site = Site::slow(2000, small(), TIMEOUT).await;
    // A call gets no answer for 15 s, and fails then, as over a broken link.
    let error = Error::Unreachable("no answer in time".into());
    site.far.add(FaultRule::always(FaultCallKind::Write, Symptom::FailsAfter(error)));
    site.write(0, 1, 4096).await.expect("the log takes it");
    let asked = Instant::now();
    let (mut away_since, mut failures) = (Vec::new(), 0);
    while failures < 3 {
        sleep(Duration::from_millis(500)).await;
        let told = site.cache.statistics();
        failures = told.lower.errors;
        away_since.extend(told.lower.away_ms.map(|ms| asked.elapsed().as_millis() as u64 - ms));
    }
    let (first, last) = (away_since[0], *away_since.last().expect("it is away"));
    assert!(first < 1000 && last == first, "{away_since:?}");
    site.set_away(false);
    site.drain().await;
    assert_eq!(site.cache.statistics().lower.away_ms, None);
}

#[tokio::test(start_paused = true)]
async fn a_short_burst_does_not_show_as_the_end_of_the_log() {
    let site = Site::new(20_000, small()).await;
    site.set_away(true);
    let mut least = u64::MAX;
    for second in 0..1200_u64 {
        sleep(Duration::from_secs(1)).await;
        // Ten seconds in which 7.5 % of the log are written, and no other write.
        if (700..710).contains(&second) {
            for run in 0..30 {
                site.write(run * 32, 1, 16 << 10).await.expect("the log takes it");
            }
        }
        least = least.min(site.cache.statistics().log.lasts_s.unwrap_or(u64::MAX));
    }
    assert!((3600..u64::MAX).contains(&least), "{least} s");
}
