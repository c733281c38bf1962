//! Tests TLS sessions: data in both directions, lost connections under load, and certificates that are not accepted.

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
    node::{NAME, Node, ends},
    relay::Relay,
};
use initiator::{Error, RemoteVolume, discover};
use iscsi::keys::DigestPolicy;
use target::{Redirect, Target, TargetServer};
use tokio::time::timeout;
use transport::DistrustCause;
use volume::{Durability, Extent, Geometry, Lba, Volume};

/// Maximum duration of a step of these tests, which normally takes much less.
const PATIENCE: Duration = Duration::from_secs(30);

async fn secured() -> Node {
    Node::start_secured(Geometry::with_blocks(65536), ends(&Authority::new())).await
}

/// Waits until the condition `holds` is true. Panics with `what` if this takes too long.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("{what} not reached in time"));
}

#[tokio::test]
async fn streams_of_128_kib_pass_both_ways_with_and_without_digests() {
    let node = secured().await;
    for digests in [DigestPolicy::Off, DigestPolicy::Require] {
        for connections in [1, 2] {
            let mut settings = node.settings();
            settings.connections = connections;
            (settings.offer.header_digest, settings.offer.data_digest) = (digests, digests);
            let volume = Arc::new(RemoteVolume::connect(settings).await.expect("a session"));
            until("connections", || {
                volume.session().connections().len() == usize::from(connections)
            })
            .await;
            // Write and read in eight concurrent tasks.
            let streams = (0..8).map(|stream| {
                let volume = volume.clone();
                tokio::spawn(async move {
                    for turn in 0..16 {
                        let lba = stream * 8192 + turn % 8 * 256;
                        let data = blocks(lba, 256, turn);
                        volume.write(Lba(lba), data, Durability::Volatile).await.unwrap();
                        expect(&volume, lba, 256, turn).await;
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
    let extent = Extent { lba: Lba(256), blocks: 256 };
    let stored = node.disk.read(extent).await.unwrap();
    assert!(stored == blocks(256, 256, 9), "the received data is that which was sent");
}

#[tokio::test]
async fn cut_connections_under_load_lose_nothing() {
    let node = secured().await;
    for (connections, level) in [(1, 0), (2, 2)] {
        let relay = Relay::start(node.address).await;
        let mut settings = node.settings();
        settings.portal = relay.address.to_string();
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

#[tokio::test]
async fn wrong_certificates_are_named_and_a_login_without_tls_gets_no_answer() {
    let ours = Authority::new();
    let node = Node::start_secured(Geometry::with_blocks(2048), ends(&ours)).await;
    let trusted = ours.certificate.as_bytes();
    let refused = async |tls: Option<transport::TlsClient>| {
        let mut settings = node.settings();
        settings.tls = tls;
        match timeout(PATIENCE, RemoteVolume::connect(settings)).await.expect("it ends") {
            Ok(_) => panic!("the login is accepted"),
            Err(error) => error,
        }
    };
    let client = |name| transport::TlsClient::new(None, trusted, name).unwrap();
    let required = "does not accept our certificate (CertificateRequired)";
    for (tls, cause, reason) in [
        (ends(&Authority::new()).1, DistrustCause::UnknownAuthority, "UnknownIssuer"),
        (client(None), DistrustCause::OursMissing, required),
        (client(Some("elsewhere.example")), DistrustCause::OtherName, "not valid for name"),
    ] {
        match refused(Some(tls)).await {
            Error::Tls(found) => {
                assert_eq!(found.cause, cause);
                assert!(found.reason.contains(reason), "{found}");
            }
            error => panic!("{error}"),
        }
    }
    let error = refused(None).await;
    assert!(matches!(error, Error::Closed | Error::Io(_) | Error::Dropped(_)), "{error}");

    let plain = Node::start(Geometry::with_blocks(2048)).await;
    let mut settings = plain.settings();
    settings.tls = node.settings().tls;
    let error = timeout(PATIENCE, RemoteVolume::connect(settings)).await.expect("it ends");
    // The target only closes the connection, so the initiator cannot distinguish this from a lost connection.
    assert!(matches!(error, Err(Error::Tls(_) | Error::Io(_) | Error::Closed)));
    RemoteVolume::connect(node.settings()).await.expect("others are unharmed").close().await;
}

#[tokio::test]
async fn a_redirection_is_followed_with_tls_only() {
    let tls = ends(&Authority::new());
    let node = Node::start_secured(Geometry::with_blocks(2048), tls.clone()).await;
    let plain = Node::start(Geometry::with_blocks(2048)).await;
    for (to, secured) in [(node.address, true), (plain.address, false)] {
        let redirect = Some(Redirect { address: to.to_string(), permanent: false });
        let target = Target { redirect, ..Target::new(NAME, Vec::new()) };
        let server = TargetServer::new(target::Settings::default(), vec![target]).unwrap();
        let portal = target::Portal { tls: Some(tls.0.clone()), ..node.address.into() };
        let portal = target::Portal { address: "127.0.0.1:0".parse().unwrap(), ..portal };
        let mut settings = node.settings();
        settings.portal = server.open_portal(portal).await.unwrap().to_string();
        let found = discover(&settings).await.unwrap();
        assert_eq!(found[0].name, NAME);
        let volume = timeout(PATIENCE, RemoteVolume::connect(settings)).await.expect("it ends");
        assert_eq!(volume.is_ok(), secured);
        if let Ok(volume) = volume {
            volume.close().await;
        }
    }
}

#[tokio::test]
async fn calls_fail_while_a_node_has_a_wrong_certificate_and_succeed_when_it_is_right() {
    let mut node = secured().await;
    let right = node.tls.clone();
    let mut settings = node.settings();
    settings.give_up_after = Duration::from_secs(3600);
    settings.back_off_max = Duration::from_millis(50);
    let volume = RemoteVolume::connect(settings).await.expect("a session");
    volume.write(Lba(0), blocks(0, 8, 1), Durability::Stable).await.unwrap();
    node.drop_dead().await;
    node.tls = Some(ends(&Authority::new()));
    node.start_again().await;
    let extent = Extent { lba: Lba(0), blocks: 8 };
    match timeout(PATIENCE, volume.read(extent)).await.expect("it does not wait an hour") {
        Err(volume::Error::Away(reason) | volume::Error::Unreachable(reason)) => {
            assert!(reason.contains("UnknownIssuer"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    node.drop_dead().await;
    node.tls = right;
    node.start_again().await;
    let back = async {
        while volume.read(extent).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, back).await.expect("it is found again");
    expect(&volume, 0, 8, 1).await;
    volume.close().await;
}
