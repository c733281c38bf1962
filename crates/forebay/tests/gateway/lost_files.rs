//! Files of a node and of a gateway that are removed, renamed, replaced or truncated while in use. The process
//! continues, acknowledges no more writes to them, and sends all data that it can read to the node.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use support::{Place, Running, Serving, connect, content, eventually, gateway, node, read, write};
use volume::{Data, Durability, Lba, Volume};

use crate::support;

const GATEWAY: &str = "iqn.2026-11.test:gateway";
const NODE: &str = "iqn.2026-11.test:node";
/// With these settings, writes stay in the log until a drain, or a lost log, starts destage.
const LAZY: &str = "destage_idle = '60s'\ndestage_threshold = 0.9\ndirty_age = '1h'\n";

/// 16 MiB in blocks of 4 KiB: twice the memory of the gateway.
const BLOCKS: u64 = 4096;

/// A node, and a gateway over it that keeps written data in its log.
struct Pair {
    place: Place,
    far: Serving,
    near: Serving,
    log: PathBuf,
}

impl Pair {
    fn new(more: &str) -> Self {
        let place = Place::new();
        let far = place.serve("node", &node(place.folder.path(), 0));
        let text = gateway(place.folder.path(), far.address, &format!("{LAZY}{more}"));
        let near = place.serve("gateway", &text);
        let log = place.path("gateway.log");
        Self { place, far, near, log }
    }

    fn said(&self, figure: &str) -> String {
        let layer = self.near.status()["targets"][0]["units"][0]["layers"][1].clone();
        assert_eq!(layer["layer"], "cache");
        layer["figures"][figure].as_str().unwrap_or_default().to_owned()
    }
}

