//! `forebay lab wan` as a user runs it. Needs root, TUN and `ip`; without them the tests print a message and end.

mod support;

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Output, Stdio},
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::Value;
use support::{forebay, stderr};

fn name(test: &str) -> String {
    format!("{test}{}", std::process::id())
}

fn is_possible() -> bool {
    let tun = fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun").is_ok();
    let ip = Command::new("ip").arg("-Version").stdout(Stdio::null()).status().is_ok();
    let possible = rustix::process::geteuid().is_root() && tun && ip;
    if !possible {
        println!("not run: needs root, /dev/net/tun and ip");
    }
    possible
}

/// A running emulated link. Dropping this kills the process and removes what it has left.
struct Link {
    child: Child,
    stdout: BufReader<ChildStdout>,
    name: String,
}

impl Link {
    fn run(name: &str, arguments: &[&str]) -> Self {
        let mut command = forebay();
        command.args(["lab", "wan", "run", "--name", name]).args(arguments);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the binary runs");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("a line");
        assert_eq!(line.trim(), format!("ready {name}-near 10.99.0.1 {name}-far 10.99.0.2"));
        Self { child, stdout, name: name.to_owned() }
    }

    fn end(mut self) -> Value {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, Signal::TERM).expect("it runs");
        let mut said = String::new();
        self.stdout.read_to_string(&mut said).expect("text");
        assert!(self.child.wait().expect("it ends").success());
        serde_json::from_str(&said).expect("JSON")
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        wan("remove", &self.name, &[]);
    }
}

fn wan(act: &str, name: &str, arguments: &[&str]) -> Output {
    let mut command = forebay();
    command.args(["lab", "wan", act, "--name", name]).args(arguments);
    command.output().expect("the binary runs")
}

