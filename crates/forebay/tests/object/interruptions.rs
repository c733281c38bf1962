//! Transfers that are killed in the middle, and continued.

use std::{
    fs,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use initiator::{Credential, KeyChain, RemoteObjects};
use object::{AttributeId, AttributeSelection, Command, ObjectAddress, ObjectRequest};
use osd::security::{Algorithm, SecurityMethod};
use volume::Data;

use crate::{
    complaint, printed,
    served::{NAME, Served, pattern},
};

/// A drive on which each access takes a while, so that a transfer can be interrupted.
const SLOW: &str = "{ file = { path = 'drive.img', size = '256MiB' } }, \
                    { delay = { read = '30ms', write = '30ms', flush = '1ms' } }";
const LENGTH: usize = 40 << 20;
/// The bytes of one command of a transfer.
const PIECE: u64 = 1 << 20;

fn credential(served: &Served) -> Credential {
    let key = fs::read(served.path("drive.key")).expect("the key");
    let chain = KeyChain::parse(&key).expect("a key");
    Credential::keys(chain, SecurityMethod::CmdRsp, Algorithm::HmacSha256, 0)
}

async fn connect(served: &Served, credential: Credential) -> RemoteObjects {
    let settings = initiator::Settings::new(served.node.address.to_string(), NAME, 0);
    RemoteObjects::connect(settings, credential, None).await.expect("a drive")
}

/// Returns the identifiers of an object that `forebay object` has printed.
fn address(name: &str) -> ObjectAddress {
    let number = |text: &str| u64::from_str_radix(text.trim_end_matches('h'), 16).expect("digits");
    let (partition, object) = name.split_once('/').expect("PID/OID");
    ObjectAddress::new(number(partition), number(object))
}

async fn length_of(objects: &RemoteObjects, object: ObjectAddress) -> u64 {
    let get = ObjectRequest::new(Command::GetAttributes { object })
        .getting(AttributeSelection::One(AttributeId::new(0x1, 0x82)));
    let reply = objects.request(get).await.expect("its length");
    u64::from_be_bytes(reply.attributes[0].value.as_ref().try_into().expect("8 bytes"))
}

fn spawn(served: &Served, act: &str, args: &[&str]) -> Child {
    let mut command = served.signed(act, args);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program runs")
}

/// Waits until `length` is above `least` and below `end`, and kills the program.
async fn kill_between(
    mut child: Child,
    least: u64,
    end: u64,
    mut length: impl AsyncFnMut() -> u64,
) {
    let begun = Instant::now();
    loop {
        let present = length().await;
        if present > least {
            child.kill().expect("killed");
            child.wait().expect("ended");
            assert!(present < end, "the transfer has ended before it was killed");
            return;
        }
        assert!(child.try_wait().expect("a child").is_none(), "the transfer has ended");
        assert!(begun.elapsed() < Duration::from_secs(60), "no progress");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_put_that_was_killed_continues() {
    let served = Served::start(SLOW);
    let partition = served.partition();
    let object = served.object(&partition, &vec![0xee; 3 << 20]);
    let content = pattern(112 << 20);
    let file = served.file("file", &content);
    let said = served.refused("put", &[&object, &file, "--resume"]);
    assert!(said.contains("no put of") && said.contains("leave out --resume"), "{said}");
    // One is killed before anything of it is stable, the other one after that.
    let record = served.path(&format!("file.put-{}", object.replace('/', "-")));
    let done = || {
        let text = fs::read(&record).unwrap_or_default();
        let progress = serde_json::from_slice::<serde_json::Value>(&text).unwrap_or_default();
        progress["done"].as_u64()
    };
    let child = spawn(&served, "put", &[&object, &file]);
    kill_between(child, 0, 2, async || done().map_or(0, |_| 1)).await;
    assert_eq!(done(), Some(0));
    let child = spawn(&served, "put", &[&object, &file, "--resume"]);
    kill_between(child, 0, content.len() as u64, async || done().unwrap_or(0)).await;
    let stable = done().expect("a record");
    let resumed = served.json("put", &[&object, &file, "--resume"]);
    assert_eq!(resumed["transferred"], content.len() as u64 - stable);
    assert!(served.content(&object) == content, "the object differs from the file");
    let said = served.refused("put", &[&object, &file, "--resume"]);
    assert!(said.contains("no put of"), "{said}");
}

/// Writes that were acknowledged and not flushed are lost with the drive. What the put writes after the drive's restart
/// must not hide the gap.
#[tokio::test]
async fn a_put_over_a_crash_of_the_drive_leaves_no_gap() {
    let mut served = Served::start(SLOW);
    let partition = served.partition();
    let object = served.owner("create", &[&partition]).trim().to_owned();
    let content = pattern(40 << 20);
    let file = served.file("file", &content);
    let objects = connect(&served, credential(&served)).await;
    let child = spawn(&served, "put", &[&object, &file]);
    let begun = Instant::now();
    while length_of(&objects, address(&object)).await < 10 * PIECE {
        assert!(begun.elapsed() < Duration::from_secs(60), "no progress");
    }
    objects.close().await;
    served.restart_in_place();
    let output = child.wait_with_output().expect("it ends");
    if output.status.success() {
        // Everything was sent again.
        assert!(served.content(&object) == content, "a success that did not happen");
        return;
    }
    served.owner("put", &[&object, &file, "--resume"]);
    assert!(served.content(&object) == content, "the object has a gap");
}

#[tokio::test]
async fn a_get_that_was_killed_continues() {
    let served = Served::start(SLOW);
    let partition = served.partition();
    let content = pattern(LENGTH);
    let object = served.object(&partition, &content);
    let copy = served.text("copy");
    let child = spawn(&served, "get", &[&object, &copy]);
    let length = async || fs::metadata(&copy).map_or(0, |found| found.len());
    kill_between(child, PIECE, LENGTH as u64, length).await;
    let said = served.refused("get", &[&object, &copy]);
    assert!(said.contains("--resume"), "{said}");
    let resumed = served.json("get", &[&object, &copy, "--resume"]);
    assert!(resumed["transferred"].as_u64() < Some(LENGTH as u64), "it began again: {resumed}");
    assert!(fs::read(&copy).expect("read") == content, "the file differs from the object");
    // A file of another object is not continued.
    let other = served.file("other", &vec![7; 5000]);
    let said = served.refused("get", &[&object, &other, "--resume"]);
    assert!(said.contains("differs from"), "{said}");
    assert_eq!(fs::read(&other).expect("read"), vec![7; 5000]);
}

#[tokio::test]
async fn an_append_that_was_killed_continues_and_appends_nothing_twice() {
    let served = Served::start(SLOW);
    let partition = served.partition();
    let object = served.object(&partition, b"first");
    let content = pattern(12 << 20);
    let file = served.file("file", &content);
    let objects = connect(&served, credential(&served)).await;
    let mut expected = 5;
    let mut others = Vec::new();
    for round in 0..3 {
        let args = [&[object.as_str(), &file], &["--resume"][..usize::from(round > 0)]].concat();
        let child = spawn(&served, "append", &args);
        let end = expected + content.len() as u64;
        let length = async || length_of(&objects, address(&object)).await;
        kill_between(child, expected + PIECE, end, length).await;
        // Another client appends in between.
        let append = Command::Append { object: address(&object), length: 5 };
        let append = ObjectRequest::new(append).with_data(Data::from(b"other".to_vec()));
        let start = objects.request(append).await.expect("appended").current.append_start;
        others.push(start);
        expected = start + 5;
    }
    let said = served.refused("append", &[&object, &file]);
    assert!(said.contains("was interrupted") && said.contains("--resume"), "{said}");
    let resumed = served.json("append", &[&object, &file, "--resume"]);
    assert_eq!((&resumed["start"], &resumed["bytes"]), (&5.into(), &content.len().into()));
    let mut found = served.content(&object);
    for start in others.into_iter().rev() {
        let start = start as usize;
        assert_eq!(found.drain(start..start + 5).collect::<Vec<_>>(), b"other");
    }
    assert!(found == [b"first", &content[..]].concat(), "bytes are missing or were appended twice");
    served.owner("append", &[&object, &file]);
    objects.close().await;
}

/// The drive's clock is ahead after a crash. The credential does not permit to read it.
#[tokio::test]
async fn a_client_works_at_once_after_a_crash_of_the_drive() {
    let mut served = Served::start(crate::served::FILE);
    let partition = served.partition();
    let object = served.object(&partition, b"content");
    let reader = served.text("reader");
    let grant = ["--permissions", "read,append,get-attributes", "--out"];
    served.owner("grant", &[&[object.as_str()], &grant[..], &[&reader]].concat());
    only_object(&reader);
    let copy = served.text("copy");
    let begun = Instant::now();
    served.restart();
    let ready = begun.elapsed();
    printed(served.run("get", &[&object, &copy, "--credential", &reader]));
    println!("the node was ready after {ready:?}, the object read after {:?}", begun.elapsed());
    assert!(begun.elapsed() - ready < Duration::from_secs(20), "it waited for its own clock");
    let more = served.file("more", b", more");
    printed(served.run("append", &[&object, &more, "--credential", &reader]));
    assert_eq!(served.content(&object), b"content, more");
    // Without the append permission nothing is left behind.
    served
        .owner("grant", &[object.as_str(), "--permissions", "read", "--out", &served.text("less")]);
    let less = served.text("less");
    complaint(&served.run("append", &[&object, &more, "--credential", &less]));
}

/// Removes the capability for the root from a credential file.
fn only_object(path: &str) {
    let text = fs::read(path).expect("read");
    let mut credential: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let capabilities = credential["capabilities"].as_array_mut().expect("a list");
    capabilities.retain(|one| one["about"] != "get-attributes on the drive");
    assert_eq!(capabilities.len(), 1);
    fs::write(path, serde_json::to_vec(&credential).expect("JSON")).expect("written");
}
