//! Tests the initiator with Debian's tgt, an independent target.
//!
//! Needs `tgtd` and `tgtadm` (package tgt). If they are missing the tests fail, unless `FOREBAY_NO_INTEROP=1` is set
//! to skip them.

use std::{sync::Arc, time::Duration};

use crate::support::{
    blocks, expect,
    tgt::{BLOCKS, Tgt},
};
use initiator::{RemoteVolume, Settings, discover, list_units};
use iscsi::keys::Compression;
use volume::{Data, Durability, Error, Extent, Lba, Volume};

fn settings(tgt: &Tgt) -> Settings {
    let mut settings = Settings::new(tgt.portal(), tgt.name(), 1);
    settings.initiator_name = "iqn.2026-11.io.forebay:test".to_owned();
    settings
}

#[tokio::test]
async fn written_data_is_read_back() {
    let Some(tgt) = Tgt::start() else { return };
    // Propose compression, a key that tgt does not know. The session must work without compression.
    let mut settings = settings(&tgt);
    settings.offer.compression = vec![Compression::Zstd, Compression::Lz4];
    let volume = RemoteVolume::connect(settings).await.unwrap();
    let geometry = volume.geometry();
    assert_eq!((geometry.block_size, geometry.blocks), (512, BLOCKS));
    assert!(!volume.identity().is_empty());

    // Transfer one block, then more than a first burst, then more than fits into one command.
    for (version, (lba, count)) in [(0, 1), (8, 1024), (3000, 5000)].into_iter().enumerate() {
        let data = blocks(lba, count, version as u64);
        volume.write(Lba(lba), data, Durability::Volatile).await.unwrap();
        expect(&volume, lba, count, version as u64).await;
    }
    volume.write(Lba(5), blocks(5, 3, 9), Durability::Stable).await.unwrap();
    volume.flush().await.unwrap();
    expect(&volume, 5, 3, 9).await;

    let extent = Extent { lba: Lba(8), blocks: 1000 };
    volume.discard(extent).await.unwrap();
    let zeros = volume.read(extent).await.unwrap();
    assert!(zeros == Data::zeros(512_000));

    let beyond = volume.read(Extent { lba: Lba(BLOCKS), blocks: 1 }).await;
    assert!(matches!(beyond, Err(Error::OutOfRange(_))), "{beyond:?}");
    let statistics = volume.statistics();
    assert!(statistics.calls.writes >= 6 && statistics.calls.flushes >= 1, "{statistics:?}");
    assert_eq!((statistics.recovery.reconnects, statistics.compression), (0, None));
    volume.close().await;
}

