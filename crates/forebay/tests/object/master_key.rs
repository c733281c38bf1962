//! The replacement of a drive's master key.

use crate::{
    complaint, printed,
    served::{FILE, Served},
    support::forebay,
};

#[test]
fn the_master_key_is_replaced_at_a_start_with_both_key_files() {
    let mut served = Served::start(FILE);
    let partition = served.partition();
    let object = served.object(&partition, b"content");
    let reader = served.text("reader");
    let permissions = ["--permissions", "read,get-attributes", "--out", &reader];
    served.owner("grant", &[&[object.as_str()], &permissions[..]].concat());
    let copy = served.text("copy");
    let get = |served: &Served| {
        let _ = std::fs::remove_file(&copy);
        served.run("get", &[&object, &copy, "--credential", &reader])
    };
    std::fs::rename(served.path("drive.key"), served.path("former.key")).expect("renamed");
    let new = served.text("drive.key");
    printed(forebay().args(["object", "key", &new]).output().expect("it runs"));
    served.node.kill();
    let refused = served.try_serve("").err().expect("the new key does not open the drive");
    assert!(refused.contains("the master key is another one"), "{refused}");
    assert!(refused.contains("former_master_key_file"), "{refused}");
    served.restart_with("former_master_key_file = 'former.key'");
    // Capabilities under the former keys are valid until new keys are set.
    printed(get(&served));
    served.restart_with("");
    printed(get(&served));
    let said = served.refused("list", &[]);
    assert!(said.contains("forebay object set-key"), "{said}");
    assert_eq!(served.json("set-key", &["--all"])["set"], 2);
    assert!(served.owner("set-key", &["--all"]).contains("0 of"));
    assert_eq!(served.content(&object), b"content");
    complaint(&get(&served));
    // The former key opens nothing any more.
    served.node.kill();
    std::fs::rename(served.path("former.key"), served.path("drive.key")).expect("renamed");
    let refused = served.try_serve("").err().expect("the former key does not open the drive");
    assert!(refused.contains("the master key is another one"), "{refused}");
}
