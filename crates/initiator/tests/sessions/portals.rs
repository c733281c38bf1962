//! Tests a target with several portals on real sockets. One of them is closed, silent, of another portal group, or of a
//! gateway that does not serve the unit.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::support::{
    blocks, expect, load,
    node::{NAME, Node},
    relay::Relay,
};
use initiator::{Error, LinkState, RemoteVolume, Settings};
use target::{Portal, PortalGroup, Redirect, Target, TargetServer};
use tokio::{net::TcpListener, time::timeout};
use unit::{BlockUnit, UnitIdentity};
use volume::{
    Claim, Data, Durability, ExclusiveWriter, Extensions, Extent, Geometry, Holding, Io, Lba,
    MemVolume, Volume,
};

/// Maximum duration of a step of these tests, which normally takes much less.
const PATIENCE: Duration = Duration::from_secs(20);

fn geometry() -> Geometry {
    Geometry::with_blocks(65536)
}

/// Returns settings of a session that tries `portals` in their order.
fn settings(portals: &[SocketAddr]) -> Settings {
    let mut settings = Settings::new(portals[0].to_string(), NAME, 0);
    settings.other_portals = portals[1..].iter().map(ToString::to_string).collect();
    settings.back_off = Duration::from_millis(5);
    settings.back_off_max = Duration::from_millis(50);
    settings.offer.default_time2wait = 0;
    settings
}

/// Returns an address at which no process listens.
async fn closed() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    listener.local_addr().expect("bound")
}

async fn used(volume: &RemoteVolume, portal: SocketAddr) {
    let is_it = || volume.session().portal().is_some_and(|used| *used == *portal.to_string());
    let used = async {
        while !is_it() || !matches!(volume.session().state(), LinkState::Up) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let used = timeout(PATIENCE, used).await;
    assert!(used.is_ok(), "{portal}: {:?}", volume.session().portal());
}

async fn more(counted: &AtomicU64, by: u64) {
    let before = counted.load(Ordering::Relaxed);
    let grows = async {
        while counted.load(Ordering::Relaxed) < before + by {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, grows).await.expect("the load continues");
}

#[tokio::test]
async fn the_first_portal_that_accepts_the_login_is_used() {
    let node = Node::start(geometry()).await;
    // The first portal refuses connections, the second one accepts them but stays silent, and the third one redirects
    // to a closed address.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let redirect = Redirect { address: closed().await.to_string(), permanent: false };
    let sending = Target { redirect: Some(redirect), ..Target::new(NAME, Vec::new()) };
    let server = TargetServer::new(target::Settings::default(), vec![sending]).expect("a target");
    let address: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let sends = server.open_portal(address.into()).await.expect("loopback");
    let portals = [closed().await, silent.local_addr().expect("bound"), sends, node.address];
    let mut settings = settings(&portals);
    settings.login_time_out = Duration::from_millis(300);
    let begun = Instant::now();
    let volume = RemoteVolume::connect(settings).await.expect("the last one");
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    used(&volume, node.address).await;
    volume.close().await;
}

#[tokio::test]
async fn a_redirection_is_followed_from_each_portal() {
    let node = Node::start(geometry()).await;
    let redirect = Redirect { address: node.address.to_string(), permanent: false };
    let sending = Target { redirect: Some(redirect), ..Target::new(NAME, Vec::new()) };
    let server = TargetServer::new(target::Settings::default(), vec![sending]).expect("a target");
    let address: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let sends = server.open_portal(address.into()).await.expect("loopback");
    let volume = RemoteVolume::connect(settings(&[closed().await, sends])).await;
    let volume = volume.expect("where it is sent");
    used(&volume, node.address).await;
    volume.close().await;
}

#[tokio::test]
async fn a_portal_lost_under_load_is_replaced_by_another_and_nothing_is_lost() {
    for level in [0, 2] {
        let node = Node::start(geometry()).await;
        let (mut first, second) =
            (Relay::start(node.address).await, Relay::start(node.address).await);
        let mut settings = settings(&[first.address, second.address]);
        settings.error_recovery_level = level;
        let volume = Arc::new(RemoteVolume::connect(settings).await.expect("a session"));
        used(&volume, first.address).await;
        let (done, counted) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let writers = load(&volume, 8, &done, &counted);
        more(&counted, 40).await;
        first.close().await;
        used(&volume, second.address).await;
        more(&counted, 40).await;
        done.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.await.expect("every write and read is done");
        }
        assert_eq!(volume.statistics().calls.failures, 0);
        volume.close().await;
    }
}

#[tokio::test]
async fn writes_in_flight_through_the_former_portal_do_not_overwrite_newer_writes() {
    let node = Node::start(geometry()).await;
    let (first, second) = (Relay::start(node.address).await, Relay::start(node.address).await);
    let mut settings = settings(&[first.address, second.address]);
    settings.timing.ping_after = Duration::from_millis(100);
    settings.timing.ping_time_out = Duration::from_millis(500);
    settings.connect_time_out = Duration::from_millis(300);
    settings.login_time_out = Duration::from_millis(300);
    settings.error_recovery_level = 0;
    let volume = Arc::new(RemoteVolume::connect(settings).await.expect("a session"));
    // The relay has accepted the write and holds it back.
    first.stall(0);
    let late = tokio::spawn({
        let volume = Arc::clone(&volume);
        async move { volume.write(Lba(64), blocks(64, 64, 1), Durability::Stable).await }
    });
    used(&volume, second.address).await;
    late.await.expect("no panic").expect("written by the other portal");
    volume.write(Lba(64), blocks(64, 64, 2), Durability::Stable).await.expect("written");
    first.go_on();
    // The node has closed the old connection, so the relay cannot deliver the first write any more.
    for _ in 0..50 {
        expect(&volume, 64, 64, 2).await;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    volume.close().await;
}

/// A target with a portal in each of two groups.
#[tokio::test]
async fn a_portal_of_another_group_is_not_used_after_a_session_is_lost() {
    let node = Node::start(geometry()).await;
    let unit =
        BlockUnit::new(node.disk.clone(), UnitIdentity::new("disk-1"), unit::Settings::default());
    let unit = Arc::new(unit);
    let groups = [1, 2].map(|tag| PortalGroup { number: tag.into(), tag });
    let target = Target { groups: groups.to_vec(), ..Target::new(NAME, vec![(0, unit as _)]) };
    let server = TargetServer::new(target::Settings::default(), vec![target]).expect("a target");
    let address: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let mut open = Vec::new();
    for group in groups {
        let portal = Portal { group, ..address.into() };
        open.push(server.open_portal(portal).await.expect("loopback"));
    }
    let mut relay = Relay::start(open[0]).await;
    let mut settings = settings(&[relay.address, open[1]]);
    settings.give_up_after = Duration::from_millis(300);
    settings.error_recovery_level = 0;
    let volume = RemoteVolume::connect(settings).await.expect("a session");
    volume.write(Lba(0), blocks(0, 8, 1), Durability::Stable).await.expect("written");
    relay.close().await;
    let write = volume.write(Lba(0), blocks(0, 8, 2), Durability::Stable);
    match timeout(PATIENCE, write).await.expect("it does not wait for ever") {
        Err(volume::Error::Away(_) | volume::Error::Unreachable(_)) => {}
        other => panic!("{other:?}"),
    }
    let LinkState::Down { reason, .. } = volume.session().state() else { panic!("it is down") };
    // The reason is the error of the portal that was tried last: the one of the other group, or the closed one.
    assert!(
        reason.contains("belongs to portal group 2") || reason.contains("cannot connect"),
        "{reason}"
    );
    let direct = RemoteVolume::connect(Settings::new(open[1].to_string(), NAME, 0)).await;
    expect(&direct.expect("a session of its own"), 0, 8, 1).await;
    volume.close().await;
}

/// The unit of a gateway; while `elsewhere` is true, the gateway is standby and does not serve it.
struct Served {
    disk: Arc<MemVolume>,
    elsewhere: Arc<AtomicBool>,
}

impl Served {
    fn check(&self) -> Result<(), volume::Error> {
        match self.elsewhere.load(Ordering::SeqCst) {
            true => Err(volume::Error::Fenced("another gateway has it".into())),
            false => Ok(()),
        }
    }
}

impl Volume for Served {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        Io::new(async move {
            self.check()?;
            self.disk.read(extent).await
        })
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        Io::new(async move {
            self.check()?;
            self.disk.write(lba, data, durability).await
        })
    }

    fn flush(&self) -> Io<'_, ()> {
        self.disk.flush()
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        self.disk.discard(extent)
    }

    fn admit(&self, _: usize) -> Result<(), volume::Error> {
        Ok(())
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions { writer: Some(self), ..Extensions::default() }
    }
}

