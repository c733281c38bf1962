//! Capabilities that were granted, used and revoked.

use crate::{
    complaint, printed,
    served::{FILE, Served},
};

#[test]
fn a_grant_gives_its_object_a_policy_access_tag_and_revoke_ends_it() {
    let served = Served::start(FILE);
    let partition = served.partition();
    let object = served.object(&partition, b"content");
    let other = served.object(&partition, b"other");
    let tag = |object: &str| {
        let shown = served.json("attributes", &[object, "--get", "5h/40000001h"]);
        shown["attributes"][0]["value"].clone()
    };
    assert_eq!(tag(&object), "0");
    let [reader, other_reader] = ["reader", "other-reader"].map(|name| served.text(name));
    let permissions = ["--permissions", "read,get-attributes", "--out"];
    let said = served.owner("grant", &[&[object.as_str()], &permissions[..], &[&reader]].concat());
    assert!(said.contains("while its policy access tag is 1"), "{said}");
    assert_eq!(tag(&object), "1");
    let granted =
        served.json("grant", &[&[other.as_str()], &permissions[..], &[&other_reader]].concat());
    assert_eq!(granted["policy_access_tag"], 1);
    let copy = served.text("copy");
    let get = |object: &str, credential: &str| {
        let _ = std::fs::remove_file(&copy);
        served.run("get", &[object, &copy, "--credential", credential])
    };
    printed(get(&object, &reader));
    assert!(served.owner("revoke", &[&object]).contains("are invalid"));
    let said = complaint(&get(&object, &reader));
    assert!(said.contains("it was revoked") && said.contains("forebay object grant"), "{said}");
    printed(get(&other, &other_reader));
    // A later grant is valid, and the former one stays invalid.
    let again = served.text("again");
    served.owner("grant", &[&[object.as_str()], &permissions[..], &[&again]].concat());
    printed(get(&object, &again));
    complaint(&get(&object, &reader));
    served.json("revoke", &[&object]);
    complaint(&get(&object, &again));
}

#[test]
fn a_revoked_partition_accepts_no_new_objects() {
    let served = Served::start(FILE);
    let partition = served.partition();
    let writer = served.text("writer");
    let permissions =
        "create,read,write,get-attributes,set-attributes,object-management,member-objects";
    let names = ["--permissions", permissions, "--out", &writer];
    let granted = served.signed("grant", &[&[partition.as_str()], &names[..]].concat()).output();
    let granted = granted.expect("the program runs");
    let with = ["--credential", &writer];
    printed(granted);
    let create = || served.run("create", &[&[partition.as_str()], &with[..]].concat());
    printed(create());
    served.owner("revoke", &[&partition]);
    let said = complaint(&create());
    assert!(said.contains("it was revoked"), "{said}");
    // A partition with the same identifier is another one.
    served.owner("grant", &[&[partition.as_str()], &names[..3], &[&served.text("next")]].concat());
    served.owner("remove", &[&partition, "--with-contents"]);
    served.owner("create", &["--partition", &partition]);
    let next = served.text("next");
    let said = complaint(&served.run("create", &[&partition, "--credential", &next]));
    assert!(said.contains("remedy:"), "{said}");
}

#[test]
fn a_collection_is_granted_and_revoked_like_an_object() {
    let served = Served::start(FILE);
    let partition = served.partition();
    let collection = served.owner("collection", &[&partition]);
    let collection = collection.trim();
    let reader = served.text("reader");
    let names = ["--permissions", "read,member-objects,get-attributes", "--out", &reader];
    served.owner("grant", &[&[collection], &names[..]].concat());
    let show = || served.run("collection", &[collection, "--credential", &reader]);
    printed(show());
    served.owner("revoke", &[collection]);
    assert!(complaint(&show()).contains("it was revoked"));
}
