//! Tests the initiator with our own target on real sockets.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::support::{
    blocks, expect,
    node::{GRACE, NAME, Node},
    relay::Relay,
};
use initiator::{LinkState, RemoteVolume, Settings, discover, list_units};
use sim::AbilityProbe;
use volume::{
    Data, Durability, Error, Extent, FaultCallKind, FaultRule, Geometry, Lba, Symptom, Volume,
};

const EXTENT: Extent = Extent { lba: Lba(64), blocks: 64 };

fn geometry() -> Geometry {
    Geometry::with_blocks(65536)
}

async fn connect(node: &Node) -> RemoteVolume {
    RemoteVolume::connect(node.settings()).await.expect("a session")
}

/// Calls every optional method of a remote volume. `expected` names the methods that send a command instead of answering
/// "not supported" at once. Claims are missing, because the unit of this test keeps no records: `claims.rs` tests them.
#[tokio::test]
async fn a_remote_volume_has_the_listed_abilities() {
    let node = Node::start(geometry()).await;
    let volume = connect(&node).await;
    let expected = ["roll_back", "allocation", "most_calls", "send_requests", "receive_answers"];
    assert_eq!(AbilityProbe::answered(&volume).await, expected);
}

#[tokio::test]
async fn a_volume_has_the_geometry_and_identity_of_its_unit() {
    for block_size in [512, 4096] {
        let served = Geometry { block_size, ..geometry() };
        let expected = Geometry { in_place: false, ..served };
        let node = Node::start(served).await;
        let volume = connect(&node).await;
        assert_eq!(volume.geometry(), expected);
        assert!(volume.identity().starts_with("naa.6"), "{}", volume.identity());
    }
}

#[tokio::test]
async fn unmapped_blocks_of_the_unit_are_reported() {
    let node = Node::start(geometry()).await;
    let volume = connect(&node).await;
    volume.write(Lba(64), blocks(64, 64, 1), Durability::Volatile).await.unwrap();
    let all = volume.extensions().allocation(Extent { lba: Lba(60), blocks: 1000 }).await.unwrap();
    let runs: Vec<_> = all.runs().iter().map(|run| (run.blocks, run.mapped)).collect();
    assert_eq!(runs, [(4, false), (64, true), (932, false)]);
}

#[tokio::test]
async fn written_data_is_read_back() {
    let node = Node::start(geometry()).await;
    let volume = connect(&node).await;
    for (version, (lba, count)) in [(0, 1), (8, 1024), (3000, 40_000)].into_iter().enumerate() {
        let data = blocks(lba, count, version as u64);
        volume.write(Lba(lba), data, Durability::Volatile).await.unwrap();
        expect(&volume, lba, count, version as u64).await;
    }
    volume.flush().await.unwrap();
    let beyond = volume.read(Extent { lba: Lba(65536), blocks: 1 }).await;
    assert!(matches!(beyond, Err(Error::OutOfRange(_))), "{beyond:?}");
}

#[tokio::test]
async fn data_in_several_buffers_arrives_as_one_write() {
    let node = Node::start(geometry()).await;
    let volume = connect(&node).await;
    let whole = blocks(0, 64, 1).into_bytes();
    let pieces: Data = (0..8).map(|at| whole.slice(at * 4096..(at + 1) * 4096)).collect();
    volume.write(Lba(0), pieces, Durability::Volatile).await.unwrap();
    expect(&volume, 0, 64, 1).await;
}

#[tokio::test]
async fn a_discard_reads_as_zeros_and_gives_space_back() {
    let node = Node::start(geometry()).await;
    let volume = connect(&node).await;
    volume.write(Lba(0), blocks(0, 8192, 1), Durability::Volatile).await.unwrap();
    let before = node.disk.allocated_bytes();
    volume.discard(Extent { lba: Lba(3), blocks: 8000 }).await.unwrap();
    assert!(node.disk.allocated_bytes() < before / 10);
    let zeros = volume.read(Extent { lba: Lba(3), blocks: 8000 }).await.unwrap();
    assert!(zeros == Data::zeros(8000 * 512));
    expect(&volume, 0, 3, 1).await;
    expect(&volume, 8003, 100, 1).await;
    assert!(volume.statistics().calls.discards >= 1);
}

#[tokio::test]
async fn a_stable_write_needs_no_flush_if_the_unit_supports_fua() {
    let node = Node::start(geometry()).await;
    let volume = connect(&node).await;
    volume.write(Lba(0), blocks(0, 8, 1), Durability::Stable).await.unwrap();
    assert_eq!(volume.statistics().calls.flushes, 0);
}

