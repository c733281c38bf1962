//! Tests that a short quickstart succeeds, prints its results, and leaves no files.

mod support;

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
};

use support::{Place, forebay, run, stderr};

#[test]
fn a_quickstart_succeeds_can_be_kept_and_leaves_nothing() {
    let place = Place::new();
    let temporary = place.path("tmp");
    std::fs::create_dir(&temporary).expect("made");
    let mut child = forebay()
        .args(["quickstart", "--seconds", "0.3", "--html", "page.html", "--keep"])
        .current_dir(place.folder.path())
        .env("TMPDIR", &temporary)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut table = String::new();
    let mut gateway = None;
    for line in lines.map_while(Result::ok) {
        table += &line;
        gateway = line.trim().strip_prefix("forebay ls ").map(str::to_owned);
        if gateway.is_some() {
            break;
        }
    }
    for expected in ["4 KiB writes + flush", "node", "gateway", "p99", "killed, started again"] {
        assert!(table.contains(expected), "{expected} in {table}");
    }
    let listed = run(&["ls", &gateway.expect("it is kept, and says where")]);
    assert!(listed.status.success(), "{}", stderr(&listed));

    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::INT).expect("it runs");
    assert!(child.wait().expect("it ends").success());
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

/// Another process damages a block of the node's file again and again, until everything has been read at the end. The
/// test shows that quickstart reads the node's own disk.
#[test]
fn a_block_with_wrong_content_is_reported_and_ends_in_exit_code_1() {
    let place = Place::new();
    let temporary = place.path("tmp");
    std::fs::create_dir(&temporary).expect("made");
    let mut child = forebay()
        .args(["quickstart", "--seconds", "0.1"])
        .current_dir(place.folder.path())
        .env("TMPDIR", &temporary)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let image = || {
        let folders = std::fs::read_dir(&temporary).expect("a folder").flatten();
        let mut images = folders.map(|folder| folder.path().join("node.img"));
        images.find_map(|path| std::fs::File::options().write(true).open(path).ok())
    };
    let mut open = None;
    while child.try_wait().expect("asked").is_none() {
        open = open.or_else(image);
        // Damage one block in the middle of the file: the block that is read last is not yet written when the damage
        // begins.
        if let Some(image) = &open {
            std::os::unix::fs::FileExt::write_all_at(image, &[0xee; 4096], 128 << 20)
                .expect("written");
        }
        // This pause is much shorter than the reads take, and leaves the CPU to other processes.
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(open.is_some(), "the node has a file");
    let output = child.wait_with_output().expect("it has ended");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("blocks were lost: see the table"), "{}", stderr(&output));
    assert!(stderr(&output).contains("remedy: please report it"), "{}", stderr(&output));
    let json = std::fs::read(place.path("forebay-quickstart/result.json")).expect("written");
    let outcome: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
    assert_eq!(outcome["crash"]["destaged"], true);
    assert_eq!(outcome["crash"]["blocks_lost_at_node"], 1);
    assert_eq!(std::fs::read_dir(&temporary).expect("a folder").count(), 0, "all is removed");
}

/// Starts the quickstart. Returns its process, and the process id of its node.
fn started(place: &Place) -> (std::process::Child, i32) {
    let temporary = place.path("tmp");
    std::fs::create_dir(&temporary).expect("made");
    let child = forebay()
        .arg("quickstart")
        .current_dir(place.folder.path())
        .env("TMPDIR", &temporary)
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("the binary runs");
    let begun = std::time::Instant::now();
    let mut number = None;
    while number.is_none() {
        assert!(begun.elapsed().as_secs() < 60, "it does not start");
        let folders = std::fs::read_dir(&temporary).expect("a folder").flatten();
        let mut locks = folders.map(|folder| folder.path().join("node.sock.lock"));
        number = locks.find_map(|lock| std::fs::read_to_string(lock).ok()?.trim().parse().ok());
        std::thread::yield_now();
    }
    (child, number.expect("the loop ended"))
}

/// Waits until a process that is not our child has ended.
fn wait_for_end(number: i32) {
    let id = rustix::process::Pid::from_raw(number).expect("a process number");
    let begun = std::time::Instant::now();
    while rustix::process::test_kill_process(id).is_ok() {
        assert!(begun.elapsed().as_secs() < 30, "the node is left running");
        std::thread::yield_now();
    }
}

#[test]
fn a_killed_quickstart_leaves_no_process() {
    let place = Place::new();
    let (mut child, node) = started(&place);
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    wait_for_end(node);
}

#[test]
fn an_interrupted_quickstart_leaves_nothing() {
    let place = Place::new();
    let (mut child, node) = started(&place);
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::INT).expect("it runs");
    assert_eq!(child.wait().expect("it ends").code(), Some(1));
    wait_for_end(node);
    let temporary = place.path("tmp");
    assert_eq!(std::fs::read_dir(&temporary).expect("a folder").count(), 0, "all is removed");
    assert!(!place.path("forebay-quickstart").exists());
}