#[tokio::test]
async fn many_commands_at_once() {
    let Some(tgt) = Tgt::start() else { return };
    let volume = Arc::new(RemoteVolume::connect(settings(&tgt)).await.unwrap());
    let writers = (0..200).map(|number| {
        let volume = volume.clone();
        tokio::spawn(async move {
            let lba = number * 16;
            volume.write(Lba(lba), blocks(lba, 16, 1), Durability::Volatile).await.unwrap();
            expect(&volume, lba, 16, 1).await;
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    volume.flush().await.unwrap();
}

#[tokio::test]
async fn targets_and_units_are_found() {
    let Some(tgt) = Tgt::start() else { return };
    let targets = discover(&Settings::new(tgt.portal(), "", 0)).await.unwrap();
    assert_eq!(targets.len(), 1);
    assert_eq!(targets[0].name, tgt.name());
    assert_eq!(targets[0].portals, [tgt.portal()]);

    let units = list_units(&settings(&tgt)).await.unwrap();
    // LUN 0 is tgt's controller, which is not a disk.
    assert_eq!(units.iter().map(|unit| unit.lun).collect::<Vec<_>>(), [0, 1]);
    assert!(units[0].facts.is_err());
    assert_eq!(units[1].facts.as_ref().unwrap().geometry.blocks, BLOCKS);
}

#[tokio::test]
async fn digests_are_used_where_required() {
    let Some(tgt) = Tgt::start() else { return };
    tgt.allow_digests();
    let mut settings = settings(&tgt);
    settings.offer.header_digest = iscsi::keys::DigestPolicy::Require;
    settings.offer.data_digest = iscsi::keys::DigestPolicy::Require;
    let volume = RemoteVolume::connect(settings).await.unwrap();
    volume.write(Lba(0), blocks(0, 2000, 4), Durability::Volatile).await.unwrap();
    expect(&volume, 0, 2000, 4).await;
}

#[tokio::test]
async fn a_killed_target_loses_no_acknowledged_write() {
    let Some(mut tgt) = Tgt::start() else { return };
    let volume = Arc::new(RemoteVolume::connect(settings(&tgt)).await.unwrap());
    // The writers continue while the target is killed and started again. Each of them compares what it reads with what
    // it has written.
    let writers = (0..8).map(|writer| {
        let volume = volume.clone();
        tokio::spawn(async move {
            let mut version = 0;
            while version < 40 || volume.statistics().recovery.reconnects == 0 {
                version += 1;
                let lba = writer * 1000;
                let data = blocks(lba, 300, version);
                volume.write(Lba(lba), data, Durability::Volatile).await.unwrap();
            }
            (writer * 1000, version)
        })
    });
    let writers: Vec<_> = writers.collect();
    while volume.statistics().calls.writes < 50 {
        tokio::task::yield_now().await;
    }
    tgt.kill();
    tgt.start_again();
    for writer in writers {
        let (lba, version) = writer.await.unwrap();
        expect(&volume, lba, 300, version).await;
    }
    let statistics = volume.statistics();
    assert!(statistics.recovery.reconnects >= 1, "{statistics:?}");
    assert!(volume.generation() >= 2);
}

#[tokio::test]
async fn a_flush_reports_writes_lost_by_an_earlier_restart() {
    let Some(mut tgt) = Tgt::start() else { return };
    let volume = RemoteVolume::connect(settings(&tgt)).await.unwrap();
    volume.write(Lba(0), blocks(0, 8, 1), Durability::Volatile).await.unwrap();
    tgt.kill();
    tgt.start_again();
    let flushed = volume.flush().await;
    assert!(matches!(flushed, Err(Error::Device(_))), "{flushed:?}");
    volume.write(Lba(0), blocks(0, 8, 1), Durability::Volatile).await.unwrap();
    volume.flush().await.unwrap();
}

#[tokio::test]
async fn calls_fail_if_a_target_stays_unreachable() {
    let Some(mut tgt) = Tgt::start() else { return };
    let mut settings = settings(&tgt);
    settings.give_up_after = Duration::from_secs(2);
    let volume = RemoteVolume::connect(settings).await.unwrap();
    tgt.kill();
    let extent = Extent { lba: Lba(0), blocks: 1 };
    let given_up = volume.read(extent).await;
    assert!(matches!(given_up, Err(Error::Away(_) | Error::Unreachable(_))), "{given_up:?}");
    // From now on, calls must fail at once instead of waiting.
    assert!(matches!(volume.admit(512), Err(Error::Away(_))));
    let begun = std::time::Instant::now();
    assert!(volume.read(extent).await.is_err());
    assert!(begun.elapsed() < Duration::from_secs(1));
    tgt.start_again();
    let mut watch = volume.session().watch();
    watch.wait_for(|state| matches!(state, initiator::LinkState::Up)).await.unwrap();
    volume.read(extent).await.unwrap();
    volume.admit(512).unwrap();
}

#[tokio::test]
async fn a_volume_can_be_opened_while_the_target_is_unreachable() {
    let Some(mut tgt) = Tgt::start() else { return };
    let known = RemoteVolume::connect(settings(&tgt)).await.unwrap();
    let (geometry, identity) = (known.geometry(), known.identity().to_owned());
    known.write(Lba(7), blocks(7, 1, 1), Durability::Stable).await.unwrap();
    known.close().await;
    tgt.kill();

    let volume = RemoteVolume::open_lazy(settings(&tgt), geometry, identity.clone());
    assert_eq!(volume.geometry(), geometry);
    let other = RemoteVolume::open_lazy(settings(&tgt), geometry, "naa.other".to_owned());
    tgt.start_again();
    expect(&volume, 7, 1, 1).await;
    match other.read(Extent { lba: Lba(0), blocks: 1 }).await {
        Err(Error::Device(reason)) => {
            assert!(reason.contains("naa.other") && reason.contains(&identity), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}
