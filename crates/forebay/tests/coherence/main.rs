//! Several gateways, each with its own cache, on one volume. While nodes and gateways are killed and stopped and links
//! are cut, hosts at all gateways must see what a single disk could have returned (linearizability).
//!
//! `FOREBAY_COHERENCE_SECONDS` sets the duration; `cargo xtask test --coherence-minutes N` sets this variable.

mod clock;
mod faults;
mod linearizability;
#[path = "../support/mod.rs"]
mod support;

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use initiator::RemoteVolume;
use linearizability::{Call, fault};
use rustix::process::Signal;
use support::{
    Place, Running, Serving, connect, content, eventually, forebay, gateway, node, read, stderr,
    write,
};
use volume::{Data, Durability, Error, Extent, Lba, Volume};

const GATEWAY: &str = "iqn.2026-11.test:gateway";
const NODE: &str = "iqn.2026-11.test:node";
/// The blocks that all hosts use: a few in each of three ranges.
const BLOCKS: [u64; 9] = [0, 1, 15, 16, 17, 31, 32, 33, 47];

fn sharing(place: &Place, port: u16) -> String {
    let unit = "[[target.unit]]\nshare_grain = \"64KiB\"\nshare_lease = \"2s\"\n";
    let text = node(place.folder.path(), port).replace("[[target.unit]]\n", unit);
    format!("state = '{}'\n{text}", place.path("state").display())
}

fn sharer(place: &Place, name: &str, node: SocketAddr, port: u16) -> String {
    let text = gateway(place.folder.path(), node, "share = true")
        .replace("gateway.log", &format!("{name}.log"))
        .replace("127.0.0.1:0", &format!("127.0.0.1:{port}"));
    format!("initiator_name = 'iqn.2026-11.test:host-{name}'\n{text}")
}

struct Scene {
    place: Place,
    node: Serving,
    links: Vec<Link>,
    gateways: Vec<Serving>,
}

/// A link that can be cut. A cut link drops all data without closing connections.
struct Link {
    running: Running,
    address: SocketAddr,
}

impl Link {
    fn to(node: SocketAddr) -> Self {
        let mut command = forebay();
        command.args(["link", "--delay", "100us", "--to"]).arg(node.to_string());
        let running = support::start(&mut command).expect("a link");
        let address = running.ready.parse().expect("an address");
        Self { running, address }
    }

    fn cut(&self) {
        self.running.signal(Signal::STOP);
    }

    fn mend(&self) {
        self.running.signal(Signal::CONT);
    }
}

const NAMES: [&str; 2] = ["a", "b"];

impl Scene {
    fn new() -> Self {
        let place = Place::new();
        let node = place.serve("node", &sharing(&place, 0));
        let links: Vec<Link> = NAMES.iter().map(|_| Link::to(node.address)).collect();
        let gateways = NAMES.iter().zip(&links);
        let gateways = gateways
            .map(|(name, link)| place.serve(name, &sharer(&place, name, link.address, 0)))
            .collect();
        Self { place, node, links, gateways }
    }

    fn kill_gateway(&mut self, which: usize) {
        let port = self.gateways[which].address.port();
        self.gateways[which].kill();
        let text = sharer(&self.place, NAMES[which], self.links[which].address, port);
        self.gateways[which] = self.place.serve(NAMES[which], &text);
    }