impl ExclusiveWriter for Served {
    fn claim(&self, _: Claim) -> Io<'_, Holding> {
        Io::done(Ok(Holding::Unsupported))
    }

    fn holding(&self) -> Holding {
        match self.check() {
            Ok(()) => Holding::Held,
            Err(_) => Holding::Refused("another gateway has it".into()),
        }
    }

    fn release(&self) -> Io<'_, ()> {
        Io::done(Ok(()))
    }
}

#[tokio::test]
async fn a_unit_that_moves_to_another_target_is_followed_there_and_back() {
    let disk = Arc::new(MemVolume::new(geometry()));
    let mut nodes = Vec::new();
    let elsewhere = [false, true].map(|elsewhere| Arc::new(AtomicBool::new(elsewhere)));
    for elsewhere in &elsewhere {
        let served = Served { disk: disk.clone(), elsewhere: elsewhere.clone() };
        let address = "127.0.0.1:0".parse().expect("an address");
        nodes.push(Node::serve(disk.clone(), Arc::new(served), "disk-1", address).await);
    }
    let settings = settings(&[nodes[0].address, nodes[1].address]);
    let volume = Arc::new(RemoteVolume::connect(settings.clone()).await.expect("a session"));
    let (done, counted) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let writers = load(&volume, 8, &done, &counted);
    for now in [1, 0, 1] {
        more(&counted, 40).await;
        // For a short time, neither gateway serves the unit.
        elsewhere[1 - now].store(true, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(100)).await;
        elsewhere[now].store(false, Ordering::SeqCst);
        used(&volume, nodes[now].address).await;
        more(&counted, 40).await;
    }
    done.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.expect("every write and read is done");
    }
    assert_eq!(volume.statistics().calls.failures, 0);
    volume.close().await;

    // A new initiator also finds the unit if it knows both portals. If it knows only the first one, it gets an error.
    let second = RemoteVolume::connect(settings).await.expect("at the second");
    used(&second, nodes[1].address).await;
    second.close().await;
    let refused = RemoteVolume::connect(Settings::new(nodes[0].address.to_string(), NAME, 0)).await;
    assert!(matches!(refused.as_ref().err(), Some(Error::NotServed(_))), "{:?}", refused.err());
}
