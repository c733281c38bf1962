//! `forebay lab run` as a user runs it: a look before the start, points over a real link, results that a
//! second run goes on from. Needs root, TUN, `ip` and FUSE; where they are missing the tests say so and end.

mod support;

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use lab::{Host, Scene as _, Setting, Site, Stage};
use serde_json::Value;
use support::{forebay, stderr};

/// Two quick points and their way there and back take some seconds; a machine that is busy, some times as many.
const LIMIT: Duration = Duration::from_secs(120);

fn is_possible() -> bool {
    let opens = |path| fs::OpenOptions::new().read(true).write(true).open(path).is_ok();
    let devices = ["/dev/net/tun", "/dev/fuse", "/dev/loop-control"].into_iter().all(opens);
    let ip = Command::new("ip").arg("-Version").stdout(Stdio::null()).status().is_ok();
    let possible = rustix::process::geteuid().is_root() && devices && ip;
    if !possible {
        println!("not run: needs root, /dev/net/tun, FUSE, loop devices and ip");
    }
    possible
}

/// The link's name of a test.
fn name(test: &str) -> String {
    format!("{test}{}", std::process::id())
}

fn run(name: &str, out: &Path, more: &[&str]) -> Output {
    let mut command = forebay();
    command.args(["lab", "run", "outsourcing", "--quick", "--name", name, "--out"]).arg(out);
    command.args(more).output().expect("the binary runs")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn results(out: &Path) -> Vec<Value> {
    let text = fs::read_to_string(out.join("results.jsonl")).expect("results");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// Nothing of a run is left: no namespace, no folder in memory, no volume.
fn assert_tidy(name: &str, out: &Path) {
    for end in ["near", "far"] {
        assert!(!Path::new("/run/netns").join(format!("{name}-{end}")).exists());
    }
    assert!(!Path::new("/dev/shm").join(format!("forebay-lab-{name}")).exists());
    assert!(!out.join("forebay-lab-work").exists());
}

#[test]
fn points_are_measured_over_a_link_once_and_come_into_a_page() {
    if !is_possible() {
        return;
    }
    let (name, folder) = (name("run"), tempfile::tempdir().expect("a folder"));
    let out = folder.path().join("out");
    let only =
        ["--only", "table-1/null/random-write/2ms", "--only", "table-1/null/random-read/2ms"];
    let begun = Instant::now();
    // By a shell that has a job and becomes the program: the job is its child then, and not its to end.
    let script = "sleep 200 & echo $! >\"$0\"; exec \"$@\"";
    let job = folder.path().join("job");
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(&job).arg(forebay().get_program());
    command.args(["lab", "run", "outsourcing", "--quick", "--name", &name, "--out"]).arg(&out);
    let (said, told) = (folder.path().join("said"), folder.path().join("told"));
    command.stdout(fs::File::create(&said).expect("a file"));
    command.stderr(fs::File::create(&told).expect("a file"));
    let status = command.args(only).status().expect("the shell runs");
    let read = |path| fs::read(path).expect("it was written");
    let first = Output { status, stdout: read(&said), stderr: read(&told) };
    let job: i32 = fs::read_to_string(job).expect("its number").trim().parse().expect("a number");
    let job = rustix::process::Pid::from_raw(job).expect("a process");
    rustix::process::kill_process(job, rustix::process::Signal::KILL).expect("the job runs still");
    assert!(first.status.success(), "{}{}", text(&first), stderr(&first));
    assert!(begun.elapsed() < LIMIT);
    assert!(text(&first).contains("to be measured: 2 points"), "{}", text(&first));
    let measured = results(&out);
    assert_eq!(measured.len(), 2);
    for record in &measured {
        // There and back takes 4 ms at least.
        let figures = record["outcome"]["figures"].as_array().expect("figures");
        let time = figures.iter().find(|figure| figure["name"] == "response time").expect("a time");
        assert!(time["value"].as_f64().expect("a number") > 4000.0, "{time}");
        let counted = record["counted"].as_array().expect("what was counted");
        let packets = |way: &str| {
            let name = format!("link {way} passed_packets");
            counted.iter().any(|figure| figure["name"] == name.as_str())
        };
        assert!(packets("near_to_far") && packets("far_to_near"), "{counted:?}");
        assert!(counted.iter().any(|figure| figure["name"] == "node 1 commands"));
    }
    let page = fs::read_to_string(out.join("report.html")).expect("a page");
    assert!(page.contains("Table 1") && !page.contains(folder.path().to_str().expect("text")));
    assert!(fs::metadata(out.join("report.csv")).expect("a table").len() > 100);
    let settings = fs::read_to_string(out.join("settings.json")).expect("settings");
    let settings: Value = serde_json::from_str(&settings).expect("JSON");
    assert_eq!(settings["experiment"], "outsourcing");
    assert_tidy(&name, &out);

    // What is there is not measured again.
    let second = run(&name, &out, &only);
    assert!(second.status.success(), "{}", stderr(&second));
    assert!(text(&second).contains("there already: 2"), "{}", text(&second));
    assert_eq!(results(&out), measured);
}

#[test]
fn a_run_that_is_stopped_ends_in_order_and_says_how_to_go_on() {
    if !is_possible() {
        return;
    }
    let (name, folder) = (name("stop"), tempfile::tempdir().expect("a folder"));
    let out = folder.path().join("out");
    let mut command = forebay();
    command.args(["lab", "run", "outsourcing", "--quick", "--name", &name, "--out"]).arg(&out);
    command.args(["--only", "table-1/null"]).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn().expect("the binary runs");
    let begun = Instant::now();
    while !out.join("results.jsonl").exists() || results(&out).is_empty() {
        assert!(begun.elapsed() < LIMIT, "nothing is measured");
        std::thread::yield_now();
    }
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::INT).expect("it runs");
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(1), "{}", stderr(&ended));
    let said = stderr(&ended);
    assert!(said.contains("stopped; ") && said.contains("goes on where it was"), "{said}");
    assert!(out.join("report.html").exists());
    assert_tidy(&name, &out);
}

