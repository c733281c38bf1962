//! iSCSI commands over connections that share a model of their path, at both ends. Needs the privilege to load BPF
//! programs (root); without it the test prints a message and ends.

mod support;

use std::sync::Arc;

use futures_util::future::join_all;
use initiator::RemoteVolume;
use support::{Place, content, eventually, node, run};
use volume::{Data, Durability, Extent, Lba, Volume};

const NODE: &str = "iqn.2026-11.test:node";
const CHOICE: &str = "ensemble by model";
/// Number of concurrent commands: enough for every connection to have some.
const COMMANDS: u64 = 32;
/// Blocks of 4 KiB per command: 1 MiB, more than the kernel sends at once. If one acknowledgment covers everything that
/// a connection has sent, the model gets no rate.
const BLOCKS: u32 = 256;
/// Upper bound of a round trip time over loopback.
const MOST_RTT_US: u64 = 1_000_000;
/// Lower bound of the rate of any loopback, in bits per second.
const LEAST_RATE: u64 = 1_000_000;

#[tokio::test(flavor = "multi_thread")]
async fn four_connections_share_one_path_model_and_both_ends_report_it() {
    let choice: transport::CongestionChoice = CHOICE.parse().expect("known words");
    let congestion = match choice.load() {
        Ok(congestion) => congestion,
        Err(error) => return println!("not run: {error}"),
    };
    let place = Place::new();
    let settings = format!("[iscsi]\ncongestion = '{CHOICE}'\n[[target]]");
    let text = node(place.folder.path(), 0).replacen("[[target]]", &settings, 1);
    let far = place.serve("node", &text);
    let mut settings = initiator::Settings::new(far.address.to_string(), NODE, 0);
    settings.connections = 4;
    settings.congestion = congestion;
    let volume = Arc::new(RemoteVolume::connect(settings).await.expect("a login"));
    eventually("all four", || volume.session().connections().len() == 4).await;
    write_all(&volume).await;
    read_all(&volume).await;

    // The model keeps a delivery rate for only ten round trips, so read it while commands are in flight.
    let its = volume.clone();
    let writes = tokio::spawn(async move {
        loop {
            write_all(&its).await;
        }
    });
    eventually("a rate of what is sent", || {
        let near = volume.session().congestion().and_then(|it| it.ensemble).expect("an ensemble");
        assert_eq!(near.members, 4);
        let path = near.path.expect("a model");
        assert!(!path.least_rtt.is_zero(), "{near:?}");
        path.bandwidth > 0.0
    })
    .await;
    writes.abort();
    assert!(writes.await.is_err_and(|it| it.is_cancelled()), "a write failed");

    let its = volume.clone();
    let reads = tokio::spawn(async move {
        loop {
            read_all(&its).await;
        }
    });
    let rate = "delivery_bits_per_second";
    eventually("a rate of what the node sends", || {
        let session = far.status()["sessions"][0].clone();
        assert_eq!(session["connections"].as_array().map(Vec::len), Some(4), "{session}");
        assert_eq!(session["ensemble"]["members"], 4, "{session}");
        let path = &session["ensemble"]["path"];
        let least = path["least_rtt_us"].as_u64().expect("a round trip");
        assert!((1..MOST_RTT_US).contains(&least), "{session}");
        path[rate].as_u64().is_some_and(|rate| rate > LEAST_RATE)
    })
    .await;
    eventually("the same, for people", || {
        let control = far.control.to_str().expect("text");
        let shown = String::from_utf8(run(&["status", "--all", "--control", control]).stdout)
            .expect("text");
        assert!(shown.contains("4 share "), "{shown}");
        shown.contains(" Mbit/s, ")
    })
    .await;
    reads.abort();
    assert!(reads.await.is_err_and(|it| it.is_cancelled()), "a read failed");
}

async fn write_all(volume: &RemoteVolume) {
    let writes = (0..COMMANDS)
        .map(|command| volume.write(lba(command), Data::from(of(command)), Durability::Volatile));
    for written in join_all(writes).await {
        written.expect("written");
    }
}

async fn read_all(volume: &RemoteVolume) {
    let reads =
        (0..COMMANDS).map(|command| volume.read(Extent { lba: lba(command), blocks: BLOCKS * 8 }));
    for (command, read) in (0..).zip(join_all(reads).await) {
        assert!(read.expect("read").into_bytes() == of(command), "command {command}");
    }
}

fn lba(command: u64) -> Lba {
    Lba(command * u64::from(BLOCKS) * 8)
}

fn of(command: u64) -> Vec<u8> {
    let first = command * u64::from(BLOCKS);
    (first..first + u64::from(BLOCKS)).flat_map(|block| content(block, 1)).collect()
}
