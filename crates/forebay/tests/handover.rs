//! Who holds the dirty data of a node's volume: claims, and gateways that are shut out.

mod support;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Output,
};

use support::{
    Place, Serving, connect, content, eventually, forebay, gateway, node, read, stderr, write,
};

const GATEWAY: &str = "iqn.2026-11.test:gateway";
const NODE: &str = "iqn.2026-11.test:node";

/// A node that keeps claims.
fn keeping(place: &Place, port: u16) -> String {
    format!("state = '{}'\n{}", place.path("state").display(), node(place.folder.path(), port))
}

/// A gateway of another host: with another name and a log of its own name.
fn other_gateway(place: &Place, name: &str, node: SocketAddr, more: &str) -> String {
    let text = gateway(place.folder.path(), node, more)
        .replace("gateway.log", &format!("{name}.log"))
        .replace("give_up_after = \"2s\"", "give_up_after = \"2s\", connections = 1");
    format!("initiator_name = 'iqn.2026-11.test:host-{name}'\n{text}")
}

fn pair(place: &Place, more: &str) -> (Serving, Serving) {
    let far = place.serve("node", &keeping(place, 0));
    let near = place.serve("a", &other_gateway(place, "a", far.address, more));
    (far, near)
}

fn copy(from: PathBuf, to: PathBuf) {
    std::fs::copy(from, to).expect("copied");
}

fn tell(control: &Path, arguments: &[&str]) -> Output {
    forebay().args(arguments).arg("--control").arg(control).output().expect("the binary runs")
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

/// Keeps what is written from going down until it is lifted.
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
    // An older image, but a whole one.
    assert_eq!(read(&*raw, 1).await.expect("read"), content(1, 0));
    let shown = tell(&far.control, &["claim", "show", NODE]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("its newest data is with iqn.2026-11.test:host-a"), "{shown}");

    // A restart of the node forgets nothing; the gateway's session comes back to its claim.
    let address = far.address;
    far.kill();
    let far = place.serve("node", &keeping(&place, address.port()));
    let raw = connect(far.address, NODE).await;
    write(&*raw, 1, 7).await.expect_err("still refused");
    assert!(tell(&near.control, &["gateway", "drain", GATEWAY]).status.success());
    assert_eq!(read(&*raw, 1).await.expect("read"), content(1, 1));

    drop(volume);
    assert!(near.terminate().0.success());
    write(&*raw, 1, 7).await.expect("nobody has it any more");
    assert_eq!(claim(&far)["held"], false);
    // And the same log is let in again.
    let near = place.serve("a", &other_gateway(&place, "a", far.address, ""));
    assert_eq!(cache_figure(&near, "claim"), "held");
    let volume = connect(near.address, GATEWAY).await;
    assert_eq!(read(&*volume, 1).await.expect("read"), content(1, 7));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_killed_with_dirty_data_keeps_its_claim_and_comes_back() {
    let place = Place::new();
    let (far, mut near) = pair(&place, KEEPS);
    let volume = connect(near.address, GATEWAY).await;
    for block in 0..20 {
        write(&*volume, block, 1).await.expect("written");
    }
    for _ in 0..3 {
        near.kill();
        let raw = connect(far.address, NODE).await;
        write(&*raw, 1, 7).await.expect_err("its dirty data is away, not gone");
        let other = other_gateway(&place, "b", far.address, "");
        let error = place.try_serve("b", &other).err().expect("another log is refused");
        assert!(error.contains("iqn.2026-11.test:host-a"), "{error}");
        near = place.serve("a", &other_gateway(&place, "a", far.address, KEEPS));
    }
    assert!(tell(&near.control, &["gateway", "drain", GATEWAY]).status.success());
    let raw = connect(far.address, NODE).await;
    for block in 0..20 {
        assert_eq!(read(&*raw, block).await.expect("read"), content(block, 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_copied_from_a_killed_gateway_is_taken_up_and_the_old_one_shut_out() {
    let place = Place::new();
    let (far, mut near) = pair(&place, KEEPS);
    let volume = connect(near.address, GATEWAY).await;
    for block in 0..200 {
        write(&*volume, block, block + 1).await.expect("written");
    }
    near.kill();
    copy(place.path("a.log"), place.path("b.log"));
    let later = place.serve("b", &other_gateway(&place, "b", far.address, KEEPS));
    let volume = connect(later.address, GATEWAY).await;
    for block in 0..200 {
        assert_eq!(read(&*volume, block).await.expect("read"), content(block, block + 1));
    }
    write(&*volume, 0, 99).await.expect("and written");
    assert!(tell(&later.control, &["gateway", "drain", GATEWAY]).status.success());

    // The old one starts again, more often than the new one did: nothing gets it in.
    for more in ["", "accept_loss = true", ""] {
        let old = other_gateway(&place, "a", far.address, more);
        let error = place.try_serve("a", &old).err().expect("shut out");
        assert!(error.contains("taken up by iqn.2026-11.test:host-b as generation"), "{error}");
    }
    assert_eq!(cache_figure(&later, "claim"), "held");
    let raw = connect(far.address, NODE).await;
    assert_eq!(read(&*raw, 0).await.expect("read"), content(0, 99));
    for block in 1..200 {
        assert_eq!(read(&*raw, block).await.expect("read"), content(block, block + 1));
    }
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
    // The backup knows the first opening only.
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
    // Its operator has the last word.
    let near = place.serve("a", &other_gateway(&place, "a", address, "accept_loss = true"));
    let volume = connect(near.address, GATEWAY).await;
    assert_eq!(read(&*volume, 1).await.expect("read"), content(1, 1));
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
    // Though it has nothing to send, it hears of it.
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
