//! The status of every layer and of whole gateways has the field names and types of the recorded samples.

use std::{net::SocketAddr, sync::Arc};

use initiator::RemoteVolume;
use volume::Volume;

use crate::{
    sample::check,
    scene::{Scene, pair},
    support::{Place, Serving, connect, eventually, gateway, node, read, run, stderr, write},
};

const NODE: &str = "iqn.2026-11.test:node";
const GATEWAY: &str = "iqn.2026-11.test:gateway";

/// Writes some blocks, flushes, and reads these blocks and some that were never written.
async fn use_volume(volume: &RemoteVolume) {
    for block in 0..64 {
        write(volume, block, 1).await.expect("written");
    }
    volume.flush().await.expect("flushed");
    for block in 32..96 {
        read(volume, block).await.expect("read");
    }
}

/// Settings of a node that supports claims, with `unit` and `stack` added to its unit.
fn keeping(place: &Place, unit: &str, stack: &str) -> String {
    let text = node(place.folder.path(), 0)
        .replace("[[target.unit]]\n", &format!("[[target.unit]]\n{unit}"))
        .replace("} ]", &format!("}}{stack} ]"));
    format!("state = '{}'\n{text}", place.path("state").display())
}

/// Starts a gateway over that node, with more settings of its remote layer and its cache.
fn serve_gateway(place: &Place, node: SocketAddr, remote: &str, cache: &str) -> Serving {
    let text = gateway(place.folder.path(), node, cache)
        .replace("give_up_after", &format!("{remote}give_up_after"));
    place.serve("gateway", &format!("initiator_name = 'iqn.2026-11.test:host'\n{text}"))
}

async fn dirty_until_destaged(serving: &Serving) {
    eventually("destage", || serving.figure("cache", "dirty_bytes") == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_without_a_cache() {
    let place = Place::new();
    let path = |name: &str| place.path(name).display().to_string();
    for arguments in [
        vec!["secret", &path("secret"), "--characters", "64"],
        vec!["key", &path("key"), "--secret-file", &path("secret")],
    ] {
        let made = run(&arguments);
        assert!(made.status.success(), "{}", stderr(&made));
    }
    let text = format!(
        r#"
listen = ["127.0.0.1:0"]
[[target]]
name = "{NODE}"
[[target.unit]]
stack = [
    {{ file = {{ path = "disk.img", size = "16MiB" }} }},
    {{ slice = {{ start = "1MiB", size = "8MiB" }} }},
    {{ encrypt = {{ key = "key", secret_file = "secret" }} }},
    {{ delay = {{ read = "1us" }} }},
    {{ disk = {{ model = "null" }} }},
    {{ observe = {{ name = "above the disk" }} }},
    {{ fault = {{ operation = "read", error = "medium", after = 1000000 }} }},
]
[[target.unit]]
lun = 1
stack = [ {{ memory = {{ size = "1MiB" }} }}, "read-only" ]
"#
    );
    let serving = place.serve("layers", &text);
    use_volume(&*connect(serving.address, NODE).await).await;
    check("layers", &place, &serving);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_and_its_node() {
    let place = Place::new();
    let far_cache = ", { cache = { log = 'node.log', log_size = '32MiB', dram = '8MiB', \
                     nvram_size = '1MiB', report = 'at-flush' } }";
    let text = keeping(&place, "", far_cache)
        .replace("state =", "iscsi = { compression = ['lz4'] }\nstate =");
    let far = place.serve("node", &text);
    let near = "log_mirror = 'mirror.log'\nnvram = 'gateway.nvram'\nreport = 'immediate'\n\
                read_tier = 'tier'\nread_tier_size = '64MiB'";
    let near = serve_gateway(&place, far.address, "compression = 'lz4', ", near);
    let host = connect(near.address, GATEWAY).await;
    use_volume(&host).await;
    dirty_until_destaged(&near).await;
    check("gateway", &place, &near);
    check("node", &place, &far);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_common_cache() {
    let place = Place::new();
    let far = place.serve("node", &keeping(&place, "", ", { slice = { size = '16MiB' } }"));
    let text = format!(
        r#"
listen = ["127.0.0.1:0"]
initiator_name = "iqn.2026-11.test:host"
[[common_cache]]
name = "db"
[common_cache.cache]
log = "common.log"
log_size = "32MiB"
dram = "8MiB"
nvram_size = "1MiB"
[[target]]
name = "{GATEWAY}"
[[target.unit]]
stack = [ {{ remote = {{ url = "{}" }} }}, {{ common-cache = {{ name = "db" }} }} ]
[[target.unit]]
lun = 1
stack = [ {{ file = {{ path = "near.img", size = "8MiB" }} }}, {{ common-cache = {{ name = "db" }} }} ]
"#,
        far.url(NODE)
    );
    let near = place.serve("gateway", &text);
    use_volume(&*connect(near.address, GATEWAY).await).await;
    dirty_until_destaged(&near).await;
    check("common-cache", &place, &near);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_gateways_share() {
    let place = Place::new();
    let far = place.serve("node", &keeping(&place, "share_grain = '64KiB'\n", ""));
    let near = serve_gateway(&place, far.address, "", "share = true");
    let host = connect(near.address, GATEWAY).await;
    use_volume(&host).await;
    dirty_until_destaged(&near).await;
    check("sharing-gateway", &place, &near);
    check("sharing-node", &place, &far);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pair_of_gateways() {
    let scene = Scene::new(Place::new(), "report = 'immediate'\nnvram = 'NAME.nvram'").await;
    let host: Arc<RemoteVolume> = scene.host(0).await;
    scene.write(&host, 0..20, 1).await;
    let halves = || pair(&scene.serving[0])["halves"].as_array().map(Vec::len);
    eventually("both halves", || halves() == Some(2)).await;
    check("pair-active", &scene.place, &scene.serving[0]);
    check("pair-standby", &scene.place, &scene.serving[1]);
}
