//! Ranges that gateways pass to each other include all acknowledged data, whether it was in NVRAM, log or memory, also
//! after a crash. A gateway that the node does not know any more is refused and fenced.

use std::time::Duration;

use volume::{Data, Extent, Lba, Volume};

use crate::{
    GATEWAY, Scene, sharer, sharing,
    support::{Place, connect, content, eventually, forebay, read, write},
};

/// When a range is recalled, some of its acknowledged data may be in the NVRAM only.
#[tokio::test(flavor = "multi_thread")]
async fn data_acknowledged_from_the_nvram_reaches_the_other_gateway_and_is_recovered_once() {
    let place = Place::new();
    let node = place.serve("node", &sharing(&place, 0));
    let text = |name: &str, port: u16| {
        let nvram = format!("report = 'immediate'\nnvram = '{}'", place.path(name).display());
        format!("{}\n{nvram}", sharer(&place, name, node.address, port))
    };
    let (mut near, other) = (place.serve("a", &text("a", 0)), place.serve("b", &text("b", 0)));
    let (a, b) = (connect(near.address, GATEWAY).await, connect(other.address, GATEWAY).await);
    for version in 1..40 {
        let (from, to) = if version % 2 == 0 { (&a, &b) } else { (&b, &a) };
        for block in [0, 1, 16] {
            write(&**from, block, version).await.expect("written");
        }
        for block in [0, 1, 16] {
            assert_eq!(read(&**to, block).await.expect("read"), content(block, version));
        }
    }
    // Kill the gateway before any other gateway has read the acknowledged writes.
    let port = near.address.port();
    drop(a);
    for version in 100..105 {
        let a = connect(near.address, GATEWAY).await;
        for block in 0..40 {
            write(&*a, block, version).await.expect("written");
        }
        near.kill();
        near = place.serve("a", &text("a", port));
        // Reads of the other gateway wait until the restarted gateway has destaged its data. That data must not be
        // destaged a second time, over the next write of the other gateway.
        for block in 0..40 {
            assert_eq!(read_in_time(&*b, block).await, content(block, version), "block {block}");
        }
        write(&*b, 0, version + 100).await.expect("written");
        near.kill();
        near = place.serve("a", &text("a", port));
        let a = connect(near.address, GATEWAY).await;
        assert_eq!(read_in_time(&*a, 0).await, content(0, version + 100));
    }
}

