//! Several units with one log over two nodes: a counter on one volume, and the data that it counts on the other.

use std::{
    net::SocketAddr,
    process::Output,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use initiator::RemoteVolume;
use support::{Place, Serving, content, eventually, forebay, node, read, stderr, write};
use tokio::task::JoinHandle;
use volume::Volume;

use crate::support;

const GATEWAY: &str = "iqn.2026-11.test:gateway";
const COUNTER: &str = "iqn.2026-11.test:counter";
const DATA: &str = "iqn.2026-11.test:data";

/// Settings of a node that has a log of its own and supports claims.
fn with_epochs(place: &Place, name: &str, port: u16) -> String {
    let path = |end: &str| place.path(&format!("{name}.{end}")).display().to_string();
    let cache = format!(
        "}}, {{ cache = {{ log = '{}', log_size = '32MiB', dram = '8MiB', nvram_size = '1MiB', \
         report = 'at-flush' }} }} ]",
        path("log")
    );
    let text = node(place.folder.path(), port).replace("} ]", &cache);
    format!(
        "state = '{}'\n{}",
        path("state"),
        text.replace("node.img", &format!("{name}.img")).replace(":node", &format!(":{name}"))
    )
}

/// Settings of a gateway with the counter's volume as LUN 0 and the data volume as LUN 1.
fn gateway(place: &Place, counter: SocketAddr, data: SocketAddr) -> String {
    let unit = |lun: u16, address, node: &str| {
        format!(
            "[[target.unit]]\nlun = {lun}\nstack = [ {{ remote = {{ url = 'iscsi://{address}/{node}/0', \
             give_up_after = '2s' }} }}, {{ common-cache = {{ name = 'db' }} }} ]\n"
        )
    };
    format!(
        "listen = ['127.0.0.1:0']\ninitiator_name = 'iqn.2026-11.test:host'\n[[common_cache]]\nname = 'db'\n\
         [common_cache.cache]\nlog = '{}'\nlog_size = '64MiB'\ndram = '8MiB'\nnvram_size = '1MiB'\n\
         destage_idle = '1ms'\n[[target]]\nname = '{GATEWAY}'\n{}{}",
        place.path("gateway.log").display(),
        unit(0, counter, COUNTER),
        unit(1, data, DATA),
    )
}

async fn host(address: SocketAddr, target: &str, lun: u16) -> Arc<RemoteVolume> {
    let mut settings = initiator::Settings::new(address.to_string(), target, lun);
    settings.give_up_after = Duration::from_secs(2);
    Arc::new(RemoteVolume::connect(settings).await.expect("a login"))
}

struct Site {
    place: Place,
    counter: Serving,
    data: Serving,
    near: Serving,
}

impl Site {
    fn new() -> Self {
        let place = Place::new();
        let counter = place.serve("counter", &with_epochs(&place, "counter", 0));
        let data = place.serve("data", &with_epochs(&place, "data", 0));
        let text = gateway(&place, counter.address, data.address);
        let near = place.serve("gateway", &text);
        Self { place, counter, data, near }
    }

    /// Returns both volumes as a host accesses them through the gateway.
    async fn hosts(&self) -> [Arc<RemoteVolume>; 2] {
        [host(self.near.address, GATEWAY, 0).await, host(self.near.address, GATEWAY, 1).await]
    }

    fn serve_gateway(&mut self) {
        let text = gateway(&self.place, self.counter.address, self.data.address);
        self.near = self.place.serve("gateway", &text);
    }

    fn serve_data(&mut self) {
        let text = with_epochs(&self.place, "data", self.data.address.port());
        self.data = self.place.serve("data", &text);
    }

    fn tell(&self, arguments: &[&str]) -> Output {
        let mut command = forebay();
        command.args(arguments).arg("--control").arg(&self.near.control);
        command.output().expect("the binary runs")
    }

    fn figure(&self, name: &str) -> serde_json::Value {
        let status = self.near.status();
        let layers = status["targets"][0]["units"][1]["layers"].as_array().expect("layers").clone();
        let cache = layers.iter().find(|layer| layer["layer"] == "cache").expect("a cache");
        cache["figures"][name].clone()
    }

    /// Drains the log, so that the nodes have all data.
    fn drain(&self) {
        let drained = self.tell(&["gateway", "drain", GATEWAY]);
        assert!(drained.status.success(), "{}", stderr(&drained));
    }

    /// Returns the bytes that the log holds of each removed volume, as the first unit reports them.
    fn given_up_bytes(&self) -> Vec<serde_json::Value> {
        let status = self.near.status();
        let layers = status["targets"][0]["units"][0]["layers"].as_array().expect("layers").clone();
        let cache = layers.iter().find(|layer| layer["layer"] == "cache").expect("a cache");
        let given_up = cache["figures"]["given_up_bytes"].as_object().expect("an object");
        given_up.values().cloned().collect()
    }
}

/// Writes data and then the counter, again and again, until the gateway does not answer. Returns the last acknowledged
/// version.
fn count(hosts: [Arc<RemoteVolume>; 2], from: u64) -> (JoinHandle<()>, Arc<AtomicU64>) {
    let answered = Arc::new(AtomicU64::new(0));
    let last = Arc::clone(&answered);
    let writer = tokio::spawn(async move {
        let [counter, data] = hosts;
        for version in from.. {
            let put = write(&*data, version % 500, version).await;
            if put.is_err() || write(&*counter, 1, version).await.is_err() {
                break;
            }
            last.store(version, Ordering::SeqCst);
        }
    });
    (writer, answered)
}

/// Returns the value of the counter, and checks that all data which it counts is present.
async fn counted(counter: &dyn Volume, data: &dyn Volume) -> u64 {
    let found = read(counter, 1).await.expect("read");
    let version = (1..1_000_000).find(|version| content(1, *version) == found);
    let version = version.expect("a counter that was written");
    for earlier in version.saturating_sub(400).max(2)..=version {
        let block = earlier % 500;
        let found = read(data, block).await.expect("read");
        // The writer reuses a block every 500 versions, so a version that it wrote after this one may be in the
        // block.
        let is_there = (0..3).any(|later| found == content(block, earlier + later * 500));
        assert!(is_there, "the counter says {version}, and {earlier} is missing");
    }
    version
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_gateway_recovers_both_volumes_and_a_lost_node_does_not_block_hosts() {
    let mut site = Site::new();
    let (writer, answered) = count(site.hosts().await, 2);
    eventually("rounds", || site.near.figure("cache", "destage_rounds") > 3).await;
    assert_eq!(site.figure("order"), "epochs, atomic in each volume");
    site.near.kill();
    writer.await.expect("no panic");
    site.serve_gateway();
    let [counter, data] = site.hosts().await;
    let version = counted(&*counter, &*data).await;
    assert!(version >= answered.load(Ordering::SeqCst));

    // The node of the data volume is lost. The counter's volume is still served, and the gateway accepts writes to
    // both.
    site.data.kill();
    for version in 1..50 {
        write(&*data, 600, version).await.expect("the log takes it");
        write(&*counter, 2000 + version, version).await.expect("the log takes it");
        // This block is not cached, so the read shows that the node of the other volume still answers the gateway.
        assert_eq!(read(&*counter, 8000 + version).await.expect("read"), content(0, 0));
    }
    eventually("an error", || site.figure("lower_error").is_string()).await;
    assert!(site.figure("dirty_bytes").as_u64() > Some(0));
    // The gateway also starts without the lost node: the log has recorded the volume that does not answer.
    site.near.kill();
    site.serve_gateway();
    let [counter, data] = site.hosts().await;
    assert_eq!(read(&*data, 600).await.expect("it is in the log"), content(600, 49));
    site.serve_data();
    let drained = site.tell(&["gateway", "drain", &format!("{GATEWAY}/1")]);
    assert!(drained.status.success(), "{}", stderr(&drained));
    assert_eq!(site.figure("dirty_bytes"), 0);
    let held = site.figure("volumes");
    let held: Vec<_> = held.as_object().expect("both").values().cloned().collect();
    assert_eq!(held, ["held", "held"]);
    drop((counter, data));
    let Site { near, data, counter: _counter, place: _place } = site;
    assert!(near.terminate().0.success());
    let raw = host(data.address, DATA, 0).await;
    assert_eq!(read(&*raw, 600).await.expect("read"), content(600, 49));
    write(&*raw, 600, 50).await.expect("the claims were given back");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_log_both_far_volumes_hold_one_consistent_prefix() {
    let mut site = Site::new();
    let (writer, answered) = count(site.hosts().await, 2);
    eventually("rounds", || site.near.figure("cache", "destage_rounds") > 3).await;
    // After the pause and 400 more writes, no destage round is in progress, and the log holds new data.
    let paused = site.tell(&["gateway", "pause", GATEWAY]);
    assert!(paused.status.success(), "{}", stderr(&paused));
    let then = answered.load(Ordering::SeqCst);
    eventually("writes", || answered.load(Ordering::SeqCst) > then + 400).await;
    site.near.kill();
    writer.await.expect("no panic");
    // Restarted nodes discard an incomplete epoch. The two volumes must still be consistent with each other.
    site.counter.kill();
    site.data.kill();
    let text = with_epochs(&site.place, "counter", site.counter.address.port());
    site.counter = site.place.serve("counter", &text);
    site.serve_data();
    let counter = host(site.counter.address, COUNTER, 0).await;
    let data = host(site.data.address, DATA, 0).await;
    let version = counted(&*counter, &*data).await;
    assert!(version >= 2 && version < answered.load(Ordering::SeqCst));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_common_log_is_exported_and_adopted_with_all_its_units() {
    let mut site = Site::new();
    let paused = site.tell(&["gateway", "pause", GATEWAY]);
    assert!(paused.status.success(), "{}", stderr(&paused));
    let [counter, data] = site.hosts().await;
    write(&*counter, 1, 7).await.expect("written");
    write(&*data, 1, 8).await.expect("written");
    let moved = site.place.path("moved.toml");
    let config = site.place.path("gateway.toml");
    let export = forebay()
        .args(["gateway", "export", &format!("{GATEWAY}/1"), "--config"])
        .arg(&config)
        .arg("--to")
        .arg(&moved)
        .output()
        .expect("the binary runs");
    assert!(export.status.success(), "{}", stderr(&export));
    assert!(write(&*counter, 1, 9).await.is_err(), "it went with the other");
    site.near.kill();
    let text = std::fs::read_to_string(&moved).expect("written");
    assert!(text.contains("[[common_cache]]") && text.matches("serial = ").count() == 2, "{text}");
    let text =
        format!("listen = ['127.0.0.1:0']\ninitiator_name = 'iqn.2026-11.test:elsewhere'\n{text}");
    let config = site.place.write("elsewhere.toml", &text);
    let adopt = forebay()
        .args(["gateway", "adopt", GATEWAY, "--config"])
        .arg(&config)
        .output()
        .expect("the binary runs");
    assert!(adopt.status.success(), "{}", stderr(&adopt));
    site.near = site.place.serve("elsewhere", &text);
    let [counter, data] = site.hosts().await;
    let found = [read(&*counter, 1).await.expect("read"), read(&*data, 1).await.expect("read")];
    assert_eq!(found, [content(1, 7), content(1, 8)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_lost_for_good_is_removed_from_the_log_and_the_other_stays_served() {
    let mut site = Site::new();
    let [counter, data] = site.hosts().await;
    write(&*counter, 1, 1).await.expect("written");
    site.drain();
    site.data.kill();
    write(&*data, 7, 2).await.expect("the log takes it");
    write(&*data, 8, 2).await.expect("the log takes it");
    write(&*counter, 1, 3).await.expect("the log takes it");
    eventually("an error", || site.figure("lower_error").is_string()).await;
    let config = site.place.path("gateway.toml");
    let unit = format!("{GATEWAY}/1");
    let offline = |words: &[&str]| {
        let mut command = forebay();
        command.args(["gateway", words[0], &unit, "--config"]).arg(&config).args(&words[1..]);
        command.output().expect("the binary runs")
    };
    assert!(stderr(&offline(&["give-up", "--lose-dirty-data"])).contains("in use"));
    site.near.kill();

    // Remove the unit from the settings, but not from the log: then the other units are not served either, and the
    // message names the command that removes the volume.
    let whole = gateway(&site.place, site.counter.address, site.data.address);
    let at = whole.find("[[target.unit]]\nlun = 1").expect("the second unit");
    site.place.write("gateway", &whole[..at]);
    let serve = forebay().arg("serve").arg("--config").arg(&config).output().expect("it runs");
    let said = stderr(&serve);
    assert!(said.contains("holds 2 blocks") && said.contains("gateway give-up"), "{said}");
    let asked = stderr(&offline(&["give-up"]));
    assert!(asked.contains("(8192 bytes)"), "{asked}");
    let mounted = stderr(&offline(&["give-up", "--lose-dirty-data"]));
    assert!(mounted.contains("all hosts have unmounted"), "{mounted}");
    let done = offline(&["give-up", "--lose-dirty-data", "--hosts-unmounted", "--json"]);
    assert!(done.status.success(), "{}", stderr(&done));
    let told: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert_eq!((&told["unit"], &told["lost_bytes"]), (&unit.clone().into(), &8192.into()));
    assert!(stderr(&offline(&["give-up"])).contains("given up before, with 8.0 KiB"));
    let check = forebay().arg("check").arg("--config").arg(&config).output().expect("it runs");
    let check = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(check.contains("removed, with 8.0 KiB discarded"), "{check}");

    for _ in 0..2 {
        site.near = site.place.serve("gateway", &whole[..at]);
        let counter = host(site.near.address, GATEWAY, 0).await;
        assert_eq!(read(&*counter, 1).await.expect("read"), content(1, 3));
        site.drain();
        assert_eq!(site.given_up_bytes(), [8192]);
        drop(counter);
        site.near.kill();
    }

    // If the volume comes back, it is not served as if it were complete. A command admits it in its present state.
    site.serve_data();
    site.place.write("gateway", &whole);
    let serve = forebay().arg("serve").arg("--config").arg(&config).output().expect("it runs");
    let said = stderr(&serve);
    assert!(said.contains("with 2 dirty blocks") && said.contains("gateway take-in"), "{said}");
    let taken = offline(&["take-in"]);
    assert!(taken.status.success(), "{}", stderr(&taken));
    let said = String::from_utf8_lossy(&taken.stdout).into_owned();
    assert!(said.contains("8.0 KiB of acknowledged writes are missing there"), "{said}");
    site.serve_gateway();
    let [counter, data] = site.hosts().await;
    assert_eq!(read(&*data, 7).await.expect("read"), content(0, 0));
    assert_eq!(read(&*counter, 1).await.expect("read"), content(1, 3));
    write(&*data, 7, 9).await.expect("written");
    site.drain();
    assert_eq!(site.figure("given_up_bytes"), serde_json::json!({}));
}

/// A reload does not open units of a common cache that the start has refused. Neither the message of the refusal nor
/// the output of the reload may claim that a reload opens them.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_says_which_units_of_a_common_cache_are_still_not_served() {
    let place = Place::new();
    let unit = |lun: u16| {
        let path = place.path(&format!("{lun}.img"));
        format!(
            "[[target.unit]]\nlun = {lun}\nstack = [ {{ file = {{ path = '{}', size = '8MiB' }} }}, \
             {{ common-cache = {{ name = 'db' }} }} ]\n",
            path.display()
        )
    };
    let text = format!(
        "listen = ['127.0.0.1:0']\n[[common_cache]]\nname = 'db'\n[common_cache.cache]\nlog = '{}'\n\
         log_size = '64MiB'\ndram = '8MiB'\nnvram_size = '1MiB'\n[[target]]\nname = '{GATEWAY}'\n{}{}\
         [[target]]\nname = '{DATA}'\n[[target.unit]]\n\
         stack = [ {{ memory = {{ size = '8MiB' }} }} ]\n",
        place.path("gateway.log").display(),
        unit(0),
        unit(1),
    );
    let serving = place.serve("gateway", &text);
    write(&*host(serving.address, GATEWAY, 1).await, 1, 7).await.expect("written");
    assert!(serving.terminate().0.success());
    let (file, away) = (place.path("1.img"), place.path("away.img"));
    std::fs::rename(&file, &away).expect("its disk is not mounted");

    let serving = place.serve("gateway", &text);
    let refused = serving.status()["targets"][0]["refused"].to_string();
    assert!(refused.contains("is missing") && refused.contains("start again"), "{refused}");
    assert!(!refused.contains("`forebay reload`"), "{refused}");
    std::fs::rename(&away, &file).expect("mounted again");
    let mut reload = forebay();
    let output =
        reload.args(["reload", "--control"]).arg(&serving.control).output().expect("it runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    for lun in [0, 1] {
        assert!(said.contains(&format!("still not served: {GATEWAY}/{lun}: ")), "{said}");
    }
    assert!(serving.terminate().0.success());
    let serving = place.serve("gateway", &text);
    let volume = host(serving.address, GATEWAY, 1).await;
    assert_eq!(read(&*volume, 1).await.expect("read"), content(1, 7));
}

/// A slice without a size extends to the end of a file that may grow. The log recognizes the volume nevertheless.
#[tokio::test(flavor = "multi_thread")]
async fn slices_of_files_that_grow_are_the_same_volumes_to_their_log() {
    let place = Place::new();
    let unit = |lun: u16, start: &str| {
        let path = place.path(&format!("{lun}.img"));
        format!(
            "[[target.unit]]\nlun = {lun}\nstack = [ {{ file = {{ path = '{}', size = '16MiB' }} }}, \
             {{ slice = {{ start = '{start}' }} }}, {{ common-cache = {{ name = 'db' }} }} ]\n",
            path.display()
        )
    };
    let text = |first: &str| {
        format!(
            "listen = ['127.0.0.1:0']\n[[common_cache]]\nname = 'db'\n[common_cache.cache]\nlog = '{}'\n\
             log_size = '64MiB'\ndram = '8MiB'\nnvram_size = '1MiB'\n[[target]]\nname = '{GATEWAY}'\n{first}{}",
            place.path("gateway.log").display(),
            unit(1, "2MiB"),
        )
    };
    let mut served = place.serve("gateway", &text(&unit(0, "1MiB")));
    let control = served.control.to_str().expect("plain").to_owned();
    let paused = forebay().args(["gateway", "pause", GATEWAY, "--control", &control]).output();
    assert!(paused.expect("the binary runs").status.success());
    let first = host(served.address, GATEWAY, 0).await;
    write(&*first, 3000, 7).await.expect("written");
    write(&*host(served.address, GATEWAY, 1).await, 3000, 8).await.expect("written");
    served.kill();
    let file = std::fs::File::options().write(true).open(place.path("0.img")).expect("it is there");
    file.set_len(32 << 20).expect("it grows");
    let served = place.serve("gateway", &text(&unit(0, "1MiB").replace(", size = '16MiB'", "")));
    let first = host(served.address, GATEWAY, 0).await;
    assert_eq!(first.geometry().bytes(), 31 << 20);
    assert_eq!(read(&*first, 3000).await.expect("read"), content(3000, 7));
    let second = host(served.address, GATEWAY, 1).await;
    assert_eq!(read(&*second, 3000).await.expect("read"), content(3000, 8));
}

/// A log with the data of two volumes is replaced by an older copy of itself. The older copy must not be served.
#[tokio::test(flavor = "multi_thread")]
async fn a_common_log_that_was_put_back_from_a_copy_serves_neither_volume() {
    let mut site = Site::new();
    let [counter, data] = site.hosts().await;
    let log = site.place.path("gateway.log");
    let mut copy = Vec::new();
    for version in 1..3 {
        for host in [&counter, &data] {
            write(&**host, 0, version).await.expect("written");
            host.flush().await.expect("flushed");
        }
        if version == 1 {
            copy = std::fs::read(&log).expect("a log");
        }
    }
    site.near.kill();
    let newest = std::fs::read(&log).expect("a log");
    std::fs::write(&log, copy).expect("put back");
    let text = gateway(&site.place, site.counter.address, site.data.address);
    let config = site.place.path("gateway.toml").display().to_string();
    let checked = forebay().args(["check", "--config", &config]).output().expect("it runs");
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert_eq!(checked.status.code(), Some(1), "{said}");
    let told = site.place.try_serve("gateway", &text).err().expect("it is an older copy");
    for text in [said, told] {
        assert!(text.contains("older copy") && text.contains("gateway.log"), "{text}");
    }
    std::fs::write(&log, newest).expect("put back");
    site.serve_gateway();
    for host in site.hosts().await {
        assert_eq!(read(&*host, 0).await.expect("read"), content(0, 2));
    }
}