#[tokio::test]
async fn failures_below_the_target_keep_their_meaning() {
    let node = Node::start(geometry()).await;
    let volume = connect(&node).await;
    let medium = Error::Medium { extent: EXTENT, reason: "scratched".into() };
    let fails = |call, error| {
        node.faults.add(FaultRule::always(call, Symptom::Fails(error)).times(1));
    };
    fails(FaultCallKind::Read, medium.clone());
    assert!(matches!(volume.read(EXTENT).await, Err(Error::Medium { .. })));
    let write = || volume.write(EXTENT.lba, blocks(64, 64, 1), Durability::Volatile);
    fails(FaultCallKind::Write, medium);
    assert!(matches!(write().await, Err(Error::Medium { .. })));
    fails(FaultCallKind::Write, Error::NoSpace);
    assert!(matches!(write().await, Err(Error::NoSpace)));
    fails(FaultCallKind::Flush, Error::Device("broken".into()));
    assert!(matches!(volume.flush().await, Err(Error::Device(_))));
    // The failures have no lasting effect.
    write().await.unwrap();
    volume.flush().await.unwrap();
    assert_eq!(volume.statistics().recovery.reconnects, 0);
}

#[tokio::test]
async fn a_busy_target_is_asked_again() {
    let node = Node::start(geometry()).await;
    let volume = connect(&node).await;
    let busy = || Symptom::Fails(Error::Busy("full"));
    node.faults.add(FaultRule::always(FaultCallKind::Write, busy()).times(3));
    volume.write(EXTENT.lba, blocks(64, 64, 1), Durability::Volatile).await.unwrap();
    expect(&volume, 64, 64, 1).await;
    assert_eq!(volume.statistics().calls.retries, 3);
}

#[tokio::test]
async fn a_target_that_stays_busy_is_busy() {
    let node = Node::start(geometry()).await;
    let mut settings = node.settings();
    settings.busy_time_out = Duration::from_millis(100);
    let volume = RemoteVolume::connect(settings).await.unwrap();
    node.faults.add(FaultRule::always(FaultCallKind::Write, Symptom::Fails(Error::Busy("full"))));
    let written = volume.write(EXTENT.lba, blocks(64, 64, 1), Durability::Volatile).await;
    assert!(matches!(written, Err(Error::Busy(_))), "{written:?}");
}

#[tokio::test]
async fn a_write_of_which_a_piece_was_done_is_not_busy() {
    let node = Node::start(geometry()).await;
    let mut settings = node.settings();
    settings.busy_time_out = Duration::from_millis(100);
    settings.piece_bytes = EXTENT.blocks / 2 * 512;
    let volume = RemoteVolume::connect(settings).await.unwrap();
    node.faults
        .add(FaultRule::always(FaultCallKind::Write, Symptom::Fails(Error::Busy("full"))).after(1));
    let written = volume.write(EXTENT.lba, blocks(64, 64, 1), Durability::Volatile).await;
    assert!(matches!(written, Err(Error::Unreachable(_))), "{written:?}");
}

#[tokio::test]
async fn a_command_that_hangs_is_aborted_and_harms_no_other() {
    let node = Node::start(geometry()).await;
    let mut settings = node.settings();
    settings.command_time_out = Duration::from_millis(200);
    let volume = RemoteVolume::connect(settings).await.unwrap();
    node.faults.add(FaultRule::always(FaultCallKind::Read, Symptom::Hangs).times(1));
    let hung = volume.read(EXTENT).await;
    assert!(matches!(hung, Err(Error::Unreachable(_))), "{hung:?}");
    volume.read(EXTENT).await.unwrap();
    let statistics = volume.statistics();
    assert_eq!((statistics.calls.time_outs, statistics.recovery.reconnects), (1, 0));
}

#[tokio::test]
async fn an_abandoned_write_is_not_overtaken() {
    let node = Node::start(geometry()).await;
    let volume = Arc::new(connect(&node).await);
    // The first write never returns from the disk below the target. The caller stops waiting and writes again.
    node.faults.add(FaultRule::always(FaultCallKind::Write, Symptom::Hangs).times(1));
    let first = volume.write(EXTENT.lba, blocks(64, 64, 1), Durability::Volatile);
    let given_up = tokio::time::timeout(Duration::from_millis(50), first).await;
    assert!(given_up.is_err());
    // The second write makes the initiator abort the first one. It is sent only after the first one has ended.
    volume.write(EXTENT.lba, blocks(64, 64, 2), Durability::Volatile).await.unwrap();
    expect(&volume, 64, 64, 2).await;
    let statistics = volume.statistics();
    assert_eq!((statistics.calls.time_outs, statistics.recovery.reconnects), (1, 0));
}

