//! `forebay lab workload` as a user runs it. Without the required programs or privileges, the tests print a message and
//! end.

mod support;

use std::{
    fs,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;
use support::{forebay, stderr};

fn on(place: &Path, arguments: &[&str]) -> Output {
    let mut command = forebay();
    command.args(["lab", "workload", "--json", "--on"]).arg(place).args(arguments);
    command.output().expect("the binary runs")
}

/// Runs a workload that is given as JSON on standard input.
fn given(place: &Path, task: &str) -> Output {
    let mut command = forebay();
    command.args(["lab", "workload", "--given", "--json", "--on"]).arg(place);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    child.stdin.take().expect("piped").write_all(task.as_bytes()).expect("it reads");
    child.wait_with_output().expect("it ends")
}

fn figure(output: &Output, name: &str) -> f64 {
    assert!(output.status.success(), "{}", stderr(output));
    let outcome: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let figures = outcome["figures"].as_array().expect("figures");
    let figure = figures.iter().find(|figure| figure["name"] == name);
    figure.unwrap_or_else(|| panic!("no {name} in {outcome}"))["value"].as_f64().expect("a number")
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if !found {
        println!("not run: {program} is not installed");
    }
    found
}

/// A block device of some MiB, removed on drop.
struct Loop(PathBuf);

impl Loop {
    /// Creates the device on a file in `folder`; `None` without root or loop devices.
    fn over(folder: &Path, mib: u64) -> Option<Self> {
        let file = folder.join("disk");
        fs::File::create(&file).and_then(|file| file.set_len(mib << 20)).expect("room");
        let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        if !output.status.success() {
            println!("not run: needs root and loop devices");
            return None;
        }
        Some(Self(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

#[test]
fn without_a_workload_name_all_workloads_are_listed() {
    let output = on(Path::new("/"), &[]);
    assert_eq!(output.status.code(), Some(2));
    let said = stderr(&output);
    assert!(said.contains("no workload is named") && said.contains("postmark"), "{said}");
    let help = forebay().args(["lab", "workload"]).output().expect("the binary runs");
    assert!(stderr(&help).contains("PostMark"), "{}", stderr(&help));
}

#[test]
fn a_missing_folder_is_reported() {
    if is_installed("postmark") {
        let output = on(Path::new("/nowhere/at/all"), &["postmark"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("there is no folder /nowhere/at/all"), "{output:?}");
    }
}

#[test]
fn a_workload_is_taken_as_json() {
    if is_installed("postmark") {
        let folder = tempfile::tempdir().unwrap();
        let task = r#"{"workload": "postmark", "files": 20, "transactions": 30, "least": 500,
                       "most": 9770, "block": 4096, "processes": 1}"#;
        assert!(figure(&given(folder.path(), task), "transactions") > 0.0);
        let output = given(folder.path(), r#"{"workload": "none"}"#);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("standard input is not a workload"), "{output:?}");
    }
}

/// Stops a workload of Forebay, and one that runs another program.
#[test]
fn a_workload_that_is_stopped_leaves_nothing() {
    let ours: &[&str] = &["micro", "--seconds", "1000", "--set-mib", "4"];
    let programs: &[&str] = &["postmark", "--transactions", "100000000"];
    let wanted = if is_installed("postmark") { vec![ours, programs] } else { vec![ours] };
    for task in wanted {
        let (folder, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut command = forebay();
        command.args(["lab", "workload", "--on"]).arg(folder.path()).args(task);
        command.env("TMPDIR", scratch.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary runs");
        let is_empty = |folder: &Path| fs::read_dir(folder).unwrap().next().is_none();
        while is_empty(folder.path()) {
            assert!(child.try_wait().unwrap().is_none(), "it ended");
            std::thread::yield_now();
        }
        let number = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(number, rustix::process::Signal::INT).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(stderr(&output).contains("stopped by a signal"), "{output:?}");
        assert!(is_empty(folder.path()) && is_empty(scratch.path()), "{task:?}");
    }
}

#[test]
fn a_device_is_not_overwritten_unasked_nor_while_it_is_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let Some(device) = Loop::over(folder.path(), 64) else { return };
    if !is_installed("postmark") {
        return;
    }
    let output = on(&device.0, &["postmark"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--overwrite"), "{output:?}");
    // Open the device exclusively, as a mount does.
    let flags = rustix::fs::OFlags::EXCL.bits().cast_signed();
    let user = fs::OpenOptions::new().read(true).custom_flags(flags).open(&device.0).unwrap();
    let output = on(&device.0, &["--overwrite", "postmark"]);
    assert!(stderr(&output).contains("is in use") && stderr(&output).contains("lsblk"));
    drop(user);
    let output = on(&device.0, &["--overwrite", "postmark"]);
    assert!(stderr(&output).contains("runs on a folder"), "{output:?}");
}

/// The workload uses a unit over our own session, and the test compares the content of its file with the written data.
#[test]
fn a_unit_is_read_and_written_and_wrong_data_is_reported() {
    let place = support::Place::new();
    let node = place.serve("node", &support::node(place.folder.path(), 0));
    let url = PathBuf::from(node.url("iqn.2026-11.test:node"));
    let micro = |access| {
        let what =
            ["--overwrite", "micro", "--set-mib", "4", "--count", "200", "--warm-up-seconds"];
        on(&url, &[&what[..], &["0", "--access", access]].concat())
    };
    assert_eq!(figure(&micro("write"), "operations"), 200.0);
    assert!(figure(&micro("read"), "throughput") > 0.0);
    // Damage every block of the unit's file, so that every read returns damaged data.
    let file = fs::OpenOptions::new().write(true).open(place.path("node.img")).unwrap();
    for at in (65536..5 << 20).step_by(1024) {
        std::os::unix::fs::FileExt::write_all_at(&file, b"x", at).unwrap();
    }
    let output = micro("read");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("wrong data"), "{output:?}");
    let output = on(&url, &["micro"]);
    assert!(stderr(&output).contains("--overwrite"), "{output:?}");
    let output = on(&url, &["--overwrite", "micro", "--set-mib", "64"]);
    assert!(stderr(&output).contains("bytes are needed"), "{output:?}");
}

#[test]
fn a_device_keeps_the_set_for_the_next_run() {
    let folder = tempfile::tempdir().unwrap();
    let Some(device) = Loop::over(folder.path(), 8) else { return };
    for access in ["read", "write", "read"] {
        let what = ["--overwrite", "micro", "--set-mib", "4", "--count", "50", "--access", access];
        let output = on(&device.0, &what);
        assert_eq!(figure(&output, "past the page cache"), 1.0);
    }
}

#[test]
fn fio_runs_on_a_device_with_several_commands_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let Some(device) = Loop::over(folder.path(), 8) else { return };
    if is_installed("fio") {
        let what = ["--overwrite", "fio", "--size-mib", "8", "--seconds", "1", "--depth", "4"];
        assert!(
            figure(&on(&device.0, &[&what[..], &["--processes", "2"]].concat()), "throughput")
                > 0.0
        );
    }
}

#[test]
fn a_trace_is_replayed_on_a_device_at_its_times() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(disk) = Loop::over(folder.path(), 900) else { return };
    let arguments = ["--overwrite", "trace", "--requests", "300", "--speed", "4"];
    let output = on(&disk.0, &arguments);
    assert!(figure(&output, "requests") > 300.0);
    assert!(figure(&output, "response") > 0.0);
    // The trace needs 900 MB. On a smaller device the workload must refuse to write.
    let small = tempfile::tempdir().expect("a folder");
    let Some(disk) = Loop::over(small.path(), 100) else { return };
    assert!(stderr(&on(&disk.0, &arguments)).contains("bytes are needed"));
    let output = on(folder.path(), &["trace"]);
    assert!(stderr(&output).contains("runs on a block device or an iSCSI unit"), "{output:?}");
}
