//! `forebay lab run` as a user runs it: the checks before a run, points over a real link, and results from which a
//! second run continues. Needs root, TUN, `ip` and FUSE; without them the tests print a message and end.

mod support;

use std::{
    ffi::OsStr,
    fs,
    net::TcpListener,
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use lab::{Host, LabSite, LabStage, Scene as _, Setting};
use serde_json::Value;
use support::{forebay, stderr};

/// Time limit of a run. To measure two quick points takes some seconds with setup and cleanup, and several times as
/// much on a busy machine.
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

/// Checks that a run has left nothing: no namespace, no folder in memory, no volume.
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
    // The shell starts a background job and then executes the program. The job is then a child of the program, which
    // must not end it.
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
        // A round trip takes at least 4 ms.
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
    for line in
        ["The paper claims (", "This is not decided: ", "All 2 requested points have results"]
    {
        assert!(text(&first).contains(line), "{}", text(&first));
    }
    let page = fs::read_to_string(out.join("report.html")).expect("a page");
    assert!(page.contains("Table 1") && !page.contains(folder.path().to_str().expect("text")));
    assert!(fs::metadata(out.join("report.csv")).expect("a table").len() > 100);
    let settings = fs::read_to_string(out.join("settings.json")).expect("settings");
    let settings: Value = serde_json::from_str(&settings).expect("JSON");
    assert_eq!(settings["experiment"], "outsourcing");
    assert_tidy(&name, &out);

    // A second run must not measure the points that have results.
    let second = run(&name, &out, &only);
    assert!(second.status.success(), "{}", stderr(&second));
    assert!(text(&second).contains("there already: 2"), "{}", text(&second));
    assert_eq!(results(&out), measured);
}

#[test]
fn a_stopped_run_ends_in_order_and_prints_how_to_continue() {
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
    // Signal twice in quick succession, as timeout(1) does. This must not count as a second signal of the user.
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::TERM] {
        rustix::process::kill_process(id, signal).expect("it runs");
    }
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(1), "{}", stderr(&ended));
    let said = stderr(&ended);
    let settings = fs::read_to_string(out.join("settings.json")).expect("settings");
    let settings: Value = serde_json::from_str(&settings).expect("JSON");
    let points = settings["points"].as_array().expect("points");
    let is_requested =
        |point: &&Value| point["name"].as_str().is_some_and(|it| it.contains("table-1/null"));
    let requested = points.iter().filter(is_requested).count();
    let state = format!("topped after {} of {requested} points", results(&out).len());
    let line = format!(
        "forebay lab run outsourcing --quick --name {name} --out {} --only table-1/null",
        out.display()
    );
    assert!(said.contains(&state) && said.contains(&format!("goes on: {line}")), "{said}");
    assert!(!said.contains("these remain"), "{said}");
    let page = fs::read_to_string(out.join("report.html")).expect("a page");
    for text in ["The paper claims (", &state, &line] {
        assert!(page.contains(text), "{text} is not in {page}");
    }
    assert_tidy(&name, &out);
}