#[tokio::test]
async fn cut_links_lose_nothing() {
    let node = Node::start(geometry()).await;
    let relay = Relay::start(node.address).await;
    let mut settings = node.settings();
    settings.portal = relay.address.to_string();
    let volume = Arc::new(RemoteVolume::connect(settings).await.unwrap());
    let writers = (0..8_u64).map(|writer| {
        let volume = volume.clone();
        tokio::spawn(async move {
            for version in 1..=60 {
                let lba = writer * 2000;
                let count = 100 + (version % 7) as u32 * 200;
                let data = blocks(lba, count, version);
                volume.write(Lba(lba), data, Durability::Volatile).await.unwrap();
                expect(&volume, lba, count, version).await;
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let mut cuts = 0;
    while !writers.iter().all(tokio::task::JoinHandle::is_finished) {
        let statistics = volume.statistics();
        if cuts < 3
            && statistics.calls.writes > (cuts + 1) * 100
            && statistics.recovery.reconnects == cuts
        {
            relay.cut();
            cuts += 1;
        }
        tokio::task::yield_now().await;
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let statistics = volume.statistics();
    assert_eq!((cuts, statistics.recovery.reconnects), (3, 3));
    let again =
        statistics.recovery.replays + statistics.recovery.reassigned + statistics.recovery.resent;
    assert!(again > 0, "{statistics:?}");
}

#[tokio::test]
async fn a_node_that_restarts_is_waited_for() {
    let mut node = Node::start(geometry()).await;
    let volume = connect(&node).await;
    volume.write(Lba(0), blocks(0, 8, 1), Durability::Stable).await.unwrap();
    let begun = Instant::now();
    node.stop().await;
    assert!(begun.elapsed() < GRACE / 2, "the logout that it asked for came");
    let (read, ()) =
        tokio::join!(volume.read(Extent { lba: Lba(0), blocks: 8 }), node.start_again());
    assert!(read.unwrap() == blocks(0, 8, 1));
    // A restart loses no stable writes, so the flush does not fail.
    volume.flush().await.unwrap();
}

#[tokio::test]
async fn a_flush_fails_once_after_unflushed_writes_met_a_restart() {
    let mut node = Node::start(geometry()).await;
    let volume = connect(&node).await;
    volume.write(Lba(0), blocks(0, 8, 1), Durability::Volatile).await.unwrap();
    node.drop_dead().await;
    node.start_again().await;
    let flushed = volume.flush().await;
    assert!(matches!(flushed, Err(Error::Device(_))), "{flushed:?}");
    volume.flush().await.unwrap();
}

#[tokio::test]
async fn a_unit_that_returns_larger_is_used_with_its_new_size() {
    let mut node = Node::start(geometry()).await;
    let volume = connect(&node).await;
    node.drop_dead().await;
    let larger = Geometry::with_blocks(70_000);
    let _grown = Node::start_named(larger, "disk-1", node.address).await;
    volume.write(Lba(0), blocks(0, 8, 1), Durability::Stable).await.unwrap();
    assert_eq!(volume.geometry().blocks, 70_000);
    volume.write(Lba(69_000), blocks(69_000, 8, 1), Durability::Stable).await.unwrap();
    expect(&volume, 69_000, 8, 1).await;
}

#[tokio::test]
async fn a_unit_that_became_another_is_refused() {
    let mut node = Node::start(geometry()).await;
    let volume = connect(&node).await;
    volume.write(Lba(0), blocks(0, 8, 1), Durability::Stable).await.unwrap();
    node.drop_dead().await;
    let smaller = Geometry::with_blocks(60_000);
    let mut other = Node::start_named(smaller, "disk-1", node.address).await;
    let read = volume.read(EXTENT).await;
    match read {
        Err(Error::Device(reason)) => {
            assert!(reason.contains("60000") && reason.contains("65536"), "{reason}");
        }
        read => panic!("{read:?}"),
    }
    let refused = volume.write(Lba(0), blocks(0, 8, 2), Durability::Stable).await;
    assert!(matches!(refused, Err(Error::Device(_))), "{refused:?}");
    assert_eq!(other.disk.allocated_bytes(), 0, "nothing was written to it");
    // Stop the node that has another unit, and start the node with the expected unit again.
    other.drop_dead().await;
    node.start_again().await;
    let mut watch = volume.session().watch();
    watch.wait_for(|state| matches!(state, LinkState::Up)).await.unwrap();
    expect(&volume, 0, 8, 1).await;
}

#[tokio::test]
async fn a_closed_volume_has_logged_out() {
    let mut node = Node::start(geometry()).await;
    let volume = connect(&node).await;
    volume.close().await;
    assert!(matches!(volume.session().state(), LinkState::Closed));
    let read = volume.read(EXTENT).await;
    assert!(matches!(read, Err(Error::Away(_))), "{read:?}");
    let begun = Instant::now();
    node.stop().await;
    assert!(begun.elapsed() < GRACE / 2, "no session delayed the end");
}

#[tokio::test]
async fn targets_and_units_are_found() {
    let node = Node::start(geometry()).await;
    let targets = discover(&Settings::new(node.address.to_string(), "", 0)).await.unwrap();
    assert_eq!(targets.len(), 1);
    assert_eq!(targets[0].name, NAME);
    let units = list_units(&node.settings()).await.unwrap();
    assert_eq!(units.len(), 1);
    let expected = Geometry { in_place: false, ..geometry() };
    assert_eq!(units[0].facts.as_ref().unwrap().geometry, expected);
}

#[tokio::test]
async fn an_unknown_target_and_an_absent_unit_are_named() {
    let node = Node::start(geometry()).await;
    let mut settings = node.settings();
    settings.target = "iqn.2026-11.io.forebay.test:other".to_owned();
    let error = RemoteVolume::connect(settings).await.err().unwrap().to_string();
    assert!(error.contains("NotFound"), "{error}");
    let mut settings = node.settings();
    settings.lun = 9;
    let error = RemoteVolume::connect(settings).await.err().unwrap().to_string();
    assert!(error.contains("unit"), "{error}");
}

#[tokio::test]
async fn digests_and_small_segments() {
    let node = Node::start(geometry()).await;
    let mut settings = node.settings();
    settings.offer.header_digest = iscsi::keys::DigestPolicy::Require;
    settings.offer.data_digest = iscsi::keys::DigestPolicy::Require;
    settings.offer.max_recv_data_segment_length = 1000;
    settings.offer.first_burst_length = 3000;
    settings.offer.max_burst_length = 10_000;
    let volume = RemoteVolume::connect(settings).await.unwrap();
    volume.write(Lba(0), blocks(0, 3000, 4), Durability::Volatile).await.unwrap();
    expect(&volume, 0, 3000, 4).await;
}

/// When the peer is not an iSCSI target, the attempt to connect ends in time and with an error.
#[tokio::test]
async fn peers_that_are_not_iscsi_targets_are_left() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    for peer in 0..4 {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 48];
            let _ = stream.read_exact(&mut request).await;
            match peer {
                0 => return,
                1 => drop(stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await),
                2 => drop(stream.write_all(&[0xff; 4096]).await),
                _ => {}
            }
            std::future::pending::<()>().await;
        });
        let mut settings = Settings::new(address.to_string(), NAME, 0);
        settings.login_time_out = Duration::from_millis(300);
        let begun = Instant::now();
        let error = RemoteVolume::connect(settings).await.err();
        assert!(error.is_some() && begun.elapsed() < Duration::from_secs(5), "peer {peer}");
    }
}

#[tokio::test]
async fn a_portal_that_refuses_connections_is_named() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = RemoteVolume::connect(Settings::new(address.to_string(), NAME, 0)).await;
    let error = error.err().unwrap().to_string();
    assert!(error.contains(&address.to_string()), "{error}");
}

#[tokio::test]
async fn calls_fail_while_a_node_refuses_the_login_and_succeed_when_it_accepts_again() {
    let mut node = Node::start(geometry()).await;
    node.drop_dead().await;
    node.secret = Some("the right secret");
    node.start_again().await;
    let mut settings = node.settings();
    settings.give_up_after = Duration::from_secs(3600);
    settings.back_off_max = Duration::from_millis(50);
    let volume = RemoteVolume::connect(settings).await.expect("a session");
    volume.write(Lba(0), blocks(0, 8, 1), Durability::Stable).await.unwrap();
    node.drop_dead().await;
    node.secret = Some("another secret, since a minute ago");
    node.start_again().await;
    let patience = Duration::from_secs(60);
    let read = volume.read(Extent { lba: Lba(0), blocks: 8 });
    match tokio::time::timeout(patience, read).await.expect("it does not wait an hour") {
        Err(Error::Away(reason) | Error::Unreachable(reason)) => {
            assert!(reason.contains("AuthenticationFailure"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    node.drop_dead().await;
    node.secret = Some("the right secret");
    node.start_again().await;
    let back = async {
        while volume.read(Extent { lba: Lba(0), blocks: 8 }).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(patience, back).await.expect("it is found again");
    expect(&volume, 0, 8, 1).await;
    volume.close().await;
}
