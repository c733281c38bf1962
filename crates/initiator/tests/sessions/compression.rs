//! Tests compressed sessions: data in both directions together with TLS and digests, the number of bytes on the link,
//! lost connections under load, and targets that do not support compression.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::support::{
    blocks,
    certificates::Authority,
    expect, load,
    node::{Node, ends},
    relay::Relay,
};
use initiator::{InitiatorStatistics, RemoteVolume};
use iscsi::keys::{Compression, DigestPolicy};
use tokio::time::timeout;
use volume::{Data, Durability, Extent, Geometry, Lba, Volume};

/// Maximum duration of a step of these tests, which normally takes much less.
const PATIENCE: Duration = Duration::from_secs(30);

const BOTH: [Compression; 2] = [Compression::Lz4, Compression::Zstd];

async fn node(secured: bool, allowed: &[Compression]) -> Node {
    let mut node = Node::start(Geometry::with_blocks(65536)).await;
    node.drop_dead().await;
    node.compression = allowed.to_vec();
    node.tls = secured.then(|| ends(&Authority::new()));
    node.start_again().await;
    node
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("{what} not reached in time"));
}

/// Returns data that cannot be compressed.
fn noise(length: usize) -> Data {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..length).map(next).collect::<Vec<u8>>().into()
}

#[tokio::test]
async fn data_passes_both_ways_with_digests_and_through_tls() {
    for (secured, method) in [(false, BOTH[0]), (false, BOTH[1]), (true, BOTH[0])] {
        let node = node(secured, &BOTH).await;
        for digests in [DigestPolicy::Off, DigestPolicy::Require] {
            let mut settings = node.settings();
            settings.connections = 2;
            settings.offer.compression = vec![method];
            (settings.offer.header_digest, settings.offer.data_digest) = (digests, digests);
            let volume = Arc::new(RemoteVolume::connect(settings).await.expect("a session"));
            until("connections", || volume.session().connections().len() == 2).await;
            assert_eq!(volume.statistics().compression, Some(method));
            // Transfer long and short extents concurrently, some of them with incompressible data.
            let streams = (0..8).map(|stream| {
                let volume = volume.clone();
                tokio::spawn(async move {
                    for turn in 0..12 {
                        let lba = stream * 8192 + turn % 8 * 512;
                        let count = [1, 8, 256, 400][turn as usize % 4];
                        volume
                            .write(Lba(lba), blocks(lba, count, turn), Durability::Volatile)
                            .await
                            .unwrap();
                        expect(&volume, lba, count, turn).await;
                        let data = noise(count as usize * 512);
                        volume.write(Lba(lba), data.clone(), Durability::Volatile).await.unwrap();
                        let extent = Extent { lba: Lba(lba), blocks: count };
                        assert!(volume.read(extent).await.unwrap() == data);
                    }
                })
            });
            for stream in streams.collect::<Vec<_>>() {
                timeout(PATIENCE, stream).await.expect("the session continues").unwrap();
            }
            volume.flush().await.unwrap();
            volume.close().await;
        }
    }
}

/// Writes and reads `data` through a relay. Returns the statistics of the initiator, and the bytes that the relay has
/// counted in each direction.
async fn moved(
    node: &Node,
    wanted: &[Compression],
    data: &Data,
) -> (InitiatorStatistics, u64, u64) {
    let relay = Relay::start(node.address).await;
    let mut settings = node.settings();
    settings.portal = relay.address.to_string();
    settings.offer.compression = wanted.to_vec();
    let volume = RemoteVolume::connect(settings).await.expect("a session");
    let blocks = (data.len() / 512) as u32;
    for turn in 0..8 {
        let extent = Extent { lba: Lba(turn * u64::from(blocks)), blocks };
        volume.write(extent.lba, data.clone(), Durability::Volatile).await.unwrap();
        assert!(volume.read(extent).await.unwrap() == *data);
    }
    let statistics = volume.statistics();
    volume.close().await;
    let [there, back] = relay.passed.map(|passed| passed.load(Ordering::Relaxed));
    (statistics, there, back)
}

