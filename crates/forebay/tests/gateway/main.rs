//! A gateway over a node, each of them killed in several ways: no acknowledged write is lost.

#[path = "../support/mod.rs"]
mod support;
mod common_cache;
mod earlier_program;
mod epochs;
mod handover;
mod lost_files;
mod read_tier;
mod unusable_log;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use initiator::RemoteVolume;
use support::{
    Place, Serving, connect, content, eventually, gateway, node, read, run, stderr, write,
};
use volume::{Data, Durability, Lba, Volume};

const GATEWAY: &str = "iqn.2026-11.test:gateway";
const NODE: &str = "iqn.2026-11.test:node";

fn pair(place: &Place, more: &str) -> (Serving, Serving) {
    let far = place.serve("node", &node(place.folder.path(), 0));
    let near = place.serve("gateway", &gateway(place.folder.path(), far.address, more));
    (far, near)
}

/// Settings of a cache that accept a log from which data is missing.
const ACCEPTS_LOSS: &str = "accept_loss = true\nhosts_unmounted = true";

fn give_up(place: &Place, who: &str, file: &str) {
    let (file, config) = (place.path(file), place.path(&format!("{who}.toml")));
    std::fs::remove_file(&file).expect("it was made");
    let [file, config] = [file, config].map(|path| path.display().to_string());
    let told = run(&["forget", &file, "--lose-data", "--hosts-unmounted", "--config", &config]);
    assert!(told.status.success(), "{}", stderr(&told));
}

/// Writes versions to blocks 0..16 in turn until a write fails. Returns for each block the last acknowledged and the
/// last submitted version.
async fn write_until_it_fails(volume: Arc<impl Volume>) -> Vec<(u64, u64)> {
    let mut versions = vec![(0, 0); 16];
    for turn in 0_u64.. {
        let block = turn * 7 % 16;
        let version = turn + 1;
        versions[block as usize].1 = version;
        if write(&*volume, block * 3, version).await.is_err() {
            break;
        }
        versions[block as usize].0 = version;
    }
    versions
}

