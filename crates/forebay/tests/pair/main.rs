//! A pair of gateways and a node, as processes. Under load, one gateway is killed, the other takes over, the killed one
//! returns, and so on. The unit is also switched by command.

mod faults;
mod nvram;
mod scene;
#[path = "../support/mod.rs"]
mod support;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use initiator::RemoteVolume;
use scene::{GATEWAY, keeping, members, pair, settings};
use support::{Place, content, eventually, forebay, read, stderr, write};

/// A host that writes one block after another, with increasing versions, through whichever portal works.
struct Host {
    addresses: [SocketAddr; 2],
    stop: AtomicBool,
    acknowledged: AtomicU64,
    errors: AtomicU64,
}

const BLOCKS: u64 = 200;

/// For each block, the last acknowledged and the last submitted version.
type Versions = HashMap<u64, (u64, u64)>;

impl Host {
    async fn connect(&self, at: usize) -> Option<Arc<RemoteVolume>> {
        let mut settings = initiator::Settings::new(self.addresses[at].to_string(), GATEWAY, 0);
        settings.connect_time_out = Duration::from_millis(500);
        settings.login_time_out = Duration::from_secs(1);
        settings.give_up_after = Duration::from_millis(300);
        settings.command_time_out = Duration::from_secs(5);
        settings.error_recovery_level = 0;
        RemoteVolume::connect(settings).await.ok().map(Arc::new)
    }

    async fn find(&self) -> Arc<RemoteVolume> {
        for turn in 0.. {
            if let Some(volume) = self.connect(turn % 2).await {
                return volume;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        unreachable!("it turns for ever")
    }

    async fn run(&self) -> Versions {
        let mut versions = Versions::new();
        let mut volume = self.find().await;
        let mut block = 0;
        while !self.stop.load(Ordering::Relaxed) {
            block = (block * 31 + 7) % BLOCKS;
            let (_, tried) = versions.get(&block).copied().unwrap_or_default();
            let version = tried + 1;
            versions.entry(block).or_default().1 = version;
            // Repeat a failed write until it succeeds, as a host does.
            while let Err(error) = write(&*volume, block, version).await {
                self.errors.fetch_add(1, Ordering::Relaxed);
                println!("host: {error}");
                volume = self.find().await;
            }
            versions.entry(block).or_default().0 = version;
            self.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        versions
    }

    async fn goes_on(&self) {
        let before = self.acknowledged.load(Ordering::Relaxed);
        let done = || self.acknowledged.load(Ordering::Relaxed) > before + 5;
        eventually("a write", done).await;
    }

    async fn check(&self, versions: &Versions) {
        let volume = self.find().await;
        for (&block, &(acknowledged, _)) in versions {
            let found = read(&*volume, block).await.expect("read");
            assert_eq!(found, content(block, acknowledged), "block {block}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pair_loses_nothing_whichever_is_killed_and_however_often() {
    let place = Place::new();
    let far = place.serve("node", &keeping(&place, 0));
    let members = members();
    let text = [0, 1].map(|index| settings(&place, far.address, members, index, ""));
    let mut serving = [0, 1].map(|index| place.serve(members[index].name, &text[index]));
    eventually("the first of the pair", || pair(&serving[0])["role"] == "active").await;
    assert_eq!(pair(&serving[1])["role"], "standby");

    let host = Arc::new(Host {
        addresses: members.map(|member| member.address),
        stop: AtomicBool::new(false),
        acknowledged: AtomicU64::new(0),
        errors: AtomicU64::new(0),
    });
    let load = tokio::spawn({
        let host = Arc::clone(&host);
        async move { host.run().await }
    });
    host.goes_on().await;
    for active in [0, 1, 0] {
        let begun = Instant::now();
        serving[active].kill();
        host.goes_on().await;
        let paused = begun.elapsed();
        println!("{} was killed; hosts go on after {paused:?}", members[active].name);
        assert!(paused < Duration::from_secs(10), "{paused:?}");
        assert_eq!(pair(&serving[1 - active])["role"], "alone");
        // The former active gateway returns as the partner of the other, and gets all data.
        serving[active] = place.serve(members[active].name, &text[active]);
        eventually("the pair", || pair(&serving[1 - active])["role"] == "active").await;
        assert_eq!(pair(&serving[active])["role"], "standby");
        host.goes_on().await;
    }

    // A switch by command causes no error except that of the session that ends.
    let begun = Instant::now();
    let told = forebay()
        .args(["gateway", "takeover", GATEWAY, "--control"])
        .arg(&serving[1].control)
        .output()
        .expect("the binary runs");
    assert!(told.status.success(), "{}", stderr(&told));
    eventually("the partner", || pair(&serving[0])["role"] == "active").await;
    host.goes_on().await;
    println!("handed over in {:?}", begun.elapsed());
    assert_eq!(pair(&serving[1])["role"], "standby");

    host.stop.store(true, Ordering::Relaxed);
    let versions = load.await.expect("the host ends");
    host.check(&versions).await;
    let acknowledged = host.acknowledged.load(Ordering::Relaxed);
    println!("{acknowledged} writes, {} errors", host.errors.load(Ordering::Relaxed));

    // Both gateways are killed, and one starts without the other. The node's record shows that this gateway has all
    // data.
    serving[1].kill();
    serving[0].kill();
    serving[0] = place.serve(members[0].name, &text[0]);
    eventually("going on alone", || pair(&serving[0])["role"] == "alone").await;
    host.check(&versions).await;
}
