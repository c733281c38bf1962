//! The owner of the dirty data of a node's volume: claims, and gateways that are fenced.

use std::{
    net::SocketAddr,
    ops::Range,
    path::{Path, PathBuf},
    process::Output,
    sync::Arc,
};

use initiator::RemoteVolume;
use support::{
    Place, Serving, connect, content, eventually, forebay, gateway, node, read, run, stderr, write,
};
use volume::Volume;

use crate::support;

const GATEWAY: &str = "iqn.2026-11.test:gateway";
const NODE: &str = "iqn.2026-11.test:node";

/// A node that supports claims.
fn keeping(place: &Place, port: u16) -> String {
    format!("state = '{}'\n{}", place.path("state").display(), node(place.folder.path(), port))
}

/// Settings of a gateway on another host: with another name, and a log and a state folder with that name.
fn other_gateway(place: &Place, name: &str, node: SocketAddr, more: &str) -> String {
    let text = gateway(place.folder.path(), node, more)
        .replace("gateway.log", &format!("{name}.log"))
        .replace("give_up_after = \"2s\"", "give_up_after = \"2s\", connections = 1");
    format!("initiator_name = 'iqn.2026-11.test:host-{name}'\nstate = 'state-of-{name}'\n{text}")
}

fn pair(place: &Place, more: &str) -> (Serving, Serving) {
    let far = place.serve("node", &keeping(place, 0));
    let near = place.serve("a", &other_gateway(place, "a", far.address, more));
    (far, near)
}

/// A node with a gateway, and a host at the gateway that has written these blocks.
async fn pair_with(
    place: &Place,
    more: &str,
    blocks: Range<u64>,
) -> (Serving, Serving, Arc<RemoteVolume>) {
    let (far, near) = pair(place, more);
    let volume = connect(near.address, GATEWAY).await;
    write_all(&*volume, blocks, 1).await;
    (far, near, volume)
}

/// The gateway that uses the log now, and a host at it that reads these blocks.
async fn taken_up(place: &Place, text: &str, blocks: Range<u64>) -> (Serving, Arc<RemoteVolume>) {
    let later = place.serve("b", text);
    let volume = connect(later.address, GATEWAY).await;
    check_all(&*volume, blocks, 1).await;
    (later, volume)
}

fn copy(from: PathBuf, to: PathBuf) {
    std::fs::copy(from, to).expect("copied");
}

fn tell(control: &Path, arguments: &[&str]) -> Output {
    forebay().args(arguments).arg("--control").arg(control).output().expect("the binary runs")
}

fn drain(gateway: &Serving) {
    succeeded(&tell(&gateway.control, &["gateway", "drain", GATEWAY]));
}

async fn write_all(volume: &dyn Volume, blocks: Range<u64>, version: u64) {
    for block in blocks {
        write(volume, block, version).await.expect("written");
    }
}

async fn check_all(volume: &dyn Volume, blocks: Range<u64>, version: u64) {
    for block in blocks {
        assert_eq!(read(volume, block).await.expect("read"), content(block, version));
    }
}

fn cache_figure(serving: &Serving, name: &str) -> String {
    let status = serving.status();
    let layers = status["targets"][0]["units"][0]["layers"].as_array().expect("layers").clone();
    let cache = layers.iter().find(|layer| layer["layer"] == "cache").expect("a cache");
    cache["figures"][name].as_str().unwrap_or_default().to_owned()
}

fn claim(serving: &Serving) -> serde_json::Value {
    serving.status()["targets"][0]["units"][0]["claim"].clone()
}

/// Data is not destaged with these settings.
const KEEPS: &str = "destage_idle = '30s'\ndirty_age = '1h'\ndestage_threshold = 0.9";

