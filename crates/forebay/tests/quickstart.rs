//! Quickstart, in short: it ends well, says what it found, and leaves nothing behind.

mod support;

use support::{Place, forebay, stderr};

#[test]
fn it_ends_well_and_leaves_nothing() {
    let place = Place::new();
    let temporary = place.path("tmp");
    std::fs::create_dir(&temporary).expect("made");
    let output = forebay()
        .args(["quickstart", "--seconds", "0.3", "--html", "page.html"])
        .current_dir(place.folder.path())
        .env("TMPDIR", &temporary)
        .output()
        .expect("the binary runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let table = String::from_utf8(output.stdout).expect("text");
    for expected in ["4 KiB writes + flush", "node", "gateway", "p99", "killed, started again"] {
        assert!(table.contains(expected), "{expected} in {table}");
    }
    assert_eq!(std::fs::read_dir(&temporary).expect("a folder").count(), 0, "all is removed");

    let json = std::fs::read(place.path("forebay-quickstart/result.json")).expect("written");
    let outcome: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
    assert_eq!(outcome["parts"].as_array().map(Vec::len), Some(8));
    assert_eq!(outcome["crash"]["blocks_lost"], 0);
    assert_eq!(outcome["crash"]["blocks_verified"], 65_536);
    assert!(outcome["crash"]["writes_acknowledged"].as_u64() > Some(0));
    let page = std::fs::read_to_string(place.path("page.html")).expect("written");
    assert!(page.ends_with("</html>\n") && page.contains("<polyline"));
    assert!(!page.contains("http://") && !page.contains("https://"), "it needs nothing else");
}

#[test]
fn interrupted_it_leaves_nothing() {
    let place = Place::new();
    let temporary = place.path("tmp");
    std::fs::create_dir(&temporary).expect("made");
    let mut child = forebay()
        .args(["--log-level", "off", "quickstart"])
        .current_dir(place.folder.path())
        .env("TMPDIR", &temporary)
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("the binary runs");
    let begun = std::time::Instant::now();
    let started = || {
        let folders = std::fs::read_dir(&temporary).expect("a folder");
        folders.flatten().any(|folder| folder.path().join("node.sock").exists())
    };
    while !started() {
        assert!(begun.elapsed().as_secs() < 30, "it does not start");
        std::thread::yield_now();
    }
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::INT).expect("it runs");
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(1));
    assert_eq!(std::fs::read_dir(&temporary).expect("a folder").count(), 0, "all is removed");
    assert!(!place.path("forebay-quickstart").exists());
}