/// Asserts that each block holds its last acknowledged version, or the one submitted after it.
async fn assert_nothing_lost(volume: &impl Volume, versions: &[(u64, u64)]) {
    for (block, (acknowledged, submitted)) in versions.iter().enumerate() {
        let block = block as u64 * 3;
        let found = read(volume, block).await.expect("read");
        let right = [*acknowledged, *submitted].map(|version| content(block, version));
        assert!(
            right.contains(&found),
            "block {block} is not version {acknowledged} or {submitted}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_killed_while_written_to_loses_nothing() {
    let place = Place::new();
    let (far, mut near) = pair(&place, "");
    for _ in 0..3 {
        let writer = tokio::spawn(write_until_it_fails(connect(near.address, GATEWAY).await));
        eventually("commits", || near.figure("cache", "commits") > 20).await;
        near.kill();
        let versions = writer.await.expect("no panic");
        assert!(versions.iter().all(|(acknowledged, _)| *acknowledged > 0));
        near = place.serve("gateway", &gateway(place.folder.path(), far.address, ""));
        assert_nothing_lost(&*connect(near.address, GATEWAY).await, &versions).await;
        // After its restart, the gateway must destage all data to the far volume.
        eventually("destage", || near.figure("cache", "dirty_bytes") == 0).await;
        assert_nothing_lost(&*connect(far.address, NODE).await, &versions).await;
    }
}

/// The gateway logs in to the node through a portal that the same start opens.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_and_its_gateway_start_in_one_process() {
    let place = Place::new();
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("bound");
    drop(free);
    // The order of the targets in the file does not matter.
    let own = |text: String| text.trim_start().replacen("listen", "# listen", 1);
    let near = own(gateway(place.folder.path(), address, ""))
        .replace("[[target.unit]]", "listen = ['127.0.0.1:0']\n[[target.unit]]");
    let far = own(node(place.folder.path(), 0))
        .replace("[[target.unit]]", &format!("listen = ['{address}']\n[[target.unit]]"));
    let both = place.serve("both", &format!("{far}\n{near}"));
    let volume = connect(both.address, GATEWAY).await;
    write(&*volume, 5, 1).await.expect("written");
    assert_eq!(read(&*volume, 5).await.expect("read"), content(5, 1));
    drop(both);
    let both = place.serve("both", &format!("{near}\n{far}"));
    let volume = connect(address, NODE).await;
    assert!(read(&*volume, 6).await.is_ok());
    drop(both);
}

/// Both ends report the bytes that crossed the link. With a node that does not allow compression, the gateway serves
/// without compression.
#[tokio::test(flavor = "multi_thread")]
async fn data_on_the_link_is_compressed_if_both_ends_allow_it() {
    let allowed = "[iscsi]\ncompression = ['lz4', 'zstd']\n";
    for (node_settings, wanted, found) in
        [(allowed, "zstd", Some("zstd")), (allowed, "lz4", Some("lz4")), ("", "lz4", None)]
    {
        let place = Place::new();
        let folder = place.folder.path();
        let far = node(folder, 0).replacen("[[target]]", &format!("{node_settings}[[target]]"), 1);
        let far = place.serve("node", &far);
        let near = gateway(folder, far.address, "");
        let wants = format!("compression = '{wanted}', give_up_after");
        let near = place.serve("gateway", &near.replacen("give_up_after", &wants, 1));
        let volume = connect(near.address, GATEWAY).await;
        for block in 0..256 {
            write(&*volume, block, 1).await.expect("written");
        }
        volume.flush().await.expect("flushed");
        eventually("destage", || near.figure("cache", "dirty_bytes") == 0).await;
        let (out, link) =
            (near.figure("remote", "out_bytes"), near.figure("remote", "out_link_bytes"));
        assert!(out > 256 * 4096, "{out}");
        let connection = far.status()["sessions"][0]["connections"][0].clone();
        let layer = near.status()["targets"][0]["units"][0]["layers"][0]["figures"].clone();
        assert_eq!(layer["compression"].as_str(), found);
        match found {
            Some(method) => {
                assert!(link < out / 4, "{link} of {out}");
                assert_eq!(connection["compression"]["method"], method);
                let received = connection["compression"]["in_link_bytes"].as_u64().expect("bytes");
                assert!(received > 0 && received < out / 4, "{connection}");
            }
            None => {
                assert_eq!(link, out);
                assert!(connection["compression"].is_null(), "{connection}");
            }
        }
        for block in 0..256 {
            assert_eq!(read(&*volume, block).await.expect("read"), content(block, 1));
        }
    }
}

/// Checks the congestion control of the connections at node and gateway. If the host does not support the configured
/// one, connections use the kernel's default, and the status shows which one is in use.
#[tokio::test(flavor = "multi_thread")]
async fn connections_use_the_configured_congestion_control_or_that_of_the_kernel() {
    let default = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    let default = default.expect("Linux").trim().to_owned();
    for (wanted, found) in [
        ("ensemble", None),
        ("ensemble by model", None),
        ("reno", Some("reno")),
        ("nowhere", Some(&*default)),
    ] {
        let place = Place::new();
        let folder = place.folder.path();
        let node_settings = format!("[iscsi]\ncongestion = '{wanted}'\n[[target]]");
        let far = place.serve("node", &node(folder, 0).replacen("[[target]]", &node_settings, 1));
        let wants = format!("congestion = '{wanted}', connections = 2, give_up_after");
        let near = gateway(folder, far.address, "").replacen("give_up_after", &wants, 1);
        let near = place.serve("gateway", &near);
        let volume = connect(near.address, GATEWAY).await;
        for block in 0..64 {
            write(&*volume, block, 1).await.expect("written");
        }
        volume.flush().await.expect("flushed");
        eventually("destage", || near.figure("cache", "dirty_bytes") == 0).await;
        let layer = || near.status()["targets"][0]["units"][0]["layers"][0]["figures"].clone();
        eventually("both connections", || layer()["connections"] == 2).await;
        let (layer, session) = (layer(), far.status()["sessions"][0].clone());
        match (found, &layer["ensemble_members"], &session["ensemble"]["members"]) {
            (Some(name), none, nothing) => {
                assert!(none.is_null() && nothing.is_null(), "{layer} {session}");
                assert_eq!(
                    (&layer["congestion"], &session["congestion"]),
                    (&name.into(), &name.into())
                );
            }
            (None, near, far) if near.is_null() => {
                assert!(far.is_null(), "not allowed at one end, so not at the other");
                println!("no ensembles here: what the kernel gives is in use");
                assert_eq!(layer["congestion"], *default);
            }
            (None, near, far) => {
                assert_eq!((near, far), (&2.into(), &2.into()), "{layer} {session}");
                assert!(layer["congestion"].as_str().unwrap().starts_with("fairtcp"), "{layer}");
                assert!(layer["ensemble_srtt_us"].as_u64().unwrap() > 0, "{layer}");
                let is_model = wanted.ends_with("by model");
                let paths = [&layer["ensemble_path"], &session["ensemble"]["path"]];
                assert!(paths.iter().all(|it| it.is_object() == is_model), "{layer} {session}");
            }
        }
        for block in 0..64 {
            assert_eq!(read(&*volume, block).await.expect("read"), content(block, 1));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn immediate_report_survives_a_kill() {
    let place = Place::new();
    let nvram = format!("report = 'immediate'\nnvram = '{}'", place.path("nvram").display());
    let (far, mut near) = pair(&place, &nvram);
    let writer = tokio::spawn(write_until_it_fails(connect(near.address, GATEWAY).await));
    eventually("commits", || near.figure("cache", "commits") > 20).await;
    near.kill();
    let versions = writer.await.expect("no panic");
    let near = place.serve("gateway", &gateway(place.folder.path(), far.address, &nvram));
    assert_nothing_lost(&*connect(near.address, GATEWAY).await, &versions).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_with_dirty_data_is_quick_and_the_data_safe() {
    let place = Place::new();
    let (mut far, near) = pair(&place, "");
    let volume = connect(near.address, GATEWAY).await;
    write(&*volume, 1, 1).await.expect("written");
    far.kill();
    for block in 2..50 {
        write(&*volume, block, 1).await.expect("the log takes it while the node is down");
    }
    let (status, took) = tokio::task::spawn_blocking(|| near.terminate()).await.expect("no panic");
    assert!(status.success(), "{status}");
    assert!(took < Duration::from_secs(5), "{took:?}");

    // The gateway starts while the far volume is away, because the log has recorded the volume.
    let address = far.address;
    let near = place.serve("gateway", &gateway(place.folder.path(), address, ""));
    let volume = connect(near.address, GATEWAY).await;
    for block in 2..50 {
        assert_eq!(read(&*volume, block).await.expect("served from the log"), content(block, 1));
    }
    // The far volume comes back and gets all data.
    let far = place.serve("node", &node(place.folder.path(), address.port()));
    eventually("destage", || near.figure("cache", "dirty_bytes") == 0).await;
    let there = connect(far.address, NODE).await;
    for block in 1..50 {
        assert_eq!(read(&*there, block).await.expect("read"), content(block, 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_killed_under_a_serving_gateway_loses_nothing() {
    let place = Place::new();
    let (mut far, near) = pair(&place, "");
    let address = far.address;
    let volume = connect(near.address, GATEWAY).await;
    for round in 1..=3 {
        for block in 0..64 {
            write(&*volume, block, round).await.expect("taken");
        }
        far.kill();
        for block in 64..128 {
            write(&*volume, block, round).await.expect("taken while the node is down");
        }
        for block in 0..128 {
            assert_eq!(read(&*volume, block).await.expect("a hit"), content(block, round));
        }
        far = place.serve("node", &node(place.folder.path(), address.port()));
        eventually("destage", || near.figure("cache", "dirty_bytes") == 0).await;
        let there = connect(far.address, NODE).await;
        for block in 0..128 {
            assert_eq!(read(&*there, block).await.expect("read"), content(block, round));
        }
    }
}

fn serve_with_events(place: &Place, name: &str, text: &str) -> (Serving, PathBuf) {
    let path = place.path(&format!("{name}.events"));
    let file = std::fs::File::create(&path).expect("made");
    (place.serve_with(name, text, file), path)
}

/// Returns how often `words` occur in the event file so far.
fn told(events: &Path, words: &str) -> usize {
    std::fs::read_to_string(events).expect("text").matches(words).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_is_logged_once_and_its_end_once() {
    let place = Place::new();
    let mut far = place.serve("node", &node(place.folder.path(), 0));
    let settings = gateway(place.folder.path(), far.address, "");
    let (near, events) = serve_with_events(&place, "gateway", &settings);
    let volume = connect(near.address, GATEWAY).await;
    write(&*volume, 1, 1).await.expect("written");
    eventually("destage", || near.figure("cache", "dirty_bytes") == 0).await;
    far.kill();
    write(&*volume, 2, 1).await.expect("the log takes it while the node is down");
    let begins = "the far volume does not answer: dirty data stays in the log";
    eventually("the event", || told(&events, begins) > 0).await;
    // After `give_up_after` of 2 s calls fail, and destage retries.
    eventually("a failed call", || near.figure("cache", "lower_errors") > 1).await;
    let far = place.serve("node", &node(place.folder.path(), far.address.port()));
    let ends = "the far volume answers again";
    eventually("the end", || told(&events, ends) > 0).await;
    eventually("destage", || near.figure("cache", "dirty_bytes") == 0).await;
    let there = connect(far.address, NODE).await;
    assert_eq!(read(&*there, 2).await.expect("read"), content(2, 1));
    for words in [begins, ends, "lost the session", "destage has failed", "destage continues"] {
        assert_eq!(told(&events, words), 1, "{words}");
    }
}

/// Regression test: node and gateway logged the refused login every five seconds.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_starts_to_refuse_the_gateway_is_logged_once_at_both_ends() {
    let place = Place::new();
    let mut far = place.serve("node", &node(place.folder.path(), 0));
    let settings = gateway(place.folder.path(), far.address, "");
    let (_near, events) = serve_with_events(&place, "gateway", &settings);
    eventually("a session", || told(&events, "session is up") == 1).await;
    far.kill();
    // Without CHAP users, the node answers as if the target did not exist (0203).
    let another = "[[target]]\nallow = [ { initiator = 'iqn.2026-11.test:another' } ]";
    let settings = node(place.folder.path(), far.address.port()).replace("[[target]]", another);
    let (far, refusals) = serve_with_events(&place, "node", &settings);
    let refused = || far.status()["counters"]["failed_logins"].as_u64().expect("a number");
    eventually("refused logins", || refused() > 2).await;
    assert_eq!(told(&events, "the target refuses the login of this initiator"), 1);
    assert_eq!(told(&refusals, "login failed"), 1);
}

/// Several hosts may write to the volume, and a lost write could be reported to only one of them. Therefore no write
/// may be lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_without_a_cache_is_written_through() {
    let place = Place::new();
    let mut far = place.serve("node", &node(place.folder.path(), 0));
    let address = far.address;
    let text = gateway(place.folder.path(), address, "");
    let (without_cache, _) = text.rsplit_once("[[target.unit.stack]]").expect("a cache");
    let near = place.serve("gateway", without_cache);
    let volume = connect(near.address, GATEWAY).await;
    assert!(connect(address, NODE).await.geometry().volatile_cache);
    assert!(!volume.geometry().volatile_cache);
    write(&*volume, 1, 1).await.expect("written");
    far.kill();
    let _far = place.serve("node", &node(place.folder.path(), address.port()));
    assert_eq!(read(&*volume, 1).await.expect("read"), content(1, 1));
    volume.flush().await.expect("all was stable when it was answered");
}

/// Writes `blocks` blocks, from block `first` on, with one command.
async fn write_run(
    volume: &impl Volume,
    (first, blocks): (u64, u64),
    version: u64,
) -> Result<(), volume::Error> {
    let data: Vec<u8> = (first..first + blocks).flat_map(|block| content(block, version)).collect();
    volume.write(Lba(first * 8), Data::from(data), Durability::Volatile).await
}

/// Writes ascending versions until one is refused. Then all blocks must hold the last acknowledged version.
async fn overwrite_until_busy(volume: &impl Volume, run: (u64, u64), mut version: u64) {
    let refused = loop {
        match write_run(volume, run, version + 1).await {
            Ok(()) => version += 1,
            Err(error) => break error,
        }
        assert!(version < 200, "the log never fills");
    };
    assert!(matches!(refused, volume::Error::Busy(_)), "{refused}");
    for block in run.0..run.0 + run.1 {
        let found = read(volume, block).await.expect("still served");
        assert_eq!(found, content(block, version), "block {block} was changed by a refused write");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_log_without_its_far_volume_refuses_writes_and_keeps_acknowledged_data() {
    let place = Place::new();
    let mut far = place.serve("node", &node(place.folder.path(), 0));
    let text = gateway(place.folder.path(), far.address, "busy_after = '0s'");
    let events = std::fs::File::create(place.path("events")).expect("a file");
    let near = place.serve_with("gateway", &text, events);
    let told = || {
        let events = std::fs::read_to_string(place.path("events")).expect("text");
        ["fills up", "log is full", "has room again"].map(|text| events.matches(text).count())
    };
    let mut settings = initiator::Settings::new(near.address.to_string(), GATEWAY, 0);
    // Let the initiator give up a refused write after this time.
    settings.busy_time_out = Duration::from_millis(100);
    let volume = RemoteVolume::connect(settings).await.expect("a login");
    let (large, small) = ((4000, 256), (8000, 64));
    write(&volume, 0, 1).await.expect("written");
    far.kill();
    // The log has 32 MiB. The gateway checks the fill level of the log once a second, so wait for each level.
    let fill = || near.figure("cache", "log_fill_percent");
    let (mut of_large, mut of_small) = (0, 0);
    while fill() < 80 {
        of_large += 1;
        write_run(&volume, large, of_large).await.expect("there is room");
    }
    eventually("the event of 80 %", || told() == [1, 0, 0]).await;
    while fill() < 95 {
        of_small += 1;
        write_run(&volume, small, of_small).await.expect("there is room");
    }
    eventually("the event of 95 %", || told() == [2, 0, 0]).await;
    overwrite_until_busy(&volume, large, of_large).await;
    overwrite_until_busy(&volume, small, of_small).await;
    let mut taken = 1;
    // Write one block at a time until the log is full; the volume has 64 MiB.
    let refused = loop {
        match write(&volume, taken, 1).await {
            Ok(()) => taken += 1,
            Err(error) => break error,
        }
        assert!(taken < 4000, "the log never fills");
    };
    assert!(matches!(refused, volume::Error::Busy(_)), "{refused}");
    assert_eq!(fill(), 100);
    for block in [0, taken / 2, taken - 1] {
        assert_eq!(read(&volume, block).await.expect("still served"), content(block, 1));
    }
    eventually("the event of a full log", || told() == [2, 1, 0]).await;
    let _far = place.serve("node", &node(place.folder.path(), far.address.port()));
    eventually("destage", || near.figure("cache", "dirty_bytes") == 0).await;
    write(&volume, taken, 1).await.expect("taken again");
    eventually("the event of room", || told() == [2, 1, 1]).await;
}

#[test]
fn a_start_without_a_log_waits_for_the_far_volume_until_start_timeout() {
    let place = Place::new();
    let unused = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = unused.local_addr().expect("bound");
    drop(unused);
    let text = gateway(place.folder.path(), address, "")
        .replace("give_up_after", "start_timeout = '1s', give_up_after");
    let begun = Instant::now();
    let error = place.try_serve("gateway", &text).err().expect("refused");
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert!(error.contains("waiting for it") && error.contains("cannot connect"), "{error}");
    assert_eq!(error.matches("waiting for it").count(), 1, "once, not at each try: {error}");
    assert!(!place.path("gateway.log").exists(), "no log is made and filled for nothing");
    assert!(error.contains("remedy: start the target there"), "{error}");
}

#[test]
fn a_signal_ends_a_start_that_waits() {
    let place = Place::new();
    let unused = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = unused.local_addr().expect("bound");
    drop(unused);
    let config = place.write("gateway", &gateway(place.folder.path(), address, ""));
    let mut child = support::forebay()
        .args(["serve", "--config"])
        .arg(&config)
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let events = std::io::BufReader::new(child.stderr.take().expect("piped"));
    let mut lines = std::io::BufRead::lines(events).map_while(Result::ok);
    assert!(lines.any(|line| line.contains("waiting for it")));
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::TERM).expect("it runs");
    assert!(lines.any(|line| line.contains("stopping before the start is done")));
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn check_reports_the_volume_that_a_log_belongs_to() {
    let place = Place::new();
    let (far, near) = pair(&place, "");
    let text = gateway(place.folder.path(), far.address, "");
    let config = place.write("gateway", &text);
    let check = || {
        let output = run(&["check", "--config", config.to_str().expect("plain")]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        String::from_utf8(output.stdout).expect("text")
    };
    assert!(check().contains("gateway.log is in use by process"), "{}", check());
    assert!(near.terminate().0.success());
    assert!(check().contains("belongs to volume \"naa."), "{}", check());
    assert!(check().contains("last stopped cleanly"), "{}", check());
}

/// The node's file grows while a host writes through the gateway. No write fails, and the gateway reports and serves
/// the new size, also after it was killed.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_and_its_hosts_follow_the_growth_of_the_nodes_volume() {
    let place = Place::new();
    let small = node(place.folder.path(), 0);
    let (far, mut near) = pair(&place, "");
    let volume = connect(near.address, GATEWAY).await;
    assert_eq!(volume.geometry().bytes(), 64 << 20);
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (writer, stopped) = (Arc::clone(&volume), Arc::clone(&stop));
    let writing = tokio::spawn(async move {
        let mut version = 0;
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            version += 1;
            for block in 0..16 {
                write(&*writer, block, version).await.expect("no write fails");
            }
            writer.flush().await.expect("nothing was lost");
        }
        version
    });
    place.write("node", &small.replace("64MiB", "128MiB"));
    let reload = ["reload", "--control", far.control.to_str().expect("plain")];
    let output = run(&reload);
    assert!(output.status.success(), "{}", stderr(&output));
    let bytes = |of: &Serving| of.status()["targets"][0]["units"][0]["bytes"].clone();
    eventually("the gateway's new size", || bytes(&near) == 128 << 20).await;
    eventually("the host's new size", || volume.geometry().bytes() == 128 << 20).await;
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let version = writing.await.expect("no panic");
    assert_eq!(volume.statistics().recovery.reconnects, 0);
    let last = (128 << 20) / 4096 - 1;
    write(&*volume, last, 7).await.expect("written to what is new");
    near.kill();
    let near = place.serve("gateway", &gateway(place.folder.path(), far.address, ""));
    assert_eq!(bytes(&near), 128 << 20);
    let volume = connect(near.address, GATEWAY).await;
    assert_eq!(read(&*volume, last).await.expect("read"), content(last, 7));
    assert_eq!(read(&*volume, 3).await.expect("read"), content(3, version));
    eventually("destage", || near.figure("cache", "dirty_bytes") == 0).await;
    let direct = connect(far.address, NODE).await;
    assert_eq!(read(&*direct, last).await.expect("read"), content(last, 7));
}

/// Regression: the gateway created and filled its log, which takes minutes for a large one, before it checked the port.
#[tokio::test(flavor = "multi_thread")]
async fn a_port_in_use_is_noticed_before_a_log_is_made() {
    let place = Place::new();
    let far = place.serve("node", &node(place.folder.path(), 0));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let listen = format!("listen = [\"{}\"]", taken.local_addr().expect("bound"));
    let text = gateway(place.folder.path(), far.address, "")
        .replace("listen = [\"127.0.0.1:0\"]", &listen);
    let error = place.try_serve("gateway", &text).err().expect("the port is taken");
    assert!(error.contains("cannot listen on"), "{error}");
    assert!(!place.path("gateway.log").exists());
    drop(taken);
    place.serve("gateway", &text);
}