#[tokio::test(flavor = "multi_thread")]
async fn nobody_writes_past_a_gateway_and_all_may_again_when_it_has_gone() {
    let place = Place::new();
    let (mut far, near) = pair(&place, KEEPS);
    let volume = connect(near.address, GATEWAY).await;
    write(&*volume, 1, 1).await.expect("written");
    assert_eq!(cache_figure(&near, "claim"), "held");
    let told = claim(&far);
    assert_eq!(told["owner"], "iqn.2026-11.test:host-a");
    assert!(told["held"] == true && told["dirty"] == true && told["present"] == true, "{told}");

    let raw = connect(far.address, NODE).await;
    let refused = write(&*raw, 1, 7).await.expect_err("refused");
    assert!(matches!(refused, volume::Error::ReadOnly), "{refused}");
    // An older image, but a consistent one.
    assert_eq!(read(&*raw, 1).await.expect("read"), content(1, 0));
    let shown = tell(&far.control, &["claim", "show", NODE]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("its newest data is with iqn.2026-11.test:host-a"), "{shown}");

    // The claim survives a restart of the node, and the gateway's session presents it again.
    let address = far.address;
    far.kill();
    let far = place.serve("node", &keeping(&place, address.port()));
    let raw = connect(far.address, NODE).await;
    write(&*raw, 1, 7).await.expect_err("still refused");
    drain(&near);
    assert_eq!(read(&*raw, 1).await.expect("read"), content(1, 1));

    drop(volume);
    assert!(near.terminate().0.success());
    write(&*raw, 1, 7).await.expect("nobody has it any more");
    assert_eq!(claim(&far)["held"], false);
    // The same log is accepted again.
    let near = place.serve("a", &other_gateway(&place, "a", far.address, ""));
    assert_eq!(cache_figure(&near, "claim"), "held");
    let volume = connect(near.address, GATEWAY).await;
    assert_eq!(read(&*volume, 1).await.expect("read"), content(1, 7));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_killed_with_dirty_data_keeps_its_claim_and_comes_back() {
    let place = Place::new();
    let (far, mut near, _volume) = pair_with(&place, KEEPS, 0..20).await;
    for _ in 0..3 {
        near.kill();
        let raw = connect(far.address, NODE).await;
        write(&*raw, 1, 7).await.expect_err("its dirty data is away, not gone");
        let other = other_gateway(&place, "b", far.address, "");
        let error = place.try_serve("b", &other).err().expect("another log is refused");
        assert!(error.contains("iqn.2026-11.test:host-a"), "{error}");
        near = place.serve("a", &other_gateway(&place, "a", far.address, KEEPS));
    }
    drain(&near);
    let raw = connect(far.address, NODE).await;
    check_all(&*raw, 0..20, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_copied_from_a_killed_gateway_is_taken_up_and_the_old_one_shut_out() {
    let place = Place::new();
    let (far, mut near, _volume) = pair_with(&place, KEEPS, 0..200).await;
    near.kill();
    copy(place.path("a.log"), place.path("b.log"));
    let text = other_gateway(&place, "b", far.address, KEEPS);
    // The node keeps the session of the killed gateway for a while, and does not know that it is gone.
    succeeded(&adopt(&place, "b", &text));
    let (later, volume) = taken_up(&place, &text, 0..200).await;
    write(&*volume, 0, 99).await.expect("and written");
    drain(&later);

    // The old one starts again, more often than the new one did, but is never admitted.
    for more in ["", "accept_loss = true", ""] {
        let old = other_gateway(&place, "a", far.address, more);
        let error = place.try_serve("a", &old).err().expect("shut out");
        assert!(error.contains("taken up by iqn.2026-11.test:host-b as generation"), "{error}");
    }
    assert_eq!(cache_figure(&later, "claim"), "held");
    let raw = connect(far.address, NODE).await;
    assert_eq!(read(&*raw, 0).await.expect("read"), content(0, 99));
    check_all(&*raw, 1..200, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_became_dirty_while_its_claim_waited_does_not_go_over_newer_data() {
    let place = Place::new();
    let (mut far, mut near) = pair(&place, "");
    let address = far.address;
    assert!(near.terminate().0.success(), "its claim is given back");
    far.kill();
    // It starts without a link, with a clean log, and accepts writes.
    near = place.serve("a", &other_gateway(&place, "a", address, KEEPS));
    assert_eq!(cache_figure(&near, "claim"), "waiting");
    let volume = connect(near.address, GATEWAY).await;
    write(&*volume, 1, 1).await.expect("written");
    // Meanwhile another one reaches the node, and releases its claim.
    far = place.serve("node", &keeping(&place, 0));
    let other = place.serve("b", &other_gateway(&place, "b", far.address, ""));
    let elsewhere = connect(other.address, GATEWAY).await;
    write(&*elsewhere, 1, 7).await.expect("written");
    drain(&other);
    drop(elsewhere);
    assert!(other.terminate().0.success());
    far.kill();

    far = place.serve("node", &keeping(&place, address.port()));
    eventually("an answer", || cache_figure(&near, "claim") != "waiting").await;
    let holding = cache_figure(&near, "claim");
    assert!(holding.contains("the data in this log may be older"), "{holding}");
    let raw = connect(far.address, NODE).await;
    assert_eq!(read(&*raw, 1).await.expect("read"), content(1, 7));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_restored_from_an_older_backup_is_told_with_both_generations() {
    let place = Place::new();
    let (mut far, mut near) = pair(&place, KEEPS);
    let address = far.address;
    let volume = connect(near.address, GATEWAY).await;
    write(&*volume, 1, 1).await.expect("written");
    near.kill();
    far.kill();
    // The backup has only the first opening.
    let state: Vec<_> = std::fs::read_dir(place.path("state"))
        .expect("state")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "claim"))
        .collect();
    copy(state[0].clone(), place.path("backup"));
    let far = place.serve("node", &keeping(&place, address.port()));
    for _ in 0..2 {
        near = place.serve("a", &other_gateway(&place, "a", address, KEEPS));
        near.kill();
    }
    drop(far);
    copy(place.path("backup"), state[0].clone());
    let far = place.serve("node", &keeping(&place, address.port()));
    let error = place.try_serve("a", &other_gateway(&place, "a", address, KEEPS));
    let error = error.err().expect("refused");
    assert!(error.contains("as generation 2") && error.contains("was generation 4"), "{error}");
    // The operator decides.
    let near = place.serve("a", &other_gateway(&place, "a", address, "accept_loss = true"));
    let volume = connect(near.address, GATEWAY).await;
    assert_eq!(read(&*volume, 1).await.expect("read"), content(1, 1));
    drop(far);
}

/// It uses the volume with knowledge of its later state.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_restored_under_a_gateway_that_goes_on_is_told_with_both_generations() {
    let place = Place::new();
    let (mut far, mut near) = pair(&place, "");
    let address = far.address;
    let record = std::fs::read_dir(place.path("state"))
        .expect("state")
        .map(|entry| entry.expect("an entry").path())
        .find(|path| path.extension().is_some_and(|kind| kind == "claim"))
        .expect("a claim");
    near.kill();
    copy(record.clone(), place.path("backup"));
    near = place.serve("a", &other_gateway(&place, "a", address, ""));
    let volume = connect(near.address, GATEWAY).await;
    write(&*volume, 1, 1).await.expect("written");
    drain(&near);
    far.kill();
    copy(place.path("backup"), record);
    let far = place.serve("node", &keeping(&place, address.port()));
    eventually("it is told", || cache_figure(&near, "claim").starts_with("fenced")).await;
    let told = cache_figure(&near, "claim");
    assert!(told.contains("as generation 2") && told.contains("was generation 3"), "{told}");
    assert!(write(&*volume, 2, 1).await.is_err() && read(&*volume, 1).await.is_err());
    drop(far);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_who_drops_a_claim_is_warned_and_the_gateway_told() {
    let place = Place::new();
    let (far, near) = pair(&place, KEEPS);
    let volume = connect(near.address, GATEWAY).await;
    write(&*volume, 1, 1).await.expect("written");
    let output = tell(&far.control, &["claim", "drop", NODE]);
    assert!(!output.status.success());
    let warning = stderr(&output);
    assert!(warning.contains("would be lost") && warning.contains("host-a"), "{warning}");
    let output = tell(&far.control, &["claim", "drop", NODE, "--lose-dirty-data"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let raw = connect(far.address, NODE).await;
    write(&*raw, 1, 7).await.expect("anybody may");
    // It notices it although it has nothing to send.
    eventually("the fence", || cache_figure(&near, "claim").contains("dropped")).await;
    eventually("an error", || {
        let runtime = tokio::runtime::Handle::current();
        let read = read(&*volume, 1);
        tokio::task::block_in_place(|| runtime.block_on(read)).is_err()
    })
    .await;
    let error = write(&*volume, 2, 1).await.expect_err("and taken no more");
    assert!(error.to_string().contains("04/03"), "{error}");
    assert_eq!(read(&*raw, 1).await.expect("read"), content(1, 7));
    let error = near.terminate();
    assert!(error.0.success());
    let error = place.try_serve("a", &other_gateway(&place, "a", far.address, ""));
    assert!(error.err().expect("refused").contains("dropped the claim"));
}

fn export(place: &Place, name: &str) -> Output {
    let (config, to) = (place.path(&format!("{name}.toml")), place.path("moved.toml"));
    let mut command = forebay();
    command.args(["gateway", "export", GATEWAY, "--config"]).arg(config).arg("--to").arg(to);
    command.output().expect("the binary runs")
}

/// Runs `forebay gateway adopt` with these settings.
fn adopt(place: &Place, name: &str, text: &str) -> Output {
    let config = place.write(name, text);
    let mut command = forebay();
    command.args(["gateway", "adopt", GATEWAY, "--config"]).arg(config);
    command.output().expect("the binary runs")
}

fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{}", stderr(output));
    stderr(output)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_a_killed_gateway_is_adopted_and_nothing_is_lost() {
    let place = Place::new();
    let (far, mut near, _volume) = pair_with(&place, KEEPS, 0..200).await;
    near.kill();
    copy(place.path("a.log"), place.path("b.log"));
    let text = other_gateway(&place, "b", far.address, KEEPS);
    let told = succeeded(&adopt(&place, "b", &text));
    assert!(told.contains("generation 3") && told.contains("800.0 KiB"), "{told}");
    let old = other_gateway(&place, "a", far.address, "");
    let error = place.try_serve("a", &old).err().expect("shut out before the new one serves");
    assert!(error.contains("taken up by iqn.2026-11.test:host-b"), "{error}");
    let (later, _volume) = taken_up(&place, &text, 0..200).await;
    drain(&later);
    let raw = connect(far.address, NODE).await;
    check_all(&*raw, 0..200, 1).await;
    let error = place.try_serve("a", &old).err().expect("and after");
    assert!(error.contains("taken up by iqn.2026-11.test:host-b"), "{error}");
    // Another copy is not adopted either.
    copy(place.path("a.log"), place.path("c.log"));
    let error = refused(&adopt(&place, "c", &other_gateway(&place, "c", far.address, "")));
    assert!(error.contains("taken up by iqn.2026-11.test:host-b"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_at_work_is_shut_out_by_an_adoption_and_not_by_an_accident() {
    let place = Place::new();
    let (far, near, volume) = pair_with(&place, KEEPS, 0..20).await;
    copy(place.path("a.log"), place.path("b.log"));
    let text = other_gateway(&place, "b", far.address, KEEPS);
    let error = place.try_serve("b", &text).err().expect("somebody is at work");
    assert!(error.contains("iqn.2026-11.test:host-a uses a copy of this log"), "{error}");
    write(&*volume, 3, 1).await.expect("who noticed nothing");

    succeeded(&adopt(&place, "b", &text));
    eventually("the fence", || cache_figure(&near, "claim").contains("host-b")).await;
    let error = write(&*volume, 1, 7).await.expect_err("taken no more");
    assert!(error.to_string().contains("04/03"), "{error}");
    assert!(read(&*volume, 1).await.is_err(), "what it has is older than the volume");
    let later = place.serve("b", &text);
    let volume = connect(later.address, GATEWAY).await;
    write_all(&*volume, 0..20, 2).await;
    drain(&later);
    // The old one still has dirty data and cannot destage it.
    assert_eq!(near.figure("cache", "dirty_bytes"), 20 * 4096);
    let error = refused(&tell(&near.control, &["gateway", "drain", GATEWAY]));
    assert!(error.contains("taken up by iqn.2026-11.test:host-b"), "{error}");
    assert!(near.terminate().0.success());
    let raw = connect(far.address, NODE).await;
    check_all(&*raw, 0..20, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exported_log_is_whole_without_its_nvram_and_taken_up_by_the_settings_told() {
    let place = Place::new();
    let nvram = format!("{KEEPS}\nreport = 'immediate'\nnvram = '{}'", place.path("nv").display());
    let (far, near, volume) = pair_with(&place, &nvram, 0..100).await;
    succeeded(&export(&place, "a"));
    let error = write(&*volume, 1, 7).await.expect_err("taken no more");
    assert!(error.to_string().contains("04/03"), "{error}");
    // Path checkers of hosts see it as well.
    let anew = initiator::Settings::new(near.address.to_string(), GATEWAY, 0);
    let anew = RemoteVolume::connect(anew).await.err();
    assert!(matches!(anew, Some(initiator::Error::NotServed(_))), "{anew:?}");
    let other = connect(far.address, NODE).await;
    write(&*other, 1, 7).await.expect_err("the volume stays claimed");
    // The command may be repeated, and a stop does not change the log.
    succeeded(&export(&place, "a"));
    let moved = std::fs::read_to_string(place.path("moved.toml")).expect("settings");
    let before = std::fs::read(place.path("a.log")).expect("the log");
    assert!(near.terminate().0.success());
    assert!(before == std::fs::read(place.path("a.log")).expect("the log"), "it was written to");
    assert!(moved.contains("400.0 KiB not at the far side"), "{moved}");
    assert!(moved.contains("serial = "), "{moved}");
    std::fs::rename(place.path("a.log"), place.path("b.log")).expect("moved");

    let text = moved.replace("a.log", "b.log").replace("/nv", "/nv-of-b");
    let text =
        format!("initiator_name = 'iqn.2026-11.test:host-b'\nlisten = ['127.0.0.1:0']\n{text}");
    succeeded(&adopt(&place, "b", &text));
    let (later, _volume) = taken_up(&place, &text, 0..100).await;
    drain(&later);
    check_all(&*other, 0..100, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_gateway_is_exported_too_and_what_its_nvram_held_with_it() {
    let place = Place::new();
    let nvram = format!("{KEEPS}\nreport = 'immediate'\nnvram = '{}'", place.path("nv").display());
    let (far, mut near, _volume) = pair_with(&place, &nvram, 0..100).await;
    near.kill();
    copy(place.path("a.log"), place.path("c.log"));
    // Without the NVRAM and without an export, the message says what is missing.
    let error = refused(&adopt(&place, "c", &other_gateway(&place, "c", far.address, KEEPS)));
    assert!(error.contains("reported writes from its NVRAM, which is not configured"), "{error}");

    succeeded(&export(&place, "a"));
    copy(place.path("a.log"), place.path("b.log"));
    let text = other_gateway(&place, "b", far.address, KEEPS);
    succeeded(&adopt(&place, "b", &text));
    let (_later, _volume) = taken_up(&place, &text, 0..100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_does_not_fit_or_is_not_whole_is_not_adopted() {
    let place = Place::new();
    let (far, mut near, _volume) = pair_with(&place, KEEPS, 0..20).await;
    near.kill();
    let text = other_gateway(&place, "b", far.address, "");
    let error = refused(&adopt(&place, "b", &text));
    assert!(error.contains("there is no log at"), "nothing is made: {error}");
    assert!(!place.path("b.log").exists());
    copy(place.path("a.log"), place.path("b.log"));
    // Another volume.
    let other = Place::new();
    let stranger = node(other.folder.path(), 0)
        .replace("[[target.unit]]\n", "[[target.unit]]\nserial = 'OTHER'\n");
    let stranger = other.serve("node", &format!("state = 'state'\n{stranger}"));
    let elsewhere = other_gateway(&place, "b", stranger.address, "");
    let error = refused(&adopt(&place, "b", &elsewhere));
    assert_eq!(error.matches("naa.").count(), 2, "both are named: {error}");
    // Truncated.
    let whole = std::fs::read(place.path("b.log")).expect("read");
    std::fs::write(place.path("b.log"), &whole[..whole.len() / 2]).expect("written");
    let error = refused(&adopt(&place, "b", &text.replace("log_size = \"32MiB\"", "")));
    assert!(error.contains("has 8192 blocks"), "{error}");
    // Zeroed.
    std::fs::write(place.path("b.log"), vec![0; whole.len()]).expect("written");
    let error = refused(&adopt(&place, "b", &text));
    assert!(error.contains("is blank"), "{error}");
    // The volume still waits for the right file, whose own size is used.
    std::fs::write(place.path("b.log"), whole).expect("written");
    succeeded(&adopt(&place, "b", &text.replace("32MiB", "16MiB")));
}

/// The settings there determine how it continues, and what does not fit the log is refused. In both cases the log
/// keeps its data.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_comes_to_other_settings_loses_nothing() {
    let place = Place::new();
    let (far, mut near, _volume) = pair_with(&place, KEEPS, 0..50).await;
    near.kill();
    copy(place.path("a.log"), place.path("b.log"));
    for name in ["secret", "key"] {
        let path = place.path(&format!("of-b.{name}")).display().to_string();
        let made = match name {
            "secret" => support::run(&["secret", &path, "--characters", "64"]),
            _ => {
                let secret = place.path("of-b.secret").display().to_string();
                support::run(&["key", &path, "--secret-file", &secret])
            }
        };
        assert!(made.status.success(), "{}", stderr(&made));
    }
    let b = |more: &str| other_gateway(&place, "b", far.address, more);
    let key = format!(
        "log_key = '{}'\nlog_secret_file = '{}'",
        place.path("of-b.key").display(),
        place.path("of-b.secret").display()
    );
    let mirror = format!("log_mirror = '{}'", place.path("b2.log").display());
    for (more, words) in [
        (key.as_str(), "not encrypted"),
        ("share = true", "shared"),
        (mirror.as_str(), "without a mirror"),
    ] {
        let error = refused(&adopt(&place, "b", &b(more)));
        assert!(error.contains(words), "{more}: {error}");
    }
    let nvram = format!("nvram = '{}'\nreport = 'immediate'", place.path("nv-of-b").display());
    let larger = b(&format!("{KEEPS}\n{nvram}"))
        .replace("log_size = \"32MiB\"", "log_size = \"64MiB\"")
        .replace("dram = \"8MiB\"", "dram = \"16MiB\"")
        .replace("nvram_size = \"1MiB\"", "nvram_size = \"2MiB\"");
    succeeded(&adopt(&place, "b", &larger));
    let (mut later, volume) = taken_up(&place, &larger, 0..50).await;
    write_all(&*volume, 50..60, 1).await;
    later.kill();
    // To others again, with data that may be only in its NVRAM.
    let relaxed = b(&format!("order = 'relaxed'\non_log_error = 'write-through'\n{nvram}"))
        .replace("nvram_size = \"1MiB\"", "nvram_size = \"2MiB\"");
    let (later, _volume) = taken_up(&place, &relaxed, 0..60).await;
    drain(&later);
    let raw = connect(far.address, NODE).await;
    check_all(&*raw, 0..60, 1).await;
}

/// Returns the confirmed writes of the log at the node, as CLAIM OUT has reported them.
fn confirmed(far: &Serving) -> u64 {
    claim(far)["confirmed"].as_u64().unwrap_or(0)
}

/// Starts a process that writes to `target`, copies `files` while it runs, writes again, kills the process, and
/// restores the copy. Returns the message of the next start.
async fn put_back(
    place: &Place,
    far: Option<&Serving>,
    (name, text): (&str, &str),
    (target, files): (&str, &[&str]),
) -> String {
    let mut serving = place.serve(name, text);
    let volume = connect(serving.address, target).await;
    write_all(&*volume, 0..20, 1).await;
    volume.flush().await.expect("flushed");
    for file in files {
        copy(place.path(file), place.path(&format!("{file}.old")));
    }
    write_all(&*volume, 0..20, 2).await;
    volume.flush().await.expect("flushed");
    if let Some(far) = far {
        // Two rounds of twenty writes; each write has a number.
        eventually("the confirmed number", || confirmed(far) >= 40).await;
    }
    serving.kill();
    if far.is_some() {
        // Now only the node has the newest number of the log.
        std::fs::remove_dir_all(place.path(&format!("state-of-{name}"))).expect("removed");
    }
    for file in files {
        copy(place.path(file), place.path(&format!("{file}.new")));
        copy(place.path(&format!("{file}.old")), place.path(file));
    }
    let error = place.try_serve(name, text).err().expect("an older copy is refused");
    // The newest files are accepted, with everything that was flushed.
    for file in files {
        copy(place.path(&format!("{file}.new")), place.path(file));
    }
    let serving = place.serve(name, text);
    let volume = connect(serving.address, target).await;
    check_all(&*volume, 0..20, 2).await;
    error
}

const IMMEDIATE: &str = "report = 'immediate'\nnvram = 'a.nvram'";

/// K3: log and NVRAM of one opening are restored together. Nothing in them shows that they are old.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_log_and_nvram_is_refused_by_the_claim_at_the_node() {
    for (more, files) in [
        (KEEPS.to_owned(), &["a.log"][..]),
        (format!("{KEEPS}\n{IMMEDIATE}"), &["a.log", "a.nvram"]),
    ] {
        let place = Place::new();
        let far = place.serve("node", &keeping(&place, 0));
        let text = other_gateway(&place, "a", far.address, &more);
        let error = put_back(&place, Some(&far), ("a", &text), (GATEWAY, files)).await;
        assert!(error.contains("is an older copy of itself: it ends at write"), "{error}");
        assert!(error.contains("claim drop") && error.contains("remove it (`rm "), "{error}");
    }
}

/// K3 without claims: the newest number is in the state folder of the process that has the log.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_log_and_nvram_is_refused_by_the_state_folder() {
    for (more, files) in [
        (KEEPS.to_owned(), &["a.log"][..]),
        (format!("{KEEPS}\n{IMMEDIATE}"), &["a.log", "a.nvram"]),
    ] {
        let place = Place::new();
        let far = place.serve("node", &node(place.folder.path(), 0));
        let text = other_gateway(&place, "a", far.address, &more);
        let error = put_back(&place, None, ("a", &text), (GATEWAY, files)).await;
        assert!(error.contains("log and NVRAM are an older copy: they end at write"), "{error}");
        assert!(error.contains("accept_loss") && error.contains("claim drop"), "{error}");
    }
    // The log of a node whose writes become stable with the next flush.
    let place = Place::new();
    let cache = "}, { cache = { log = 'a.log', log_size = '32MiB', dram = '8MiB', nvram_size = '1MiB', \
                 report = 'at-flush', destage_idle = '30s', dirty_age = '1h' } } ]";
    let text = node(place.folder.path(), 0).replace("} ]", cache);
    let text = format!("state = 'state'\n{text}");
    let error = put_back(&place, None, ("node", &text), (NODE, &["a.log"])).await;
    assert!(error.contains("log and NVRAM are an older copy: they end at write"), "{error}");
}

/// The other remedy of the refusal: newer data of the node stays.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_copy_that_is_given_up_writes_over_nothing() {
    let place = Place::new();
    let far = place.serve("node", &keeping(&place, 0));
    let text = other_gateway(&place, "a", far.address, KEEPS);
    let mut near = place.serve("a", &text);
    let volume = connect(near.address, GATEWAY).await;
    write_all(&*volume, 0..20, 1).await;
    copy(place.path("a.log"), place.path("a.log.old"));
    // The newest log destages its data before it is lost.
    write_all(&*volume, 0..20, 2).await;
    drain(&near);
    eventually("the confirmed number", || confirmed(&far) >= 40).await;
    near.kill();
    copy(place.path("a.log.old"), place.path("a.log"));
    place.try_serve("a", &text).err().expect("refused");
    succeeded(&tell(&far.control, &["claim", "drop", NODE, "--lose-dirty-data"]));
    let log = std::fs::File::options().write(true).open(place.path("a.log")).expect("opened");
    std::io::Write::write_all(&mut &log, &vec![0; 1 << 20]).expect("written");
    let [file, config] = ["a.log", "a.toml"].map(|name| place.path(name).display().to_string());
    succeeded(&run(&["forget", &file, "--lose-data", "--config", &config]));
    let near = place.serve("a", &text);
    drain(&near);
    let raw = connect(far.address, NODE).await;
    check_all(&*raw, 0..20, 2).await;
}

/// The state folder of a host has older numbers than a log that was used elsewhere meanwhile, and none of a log
/// that it has never seen.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_goes_to_another_host_and_back_is_no_older_copy() {
    let place = Place::new();
    let far = place.serve("node", &keeping(&place, 0));
    let on = |name: &str| other_gateway(&place, name, far.address, KEEPS);
    let mut near = place.serve("a", &on("a"));
    let volume = connect(near.address, GATEWAY).await;
    write_all(&*volume, 0..20, 1).await;
    for (from, to, version) in [("a", "b", 2), ("b", "a", 3)] {
        near.kill();
        copy(place.path(&format!("{from}.log")), place.path(&format!("{to}.log")));
        succeeded(&adopt(&place, to, &on(to)));
        near = place.serve(to, &on(to));
        let volume = connect(near.address, GATEWAY).await;
        check_all(&*volume, 0..20, version - 1).await;
        write_all(&*volume, 0..20, version).await;
    }
    drain(&near);
    assert!(near.terminate().0.success());
    let near = place.serve("a", &on("a"));
    let volume = connect(near.address, GATEWAY).await;
    check_all(&*volume, 0..20, 3).await;
}
