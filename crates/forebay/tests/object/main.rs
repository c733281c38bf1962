//! Tests `forebay object` with an object drive behind a real target, and with served drives.

mod node {
    pub const NAME: &str = "iqn.2026-11.io.forebay.test:drive";
}
#[allow(dead_code)] // the tests of the initiator use the other parts
#[path = "../../../initiator/tests/sessions/support/drive.rs"]
mod drive;
#[path = "../support/mod.rs"]
mod support;

mod interruptions;
mod master_key;
mod mistakes;
mod revocations;
mod served;
mod subcommands;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Output,
    sync::atomic::Ordering,
};

use drive::Drive;
use object::ObjectAddress;

const PARTITION: u64 = 0x20000;

/// A simulated object drive, and a folder that holds its key file.
struct Scene {
    drive: Drive,
    folder: tempfile::TempDir,
}

impl Scene {
    async fn new() -> Self {
        let scene = Self { drive: Drive::start(true).await, folder: tempfile::tempdir().unwrap() };
        let key = format!("{}\n{}\n", "01".repeat(32), "02".repeat(32));
        scene.file("drive.key", key.as_bytes());
        fs::set_permissions(scene.path("drive.key"), fs::Permissions::from_mode(0o600)).unwrap();
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        path
    }

    /// Runs `forebay object ACT URL ARGS`.
    async fn run(&self, act: &str, args: &[&str]) -> Output {
        let url = format!("iscsi://{}/{}", self.drive.address, node::NAME);
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(["object", act, &url]).args(args);
        command.output().await.expect("the program runs")
    }

    /// Runs a command with the key of the drive, and returns its output.
    async fn owner(&self, act: &str, args: &[&str]) -> String {
        let key = self.path("drive.key");
        let args = [args, &["--key-file", key.to_str().unwrap()]].concat();
        printed(self.run(act, &args).await)
    }
}

fn printed(output: Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).expect("text")
}

fn complaint(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

#[tokio::test]
async fn files_are_put_into_objects_and_got_back() {
    let scene = Scene::new().await;
    let content: Vec<u8> = (0..3_000_001u32).map(|at| (at % 253) as u8).collect();
    let file = scene.file("file", &content);
    assert!(scene.owner("create", &["--partition", "0x20000"]).await.contains("20000h"));
    let put = scene.owner("put", &["20000h", text(&file), "--json"]).await;
    let put: serde_json::Value = serde_json::from_str(&put).unwrap();
    let id = put["object"].as_u64().unwrap();
    let object = ObjectAddress::new(PARTITION, id);
    assert!(scene.drive.unit.content(object).unwrap() == content);
    let name = format!("{PARTITION}/{id}");
    let copy = scene.path("copy");
    scene.owner("get", &[&name, text(&copy)]).await;
    assert!(fs::read(&copy).unwrap() == content);
    // The file has a part of the object: `get --resume` must fetch only the rest.
    fs::write(&copy, &content[..1_000_000]).unwrap();
    let resumed = scene.owner("get", &[&name, text(&copy), "--resume", "--json"]).await;
    assert!(resumed.contains("\"transferred\":2000001"), "{resumed}");
    assert!(fs::read(&copy).unwrap() == content);
    let more = scene.file("more", b"more");
    assert!(scene.owner("append", &[&name, text(&more)]).await.contains("3000001"));
    let listed = scene.owner("list", &["20000h", "--long"]).await;
    assert!(listed.contains("3000005"), "{listed}");
    scene.owner("put", &[&name, text(&file)]).await;
    scene.owner("attributes", &[&name, "--set", "1h/9h=a name"]).await;
    let shown = scene.owner("attributes", &[&name, "--get", "1h/9h"]).await;
    assert!(shown.contains("a name") && shown.contains("username"), "{shown}");
    scene.owner("remove", &[&name]).await;
    assert!(scene.drive.unit.content(object).is_none());
}

#[tokio::test]
async fn a_credential_permits_what_was_granted_and_nothing_else() {
    let scene = Scene::new().await;
    scene.owner("create", &["--partition", "0x20000"]).await;
    let file = scene.file("file", b"content");
    scene.owner("create", &["20000h/30000h"]).await;
    scene.owner("put", &["20000h/30000h", text(&file)]).await;
    let credential = scene.path("reader");
    let arguments = ["20000h/30000h", "--permissions", "read,get-attributes", "--out"];
    scene.owner("grant", &[&arguments[..], &[text(&credential)]].concat()).await;
    assert_eq!(fs::metadata(&credential).unwrap().permissions().mode() & 0o777, 0o600);
    let with = ["--credential", text(&credential)];
    let copy = scene.path("copy");
    let got = scene.run("get", &[&["20000h/30000h", text(&copy)], &with[..]].concat()).await;
    printed(got);
    assert_eq!(fs::read(&copy).unwrap(), b"content");
    let removed = scene.run("remove", &[&["20000h/30000h"], &with[..]].concat()).await;
    let said = complaint(&removed);
    assert!(said.contains("permits REMOVE") && said.contains("remedy:"), "{said}");
    // Give neither a credential nor a key file.
    let said = complaint(&scene.run("get", &["20000h/30000h", "/dev/null"]).await);
    assert!(said.contains("--key-file"), "{said}");
}

#[tokio::test]
async fn failures_have_messages_with_remedies() {
    let scene = Scene::new().await;
    let key = scene.path("drive.key");
    let with_key = ["--key-file", text(&key)];
    let run = |act: &'static str, args: Vec<&'static str>| {
        let args = [&args[..], &with_key[..]].concat();
        let scene = &scene;
        async move { complaint(&scene.run(act, &args).await) }
    };
    let said = run("get", vec!["20000h/30000h", "/tmp/never-made"]).await;
    assert!(said.contains("20000h/30000h does not exist") && said.contains("forebay object list"));
    let said = run("format", vec![]).await;
    assert!(said.contains("--lose-data"), "{said}");
    let said =
        run("grant", vec!["20000h", "--permissions", "all", "--out", "/tmp/never-made"]).await;
    assert!(said.contains("there is no permission all"), "{said}");
    let said = run("put", vec!["20000h", "/dev/null", "--resume"]).await;
    assert!(said.contains("/dev/null is not a plain file"), "{said}");
    *scene.drive.unit.lie.lock() = drive::Lie::StatusProof;
    let said = run("remove", vec!["20000h/30000h"]).await;
    assert!(said.contains("not genuine") || said.contains("does not exist"), "{said}");
    scene.drive.unit.forgets.store(true, Ordering::Relaxed);
}

#[tokio::test]
async fn a_new_key_is_written_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new.key");
    let run = || {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(["object", "key", text(&path)]).output()
    };
    printed(run().await.unwrap());
    let first = fs::read(&path).unwrap();
    assert!(complaint(&run().await.unwrap()).contains("remedy:"));
    assert_eq!(fs::read(&path).unwrap(), first);
}