/// Writes blocks from `first` until a write is refused. Returns the number of acknowledged blocks, and the time until
/// the refusal.
async fn write_until_refused(volume: &dyn Volume, first: u64) -> (u64, Duration) {
    let begun = Instant::now();
    for count in 0.. {
        if write(volume, first + count, 1).await.is_err() {
            return (count, begun.elapsed());
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "writes are acknowledged for ever");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    unreachable!("it counts for ever")
}

async fn assert_written(volume: &dyn Volume, blocks: u64) {
    for block in 0..blocks {
        assert_eq!(read(volume, block).await.expect("read"), content(block, 1), "block {block}");
    }
}

/// Regression: a log whose file had been removed still acknowledged writes, and the stop discarded its content.
#[tokio::test(flavor = "multi_thread")]
async fn a_removed_log_acknowledges_no_more_writes_and_its_data_is_destaged() {
    let pair = Pair::new("");
    let volume = connect(pair.near.address, GATEWAY).await;
    for block in 0..64 {
        write(&*volume, block, 1).await.expect("written");
    }
    assert!(pair.near.figure("cache", "dirty_bytes") >= 64 * 4096, "it waits in the log");
    fs::remove_file(&pair.log).expect("it is there");
    let (more, taken) = write_until_refused(&*volume, 64).await;
    assert!(taken < Duration::from_secs(5), "it took {taken:?}");
    assert!(
        pair.said("log_error").contains("was removed while in use"),
        "{}",
        pair.said("log_error")
    );
    eventually("destage", || pair.near.figure("cache", "dirty_bytes") == 0).await;
    assert_written(&*volume, 64 + more).await;
    volume.flush().await.expect("all is at the node");
    assert_written(&*connect(pair.far.address, NODE).await, 64 + more).await;
    // The node has all data of the removed log, so the next start creates a new log.
    let Pair { place, far, near, .. } = pair;
    assert!(near.terminate().0.success());
    let near = place.serve("gateway", &gateway(place.folder.path(), far.address, LAZY));
    let volume = connect(near.address, GATEWAY).await;
    assert_written(&*volume, 64 + more).await;
    write(&*volume, 0, 2).await.expect("written");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_replaced_by_another_file_is_used_again_when_it_has_its_name_back() {
    let pair = Pair::new("");
    let volume = connect(pair.near.address, GATEWAY).await;
    write(&*volume, 0, 1).await.expect("written");
    let (other, kept) = (pair.place.path("other"), pair.place.path("kept"));
    fs::write(&other, vec![0; 1 << 20]).expect("written");
    fs::hard_link(&pair.log, &kept).expect("linked");
    fs::rename(&other, &pair.log).expect("renamed");
    let (more, taken) = write_until_refused(&*volume, 1).await;
    assert!(taken < Duration::from_secs(5), "it took {taken:?}");
    assert!(pair.said("log_error").contains("another file took the name"));
    fs::rename(&kept, &pair.log).expect("renamed");
    eventually("the log's return", || pair.said("log_error").is_empty()).await;
    write(&*volume, more + 1, 1).await.expect("written");
    assert_written(&*volume, more + 2).await;
}

/// The log holds more than memory does, so some of its data can no longer be read from anywhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_log_reports_its_lost_data_and_destages_the_rest() {
    let place = Place::new();
    let far = place.serve("node", &node(place.folder.path(), 0));
    let config = place.write("gateway", &gateway(place.folder.path(), far.address, LAZY));
    let mut command = support::forebay();
    let mut near =
        support::start(command.args(["serve", "--config"]).arg(config)).expect("it starts");
    let events = events_of(&mut near);
    let address = near.ready.split_whitespace().last().expect("an address").parse();
    let volume = connect(address.expect("an address"), GATEWAY).await;
    for first in (0..BLOCKS).step_by(64) {
        let bytes: Vec<u8> = (first..first + 64).flat_map(|block| content(block, 1)).collect();
        let written = volume.write(Lba(first * 8), Data::from(bytes), Durability::Volatile).await;
        written.expect("written");
    }
    let log = File::options().write(true).open(place.path("gateway.log")).expect("it is there");
    log.set_len(6 << 20).expect("cut");
    write_until_refused(&*volume, BLOCKS).await;
    let has_said = |words: &str| events.lock().expect("whole").contains(words);
    eventually("an end", || has_said("everything that could be read from the lost log")).await;
    let said = events.lock().expect("whole").clone();
    let mut lost = vec![false; BLOCKS as usize];
    for line in
        said.lines().filter(|line| line.contains("acknowledged writes of these blocks are lost"))
    {
        assert!(line.contains("volume="), "{line}");
        let number = |key: &str| -> usize {
            let rest = line.split_once(key).unwrap_or_else(|| panic!("{key} in {line}")).1;
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().expect("a number")
        };
        let (first, last) = (number("first_lba=") / 8, number("last_lba=") / 8);
        lost[first..=last.min(BLOCKS as usize - 1)].fill(true);
    }
    // The data that is not lost was in the remaining 6 MiB of the log and in 8 MiB of memory.
    let count = lost.iter().filter(|is_lost| **is_lost).count();
    assert!((1..BLOCKS as usize / 2).contains(&count), "{count} blocks: {said}");
    let node = connect(far.address, NODE).await;
    for block in 0..BLOCKS {
        if lost[block as usize] {
            let error = read(&*volume, block).await.expect_err("nothing older is an answer");
            assert!(matches!(error, volume::Error::Medium { .. }), "{error}");
        } else {
            let found = read(&*node, block).await.expect("read");
            assert_eq!(found, content(block, 1), "block {block}");
            // The gateway has destaged this block from memory and may have evicted it: then it must read it from the
            // node.
            let found = read(&*volume, block).await.expect("read");
            assert_eq!(found, content(block, 1), "block {block} at the gateway");
        }
    }
    let told =
        said.lines().filter(|line| line.contains("they cannot be read from the log")).count();
    assert!(told <= lost.len().min(257), "{told} events");
    let told = || events.lock().expect("whole").matches("the log is lost: ").count();
    eventually("the event of the loss", || told() > 0).await;
    assert_eq!(told(), 1);
    let control = place.path("gateway.sock").display().to_string();
    let status = support::run(&["status", "--json", "--control", &control]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).expect("a status");
    let cache = &status["targets"][0]["units"][0]["layers"][1]["figures"];
    assert_eq!(cache["dirty_bytes"], count * 4096, "what is dirty is what is lost");
}

fn events_of(running: &mut Running) -> Arc<Mutex<String>> {
    let (stderr, events) = (running.stderr(), Arc::new(Mutex::new(String::new())));
    let kept = Arc::clone(&events);
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            println!("{line}");
            *kept.lock().expect("whole") += &(line + "\n");
        }
    });
    events
}