#[tokio::test]
async fn fewer_bytes_cross_the_link_and_incompressible_data_costs_little() {
    const BYTES: u64 = 8 << 18;
    let node = node(false, &BOTH).await;
    let (plain, there, back) = moved(&node, &[], &blocks(0, 512, 1)).await;
    assert_eq!(
        (plain.traffic.link_bytes_out, plain.traffic.link_bytes_in),
        (plain.traffic.bytes_out, plain.traffic.bytes_in)
    );
    assert!(there > BYTES && back > BYTES, "{there}, {back}");
    for method in BOTH {
        let (counted, there, back) = moved(&node, &[method], &blocks(0, 512, 1)).await;
        assert!(there < BYTES / 8 && back < BYTES / 8, "{method:?}: {there}, {back}");
        assert!(
            counted.traffic.bytes_out > BYTES && counted.traffic.bytes_in > BYTES,
            "{counted:?}"
        );
        // The relay also counts the bytes of a login and a logout.
        for (link, counted) in
            [(there, counted.traffic.link_bytes_out), (back, counted.traffic.link_bytes_in)]
        {
            assert!((counted..counted + 4096).contains(&link), "{link} is not {counted}");
        }
        let (counted, there, back) = moved(&node, &[method], &noise(1 << 18)).await;
        for link in [there, back] {
            assert!((BYTES..BYTES + BYTES / 64).contains(&link), "{method:?}: {link}");
        }
        assert!(
            counted.traffic.link_bytes_out
                < counted.traffic.bytes_out + counted.traffic.bytes_out / 1000
        );
    }
}

#[tokio::test]
async fn a_session_without_permission_to_compress_continues_uncompressed() {
    for (allowed, wanted, found) in [
        (&BOTH[..0], &BOTH[..], None),
        (&BOTH[..1], &BOTH[1..], None),
        (&BOTH[..], &BOTH[..0], None),
        (&BOTH[..1], &[Compression::Zstd, Compression::Lz4], Some(Compression::Lz4)),
    ] {
        let node = node(false, allowed).await;
        let (counted, there, _) = moved(&node, wanted, &blocks(0, 512, 1)).await;
        assert_eq!(counted.compression, found);
        assert_eq!(there > 8 << 18, found.is_none());
        assert_eq!((counted.calls.failures, counted.recovery.connections_lost), (0, 0));
    }
}

#[tokio::test]
async fn cut_connections_under_load_lose_nothing() {
    for (connections, level) in [(1, 0), (2, 2)] {
        let node = node(false, &BOTH).await;
        let relay = Relay::start(node.address).await;
        let mut settings = node.settings();
        settings.portal = relay.address.to_string();
        settings.offer.compression = vec![Compression::Lz4];
        (settings.connections, settings.error_recovery_level) = (connections, level);
        let volume = Arc::new(RemoteVolume::connect(settings).await.expect("a session"));
        let (done, counted) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let writers = load(&volume, 8, &done, &counted);
        for cuts in 1..=4 {
            until("work", || counted.load(Ordering::Relaxed) >= cuts * 40).await;
            until("connections", || {
                volume.session().connections().len() == usize::from(connections)
            })
            .await;
            relay.cut_one(cuts as usize);
            until("the loss", || volume.statistics().recovery.connections_lost >= cuts).await;
        }
        done.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.await.unwrap();
        }
        let statistics = volume.statistics();
        assert_eq!(statistics.calls.failures, 0, "{statistics:?}");
        assert_eq!(volume.generation() == 1, level == 2, "one session at level 2 only");
        volume.close().await;
    }
}

/// Damages one connection of the first session. It ends, and the other session is not affected.
#[tokio::test]
async fn a_connection_with_a_corrupt_compressed_frame_is_dropped() {
    let node = node(false, &BOTH).await;
    let relay = Relay::start(node.address).await;
    let mut settings = node.settings();
    settings.portal = relay.address.to_string();
    settings.offer.compression = vec![Compression::Lz4];
    let victim = RemoteVolume::connect(settings.clone()).await.expect("a session");
    settings.isid = iscsi::Isid([0x80, 0, 0, 0, 0, 9]);
    let other = RemoteVolume::connect(settings).await.expect("a session");
    relay.damage(0);
    let data = blocks(0, 256, 1);
    // The initiator sends the data again on a new connection, which the relay does not damage.
    timeout(PATIENCE, victim.write(Lba(0), data, Durability::Volatile)).await.unwrap().unwrap();
    expect(&victim, 0, 256, 1).await;
    assert!(victim.statistics().recovery.connections_lost > 0);
    expect(&other, 0, 256, 1).await;
    assert_eq!(other.statistics().recovery.connections_lost, 0);
    victim.close().await;
    other.close().await;
}