    fn kill_node(&mut self) {
        let port = self.node.address.port();
        self.node.kill();
        self.node = self.place.serve("node", &sharing(&self.place, port));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_acknowledged_by_one_gateway_is_read_at_the_other() {
    let scene = Scene::new();
    let (a, b) = (
        connect(scene.gateways[0].address, GATEWAY).await,
        connect(scene.gateways[1].address, GATEWAY).await,
    );
    for version in 1..20 {
        for block in BLOCKS {
            let (from, to) = if version % 2 == 0 { (&a, &b) } else { (&b, &a) };
            write(&**from, block, version).await.expect("written");
            assert_eq!(read(&**to, block).await.expect("read"), content(block, version));
        }
    }
    assert!(scene.gateways[0].figure("cache", "share_recalled") > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_used_by_one_gateway_only_is_requested_once() {
    let scene = Scene::new();
    let a = connect(scene.gateways[0].address, GATEWAY).await;
    for version in 1..50 {
        write(&*a, 0, version).await.expect("written");
        assert_eq!(read(&*a, 0).await.expect("read"), content(0, version));
    }
    assert_eq!(scene.gateways[0].figure("cache", "share_waited"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_without_a_token_and_gateways_without_share_are_refused() {
    let scene = Scene::new();
    let a = connect(scene.gateways[0].address, GATEWAY).await;
    write(&*a, 0, 1).await.expect("written");
    let raw = connect(scene.node.address, NODE).await;
    let refused = write(&*raw, 0, 2).await;
    assert!(matches!(refused, Err(Error::ReadOnly)), "{refused:?}");
    let alone = sharer(&scene.place, "alone", scene.node.address, 0).replace("share = true", "");
    let said = scene.place.try_serve("alone", &alone).err().expect("it is refused");
    assert!(said.contains("shared with other gateways"), "{said}");
    // COMPARE AND WRITE would only be atomic among the initiators of one gateway, so it is refused.
    let place = Place::new();
    let plain = place.serve("node", &node(place.folder.path(), 0));
    let shares = sharer(&place, "c", plain.address, 0);
    let near = place.serve("c", &shares);
    let host = connect(near.address, GATEWAY).await;
    assert!(write(&*host, 0, 1).await.is_err(), "the node does not share it");
}

/// Other gateways wait for data that a dead gateway had acknowledged, but not for ranges that it had only read.
#[tokio::test(flavor = "multi_thread")]
async fn ranges_written_by_a_dead_gateway_stay_locked_until_it_returns() {
    let mut scene = Scene::new();
    let a = connect(scene.gateways[0].address, GATEWAY).await;
    let b = connect(scene.gateways[1].address, GATEWAY).await;
    // Pause destage, so that the data stays in the log.
    let paused = forebay()
        .args(["gateway", "pause", GATEWAY, "--control"])
        .arg(&scene.gateways[0].control)
        .output();
    assert!(paused.expect("it runs").status.success());
    write(&*a, 0, 1).await.expect("written");
    assert_eq!(read(&*a, 32).await.expect("read"), content(32, 0));
    let port = scene.gateways[0].address.port();
    scene.gateways[0].kill();
    write(&*b, 32, 2).await.expect("a lease is waited for, and no more");
    let held = b.read(Extent { lba: Lba(0), blocks: 8 });
    let held = tokio::time::timeout(Duration::from_secs(5), held).await;
    assert!(held.is_err(), "{held:?}");
    let text = sharer(&scene.place, "a", scene.node.address, port);
    scene.gateways[0] = scene.place.serve("a", &text);
    assert_eq!(read(&*b, 0).await.expect("read"), content(0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_whose_dirty_data_the_operator_discarded_is_refused_when_it_returns() {
    let mut scene = Scene::new();
    let a = connect(scene.gateways[0].address, GATEWAY).await;
    let b = connect(scene.gateways[1].address, GATEWAY).await;
    let paused = forebay()
        .args(["gateway", "pause", GATEWAY, "--control"])
        .arg(&scene.gateways[0].control)
        .output();
    assert!(paused.expect("it runs").status.success());
    write(&*a, 0, 1).await.expect("written");
    scene.gateways[0].kill();
    eventually("the session is gone", || {
        let dropped = forebay()
            .args(["claim", "drop", &format!("{NODE}/0"), "--lose-dirty-data"])
            .args(["--hosts-unmounted", "--control"])
            .arg(&scene.node.control)
            .output()
            .expect("it runs");
        dropped.status.success()
    })
    .await;
    let read_again = tokio::time::timeout(Duration::from_secs(20), async {
        loop {
            if let Ok(seen) = read(&*b, 0).await {
                return seen;
            }
        }
    });
    assert_eq!(read_again.await.expect("it is given on"), content(0, 0));
    let text = sharer(&scene.place, "a", scene.node.address, 0);
    let said = scene.place.try_serve("a", &text).err().expect("it is shut out");
    assert!(said.contains("dropped the claim"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_cut_off_reads_nothing_stale_and_loses_no_write() {
    let scene = Scene::new();
    let a = connect(scene.gateways[0].address, GATEWAY).await;
    let b = connect(scene.gateways[1].address, GATEWAY).await;
    // After these calls, gateway `a` may read the range of block 32, and write the range of block 0.
    write(&*b, 32, 1).await.expect("written");
    assert_eq!(read(&*a, 32).await.expect("read"), content(32, 1));
    write(&*a, 0, 1).await.expect("written");
    scene.links[0].cut();
    write(&*a, 0, 2).await.expect("what it holds for writing it goes on with");
    assert_eq!(read(&*a, 0).await.expect("read"), content(0, 2));

    let (newer, mended) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let reader = tokio::spawn({
        let (a, newer, mended) = (Arc::clone(&a), Arc::clone(&newer), Arc::clone(&mended));
        async move {
            let mut before = 0;
            while !mended.load(Ordering::SeqCst) {
                let is_newer = newer.load(Ordering::SeqCst);
                match read(&*a, 32).await {
                    Ok(seen) if is_newer => assert_eq!(seen, content(32, 2), "a stale read"),
                    Ok(_) => before += 1,
                    Err(_) => {}
                }
            }
            before
        }
    });
    write(&*b, 32, 2).await.expect("its lease is waited for, and no more");
    newer.store(true, Ordering::SeqCst);
    let early = tokio::time::timeout(Duration::from_secs(4), read(&*b, 0)).await;
    assert!(!matches!(early, Ok(Ok(_))), "the first one writes there still");
    write(&*a, 0, 3).await.expect("all that time");

    scene.links[0].mend();
    let found = async {
        loop {
            if let Ok(seen) = read(&*b, 0).await {
                return seen;
            }
        }
    };
    let found = tokio::time::timeout(Duration::from_secs(20), found).await;
    assert_eq!(found.expect("it is given on"), content(0, 3));
    mended.store(true, Ordering::SeqCst);
    assert!(reader.await.expect("nothing stale") > 0, "it read while it might");
    assert_eq!(read(&*a, 32).await.expect("read"), content(32, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_volume_that_grows_is_shared_as_a_whole() {
    let scene = Scene::new();
    let a = connect(scene.gateways[0].address, GATEWAY).await;
    let b = connect(scene.gateways[1].address, GATEWAY).await;
    let text = sharing(&scene.place, 0).replace("64MiB", "96MiB");
    scene.place.write("node", &text);
    let told = forebay().args(["reload", "--control"]).arg(&scene.node.control).output();
    let told = told.expect("it runs");
    assert!(told.status.success(), "{}", stderr(&told));
    // Refresh the size as a host does that rescans the disk.
    eventually("the new size", || {
        [&a, &b].into_iter().all(|host| {
            host.extensions().refresh();
            host.geometry().blocks == (96 << 20) / 512
        })
    })
    .await;
    let beyond = (80 << 20) / 4096;
    for version in 1..4 {
        write(&*a, beyond, version).await.expect("written");
        assert_eq!(read(&*b, beyond).await.expect("read"), content(beyond, version));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_lists_all_gateways_that_share_a_volume() {
    let mut scene = Scene::new();
    let a = connect(scene.gateways[0].address, GATEWAY).await;
    write(&*a, 0, 1).await.expect("written");
    scene.gateways[1].kill();
    let show = |more: &[&str]| {
        let mut command = forebay();
        command.args(["claim", "show", NODE, "--control"]).arg(&scene.node.control).args(more);
        let told = command.output().expect("it runs");
        assert!(told.status.success(), "{}", stderr(&told));
        String::from_utf8_lossy(&told.stdout).into_owned()
    };
    eventually("the second one is away", || show(&[]).contains("which is away")).await;
    let told = show(&[]);
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), 2, "{told}");
    assert!(lines[0].contains("host-a") && lines[0].contains("1 for writing"), "{told}");
    assert!(lines[1].contains("host-b") && lines[1].contains("which is away"), "{told}");
    let told: serde_json::Value = serde_json::from_str(&show(&["--json"])).expect("JSON");
    assert_eq!(told[0]["share"]["writes"], 1);
    assert_eq!(told[1]["present"], false);
}

/// The calls of all hosts with their results, by block.
#[derive(Default)]
struct Record {
    calls: Mutex<Vec<(u64, Call)>>,
    next: AtomicU64,
    stop: AtomicBool,
}

async fn host(record: Arc<Record>, address: SocketAddr, seed: u64, started: Instant) {
    let mut random = seed | 1;
    let mut volume: Option<Arc<RemoteVolume>> = None;
    let now = || started.elapsed().as_nanos() as u64 + 1;
    while !record.stop.load(Ordering::Relaxed) {
        let Some(at) = &volume else {
            let mut settings = initiator::Settings::new(address.to_string(), GATEWAY, 0);
            // Do not send an unanswered write again: it would happen twice, and the history would not show that.
            settings.give_up_after = Duration::from_millis(1);
            settings.command_time_out = Duration::from_secs(40);
            volume = RemoteVolume::connect(settings).await.ok().map(Arc::new);
            if volume.is_none() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            continue;
        };
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let block = BLOCKS[(random >> 8) as usize % BLOCKS.len()];
        let extent = Extent { lba: Lba(block * 8), blocks: 8 };
        let begun = now();
        if random.is_multiple_of(3) {
            let value = record.next.fetch_add(1, Ordering::Relaxed) + 1;
            let data = Data::from(value.to_le_bytes().repeat(512));
            let written = at.write(extent.lba, data, Durability::Volatile).await;
            let ended = written.is_ok().then(now);
            let call = Call { writes: true, value, begun, ended };
            record.calls.lock().expect("whole").push((block, call));
            if written.is_err() {
                volume = None;
            }
        } else {
            match at.read(extent).await {
                Ok(data) => {
                    let ended = Some(now());
                    let bytes = data.into_bytes();
                    let value = u64::from_le_bytes(bytes[..8].try_into().expect("eight"));
                    let is_whole = bytes.chunks(8).all(|word| word == &bytes[..8]);
                    assert!(is_whole, "a torn block {block}");
                    let call = Call { writes: false, value, begun, ended };
                    record.calls.lock().expect("whole").push((block, call));
                }
                Err(_) => volume = None,
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn hosts_of_two_gateways_see_a_linearizable_disk() {
    let seconds = std::env::var("FOREBAY_COHERENCE_SECONDS").ok();
    let seconds = seconds.and_then(|text| text.parse().ok()).unwrap_or(15);
    let mut scene = Scene::new();
    let record = Arc::new(Record::default());
    let started = Instant::now();
    let hosts: Vec<_> = (0..6)
        .map(|n| {
            let address = scene.gateways[n % 2].address;
            let seed = 0x9e37_79b9 * (n as u64 + 1);
            tokio::spawn(host(Arc::clone(&record), address, seed, started))
        })
        .collect();
    let mut faults = 0;
    while started.elapsed() < Duration::from_secs(seconds) {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        match faults % 5 {
            0 => scene.kill_gateway(0),
            // Stop the gateway for longer than its lease. When it continues, it must not use the ranges that it held
            // before.
            1 => {
                scene.gateways[1].signal(Signal::STOP);
                tokio::time::sleep(Duration::from_millis(2600)).await;
                scene.gateways[1].signal(Signal::CONT);
            }
            2 => scene.kill_node(),
            3 => {
                scene.links[0].cut();
                tokio::time::sleep(Duration::from_millis(2600)).await;
                scene.links[0].mend();
            }
            _ => scene.kill_gateway(1),
        }
        faults += 1;
    }
    // Without further faults, all waiting calls must complete.
    tokio::time::sleep(Duration::from_secs(3)).await;
    record.stop.store(true, Ordering::Relaxed);
    for host in hosts {
        tokio::time::timeout(Duration::from_secs(60), host)
            .await
            .expect("it ends")
            .expect("no panic");
    }
    let calls = std::mem::take(&mut *record.calls.lock().expect("whole"));
    let answered = calls.iter().filter(|(_, call)| call.ended.is_some()).count();
    let written = calls.iter().filter(|(_, call)| call.writes && call.ended.is_some()).count();
    println!("{answered} calls answered, {written} of them writes, {faults} faults");
    for block in BLOCKS {
        let of: Vec<Call> =
            calls.iter().filter(|(of, _)| *of == block).map(|(_, call)| *call).collect();
        if let Some(fault) = fault(&of) {
            panic!("block {block}: {fault}");
        }
    }
    assert!(written > 100 && answered > 3 * written / 2, "too little was done to show anything");
}