/// Regression test: an access to the truncated file raised SIGBUS, which ended the process with all targets.
#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_or_removed_nvram_file_does_not_end_the_process_and_loses_nothing() {
    type Damage = fn(&PathBuf);
    let damages: [(&str, Damage); 2] = [
        ("cut", |nvram| {
            File::options().write(true).open(nvram).and_then(|it| it.set_len(0)).expect("cut");
        }),
        ("removed", |nvram| fs::remove_file(nvram).expect("removed")),
    ];
    for (how, damage) in damages {
        let nvram = PathBuf::from("nvram");
        let pair = Pair::new(&format!("report = 'immediate'\nnvram = '{}'\n", nvram.display()));
        let volume = connect(pair.near.address, GATEWAY).await;
        for block in 0..8 {
            write(&*volume, block, 1).await.expect("written");
        }
        damage(&pair.place.path("nvram"));
        for block in 8..16 {
            write(&*volume, block, 1).await.expect("by way of the log");
        }
        eventually("notice", || !pair.said("nvram_error").is_empty()).await;
        write(&*volume, 16, 1).await.expect("by way of the log");
        assert_written(&*volume, 17).await;
        let Pair { place, far, near, .. } = pair;
        assert!(near.terminate().0.success(), "{how}");
        let more = format!("{LAZY}report = 'immediate'\nnvram = 'nvram'\n");
        let near = place.serve("gateway", &gateway(place.folder.path(), far.address, &more));
        assert_written(&*connect(near.address, GATEWAY).await, 17).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_mirror_leg_of_a_log_is_left_out_and_the_other_leg_stays_in_use() {
    let pair = Pair::new("log_mirror = 'second.log'\n");
    let volume = connect(pair.near.address, GATEWAY).await;
    write(&*volume, 0, 1).await.expect("written");
    fs::remove_file(pair.place.path("second.log")).expect("it is there");
    let halves = || {
        let layer = pair.near.status()["targets"][0]["units"][0]["layers"][1].clone();
        layer["figures"]["log_halves"].to_string()
    };
    let before = halves();
    let mut block = 0;
    let begun = Instant::now();
    while halves() == before {
        assert!(begun.elapsed() < Duration::from_secs(20), "it is not noticed: {before}");
        block += 1;
        write(&*volume, block, 1).await.expect("the other half is there");
    }
    assert_written(&*volume, block + 1).await;
}

/// Regression: the loss went unnoticed, and the stop promised that the next start would recover the lost data.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_lost_both_mirror_legs_destages_all_its_data() {
    let pair = Pair::new("log_mirror = 'second.log'\n");
    let volume = connect(pair.near.address, GATEWAY).await;
    for block in 0..64 {
        write(&*volume, block, 1).await.expect("written");
    }
    fs::remove_file(pair.place.path("second.log")).expect("it is there");
    fs::remove_file(&pair.log).expect("it is there");
    let (more, taken) = write_until_refused(&*volume, 64).await;
    assert!(taken < Duration::from_secs(5), "it took {taken:?}");
    eventually("the lost log", || pair.said("log_error").contains("its other leg")).await;
    eventually("destage", || pair.near.figure("cache", "dirty_bytes") == 0).await;
    volume.flush().await.expect("all is at the node");
    assert_written(&*connect(pair.far.address, NODE).await, 64 + more).await;
    let Pair { place, far, near, .. } = pair;
    assert!(near.terminate().0.success());
    let more_keys = format!("{LAZY}log_mirror = 'second.log'\n");
    let near = place.serve("gateway", &gateway(place.folder.path(), far.address, &more_keys));
    let volume = connect(near.address, GATEWAY).await;
    assert_written(&*volume, 64 + more).await;
    write(&*volume, 0, 2).await.expect("written");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_file_removed_in_use_is_still_read_but_no_longer_written() {
    let place = Place::new();
    let far = place.serve("node", &node(place.folder.path(), 0));
    let volume = connect(far.address, NODE).await;
    write(&*volume, 0, 1).await.expect("written");
    let (file, kept) = (place.path("node.img"), place.path("kept.img"));
    fs::rename(&file, &kept).expect("renamed");
    let (more, taken) = write_until_refused(&*volume, 1).await;
    assert!(taken < Duration::from_secs(5), "it took {taken:?}");
    assert!(volume.flush().await.is_err(), "nothing is promised");
    assert_written(&*volume, more + 1).await;
    fs::rename(&kept, &file).expect("renamed");
    let begun = Instant::now();
    while write(&*volume, more + 1, 1).await.is_err() {
        assert!(begun.elapsed() < Duration::from_secs(20), "it does not come back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    volume.flush().await.expect("flushed");
    fs::remove_file(&file).expect("removed");
    write_until_refused(&*volume, more + 2).await;
    assert_written(&*volume, more + 2).await;
}