/// Reads as a host does: repeats a command that gets BUSY.
async fn read_in_time(volume: &dyn Volume, block: u64) -> Vec<u8> {
    let found = async {
        loop {
            match read(volume, block).await {
                Ok(found) => return found,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), found).await.expect("it is given on")
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_discarded_at_one_gateway_read_as_zeros_at_the_other() {
    let scene = Scene::new();
    let (a, b) = (
        connect(scene.gateways[0].address, GATEWAY).await,
        connect(scene.gateways[1].address, GATEWAY).await,
    );
    for version in 1..6 {
        for block in 0..64 {
            write(&*a, block, version).await.expect("written");
        }
        assert_eq!(read(&*b, 40).await.expect("read"), content(40, version));
        // Discard blocks from the middle of a token's range over several whole ranges.
        let discarded = Extent { lba: Lba(5 * 8), blocks: 50 * 8 };
        a.discard(discarded).await.expect("discarded");
        for block in 0..64 {
            let expected = if (5..55).contains(&block) { 0 } else { version };
            assert_eq!(read(&*b, block).await.expect("read"), content(block, expected), "{block}");
        }
        b.discard(Extent { lba: Lba(0), blocks: 8 }).await.expect("discarded");
        assert_eq!(read(&*a, 0).await.expect("read"), content(0, 0));
    }
    let zeros = Data::zeros(4096);
    b.write(Lba(8), zeros, volume::Durability::Stable).await.expect("written");
    assert_eq!(read(&*a, 1).await.expect("read"), content(1, 0));
}

/// A node restored from a backup grants ranges to the gateways in its record. A gateway that the record lacks may have
/// dirty data, which it must not destage without a new grant.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_a_restored_node_does_not_know_is_fenced_and_shows_the_reason() {
    let place = Place::new();
    let mut node = place.serve("node", &sharing(&place, 0));
    let (address, port) = (node.address, node.address.port());
    let text = |name: &str, more: &str| format!("{}\n{more}", sharer(&place, name, address, 0));
    let near = place.serve("a", &text("a", ""));
    let record = || {
        let found = std::fs::read_dir(place.path("state")).expect("state");
        let mut found = found.map(|entry| entry.expect("an entry").path());
        found.find(|path| path.extension().is_some_and(|kind| kind == "sharing")).expect("one")
    };
    let backup = std::fs::read(record()).expect("read");
    let mut other = place.serve("b", &text("b", ""));
    let (a, b) = (connect(near.address, GATEWAY).await, connect(other.address, GATEWAY).await);
    let paused =
        forebay().args(["gateway", "pause", GATEWAY, "--control"]).arg(&other.control).output();
    assert!(paused.expect("it runs").status.success());
    write(&*b, 0, 1).await.expect("written");
    node.kill();
    std::fs::write(record(), backup).expect("written");
    node = place.serve("node", &sharing(&place, port));
    assert_eq!(read_in_time(&*a, 0).await, content(0, 0));
    let claim = || {
        let status = other.status();
        let layers = status["targets"][0]["units"][0]["layers"].as_array().expect("layers").clone();
        let cache = layers.into_iter().find(|layer| layer["layer"] == "cache").expect("a cache");
        cache["figures"]["claim"].as_str().unwrap_or_default().to_owned()
    };
    eventually("the fence", || claim().starts_with("fenced")).await;
    assert!(claim().contains("knows nothing of this log, which was generation 2"), "{}", claim());
    assert!(read(&*b, 0).await.is_err() && write(&*b, 0, 2).await.is_err());
    other.kill();
    let refused = place.try_serve("b", &text("b", "")).err().expect("refused");
    assert!(refused.contains("knows nothing of this log, which was generation 2"), "{refused}");
    // Even with `accept_loss` the gateway is refused: other gateways may have been granted its ranges.
    let other = place.serve("b", &text("b", "accept_loss = true\nhosts_unmounted = true"));
    let figures =
        || other.status()["targets"][0]["units"][0]["layers"][1]["figures"]["share_lost"].clone();
    eventually("the reason", || figures().is_string()).await;
    let why = figures().as_str().unwrap_or_default().to_owned();
    assert!(why.contains("or the node was restored from a backup"), "{why}");
    let b = connect(other.address, GATEWAY).await;
    assert!(read(&*b, 0).await.is_err() && write(&*b, 0, 2).await.is_err());
    write(&*a, 0, 5).await.expect("the others go on");
    assert_eq!(read_in_time(&*a, 0).await, content(0, 5));
    drop(node);
}

/// A host that copies the disk skips unmapped blocks, so blocks that another gateway wrote must be reported as mapped.
#[tokio::test(flavor = "multi_thread")]
async fn blocks_written_at_another_gateway_are_reported_as_mapped() {
    let scene = Scene::new();
    let (a, b) = (
        connect(scene.gateways[0].address, GATEWAY).await,
        connect(scene.gateways[1].address, GATEWAY).await,
    );
    let paused = forebay()
        .args(["gateway", "pause", GATEWAY, "--control"])
        .arg(&scene.gateways[1].control)
        .output();
    assert!(paused.expect("it runs").status.success());
    write(&*b, 3, 1).await.expect("written");
    let extent = Extent { lba: Lba(3 * 8), blocks: 8 };
    let is_mapped = async |volume: &dyn Volume| {
        let told = volume.extensions().allocation(extent).await.expect("told");
        told.runs().iter().all(|run| run.mapped)
    };
    let raw = connect(scene.node.address, crate::NODE).await;
    assert!(!is_mapped(&*raw).await, "the node does not have it yet");
    assert!(is_mapped(&*b).await);
    assert!(is_mapped(&*a).await, "it would be skipped");
}
