//! A node with report at flush behind a gateway that is killed: the node's volume must be a consistent prefix of the
//! gateway's writes.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use rustix::process::Signal;
use support::{Place, Serving, connect, content, eventually, forebay, gateway, node, read, write};
use volume::{Claim, Confirmed, Data, Dirty, Durability, Holding, Lba, Volume};

use crate::support;

const GATEWAY: &str = "iqn.2026-11.test:gateway";
const NODE: &str = "iqn.2026-11.test:node";

/// Settings of a node that has a log of its own and supports claims.
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
async fn a_lost_gateway_leaves_a_consistent_prefix_at_the_node() {
    let place = Place::new();
    let mut far = place.serve("node", &with_epochs(&place, 0));
    let mut near = place.serve("gateway", &gateway(place.folder.path(), far.address, ""));
    let volume = connect(near.address, GATEWAY).await;
    write(&*volume, 1, 1).await.expect("written");
    eventually("destage", || near.figure("cache", "dirty_bytes") == 0).await;
    assert_eq!(order(&near), "epochs, atomic");
    assert!(connect(far.address, NODE).await.geometry().epoch_blocks > 0);
    // Write data first and then the counter, again and again, until the gateway does not answer.
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
    // The writer writes the data of a version before its counter, and may have overwritten this data with a later
    // version.
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

/// Returns the newest version up to `version` that `block` holds, or 0 if the block was not written by then. Versions
/// go to the blocks in turn, so an image is a consistent prefix if one version explains all blocks.
fn newest(version: u64, block: u64) -> u64 {
    let turn = version - version % BLOCKS + block;
    if block <= version % BLOCKS { turn } else { turn.saturating_sub(BLOCKS) }
}

/// Returns the version for which the node's image is a consistent prefix. Reads the image as another initiator.
async fn prefix(far: &Serving, sent: u64) -> Result<u64, String> {
    let raw = connect(far.address, NODE).await;
    let mut versions = Vec::new();
    for block in 0..BLOCKS {
        let found = read(&*raw, block).await.map_err(|error| error.to_string())?;
        let mut of_block = (0..=newest(sent, block)).rev().step_by(BLOCKS as usize);
        let version = of_block.find(|version| content(block, *version) == found);
        let unwritten = found.iter().all(|byte| *byte == 0).then_some(0);
        versions.push(version.or(unwritten).ok_or(format!("block {block} was never so"))?);
    }
    let last = versions.iter().copied().max().unwrap_or(0);
    let wrong = (0..BLOCKS).find(|block| versions[*block as usize] != newest(last, *block));
    match wrong {
        Some(block) => Err(format!(
            "no prefix: block {block} holds version {}, another one {last}",
            versions[block as usize]
        )),
        None => Ok(last),
    }
}

/// Writes ascending versions, each after the acknowledgment of the previous one, until the gateway does not answer.
/// `sent` is the last submitted version.
async fn keep_writing(gateway: SocketAddr, sent: Arc<AtomicU64>) {
    let volume = connect(gateway, GATEWAY).await;
    // The last version may have been lost without an acknowledgment; writing it again is harmless.
    for version in sent.load(Ordering::SeqCst).max(1).. {
        sent.store(version, Ordering::SeqCst);
        if write(&*volume, version % BLOCKS, version).await.is_err() {
            return;
        }
    }
}

/// Waits until the gateway is in the middle of a destage round: part of an epoch has arrived at the node since its last
/// flush. Returns the number of flushes, which differs from `before`.
async fn middle_of_a_round(far: &Serving, before: u64) -> u64 {
    let figures = || {
        let status = far.status();
        let layers = status["targets"][0]["units"][0]["layers"].as_array().expect("layers").clone();
        let cache = layers.into_iter().find(|layer| layer["layer"] == "cache").expect("a cache");
        let number = |name: &str| cache["figures"][name].as_u64().expect("a number");
        (number("flushes"), number("written_bytes"))
    };
    let mut begun = figures();
    eventually("the middle of a round", || {
        let now = figures();
        if now.0 != begun.0 {
            begun = now;
        }
        now.0 != before && now.1 - begun.1 >= BLOCKS * 4096 / 8
    })
    .await;
    begun.0
}

/// Returns a node and a gateway whose destage rounds take about a second, and the number of versions sent.
fn with_slow_rounds() -> (Place, Serving, String, Arc<AtomicU64>) {
    let place = Place::new();
    let far = place.serve("node", &with_epochs(&place, 0));
    let slow = "destage_rate = '1MiB'\ndestage_run = '16KiB'\ndirty_age = '1s'";
    let gateway = gateway(place.folder.path(), far.address, slow);
    (place, far, gateway, Arc::default())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_returns_a_consistent_prefix_after_its_gateway_was_killed_during_a_destage_round() {
    let (place, far, settings, sent) = with_slow_rounds();
    let mut last = 0;
    for round in 0..ROUNDS {
        let mut near = place.serve("gateway", &settings);
        let writer = tokio::spawn(keep_writing(near.address, Arc::clone(&sent)));
        eventually("a round", || near.figure("cache", "destage_rounds") > 0).await;
        middle_of_a_round(&far, u64::MAX).await;
        near.kill();
        let found = prefix(&far, sent.load(Ordering::SeqCst)).await;
        let found = found.unwrap_or_else(|fault| panic!("round {round}: {fault}"));
        assert!(found >= last, "round {round}: version {found} after {last}");
        writer.abort();
        last = found;
    }
    assert!(last > 0, "no epoch came to the node");
    // At each return of the gateway, the node has rolled back the partial epoch that the kill had left.
    let given_up = far.figure("cache", "rolled_back");
    assert!(given_up >= ROUNDS / 2, "{given_up} of {ROUNDS} kills left half an epoch");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_returns_a_consistent_prefix_while_its_gateway_is_stopped_during_a_destage_round() {
    let (place, far, settings, sent) = with_slow_rounds();
    let near = place.serve("gateway", &settings);
    let writer = tokio::spawn(keep_writing(near.address, Arc::clone(&sent)));
    let (mut last, mut half, mut flushes) = (0, 0, u64::MAX);
    for round in 0..ROUNDS {
        flushes = middle_of_a_round(&far, flushes).await;
        near.signal(Signal::STOP);
        half += u64::from(far.figure("cache", "flushes") == flushes);
        let found = prefix(&far, sent.load(Ordering::SeqCst)).await;
        near.signal(Signal::CONT);
        let found = found.unwrap_or_else(|fault| panic!("round {round}: {fault}"));
        assert!(found >= last, "round {round}: version {found} after {last}");
        last = found;
    }
    writer.abort();
    assert!(last > 0, "no epoch came to the node");
    assert!(half >= ROUNDS / 2, "{half} of {ROUNDS} stops were in the middle of a round");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_that_removes_a_claimed_unit_does_not_make_a_partial_epoch_stable() {
    let place = Place::new();
    let other = "[[target]]\nname = 'iqn.2026-11.test:other'\n[[target.unit]]\n\
                 stack = [ { memory = { size = '16MiB' } } ]\n";
    let node = with_epochs(&place, 0);
    let (general, _) = node.split_once("[[target]]").expect("a target");
    let (with, without) = (format!("{node}{other}"), format!("{general}{other}"));
    let far = place.serve("node", &with);
    let reload = |text: &str| {
        place.write("node", text);
        let done = forebay().args(["reload", "--control"]).arg(&far.control).output();
        let done = done.expect("the binary runs");
        assert!(done.status.success(), "{}", support::stderr(&done));
    };
    for (is_claimed, first) in [(false, 1), (true, 3)] {
        let owner = connect(far.address, NODE).await;
        if is_claimed {
            assert_eq!(owner.extensions().claim(claim()).await.expect("asked"), Holding::Held);
        }
        write(&*owner, 1, first).await.expect("written");
        owner.flush().await.expect("flushed");
        write(&*owner, 1, first + 1).await.expect("written");
        reload(&without);
        drop(owner);
        reload(&with);
        let found = read(&*connect(far.address, NODE).await, 1).await.expect("read");
        let version = if is_claimed { first } else { first + 1 };
        assert_eq!(found, content(1, version), "claimed: {is_claimed}");
    }
}

fn claim() -> Claim {
    Claim {
        owner: "a gateway".into(),
        instance: [1; 16],
        generation: 1,
        opening: 10,
        granted: 0,
        predecessors: Vec::new(),
        writes_back: true,
        is_dirty: Dirty::new(true),
        takes_over: false,
        shares: false,
        confirmed: Confirmed::default(),
        accept_loss: false,
    }
}

/// A plain file has only one version of each block, so the node refuses reads while a partial epoch is in the file.
#[tokio::test(flavor = "multi_thread")]
async fn reads_of_a_plain_file_are_refused_after_its_gateway_was_killed_during_a_destage_round() {
    let place = Place::new();
    let plain =
        format!("state = '{}'\n{}", place.path("state").display(), node(place.folder.path(), 0));
    let far = place.serve("node", &plain);
    // Without connection recovery, the node notices at once that the gateway has ended.
    let settings = |more| {
        let settings = gateway(place.folder.path(), far.address, more);
        settings.replace("give_up_after", "error_recovery_level = 0, give_up_after")
    };
    let sent = Arc::default();
    let mut refused = None;
    for _ in 0..ROUNDS {
        let mut near =
            place.serve("gateway", &settings("destage_rate = '256KiB'\ndirty_age = '1s'"));
        let writer = tokio::spawn(keep_writing(near.address, Arc::clone(&sent)));
        eventually("destage", || near.figure("cache", "destaged_bytes") > BLOCKS * 4096 / 8).await;
        near.kill();
        writer.abort();
        refused = prefix(&far, sent.load(Ordering::SeqCst)).await.err();
        if refused.is_some() {
            break;
        }
    }
    let refused = refused.expect("a gateway was killed in the middle of a round");
    assert!(refused.contains("in the middle of a destage round"), "{refused}");
    // When a new gateway has sent the rest of the epoch, other initiators can read the volume.
    let near = place.serve("gateway", &settings(""));
    eventually("destage", || near.figure("cache", "dirty_bytes") == 0).await;
    let last = prefix(&far, sent.load(Ordering::SeqCst)).await.expect("a prefix");
    let sent = sent.load(Ordering::SeqCst);
    assert!(last == sent || last + 1 == sent, "version {last} of {sent}");
}

/// Number of 4 KiB blocks that are written in turn: about as many as one destage round contains.
const BLOCKS: u64 = 256;
/// Number of times that a gateway is killed or stopped.
const ROUNDS: u64 = 8;

/// Settings of a node of 512 MiB that delays its responses by `delay`, like a link.
fn far_node(place: &Place, cache: &str, delay: &str) -> String {
    let (image, state) = (place.path("node.img"), place.path("state"));
    format!(
        "state = '{}'\nlisten = ['127.0.0.1:0']\n[[target]]\nname = '{NODE}'\n[[target.unit]]\n\
         stack = [ {{ file = {{ path = '{}', size = '512MiB' }} }}, {cache} \
         {{ delay = {{ read = '{delay}', write = '{delay}', flush = '{delay}' }} }} ]\n",
        state.display(),
        image.display()
    )
}

/// Writes 256 MiB in order to a gateway that does not destage yet, then drains it. Returns the rate of the drain in
/// MiB/s, and the MiB that the node has written to its disk.
async fn drained(is_whole: bool, delay: &str) -> (f64, f64) {
    let place = Place::new();
    let log = place.path("node.log");
    let cache = format!(
        "{{ cache = {{ log = '{}', log_size = '512MiB', report = 'at-flush' }} }},",
        log.display()
    );
    let far = place.serve("node", &far_node(&place, if is_whole { &cache } else { "" }, delay));
    let text = gateway(place.folder.path(), far.address, "").replace("32MiB", "512MiB");
    let near = place.serve("gateway", &text);
    let tell = |order: &str| {
        let done =
            forebay().args(["gateway", order, GATEWAY, "--control"]).arg(&near.control).output();
        let done = done.expect("the binary runs");
        assert!(done.status.success(), "{}", support::stderr(&done));
    };
    tell("pause");
    let volume = connect(near.address, GATEWAY).await;
    let piece = |number: u64| {
        let data = Data::from(content(number, 1).repeat(64));
        volume.write(Lba(number * 512), data, Durability::Volatile)
    };
    for eight in 0..128 {
        let pieces = (0..8).map(|number| piece(eight * 8 + number));
        futures_util::future::try_join_all(pieces).await.expect("written");
    }
    let on_disk = || {
        let io = std::fs::read_to_string(format!("/proc/{}/io", far.id())).expect("it runs");
        let line = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
        line.expect("proc(5)").parse::<f64>().expect("a number") / f64::from(1 << 20)
    };
    let before = on_disk();
    tell("resume");
    let begun = Instant::now();
    tell("drain");
    let rate = 256.0 / begun.elapsed().as_secs_f64();
    if is_whole {
        eventually("destage of the node", || far.figure("cache", "dirty_bytes") == 0).await;
    }
    (rate, on_disk() - before)
}

/// Measures the cost of a node that keeps whole epochs. `docs/results/epochs.md` contains the command.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "figures, a minute"]
async fn destage_throughput_with_and_without_atomic_epochs() {
    // Measure with a round trip time of 8 ms, and with none.
    for delay in ["8ms", "0ms"] {
        let (mut plain, mut whole) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            plain.push(drained(false, delay).await);
            whole.push(drained(true, delay).await);
        }
        for (name, mut runs) in [("a plain file", plain), ("a cache at flush", whole)] {
            println!("{delay}, {name}: {runs:.1?} (MiB/s of the drain, MiB written by the node)");
            runs.sort_by(|a, b| a.0.total_cmp(&b.0));
            let rate = runs[2].0;
            runs.sort_by(|a, b| a.1.total_cmp(&b.1));
            println!("{delay}, {name}: medians {rate:.1} MiB/s, {:.1} MiB", runs[2].1);
        }
    }
}
