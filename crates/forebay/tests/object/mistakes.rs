//! The messages of typical mistakes name the remedy that helps.

use crate::{
    complaint, printed,
    served::{FILE, Served, make_private},
    support::forebay,
};

#[test]
fn a_wrong_key_or_credential_is_explained() {
    let served = Served::start(FILE);
    let partition = served.partition();
    let object = served.object(&partition, b"content");
    let other = served.text("other.key");
    printed(forebay().args(["object", "key", &other, "--json"]).output().expect("it runs"));
    for (act, args) in
        [("list", vec![]), ("verify", vec![object.as_str()]), ("set-key", vec![]), ("info", vec![])]
    {
        let said = complaint(&served.run(act, &[&args[..], &["--key-file", &other]].concat()));
        assert!(said.contains("its signature is wrong"), "{said}");
        assert!(said.contains("check that") && said.contains("other.key"), "{said}");
    }
    let said = complaint(&served.run("list", &[]));
    assert!(said.contains("sign: --key-file FILE or --credential FILE"), "{said}");

    let expired = served.text("expired");
    let grant = ["--permissions", "read,get-attributes", "--out"];
    served.owner(
        "grant",
        &[&[object.as_str()], &grant[..], &[&expired, "--expires", "1ms"]].concat(),
    );
    let copy = served.text("copy");
    let said = complaint(&served.run("get", &[&object, &copy, "--credential", &expired]));
    assert!(said.contains("it has expired") && said.contains("forebay object grant"), "{said}");

    let reader = served.text("reader");
    served.owner("grant", &[&[object.as_str()], &grant[..], &[&reader]].concat());
    printed(served.run("get", &[&object, &copy, "--credential", &reader]));
    for (act, args) in [
        ("remove", vec![object.as_str()]),
        ("list", vec![partition.as_str()]),
        ("append", vec![object.as_str(), copy.as_str()]),
    ] {
        let said = complaint(&served.run(act, &[&args[..], &["--credential", &reader]].concat()));
        assert!(said.contains("no capability of the credential permits"), "{said}");
        assert!(said.contains("forebay object grant"), "{said}");
    }
    let wrong = served.file("wrong", b"{}");
    make_private(wrong.as_ref());
    let said = complaint(&served.run("get", &[&object, &copy, "--credential", &wrong]));
    assert!(said.contains("is no credential"), "{said}");
    std::fs::set_permissions(&reader, std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .expect("chmod");
    let said = complaint(&served.run("get", &[&object, &copy, "--credential", &reader]));
    assert!(said.contains("open to others") && said.contains("chmod 600"), "{said}");
}

#[test]
fn a_missing_object_and_a_full_drive_are_explained() {
    let served = Served::start("{ file = { path = 'drive.img', size = '64MiB' } }");
    let partition = served.partition();
    let missing = format!("{partition}/5000000h");
    let file = served.file("file", b"content");
    for (act, args) in [
        ("get", vec![missing.as_str(), "/tmp/never-made"]),
        ("put", vec![missing.as_str(), file.as_str()]),
        ("append", vec![missing.as_str(), file.as_str()]),
        ("info", vec![missing.as_str()]),
        ("remove", vec![missing.as_str()]),
        ("list", vec!["0x777777"]),
        ("collection", vec!["0x777777"]),
    ] {
        let said = served.refused(act, &args);
        assert!(said.contains("does not exist") || said.contains("is not set"), "{act}: {said}");
        assert!(said.contains("forebay object list") || said.contains("set-key"), "{act}: {said}");
    }
    assert!(!served.path("file.append-10000h-5000000h").exists(), "nothing to continue");
    let said = served.refused("create", &[&partition, "--partition", "1"]);
    assert!(said.contains("cannot be used with"), "{said}");
    let said = served.refused("create", &["--partition", &partition]);
    assert!(
        said.contains("exists already") && said.contains("so that the drive chooses"),
        "{said}"
    );

    let large = served.file("large", b"");
    std::fs::File::options()
        .write(true)
        .open(&large)
        .and_then(|file| file.set_len(80 << 20))
        .expect("a sparse file");
    for act in ["put", "append"] {
        let object = served.owner("create", &[&partition]);
        let said = served.refused(act, &[object.trim(), &large]);
        assert!(said.contains("no space: ") && said.contains("remove objects"), "{said}");
        assert!(said.contains("--resume"), "{said}");
        served.owner("remove", &[object.trim()]);
    }
    served.owner("put", &[&partition, &file]);
}

#[test]
fn a_wrong_address_and_a_drive_that_is_away_are_explained() {
    let mut served = Served::start(FILE);
    served.add_disk();
    let node = served.node.address;
    for (url, expected) in [
        ("drive".to_owned(), "iscsi://HOST"),
        (format!("iscsi://{node}"), "names no target"),
        (format!("iscsi://{node}/iqn.2026-11.test:none"), "forebay ls"),
        (format!("iscsi://{node}/iqn.2026-11.test:objects/5"), "forebay ls"),
        (format!("iscsi://{node}/iqn.2026-11.test:disk"), "forebay ls"),
    ] {
        let output = forebay().args(["object", "list", &url]).output().expect("it runs");
        let said = complaint(&output);
        assert!(said.contains(expected) && said.contains("remedy:"), "{url}: {said}");
    }
    let url = served.url();
    served.node.kill();
    let said = complaint(&forebay().args(["object", "list", &url]).output().expect("it runs"));
    assert!(said.contains("check that the node of the drive runs"), "{said}");
}
