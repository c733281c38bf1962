//! Each subcommand of `forebay object` against a served drive, with and without `--json`.

use serde_json::json;

use crate::{
    complaint, printed,
    served::{FILE, Served, pattern},
    support::Place,
};

#[test]
fn every_subcommand_works_against_a_served_drive() {
    let served = Served::start(FILE);
    assert!(served.owner("format", &["--lose-data"]).contains("the drive is empty"));
    assert!(served.owner("list", &[]).contains("no objects"));
    let partition = served.partition();
    assert_eq!(
        served.json("create", &["--partition", "0x20000"])["created"][0]["partition"],
        0x20000
    );
    objects(&served, &partition);
    attributes(&served, &partition);
    collections(&served, &partition);
    snapshots(&served, &partition);
    keys(&served, &partition);
    assert_eq!(served.json("verify", &[])["damaged"], json!([]));
    assert!(served.owner("verify", &[&partition]).contains(" 0 damaged"));
    served.owner("remove", &["20000h"]);
    let said = served.refused("remove", &[&partition]);
    assert!(said.contains("is not empty") && said.contains("--with-contents"), "{said}");
    assert_eq!(served.json("remove", &[&partition, "--with-contents"])["object"], 0);
    served.owner("format", &["--lose-data", "--json"]);
    assert_eq!(served.json("list", &[])["objects"], json!([]));
}

fn objects(served: &Served, partition: &str) {
    let three = served.json("create", &[partition, "--count", "3"]);
    assert_eq!(three["created"].as_array().expect("a list").len(), 3);
    let content = pattern(3_000_001);
    let file = served.file("file", &content);
    let put = served.json("put", &[partition, &file]);
    assert_eq!(put["transferred"], 3_000_001);
    let object = format!("{partition}/{}", put["object"]);
    assert!(served.content(&object) == content);
    let printed = served.owner("put", &[partition, &file]);
    assert!(printed.contains("3000001 bytes in "), "{printed}");
    let more = served.file("more", b"more");
    assert!(served.owner("append", &[&object, &more]).contains("4 bytes at 3000001 of "));
    let appended = served.json("append", &[&object, &more]);
    assert_eq!((&appended["start"], &appended["bytes"]), (&json!(3_000_005), &json!(4)));
    assert!(served.content(&object) == [&content[..], b"moremore"].concat());
    served.owner("put", &[&object, &more]);
    assert_eq!(served.content(&object), b"more");
    let copy = served.text("copy");
    assert_eq!(served.json("get", &[&object, &copy])["length"], 4);
    let listed = served.json("list", &[partition, "--long"]);
    assert_eq!(listed["objects"].as_array().expect("a list").len(), 5);
    assert!(served.owner("list", &[partition, "--long"]).contains("3000001"));
    assert!(served.owner("list", &[]).contains(partition));
    let map = served.json("map", &[&object]);
    assert_eq!(map["runs"][0]["kind"], "written");
    assert!(served.owner("map", &[&object]).contains("written"));
    assert_eq!(served.json("verify", &[&object])["bytes"], 4);
    served.owner("remove", &[&object]);
    let said = served.refused("map", &[&object]);
    assert!(said.contains("does not exist") && said.contains("forebay object list"), "{said}");
}

fn attributes(served: &Served, partition: &str) {
    let object = served.owner("create", &[&format!("{partition}/30000h")]);
    let object = object.trim();
    served.owner("attributes", &[object, "--set", "1h/9h=a name", "--set", "10000h/1h=hex:00ff"]);
    assert!(served.owner("attributes", &[object]).contains("a name"));
    let shown = served.json("attributes", &[object, "--get", "10000h/1h", "--get", "1h/9h"]);
    assert_eq!(shown["attributes"][0]["hex"], "00ff");
    assert_eq!(shown["attributes"][1]["value"], "a name");
    served.owner("attributes", &[partition, "--set", "30000001h/9h=a partition"]);
    assert!(served.owner("info", &[partition]).contains("a partition"));
    served.owner("attributes", &["--set", "90000001h/9h=a drive"]);
    assert!(served.owner("info", &[]).contains("a drive"));
    assert!(served.owner("attributes", &[]).contains("clock"));
    let info = served.json("info", &[object]);
    let names: Vec<_> = info["attributes"].as_array().expect("a list").iter().collect();
    assert!(names.iter().any(|one| one["value"] == "a name"), "{info}");
}

