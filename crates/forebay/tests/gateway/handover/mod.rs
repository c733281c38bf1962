//! The owner of the dirty data of a node's volume: claims, and gateways that are fenced.

mod adoption;
mod older_copy;

use std::{
    net::SocketAddr,
    ops::Range,
    path::{Path, PathBuf},
    process::Output,
    sync::Arc,
};

use initiator::RemoteVolume;
use support::{
    Place, Serving, connect, content, eventually, forebay, gateway, node, read, stderr, write,
};
use volume::Volume;

use crate::{ACCEPTS_LOSS, support};

const GATEWAY: &str = "iqn.2026-11.test:gateway";
const NODE: &str = "iqn.2026-11.test:node";

/// Settings of a node that supports claims.
fn keeping(place: &Place, port: u16) -> String {
    format!("state = '{}'\n{}", place.path("state").display(), node(place.folder.path(), port))
}

/// Settings of a gateway on another host, which has its own initiator name, log and state folder.
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

/// Starts a node and a gateway over it, and connects a host that writes these blocks.
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

/// Starts the gateway that now uses the log, and connects a host that reads these blocks.
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

fn export(place: &Place, name: &str) -> Output {
    let (config, to) = (place.path(&format!("{name}.toml")), place.path("moved.toml"));
    let mut command = forebay();
    command.args(["gateway", "export", GATEWAY, "--config"]).arg(config).arg("--to").arg(to);
    command.output().expect("the binary runs")
}

/// Runs `forebay gateway adopt` with the settings `text`.
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

/// Settings of a cache that does not destage during a test.
const KEEPS: &str = "destage_idle = '30s'\ndirty_age = '1h'\ndestage_threshold = 0.9";

#[tokio::test(flavor = "multi_thread")]
async fn other_initiators_cannot_write_the_far_volume_until_the_gateway_releases_its_claim() {
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
    // Other initiators read an older but consistent image of the far volume.
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
    write(&*raw, 1, 7).await.expect("the claim is released");
    assert_eq!(claim(&far)["held"], false);
    // Started with its former log, the gateway gets the claim from the node again.
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
async fn a_copied_log_of_a_killed_gateway_is_adopted_and_the_former_gateway_is_fenced() {
    let place = Place::new();
    let (far, mut near, _volume) = pair_with(&place, KEEPS, 0..200).await;
    near.kill();
    copy(place.path("a.log"), place.path("b.log"));
    let text = other_gateway(&place, "b", far.address, KEEPS);
    // The node keeps the session of the killed gateway for a while, because it cannot know that the gateway has ended.
    succeeded(&adopt(&place, "b", &text));
    let (later, volume) = taken_up(&place, &text, 0..200).await;
    write(&*volume, 0, 99).await.expect("and written");
    drain(&later);

    // The former gateway starts again, more often than the new one did, and is never admitted.
    for more in ["", ACCEPTS_LOSS, ""] {
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
async fn a_log_that_became_dirty_while_its_claim_waited_does_not_overwrite_newer_data() {
    let place = Place::new();
    let (mut far, mut near) = pair(&place, "");
    let address = far.address;
    assert!(near.terminate().0.success(), "its claim is given back");
    far.kill();
    // The gateway starts without a link, with a clean log, and accepts writes.
    near = place.serve("a", &other_gateway(&place, "a", address, KEEPS));
    assert_eq!(cache_figure(&near, "claim"), "waiting");
    let volume = connect(near.address, GATEWAY).await;
    write(&*volume, 1, 1).await.expect("written");
    // While that gateway is down, another one claims the volume, writes to it, and releases the claim.
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
async fn a_node_restored_from_an_older_backup_is_reported_with_both_generations() {
    let place = Place::new();
    let (mut far, mut near) = pair(&place, KEEPS);
    let address = far.address;
    let volume = connect(near.address, GATEWAY).await;
    write(&*volume, 1, 1).await.expect("written");
    near.kill();
    far.kill();
    // Make a backup of the node's claim. It knows only the first opening of the log.
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
    // With `accept_loss`, the operator decides to serve the unit nevertheless.
    let near = place.serve("a", &other_gateway(&place, "a", address, ACCEPTS_LOSS));
    let volume = connect(near.address, GATEWAY).await;
    assert_eq!(read(&*volume, 1).await.expect("read"), content(1, 1));
    drop(far);
}

/// While the gateway runs, its node is restored to an older generation of the claim than the gateway has recorded.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_restored_while_its_gateway_runs_is_reported_with_both_generations() {
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
    eventually("the fence", || cache_figure(&near, "claim").starts_with("fenced")).await;
    let told = cache_figure(&near, "claim");
    assert!(told.contains("as generation 2") && told.contains("was generation 3"), "{told}");
    assert!(write(&*volume, 2, 1).await.is_err() && read(&*volume, 1).await.is_err());
    drop(far);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_a_claim_warns_the_operator_and_fences_the_gateway() {
    let place = Place::new();
    let (far, near) = pair(&place, KEEPS);
    let volume = connect(near.address, GATEWAY).await;
    write(&*volume, 1, 1).await.expect("written");
    let output = tell(&far.control, &["claim", "drop", NODE]);
    assert!(!output.status.success());
    let warning = stderr(&output);
    assert!(warning.contains("would be lost") && warning.contains("host-a"), "{warning}");
    let output = tell(&far.control, &["claim", "drop", NODE, "--lose-dirty-data"]);
    assert!(!output.status.success());
    let warning = stderr(&output);
    assert!(warning.contains("all hosts have unmounted"), "{warning}");
    let drop = ["claim", "drop", NODE, "--lose-dirty-data", "--hosts-unmounted"];
    let output = tell(&far.control, &drop);
    assert!(output.status.success(), "{}", stderr(&output));
    let raw = connect(far.address, NODE).await;
    write(&*raw, 1, 7).await.expect("anybody may");
    // The gateway notices that the operator has dropped its claim, even without data to destage.
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
