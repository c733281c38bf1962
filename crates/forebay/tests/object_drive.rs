//! Tests an object drive of a real `forebay` process: capabilities, restarts, kills, and damaged or foreign volumes.

mod support;

use std::{
    os::unix::fs::PermissionsExt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use initiator::{Credential, GrantedCapability, KeyChain, RemoteObjects};
use object::{
    Attribute, AttributeSelection, Command, FlushScope, KeyToSet, ListRequest, ObjectAddress,
    ObjectError, ObjectReply, ObjectRequest, ObjectType, ReplyData,
};
use osd::{
    Capability, Permissions,
    security::{Algorithm, SecurityMethod, SigningKey},
};
use serde_json::Value;
use support::{Place, Serving, run, stderr};
use volume::Data;

const NAME: &str = "iqn.2026-11.test:objects";
const PARTITION: u64 = 0x1_0000;
const FILE: &str = "{ file = { path = 'drive.img', size = '64MiB' } }";
const NOSEC: &str = "security = 'nosec'";
const SIGNED: &str = "security = 'cmdrsp'\nmaster_key_file = 'drive.key'";

fn drive(layers: &str, keys: &str) -> String {
    format!(
        "listen = ['127.0.0.1:0']\n[[target]]\nname = '{NAME}'\n[[target.unit]]\nkind = 'object'\n\
         stack = [ {layers} ]\n[target.unit.object]\n{keys}\n"
    )
}

fn key_file(place: &Place) -> KeyChain {
    let content = format!("{}\n{}\n", "01".repeat(32), "02".repeat(32));
    let path = place.path("drive.key");
    std::fs::write(&path, &content).expect("written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("chmod");
    KeyChain::parse(content.as_bytes()).expect("a key")
}

async fn connect(node: &Serving, credential: Credential) -> RemoteObjects {
    let mut settings = initiator::Settings::new(node.address.to_string(), NAME, 0);
    settings.back_off = std::time::Duration::from_millis(5);
    RemoteObjects::connect(settings, credential, None).await.expect("a drive")
}

async fn request(objects: &RemoteObjects, command: Command) -> Result<ObjectReply, ObjectError> {
    objects.request(ObjectRequest::new(command)).await
}

async fn create(objects: &RemoteObjects) -> ObjectAddress {
    let create = Command::Create { partition: PARTITION, requested: 0, count: 1 };
    request(objects, create).await.expect("an object").current.object
}

async fn put(objects: &RemoteObjects, object: ObjectAddress, data: &[u8]) {
    let command = Command::Write { object, length: data.len() as u64, start: 0 };
    let write = ObjectRequest::new(command).with_data(Data::from(data.to_vec()));
    objects.request(write).await.expect("a write");
}

async fn get(objects: &RemoteObjects, object: ObjectAddress, length: u64) -> Vec<u8> {
    let reply = request(objects, Command::Read { object, length, start: 0 }).await.expect("a read");
    let ReplyData::Bytes(data) = reply.data else { panic!("a read returns bytes") };
    data.into_bytes().to_vec()
}

async fn list(objects: &RemoteObjects) -> Vec<u64> {
    let list = ListRequest { allocation_length: 1 << 16, ..ListRequest::default() };
    let listed =
        request(objects, Command::List { partition: PARTITION, list }).await.expect("a list");
    let ReplyData::List(listed) = listed.data else { panic!("a list") };
    listed.objects.iter().map(|listed| listed.id).collect()
}

async fn flush(objects: &RemoteObjects) -> Result<ObjectReply, ObjectError> {
    request(objects, Command::FlushOsd { scope: FlushScope::RangeOrEverything }).await
}

fn unit(node: &Serving) -> Value {
    node.status()["targets"][0]["units"][0].clone()
}

#[tokio::test]
async fn objects_are_kept_in_memory_and_counted() {
    let place = Place::new();
    let node = place.serve("node", &drive("{ memory = { size = '64MiB' } }", NOSEC));
    let objects = connect(&node, Credential::None).await;
    request(&objects, Command::CreatePartition { requested: PARTITION })
        .await
        .expect("a partition");
    let object = create(&objects).await;
    let data: Vec<u8> = (0..300_001u32).map(|at| (at % 251) as u8).collect();
    put(&objects, object, &data).await;
    assert_eq!(get(&objects, object, data.len() as u64).await, data);
    let name = Attribute::new(0x1, 0x9, b"name".to_vec());
    let set = ObjectRequest::new(Command::SetAttributes { object }).setting(name.clone());
    objects.request(set).await.expect("set");
    let read = ObjectRequest::new(Command::GetAttributes { object })
        .getting(AttributeSelection::One(name.id));
    assert_eq!(objects.request(read).await.expect("got").attributes[0], name);
    assert_eq!(list(&objects).await, [object.object]);
    let status = unit(&node);
    assert_eq!(status["kind"], "object");
    assert!(status["used_bytes"].as_u64().expect("a figure") >= 300_001);
    assert_eq!(status["service_actions"]["WRITE"], 1);
    assert_eq!(status["service_actions"]["CREATE"], 1);
    assert!(status["refused"].as_object().expect("a table").is_empty());
    let text = run(&["status", "--all", "--control", node.control.to_str().expect("plain")]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("object drive: "), "{text}");
    objects.close().await;
    let (ended, _) = node.terminate();
    assert!(ended.success());
}

#[tokio::test]
async fn a_disk_has_no_figures_of_an_object_drive() {
    let place = Place::new();
    let text = format!(
        "listen = ['127.0.0.1:0']\n[[target]]\nname = '{NAME}'\n[[target.unit]]\nstack = [ {{ memory = {{ size = \
         '1MiB' }} }} ]\n"
    );
    let node = place.serve("node", &text);
    let status = unit(&node);
    let keys: Vec<_> = status.as_object().expect("a table").keys().cloned().collect();
    assert!(!keys.iter().any(|key| ["kind", "objects", "refused"].contains(&&**key)), "{keys:?}");
}

#[tokio::test]
async fn a_capability_permits_what_it_says_also_after_a_restart() {
    let place = Place::new();
    let chain = key_file(&place);
    let settings = drive(FILE, SIGNED);
    let node = place.serve("node", &settings);
    let owner =
        || Credential::keys(chain.clone(), SecurityMethod::CmdRsp, Algorithm::HmacSha256, 0);
    let objects = connect(&node, owner()).await;
    let set = |key| {
        let own = owner();
        own.owner().expect("keys").set_key(key)
    };
    request(&objects, set(KeyToSet::Root)).await.expect("the root key");
    request(&objects, Command::CreatePartition { requested: PARTITION })
        .await
        .expect("a partition");
    let partition = PARTITION;
    request(&objects, set(KeyToSet::Partition { partition })).await.expect("its key");
    request(&objects, set(KeyToSet::Working { partition, version: 0 })).await.expect("working key");
    let object = create(&objects).await;
    put(&objects, object, b"for readers").await;
    flush(&objects).await.expect("flushed");

    let capability = Capability::for_object(
        object,
        ObjectType::UserObject,
        Permissions::READ,
        SecurityMethod::CmdRsp,
    );
    let system = objects.system_id().expect("the drive reports it");
    let (bytes, key) = chain.sign(&capability, SigningKey::Working { partition }, &system);
    let granted = || {
        let granted = GrantedCapability::new(bytes, key.key.clone()).expect("a capability");
        Credential::Capabilities(vec![granted])
    };
    let reader = connect(&node, granted()).await;
    assert_eq!(get(&reader, object, 11).await, b"for readers");

    let unsigned = connect(&node, Credential::None).await;
    let refused = request(&unsigned, Command::Read { object, length: 1, start: 0 }).await;
    assert!(refused.is_err(), "a drive that requires signatures answers without one");
    assert!(unit(&node)["refused"]["method"].as_u64() >= Some(1), "{}", unit(&node));
    for session in [objects, reader, unsigned] {
        session.close().await;
    }
    let (ended, _) = node.terminate();
    assert!(ended.success());

    let node = place.serve("node", &settings);
    let reader = connect(&node, granted()).await;
    assert_eq!(get(&reader, object, 11).await, b"for readers");
    reader.close().await;
}

#[tokio::test]
async fn flushed_objects_are_there_after_a_kill_under_load() {
    let place = Place::new();
    let settings = drive(FILE, NOSEC);
    let mut node = place.serve("node", &settings);
    let objects = Arc::new(connect(&node, Credential::None).await);
    request(&objects, Command::CreatePartition { requested: PARTITION })
        .await
        .expect("a partition");
    let mut kept = Vec::new();
    for round in 0..8u8 {
        let object = create(&objects).await;
        put(&objects, object, &vec![round; 20_000 + usize::from(round)]).await;
        kept.push((object, round));
    }
    flush(&objects).await.expect("flushed");
    let written = Arc::new(AtomicU64::new(0));
    let load = tokio::spawn({
        let (objects, written) = (Arc::clone(&objects), Arc::clone(&written));
        async move {
            loop {
                let create = Command::Create { partition: PARTITION, requested: 0, count: 1 };
                let Ok(created) = request(&objects, create).await else { return };
                let object = created.current.object;
                let command = Command::Write { object, length: 9_000, start: 0 };
                let write = ObjectRequest::new(command).with_data(Data::from(vec![0xee; 9_000]));
                if objects.request(write).await.is_err() {
                    return;
                }
                written.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    support::eventually("load", || written.load(Ordering::Relaxed) > 20).await;
    node.kill();
    load.abort();
    drop(node);

    let node = place.serve("node", &settings);
    let objects = connect(&node, Credential::None).await;
    let listed = list(&objects).await;
    for (object, round) in &kept {
        assert!(listed.contains(&object.object), "a flushed object is missing");
        let data = get(&objects, *object, 30_000).await;
        assert!(data == vec![*round; 20_000 + usize::from(*round)], "object {object}");
    }
    let highest = *listed.iter().max().expect("objects");
    assert!(create(&objects).await.object > highest, "an identifier was given twice");
    objects.close().await;
    let (ended, _) = node.terminate();
    assert!(ended.success());
}

#[tokio::test]
async fn a_volume_with_other_content_is_refused_and_not_changed() {
    let place = Place::new();
    let path = place.path("drive.img");
    let mut content = vec![0; 64 << 20];
    content[10] = 1;
    std::fs::write(&path, &content).expect("written");
    let refused = place.try_serve("node", &drive(FILE, NOSEC)).err().expect("it is refused");
    assert!(refused.contains("is not an object drive"), "{refused}");
    assert!(refused.contains("a new drive needs a volume of zeros"), "{refused}");
    assert!(std::fs::read(&path).expect("read") == content, "it was changed");
}

#[tokio::test]
async fn a_wrong_key_file_is_refused_with_its_reason() {
    let place = Place::new();
    let settings = drive("{ memory = { size = '64MiB' } }", SIGNED);
    let path = place.path("drive.key");
    let refused = || place.try_serve("node", &settings).err().expect("it is refused");
    assert!(refused().contains("forebay object key"), "the file is missing");
    let line = "0a".repeat(32);
    for (content, mode, reason) in [
        (format!("{line}\n"), 0o600, "has 1 lines"),
        (format!("{line}\n{}\n", &line[1..]), 0o600, "line 2 has 63 characters"),
        (format!("{line}\n{line}\n"), 0o600, "two equal lines"),
        (format!("{line}\n{}\n", "0b".repeat(32)), 0o644, "open to others"),
    ] {
        std::fs::write(&path, content).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("chmod");
        let message = refused();
        assert!(message.contains(reason), "{message}");
        assert!(!message.contains(&line), "a key in a message");
    }
}

#[tokio::test]
async fn another_master_key_does_not_open_the_drive() {
    let place = Place::new();
    let chain = key_file(&place);
    let settings = drive(FILE, SIGNED);
    let node = place.serve("node", &settings);
    let owner = Credential::keys(chain, SecurityMethod::CmdRsp, Algorithm::HmacSha256, 0);
    let set = owner.owner().expect("keys").set_key(KeyToSet::Root);
    let objects = connect(&node, owner).await;
    request(&objects, set).await.expect("the root key");
    objects.close().await;
    node.terminate();
    let other = format!("{}\n{}\n", "03".repeat(32), "04".repeat(32));
    std::fs::write(place.path("drive.key"), other).expect("written");
    let refused = place.try_serve("node", &settings).err().expect("it is refused");
    assert!(refused.contains("the master key is another one"), "{refused}");
    assert!(refused.contains("restore the master key file"), "{refused}");
}

#[tokio::test]
async fn a_drive_grows_with_its_file_while_it_is_served() {
    let place = Place::new();
    let node = place.serve("node", &drive(FILE, NOSEC));
    let control = node.control.to_str().expect("plain").to_owned();
    let capacity = || unit(&node)["capacity_bytes"].as_u64().expect("a figure");
    let before = capacity();
    let objects = connect(&node, Credential::None).await;
    request(&objects, Command::CreatePartition { requested: PARTITION })
        .await
        .expect("a partition");
    let larger = drive(&FILE.replace("64MiB", "128MiB"), NOSEC);
    place.write("node", &larger);
    let reload = run(&["reload", "--control", &control]);
    assert!(reload.status.success(), "{}", stderr(&reload));
    assert_eq!(capacity(), before + (64 << 20));
    let object = create(&objects).await;
    put(&objects, object, &[0x5a; 70_000]).await;
    objects.close().await;
    assert!(node.terminate().0.success());
    let (code, said) = check(&place, &larger, false);
    assert!(code == Some(0) && said.contains("the object drive is sound"), "{said}");
    let node = place.serve("node", &larger);
    assert_eq!(unit(&node)["capacity_bytes"].as_u64(), Some(before + (64 << 20)));
}

#[tokio::test]
async fn the_table_of_a_drive_is_read_at_the_start_only() {
    let place = Place::new();
    let node = place.serve("node", &drive(FILE, NOSEC));
    let control = node.control.to_str().expect("plain").to_owned();
    place.write("node", &drive(FILE, "security = 'nosec'\nnonces = 2000"));
    let reload = run(&["reload", "--control", &control]);
    let message = stderr(&reload);
    assert!(message.contains("the table of an object drive is read at the start"), "{message}");
}

#[tokio::test]
async fn the_volume_of_another_drive_is_refused_with_the_id_that_it_needs() {
    let place = Place::new();
    let settings = drive(FILE, NOSEC);
    assert!(place.serve("node", &settings).terminate().0.success());
    let renamed = settings.replace(NAME, "iqn.2026-11.test:renamed");
    let refused = place.try_serve("node", &renamed).err().expect("it is refused");
    let (_, id) = refused.split_once("whose OSD SYSTEM ID ends in ").expect("the id");
    let keys = format!("{NOSEC}\nsystem_id = 'f1810010{}'", &id[..32]);
    let node = place.serve("node", &renamed.replace(NOSEC, &keys));
    assert_eq!(unit(&node)["kind"], "object");
}

/// Returns the exit code and the output of `forebay check` for the settings of the node.
fn check(place: &Place, settings: &str, json: bool) -> (Option<i32>, String) {
    let config = place.write("node", settings);
    let config = config.to_str().expect("plain");
    let output = match json {
        true => run(&["check", "--json", "--config", config]),
        false => run(&["check", "--config", config]),
    };
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output))
}

#[tokio::test]
async fn check_examines_a_killed_drive_and_changes_no_byte_of_it() {
    let place = Place::new();
    let settings = drive(FILE, NOSEC);
    let mut node = place.serve("node", &settings);
    let objects = connect(&node, Credential::None).await;
    request(&objects, Command::CreatePartition { requested: PARTITION })
        .await
        .expect("a partition");
    let object = create(&objects).await;
    put(&objects, object, &[0xa5; 50_000]).await;
    flush(&objects).await.expect("flushed");
    put(&objects, object, &[0xa6; 20_000]).await;
    let (code, said) = check(&place, &settings, false);
    assert!(code == Some(0) && said.contains("drive.img is in use by process"), "{said}");
    node.kill();
    drop(node);

    let path = place.path("drive.img");
    let before = std::fs::read(&path).expect("read");
    let (code, said) = check(&place, &settings, false);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("the object drive is sound") && said.contains("not closed"), "{said}");
    assert!(std::fs::read(&path).expect("read") == before, "the volume was changed");

    // A start writes the log to the tables. A damaged block of the log's last record would look as if the power had
    // failed before the record's flush.
    let mut node = place.serve("node", &settings);
    node.kill();
    drop(node);
    let mut damaged = std::fs::read(&path).expect("read");
    let at = damaged.chunks(4096).rposition(|block| block == [0xa5; 4096]).expect("its data");
    damaged[at * 4096] = 0;
    std::fs::write(&path, damaged).expect("written");
    let (code, said) = check(&place, &settings, false);
    assert!(code == Some(1) && said.contains("does not match its checksum"), "{said}");
    let (code, said) = check(&place, &settings, true);
    assert_eq!(code, Some(1), "{said}");
    let report: Value = serde_json::from_str(said.lines().next().expect("a line")).expect("JSON");
    assert_eq!(report["drives"][0]["found"], 1, "{report}");
    assert_eq!(report["drives"][0]["findings"][0]["kind"], "data", "{report}");
    assert_eq!(report["wrong"], 1, "{report}");
}

/// Regression: `check` ended with exit code 0 for a file that `serve` could not have locked.
#[tokio::test]
async fn check_fails_for_a_drive_that_another_process_has_locked() {
    let place = Place::new();
    let settings = drive(FILE, NOSEC);
    assert!(place.serve("node", &settings).terminate().0.success());
    let file = std::fs::File::open(place.path("drive.img")).expect("opened");
    file.lock().expect("free");
    let (code, said) = check(&place, &settings, false);
    let own = format!("drive.img is in use by process {} (", std::process::id());
    assert!(code == Some(1) && said.contains(&own), "{said}");
    drop(file);
    let (code, said) = check(&place, &settings, false);
    assert!(code == Some(0) && said.contains("the object drive is sound"), "{said}");
}

#[tokio::test]
async fn check_opens_the_keys_of_a_drive_with_its_master_key() {
    let place = Place::new();
    let chain = key_file(&place);
    let settings = drive(FILE, SIGNED);
    let node = place.serve("node", &settings);
    let owner = Credential::keys(chain, SecurityMethod::CmdRsp, Algorithm::HmacSha256, 0);
    let set = owner.owner().expect("keys").set_key(KeyToSet::Root);
    let objects = connect(&node, owner).await;
    request(&objects, set).await.expect("the root key");
    objects.close().await;
    node.terminate();
    assert_eq!(check(&place, &settings, false).0, Some(0));
    let other = format!("{}\n{}\n", "03".repeat(32), "04".repeat(32));
    std::fs::write(place.path("drive.key"), other).expect("written");
    let (code, said) = check(&place, &settings, false);
    assert!(code == Some(1) && said.contains("the master key is another one"), "{said}");
}