fn collections(served: &Served, partition: &str) {
    let created = served.json("collection", &[partition]);
    let collection = format!("{partition}/{}", created["object"]);
    let other = served.owner("collection", &[partition]);
    served.owner("collection", &[&collection, "--add", "30000h"]);
    served.owner("collection", &[&collection, "--add", "30000h"]);
    assert!(served.owner("collection", &[&collection]).contains("/30000h"));
    assert_eq!(served.json("collection", &[&collection])["objects"], json!([0x30000]));
    let found = served.json("query", &[&collection, "--where", "1h/9h=a..b"]);
    assert_eq!(found["objects"], json!([0x30000]));
    let none = served.owner("query", &[&collection, "--where", "1h/9h=b..c", "--any"]);
    assert_eq!(none, "");
    let listed = served.json("list", &[partition, "--collections"]);
    assert_eq!(listed["objects"].as_array().expect("a list").len(), 2);
    // A collection has pages of its own.
    assert!(served.owner("info", &[&collection]).contains("60000001h/2h"));
    assert!(served.owner("attributes", &[&collection]).contains("60000001h/2h"));
    served.owner("collection", &[&collection, "--drop", "30000h"]);
    assert_eq!(served.json("collection", &[&collection])["objects"], json!([]));
    served.owner("remove", &[other.trim(), "--collection"]);
    served.json("remove", &[&collection, "--collection", "--with-contents"]);
}

fn snapshots(served: &Served, partition: &str) {
    let object = served.object(partition, b"before");
    let id = object.split_once('/').expect("PID/OID").1.to_owned();
    let snapshot = served.owner("snapshot", &[partition]);
    let clone = served.json("snapshot", &[partition, "--clone"]);
    let clone = format!("{:X}h", clone["partition"].as_u64().expect("a number"));
    let after = served.file("after", b"after");
    served.owner("put", &[&object, &after]);
    assert_eq!(served.content(&format!("{}/{id}", snapshot.trim())), b"before");
    assert_eq!(served.content(&format!("{clone}/{id}")), b"before");
    served.owner("snapshot", &[&clone, "--detach"]);
    served.owner("put", &[&format!("{clone}/{id}"), &after]);
    for copy in [snapshot.trim(), &clone] {
        served.owner("remove", &[copy, "--with-contents"]);
    }
    served.owner("remove", &[&object]);
}

fn keys(served: &Served, partition: &str) {
    assert!(served.owner("set-key", &[]).contains("works already"));
    assert!(served.json("set-key", &[partition])["done"].is_string());
    assert!(served.owner("set-key", &[partition, "--force"]).contains("the key is set"));
    // The drive accepts new keys in signed commands only, whatever the method of the others.
    for method in ["capkey", "alldata"] {
        served
            .owner("set-key", &[partition, "--force", "--security", method, "--key-version", "3"]);
    }
    served.owner("list", &[partition, "--security", "alldata", "--algorithm", "blake3"]);
    let said = served.refused("list", &[partition, "--security", "capkey"]);
    assert!(said.contains("a stronger security method"), "{said}");
    // The last partition key has made working key 0 invalid.
    let said = served.refused("verify", &[&format!("{partition}/30000h")]);
    assert!(said.contains("forebay object set-key"), "{said}");
    served.owner("set-key", &[partition, "--force"]);
}

#[test]
fn a_drive_without_security_needs_no_key() {
    let served = Served::serve(Place::new(), FILE, "security = 'nosec'");
    let run = |act: &str, args: &[&str]| printed(served.run(act, args));
    let partition = run("create", &[]);
    let file = served.file("file", b"content");
    let object = run("put", &[partition.trim(), &file]);
    let object = object.lines().next().expect("its name");
    let copy = served.text("copy");
    run("get", &[object, &copy]);
    assert_eq!(std::fs::read(&copy).expect("read"), b"content");
    run("append", &[object, &file]);
    let collection = run("collection", &[partition.trim()]);
    assert!(run("info", &[collection.trim()]).contains("60000001h/2h"));
    assert!(run("attributes", &[object]).contains("14"));
    run("snapshot", &[partition.trim()]);
    run("verify", &[]);
    run("remove", &[object]);
    run("format", &["--lose-data"]);
    // A key is of no use here: the drive has none.
    let key =
        served.file("any.key", format!("{}\n{}\n", "01".repeat(32), "02".repeat(32)).as_bytes());
    crate::served::make_private(key.as_ref());
    let said = complaint(&served.run("list", &["--key-file", &key]));
    assert!(said.contains("remedy:"), "{said}");
}
