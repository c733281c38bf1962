//! A node whose writes count by flush, before it a gateway that is lost: what the node has is a past.

mod support;

use support::{Place, Serving, connect, content, eventually, gateway, node, read, write};
use volume::Volume;

const GATEWAY: &str = "iqn.2026-11.test:gateway";
const NODE: &str = "iqn.2026-11.test:node";

/// A node with a log of its own, which keeps claims.
fn with_epochs(place: &Place, port: u16) -> String {
    let cache = format!(
        "}}, {{ cache = {{ log = '{}', log_size = '32MiB', dram = '8MiB', nvram_size = '1MiB', \
         report = 'at-flush' }} }} ]",
        place.path("node.log").display()
    );
    let text = node(place.folder.path(), port).replace("} ]", &cache);
    format!("state = '{}'\n{text}", place.path("state").display())
}

fn order(serving: &Serving) -> String {
    let status = serving.status();
    let layers = status["targets"][0]["units"][0]["layers"].as_array().expect("layers").clone();
    let cache = layers.iter().find(|layer| layer["layer"] == "cache").expect("a cache");
    cache["figures"]["order"].as_str().expect("text").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_lost_gateway_has_left_is_a_past() {
    let place = Place::new();
    let mut far = place.serve("node", &with_epochs(&place, 0));
    let mut near = place.serve("gateway", &gateway(place.folder.path(), far.address, ""));
    let volume = connect(near.address, GATEWAY).await;
    write(&*volume, 1, 1).await.expect("written");
    eventually("destage", || near.figure("cache", "dirty_bytes") == 0).await;
    assert_eq!(order(&near), "epochs, atomic");
    assert!(connect(far.address, NODE).await.geometry().epoch_blocks > 0);
    // Data first, then the counter, again and again, until the gateway is no more.
    let writer = tokio::spawn(async move {
        for version in 2_u64.. {
            let data = write(&*volume, version % 500 + 10, version).await;
            if data.is_err() || write(&*volume, 1, version).await.is_err() {
                break;
            }
        }
    });
    eventually("rounds", || near.figure("cache", "destage_rounds") > 3).await;
    near.kill();
    writer.await.expect("no panic");
    far.kill();
    let far = place.serve("node", &with_epochs(&place, 0));
    let raw = connect(far.address, NODE).await;
    let counter = read(&*raw, 1).await.expect("read");
    let version = (1..1_000_000).find(|version| content(1, *version) == counter);
    let version = version.expect("a counter that was written");
    // Its data came before it, or data that came later in its place.
    for earlier in version.saturating_sub(400).max(2)..=version {
        let block = earlier % 500 + 10;
        let found = read(&*raw, block).await.expect("read");
        let later = earlier + 500;
        assert!(
            [earlier, later].iter().any(|version| content(block, *version) == found),
            "block {block} is not of version {earlier}, though the counter says {version}"
        );
    }
}
