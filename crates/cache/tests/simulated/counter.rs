//! A host writes data first, then a counter in another block, and the power fails: after recovery, the
//! counter must not be ahead of its data (a bug of another cache: Open CAS, issue 253). Also tests
//! epochs that do not fit into the log.

use std::sync::Arc;

use crate::support::{
    gateway::{Gateway, filled},
    hardware::{End, Hardware, Remains},
    workload::{power_off, runtime},
};
use cache::{Cache, LogVolumeIdentity, OversizedEpoch, Parts, Settings, WriteMode};
use sim::Rng;
use volume::{Durability, Error, Extent, Geometry, Lba, Volume};

const GEOMETRY: Geometry = Geometry::with_blocks(512);

async fn open(hardware: &Hardware) -> Arc<Cache> {
    let settings = Settings {
        dram_bytes: 256 << 10,
        nvram_bytes: 64 << 10,
        segment_slots: 4,
        idle_ms: 1,
        max_dirty_age_ms: 2,
        ..Settings::default()
    };
    let parts = Parts { lower: hardware.lower(), log: hardware.log(), nvram: None };
    let identity = LogVolumeIdentity { name: "far".into(), geometry: GEOMETRY };
    Cache::open(settings, parts, identity).await.expect("opened")
}

async fn number(cache: &Cache, lba: u64) -> u64 {
    let data = cache.read(Extent { lba: Lba(lba), blocks: 1 }).await.expect("read");
    u64::from_le_bytes(data.into_bytes()[..8].try_into().expect("eight bytes"))
}

async fn write(cache: &Cache, lba: u64, number: u64) {
    let data = number.to_le_bytes().repeat(64);
    cache.write(Lba(lba), data.into(), Durability::Volatile).await.expect("written");
}

/// Returns the block in which the host writes its data of this turn.
fn place(turn: u64) -> u64 {
    8 + turn * 37 % 400
}

#[test]
fn the_counter_never_runs_ahead_of_its_data() {
    let mut rng = Rng::new(253);
    let mut left: Option<Remains> = None;
    let mut told = 0;
    for round in 0..1000 {
        let hardware = match left.take() {
            Some(remains) => Hardware::reopen(remains, round),
            None => Hardware::new(GEOMETRY, 400, 0, round),
        };
        runtime().block_on(async {
            let cache = open(&hardware).await;
            let counter = number(&cache, 0).await;
            assert!(
                counter == told || counter == told + 1,
                "round {round}: {counter} after {told}"
            );
            told = counter;
            for turn in counter.saturating_sub(300).max(1)..=counter {
                let found = number(&cache, place(turn)).await;
                let later = place(counter + 1) == place(turn) && found == counter + 1;
                assert!(found >= turn || later, "round {round}: {found} in the place of {turn}");
            }
            tokio::spawn(cache.run());
            hardware.power.fail_after(hardware.power.operations() + rng.below(200));
            let work = async {
                loop {
                    write(&cache, place(told + 1), told + 1).await;
                    write(&cache, 0, told + 1).await;
                    told += 1;
                }
            };
            tokio::select! {
                () = work => {}
                () = power_off(&hardware) => {}
            }
        });
        let end = [End::Power, End::NearPower, End::Kill][rng.below(3) as usize];
        left = Some(hardware.end(end, &mut rng));
    }
    assert!(told > 1000, "{told} turns");
}

/// Writes `slots` slots without a flush. Returns the error if the log has no more room for the epoch.
async fn fill(cache: &Cache, slots: u64) -> Option<Error> {
    for slot in 0..slots {
        let data = filled(1, 8);
        if let Err(error) = cache.write(Lba(slot * 8), data, Durability::Volatile).await {
            return Some(error);
        }
    }
    None
}

#[tokio::test(start_paused = true)]
async fn an_epoch_that_is_too_large_is_refused_until_the_next_flush() {
    let mut gateway = Gateway::new(1200);
    gateway.settings.report = WriteMode::AtFlush;
    let cache = gateway.start().await;
    let fits = cache.geometry().epoch_blocks / 8;
    assert_eq!(fill(&cache, fits).await.map(|error| error.to_string()), None);
    let refused = fill(&cache, 4000).await;
    assert!(matches!(refused, Some(Error::Device(_))), "{refused:?}");
    assert_eq!(cache.statistics().order.refused_epochs, 1);
    cache.flush().await.unwrap();
    assert!(fill(&cache, fits).await.is_none(), "there is room again");
}

#[tokio::test(start_paused = true)]
async fn an_epoch_that_is_too_large_is_split_if_settings_say_so() {
    let mut gateway = Gateway::new(1200);
    gateway.settings.report = WriteMode::AtFlush;
    gateway.settings.too_large = OversizedEpoch::Split;
    let cache = gateway.start().await;
    assert!(fill(&cache, 4000).await.is_none());
    assert!(cache.statistics().order.split_epochs > 0);
}