/// The output is closed early, as with `| head` or a terminal that was closed.
#[test]
fn a_run_continues_after_its_output_was_closed() {
    let (name, folder) = (name("alone"), tempfile::tempdir().expect("a folder"));
    let out = folder.path().join("out");
    let mut command = forebay();
    command.args(["lab", "run", "outsourcing", "--quick", "--name", &name, "--out"]).arg(&out);
    command
        .args(["--only", "figure-2/loopback/read"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    drop((child.stdout.take(), child.stderr.take()));
    let status = child.wait().expect("it ends");
    assert!(status.success(), "{status}");
    assert_eq!(results(&out).len(), 1);
    assert_tidy(&name, &out);
}

/// This test needs the program PostMark.
#[test]
fn the_next_run_removes_the_leftovers_of_a_killed_run() {
    let postmark = Command::new("postmark").stdin(Stdio::null()).stdout(Stdio::null()).status();
    if !is_possible() || postmark.is_err() {
        return println!("not run: needs what the others need, and postmark");
    }
    let (name, folder) = (name("kill"), tempfile::tempdir().expect("a folder"));
    let out = folder.path().join("out");
    let mut command = forebay();
    command.args(["lab", "run", "outsourcing", "--quick", "--name", &name, "--out"]).arg(&out);
    command.args(["--only", "figure-5/host/8ms"]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("the binary runs");
    let begun = Instant::now();
    let memory = format!("/dev/shm/forebay-lab-{name}");
    let config = format!("{memory}/host-1.toml");
    // The workload makes a folder of its own on the mounted volume: wait until it is there.
    let writes = || {
        let on_it = fs::read_dir(format!("{memory}/mnt-1")).into_iter().flatten().flatten();
        on_it.map(|it| it.file_name()).any(|it| it.to_string_lossy().starts_with("forebay-lab"))
    };
    while !writes() {
        assert!(begun.elapsed() < LIMIT, "nothing is written");
        std::thread::yield_now();
    }
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    // The killed run has left an attachment, which waits for its far volume. The next run ends the attachment, although
    // the node has ended.
    let next = run(&name, &out, &["--only", "figure-5/host/8ms"]);
    assert!(next.status.success(), "{}{}", text(&next), stderr(&next));
    assert_eq!(attachments(&config), Vec::<i32>::new());
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    assert!(!mounts.contains(&memory), "{mounts}");
    assert_tidy(&name, &out);
}

/// Returns the ids of the processes that run `forebay attach` with these settings.
fn attachments(config: &str) -> Vec<i32> {
    let listed = fs::read_dir("/proc").expect("processes").flatten();
    let processes = listed.filter_map(|it| it.file_name().to_str()?.parse::<i32>().ok());
    let attaches = |process: &i32| {
        let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        words.contains(&&b"attach"[..]) && words.contains(&config.as_bytes())
    };
    processes.filter(attaches).collect()
}

#[test]
fn a_site_that_fails_to_start_leaves_nothing_mounted() {
    if !is_possible() {
        return;
    }
    let (name, folder) = (name("raise"), tempfile::tempdir().expect("a folder"));
    // Let the second attachment fail when the first one has a mounted file system. Another process writes the script,
    // because a file that one of our threads has open for writing cannot be executed.
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
    let mut stage = LabStage::new(Setting {
        program,
        name: name.clone(),
        disk: folder.path().join("disk"),
        memory: memory.clone(),
        stop: Arc::default(),
    })
    .expect("its folders are unused");
    let two = LabSite {
        nodes: 2,
        bytes: 64 << 20,
        host: Host::Mounted(String::new()),
        ..LabSite::default()
    };
    let error = stage.set(&two).expect_err("it cannot stand").to_string();
    assert!(error.contains("attachment of volume 2"), "{error}");
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    assert!(!mounts.contains(memory.to_str().expect("text")), "{mounts}");
    // The stage must still be able to set up another site after that failure.
    stage.set(&LabSite { nodes: 1, ..two }).expect("one can");
    stage.clear().expect("it ends in order");
    drop(stage);
    assert!(!memory.exists() && !folder.path().join("disk").exists());
}

#[test]
fn folders_of_the_user_are_left_alone() {
    if !is_possible() {
        return;
    }
    let (name, folder) = (name("other"), tempfile::tempdir().expect("a folder"));
    let only = ["--only", "table-1/null/random-read/2ms"];
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
    // Files in memory of another run with this name stay, and no point is reported as left out because of them.
    let other = Path::new("/dev/shm").join(format!("forebay-lab-{name}"));
    fs::create_dir(&other).expect("a folder");
    fs::write(other.join("node-1.toml"), "").expect("a file");
    fs::write(other.join(".forebay-lab"), "").expect("a file");
    let lock = fs::File::open(&other).expect("it is there");
    lock.lock().expect("it is not locked");
    let refused = run(&name, &folder.path().join("second"), &only);
    assert!(stderr(&refused).contains("another run uses"), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("--name"), "{}", stderr(&refused));
    assert!(other.join("node-1.toml").exists() && !folder.path().join("second").exists());
    fs::remove_dir_all(&other).expect("it is ours");
}

#[test]
fn invalid_options_of_a_run_are_refused_before_anything_is_started() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    // Use one pattern that matches no point together with one that matches some, and one pattern that matches all.
    for (only, said) in [
        (&["--only", "table-9"][..], "`table-9`"),
        (&["--only", "table-1", "--only", "tabel-2"], "`tabel-2`"),
        (&["--only", ""], "--only has an empty value"),
    ] {
        let wrong = run(&name("none"), &out, only);
        assert_eq!(wrong.status.code(), Some(2), "{only:?}");
        assert!(stderr(&wrong).contains(said), "{}", stderr(&wrong));
        assert!(stderr(&wrong).contains("its parts are table-1"), "{}", stderr(&wrong));
    }
    // The name becomes part of a folder name even without a link, so it must be valid.
    for wrong in ["", "a b", "../x"] {
        let wrong = run(wrong, &out, &["--only", "table-1/null/random-read/local"]);
        assert_eq!(wrong.status.code(), Some(2), "{}", text(&wrong));
        assert!(stderr(&wrong).contains("is not a valid name for a link"), "{}", stderr(&wrong));
    }
    let file = folder.path().join("file");
    fs::write(&file, "").expect("a file");
    let wrong = run(&name("none"), &file.join("out"), &["--only", "table-1"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", text(&wrong));
    assert!(stderr(&wrong).contains("choose an --out"), "{}", stderr(&wrong));
    let odd = folder.path().join(OsStr::from_bytes(b"caf\xe9"));
    let wrong = run(&name("none"), &odd, &["--only", "table-1"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", text(&wrong));
    assert!(stderr(&wrong).contains("is not UTF-8"), "{}", stderr(&wrong));
    assert!(!out.exists() && !odd.exists());

    // Run as an unprivileged user, who lacks the privileges for most points.
    let open = tempfile::tempdir().expect("a folder");
    let all = fs::Permissions::from_mode(0o777);
    fs::set_permissions(open.path(), all).expect("it is ours");
    let out = open.path().join("out");
    let mut command = Command::new("setpriv");
    if rustix::process::geteuid().is_root() {
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    }
    command.arg(forebay().get_program()).args(["lab", "run", "fair-tcp", "--quick"]);
    let poor = command.arg("--out").arg(&out).args(["--name", &name("poor")]).output();
    let poor = poor.expect("setpriv runs");
    let said = stderr(&poor);
    if said.contains("failed to execute") {
        return println!("not run: an unprivileged user cannot execute the program");
    }
    assert_eq!(poor.status.code(), Some(2), "{said}");
    assert!(text(&poor).contains("to be measured: 0 points"), "{}", text(&poor));
    assert!(said.contains("no point can be measured") && said.contains("be root"), "{said}");
    assert!(!out.exists(), "nothing is left where nothing was begun");
}

/// apt with a configuration in which the machine's archive is at an address that accepts connections and never answers,
/// and no package is installed. The lists, packages and locks of the machine itself are not touched.
struct Mute {
    archive: TcpListener,
    config: PathBuf,
}

impl Mute {
    fn new(folder: &Path) -> Self {
        let archive = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = archive.local_addr().expect("an address");
        for made in ["lists/partial", "cache/archives/partial", "parts"] {
            fs::create_dir_all(folder.join("apt").join(made)).expect("a folder");
        }
        let at = |name: &str| folder.join("apt").join(name).display().to_string();
        fs::write(at("status"), "").expect("a file");
        fs::write(at("list"), format!("deb http://{address}/debian/ bookworm main\n"))
            .expect("a file");
        // Make a package list: apt ignores an archive for which it has no list.
        let architecture = Command::new("dpkg").arg("--print-architecture").output().expect("dpkg");
        let binary = text(&architecture).trim().to_owned();
        let list = format!("lists/{address}_debian_dists_bookworm_main_binary-{binary}_Packages");
        fs::write(at(&list), "").expect("a file");
        let config = [
            ("Dir::Etc::main", at("none")),
            ("Dir::Etc::parts", at("parts")),
            ("Dir::Etc::sourcelist", at("list")),
            ("Dir::Etc::sourceparts", at("parts")),
            ("Dir::State", at("")),
            ("Dir::State::lists", at("lists")),
            ("Dir::State::status", at("status")),
            ("Dir::Cache", at("cache")),
            ("Acquire::http::Proxy", "DIRECT".to_owned()),
            ("APT::Sandbox::User", "root".to_owned()),
            ("Debug::NoLocking", "true".to_owned()),
        ];
        let lines: String =
            config.iter().map(|(key, value)| format!("{key} \"{value}\";\n")).collect();
        fs::write(at("config"), lines).expect("a file");
        Self { archive, config: at("config").into() }
    }

    /// Stops a run while apt waits for the archive, checks that it ends soon, and returns its output.
    fn stops(&self, command: &mut Command) -> Output {
        command.env("APT_CONFIG", &self.config).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().expect("the binary runs");
        self.archive.set_nonblocking(true).expect("a setting");
        let begun = Instant::now();
        let asks = loop {
            match self.archive.accept() {
                Ok((asks, _)) => break asks,
                Err(_) => assert!(begun.elapsed() < LIMIT, "apt does not ask"),
            }
            std::thread::yield_now();
        };
        let id = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(id, rustix::process::Signal::INT).expect("it runs");
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || tell.send(child.wait_with_output()));
        // Allow 15 s: apt itself would time out after 30 s and then retry.
        let Ok(ended) = told.recv_timeout(Duration::from_secs(15)) else {
            let _ = rustix::process::kill_process(id, rustix::process::Signal::KILL);
            panic!("it waits for apt");
        };
        let ended = ended.expect("it ends");
        assert_eq!(ended.status.code(), Some(2), "{}", stderr(&ended));
        let said = stderr(&ended);
        assert!(said.contains("stopped; nothing was measured"), "{said}");
        assert!(!said.contains("left out") && !said.contains("the present lists"), "{said}");
        drop(asks);
        ended
    }
}

fn has_apt() -> bool {
    let has = Path::new("/usr/bin/apt-get").exists();
    if !has {
        println!("not run: needs apt-get");
    }
    has
}

#[test]
fn a_stop_during_an_installation_does_not_wait_for_it() {
    if !has_apt() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (bin, out) = (folder.path().join("bin"), folder.path().join("out"));
    fs::create_dir(&bin).expect("a folder");
    // The search path contains only the programs of the base system.
    std::os::unix::fs::symlink("/usr/bin/apt-get", bin.join("apt-get")).expect("a link");
    let mut command = forebay();
    command.args(["lab", "run", "outsourcing", "--quick", "--install", "--name", &name("inst")]);
    command.args(["--only", "figure-5", "--out"]).arg(&out).env("PATH", &bin);
    let ended = Mute::new(folder.path()).stops(&mut command);
    assert!(text(&ended).contains("apt-get install "), "{}", text(&ended));
    assert!(!out.exists(), "nothing is left where nothing was begun");
}

#[test]
fn a_stop_during_a_fetch_does_not_wait_for_it_and_leaves_nothing() {
    if !has_apt() || !is_possible() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (cache, out) = (folder.path().join("cache"), folder.path().join("out"));
    // Leave out `--quick`, because only a full run has builds.
    let mut command = forebay();
    command.args(["lab", "run", "fair-tcp", "--install", "--name", &name("fetch")]);
    command.args(["--only", "build/", "--out"]).arg(&out).env("XDG_CACHE_HOME", &cache);
    let ended = Mute::new(folder.path()).stops(&mut command);
    assert!(!text(&ended).contains("apt-get install "), "a build's programs: {}", text(&ended));
    assert_eq!(fs::read_dir(cache.join("forebay-lab")).expect("a cache").count(), 0);
    assert!(!out.exists(), "nothing is left where nothing was begun");
}

#[test]
fn a_package_that_cannot_be_installed_is_named_and_its_points_are_left_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let bin = folder.path().join("bin");
    fs::create_dir(&bin).expect("a folder");
    let log = folder.path().join("log");
    // The archive is empty, and the search path contains only the programs of the base system.
    let script = format!("#!/bin/sh\necho \"$@\" >>{}\nexit 100\n", log.display());
    let mut writes = Command::new("sh");
    writes.args(["-c", "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\""]);
    writes.arg(bin.join("apt-get")).arg(script);
    assert!(writes.status().expect("a shell").success());
    let out = folder.path().join("out");
    let mut command = forebay();
    command.args(["lab", "run", "outsourcing", "--quick", "--install", "--name", &name("apt")]);
    command.args(["--only", "figure-5", "--out"]).arg(&out).env("PATH", &bin);
    command.env("XDG_CACHE_HOME", folder.path());
    let output = command.output().expect("the binary runs");
    assert_eq!(output.status.code(), Some(2), "{}{}", text(&output), stderr(&output));
    let tried = fs::read_to_string(&log).expect("apt-get was called");
    let install = "install --yes --no-install-recommends";
    let lines: Vec<&str> = tried.lines().collect();
    assert!(lines[0].starts_with(install) && lines[0].contains(" postmark"), "{tried}");
    assert_eq!(lines[1], "update");
    let alone = format!("{install} postmark");
    assert!(lines[2..].contains(&alone.as_str()), "{tried}");
    let said = stderr(&output);
    assert!(said.contains("postmark cannot be installed"), "{said}");
    assert!(text(&output).contains("to be measured: 0 points"), "{}", text(&output));
    assert!(!out.exists());
}