#[test]
fn a_site_that_does_not_stand_leaves_nothing_mounted() {
    if !is_possible() {
        return;
    }
    let (name, folder) = (name("raise"), tempfile::tempdir().expect("a folder"));
    // The second attachment fails, when the first has a file system mounted. Written by another process: a file that
    // one of ours has open for writing cannot be run.
    let program = folder.path().join("program");
    let real = forebay().get_program().to_owned();
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *host-2.toml*) exit 3;; esac\nexec {} \"$@\"\n",
        Path::new(&real).display()
    );
    let mut writes = Command::new("sh");
    writes.args(["-c", "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\""]).arg(&program).arg(script);
    assert!(writes.status().expect("a shell").success());
    let memory = Path::new("/dev/shm").join(format!("forebay-lab-{name}"));
    let mut stage = Stage::new(Setting {
        program,
        name: name.clone(),
        disk: folder.path().join("disk"),
        memory: memory.clone(),
        stop: Arc::default(),
    })
    .expect("nobody has its folders");
    let two =
        Site { nodes: 2, bytes: 64 << 20, host: Host::Mounted(String::new()), ..Site::default() };
    let error = stage.set(&two).expect_err("it cannot stand").to_string();
    assert!(error.contains("attachment of volume 2"), "{error}");
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    assert!(!mounts.contains(memory.to_str().expect("text")), "{mounts}");
    // The next stands.
    stage.set(&Site { nodes: 1, ..two }).expect("one can");
    stage.clear().expect("it ends in order");
    drop(stage);
    assert!(!memory.exists() && !folder.path().join("disk").exists());
}

#[test]
fn folders_of_others_are_left_alone() {
    if !is_possible() {
        return;
    }
    let (name, folder) = (name("other"), tempfile::tempdir().expect("a folder"));
    let only = ["--only", "table-1/null/random-read/2ms"];
    // A user's own folder, as where the results go as within it.
    fs::create_dir(folder.path().join("work")).expect("a folder");
    let refused = run(&name, folder.path(), &only);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("no results.jsonl"), "{}", stderr(&refused));
    let out = folder.path().join("out");
    let work = out.join("forebay-lab-work");
    fs::create_dir_all(&work).expect("a folder");
    fs::write(work.join("thesis"), "years of work").expect("a file");
    fs::write(out.join("results.jsonl"), "").expect("a file");
    let refused = run(&name, &out, &only);
    assert!(stderr(&refused).contains("not made by a run"), "{}", stderr(&refused));
    assert!(work.join("thesis").exists());
    // What another run of the name has in memory stays, and no point counts as left out because of it.
    let other = Path::new("/dev/shm").join(format!("forebay-lab-{name}"));
    fs::create_dir(&other).expect("a folder");
    fs::write(other.join("node-1.toml"), "").expect("a file");
    fs::write(other.join(".forebay-lab"), "").expect("a file");
    let lock = fs::File::open(&other).expect("it is there");
    lock.lock().expect("nobody has it");
    let refused = run(&name, &folder.path().join("second"), &only);
    assert!(stderr(&refused).contains("another run uses"), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("--name"), "{}", stderr(&refused));
    assert!(
        other.join("node-1.toml").exists() && results(&folder.path().join("second")).is_empty()
    );
    fs::remove_dir_all(&other).expect("it is ours");
}

#[test]
fn what_cannot_be_is_said_before_anything_is_started() {
    let folder = tempfile::tempdir().expect("a folder");
    let wrong = run(&name("none"), folder.path(), &["--only", "table-9"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("its parts are table-1"), "{}", stderr(&wrong));

    // Nobody may do what most points need.
    if !rustix::process::geteuid().is_root() {
        let poor = run(&name("poor"), folder.path(), &["--only", "table-1"]);
        assert_eq!(poor.status.code(), Some(2), "{}", stderr(&poor));
        assert!(text(&poor).contains("left out"), "{}", text(&poor));
    }
}
