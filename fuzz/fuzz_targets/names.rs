//! Sends bytes to the naming service of a node. Without the secret, no bytes may be accepted as a message. Every
//! message of a node that has the secret must be answered, whatever it contains.
#![no_main]

use std::time::{Duration, Instant};

use fuzz::Choices;
use libfuzzer_sys::fuzz_target;
use names::{
    Channel, ChannelEnd, Gln, HELLO_BYTES, Hello, NodeRecord, NamesRequest, NamesResponse, NodeRecordStamp, NamesTable, NodeExpiryTimes,
};

/// Maximum number of other nodes that the naming table of a node holds.
const MOST_NODES: usize = 256;
const SECRET: &[u8] = b"a secret of sixteen bytes or more";

fuzz_target!(|input: &[u8]| {
    let mut choices = Choices::new(input);
    let kind = choices.byte();
    let rest = choices.rest();
    match kind % 3 {
        0 => hostile(rest),
        1 => request(rest),
        _ => response(rest),
    }
});

/// Receives bytes from a peer that does not have the secret.
fn hostile(bytes: &[u8]) {
    if let Some(hello) = bytes.first_chunk::<HELLO_BYTES>()
        && let Ok(parsed) = Hello::parse(hello)
    {
        assert_eq!(&parsed.encode(), hello);
    }
    let (mut caller, mut called) = channels();
    if let Some((length, rest)) = bytes.split_first_chunk::<4>() {
        let _ = called.rest(*length);
        assert!(called.open(rest).is_err() && caller.open(rest).is_err());
    }
    // The receiver must accept a sealed frame once. A frame that was changed, and one that was accepted before, must be
    // refused.
    let frame = caller.seal(bytes);
    let (length, rest) = frame.split_first_chunk::<4>().expect("a frame has a length");
    assert_eq!(called.rest(*length), Ok(rest.len()));
    let mut changed = rest.to_vec();
    let at = bytes.iter().fold(0, |sum, byte| sum * 31 % changed.len() + usize::from(*byte));
    changed[at % rest.len()] ^= 1;
    assert!(called.open(&changed).is_err());
    assert_eq!(called.open(rest), Ok(bytes));
    assert!(called.open(rest).is_err(), "once is enough");
}

fn channels() -> (Channel, Channel) {
    let (ours, theirs) = (Hello([1; 32]), Hello([2; 32]));
    let caller = Channel::new(SECRET, ChannelEnd::Caller, ours, theirs);
    let called = Channel::new(SECRET, ChannelEnd::Called, theirs, ours);
    (caller.expect("they differ"), called.expect("they differ"))
}

/// Receives a request from a node that has the secret. The request may be wrong.
fn request(bytes: &[u8]) {
    let Ok(request) = serde_json::from_slice::<NamesRequest>(bytes) else { return };
    let text = serde_json::to_vec(&request).expect("it is plain data");
    assert_eq!(serde_json::from_slice::<NamesRequest>(&text).expect("as it was written"), request);
    let (mut table, now) = (table(), Instant::now());
    let response = names::answer(&mut table, request, now);
    serde_json::to_vec(&response).expect("it is plain data");
    look(&table, now);
}

fn response(bytes: &[u8]) {
    let Ok(response) = serde_json::from_slice::<NamesResponse>(bytes) else { return };
    let NamesResponse::Exchanged { known, told } = response else { return };
    let (mut table, now) = (table(), Instant::now());
    let _ = names::finish(&mut table, &known, told, now);
    look(&table, now);
}

fn table() -> NamesTable {
    let own = NodeRecord {
        stamp: NodeRecordStamp { gln: Gln::new([7; 16]), version: 1, beat: 1 },
        instance: 1,
        node: "node-1".parse().expect("a name"),
        addresses: vec!["10.0.0.1:3299".into()],
        volumes: Vec::new(),
    };
    let times =
        NodeExpiryTimes { stale_after: Duration::from_secs(30), forget_after: Duration::from_secs(3600) };
    NamesTable::new(own, times)
}

/// Checks that the naming table is consistent, whatever messages the node has received.
fn look(table: &NamesTable, now: Instant) {
    for listed in table.nodes(now) {
        assert!(listed.record.check().is_ok());
        for volume in &listed.record.volumes {
            let _ = table.resolve(&volume.volume, now);
        }
    }
    assert!(table.stamps().len() <= 1 + MOST_NODES);
    let _ = table.troubles(now).count();
    let _ = table.news_for(&[], 1 << 20, now);
}