fn succeeds(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn status(name: &str) -> Value {
    serde_json::from_str(&succeeds(&wan("status", name, &["--json"]))).expect("JSON")
}

fn namespaces(name: &str) -> [PathBuf; 2] {
    ["near", "far"].map(|end| Path::new("/run/netns").join(format!("{name}-{end}")))
}

#[test]
fn a_link_is_made_changed_used_and_removed() {
    if !is_possible() {
        return;
    }
    let name = name("use");
    let folder = tempfile::tempdir().expect("a folder");
    let pcap = folder.path().join("a.pcap");
    let pcap = pcap.to_str().expect("text");
    let link = Link::run(
        &name,
        &["--json", "--delay", "2ms", "--forth", "loss=2.7%", "--seed", "9", "--pcap", pcap],
    );
    let shown = status(&name);
    assert_eq!(shown["seed"], 9);
    assert_eq!(shown["near_to_far"]["loss"], "2.7%");
    assert_eq!(shown["far_to_near"], serde_json::json!({ "delay": "2ms" }));

    // A change applies either all settings or none; settings that it does not name stay.
    let wrong = wan("change", &name, &["--mtu", "9000", "--back", "queue=1KiB"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("queue of 1024 is out of range"), "{}", stderr(&wrong));
    let text = succeeds(&wan("change", &name, &["--forth", "loss=0%", "--rate", "155Mbit"]));
    assert!(text.contains("near to far: delay 2ms, rate 155Mbit\n"), "{text}");

    // A program at one end can connect to the other: the connection, or its refusal, takes a round trip.
    let connect = "exec 3<>/dev/tcp/10.99.0.2/9";
    let begun = Instant::now();
    let refused = wan("exec", &name, &["near", "--", "bash", "-c", connect]);
    assert!(!refused.status.success() && stderr(&refused).contains("refused"));
    assert!(begun.elapsed() >= Duration::from_millis(4));
    let shown = link.end();
    assert_eq!(shown["report"]["near_to_far"]["packets"], 1);
    assert_eq!(shown["report"]["far_to_near"]["passed_packets"], 1);
    // A header of 24 bytes, two record headers of 16 bytes each, and packets of at least 40 bytes.
    assert!(fs::metadata(pcap).expect("the capture").len() >= 24 + 2 * 56);
    assert!(!namespaces(&name).iter().any(|path| path.exists()));
}

#[test]
fn the_next_link_removes_the_leftovers_of_a_killed_link() {
    if !is_possible() {
        return;
    }
    let name = name("kill");
    for _ in 0..2 {
        let mut link = Link::run(&name, &["--delay", "1ms"]);
        link.child.kill().expect("it was running");
        link.child.wait().expect("it ends");
        assert!(namespaces(&name).iter().all(|path| path.exists()));
        // Keep the leftovers of the killed link: the next link with its name has to remove them.
        let killed = std::mem::ManuallyDrop::new(link);
        assert!(stderr(&wan("status", &killed.name, &[])).contains("forebay lab wan run"));
    }
    let link = Link::run(&name, &["--json"]);
    let second = wan("run", &name, &[]);
    assert!(!second.status.success() && stderr(&second).contains("in use by process"));
    link.end();
    assert!(!namespaces(&name).iter().any(|path| path.exists()));
    assert!(succeeds(&wan("remove", &name, &[])).contains("nothing is left"));
}

#[test]
fn wrong_link_options_are_refused_before_anything_is_made() {
    let name = name("bad");
    for (arguments, words) in [
        (vec!["--loss", "120%"], "loss of 1.2 is out of range"),
        (vec!["--delay", "20"], "is not a length of time"),
        (vec!["--forth", "speed=1"], "`speed` is not a setting of a link"),
        (vec!["--background", "40%"], "it needs a rate"),
        (vec!["--background", "80%", "--rate", "155Mbit"], "0 to 0.75"),
        (vec!["--loss", "1%", "--bursts", "1%,20%"], "cannot be used with"),
    ] {
        let output = wan("run", &name, &arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(words), "{arguments:?}: {}", stderr(&output));
    }
    let output = wan("run", "a/b", &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("is not a valid name for a link"), "{}", stderr(&output));
    let output = wan("exec", &name, &["near", "--", "true"]);
    assert!(stderr(&output).contains("there is no link"), "{}", stderr(&output));
    let output = wan("status", &name, &[]);
    assert!(stderr(&output).contains(&format!("no link {name} is running")), "{}", stderr(&output));
    assert!(stderr(&output).contains("lab wan run --name"), "{}", stderr(&output));
    if is_possible() {
        // Run `forebay` as a user without root privileges.
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--clear-groups", "--bounding-set", "-all"]);
        command.arg("--inh-caps").arg("-all").arg(forebay().get_program());
        let output = command.args(["lab", "wan", "run", "--name", &name]).output();
        let output = output.expect("setpriv runs");
        let said = stderr(&output);
        let is_said = said.contains("require root") && said.contains("forebay quickstart");
        assert!(is_said || said.contains("failed to execute"), "{said}");
        assert!(!namespaces(&name).iter().any(|path| path.exists()));

        // A kernel with netem creates the link. Another kernel causes an error, and nothing is left.
        let mut command = forebay();
        command.args(["lab", "wan", "run", "--netem", "--delay", "1ms", "--name", &name]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if line.starts_with("ready ") {
            let id = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process(id, Signal::TERM).expect("it runs");
            assert!(child.wait().unwrap().success());
        } else {
            let said = stderr(&child.wait_with_output().unwrap());
            assert!(said.contains("this kernel has no netem"), "{said}");
            assert!(said.contains("leave --netem out"), "{said}");
        }
        assert!(!namespaces(&name).iter().any(|path| path.exists()));

        // Hide the missing program in a mount namespace.
        for (hidden, path, words, remedy) in [
            ("/dev/net", "/usr/bin:/bin", "cannot open /dev/net/tun", "modprobe tun"),
            ("/usr/sbin", "/nowhere", "the program `ip` (iproute2) is not installed", "iproute2"),
        ] {
            let script = format!(
                "mount -t tmpfs none {hidden} && PATH={path} exec \"$0\" lab wan run --name {name}"
            );
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", &script]).arg(forebay().get_program());
            let said = stderr(&command.output().expect("unshare runs"));
            assert!(said.contains(words) && said.contains(remedy), "{hidden}: {said}");
            assert!(!namespaces(&name).iter().any(|path| path.exists()));
        }
    }
}
