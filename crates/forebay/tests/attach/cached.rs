//! `forebay attach --config` with a cache in the attaching process: the process answers as a gateway does, and a detach
//! reports the data that the far volume lacks.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Instant,
};

use attached::{LIMIT, Mount, attach, detached, ends, has_device, is_possible};
use serde_json::Value;
use support::{Place, Running, Serving, forebay, run, start, stderr};

use crate::{attached, support};

const GATEWAY: &str = "iqn.2026-11.test:gateway";
const NODE: &str = "iqn.2026-11.test:node";

/// A node, and the settings of a gateway over it. The node's unit has a serial number of this test alone, since a host
/// attaches a volume only once.
struct Scene {
    place: Place,
    node: Serving,
    config: PathBuf,
}

impl Scene {
    fn new(serial: &str) -> Self {
        let place = Place::new();
        let node = place.serve("node", &Self::node_settings(&place, serial, 0));
        let gateway = support::gateway(place.folder.path(), node.address, "");
        let config = place.write("gateway", &gateway);
        Self { place, node, config }
    }

    fn node_settings(place: &Place, serial: &str, port: u16) -> String {
        let serial = format!("[[target.unit]]\nserial = \"{serial}-{}\"", std::process::id());
        support::node(place.folder.path(), port).replace("[[target.unit]]", &serial)
    }

    fn attach(&self, more: &[&str]) -> Running {
        let config = self.config.display().to_string();
        attach(&[&[GATEWAY, "--config", &config], more].concat())
    }

    /// Runs a `forebay` command against the process that has the control socket of these settings.
    fn ask(&self, words: &[&str]) -> Output {
        let asked = forebay().args(words).arg("--config").arg(&self.config).output();
        asked.expect("the binary runs")
    }

    fn status(&self) -> Value {
        let output = self.ask(&["status", "--json"]);
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    fn image(&self) -> Vec<u8> {
        fs::read(self.place.path("node.img")).expect("the image of the node")
    }
}

fn dirty(status: &Value) -> u64 {
    let layers = status["targets"][0]["units"][0]["layers"].as_array().expect("layers");
    let cache = layers.iter().find(|layer| layer["layer"] == "cache").expect("a cache");
    cache["figures"]["dirty_bytes"].as_u64().expect("a number")
}

const BYTES: usize = 4 << 20;

fn data(seed: u8) -> Vec<u8> {
    (0..BYTES).map(|at| (at / 4096) as u8 ^ (at as u8).wrapping_mul(7) ^ seed | 1).collect()
}

fn write(device: &str, data: &[u8]) {
    let device = fs::OpenOptions::new().write(true).open(device).expect("opens");
    device.write_all_at(data, 0).expect("written");
    device.sync_all().expect("stable");
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(output)
}

/// Regression: no process answered commands for the cache, and a detach did not report that the far volume lacked data.
#[test]
fn an_attached_cache_answers_commands_and_a_detach_reports_data_that_the_far_volume_lacks() {
    if !is_possible() {
        return;
    }
    let scene = Scene::new("answers");
    let mut attached = scene.attach(&[]);
    let paused = scene.ask(&["gateway", "pause", GATEWAY]);
    assert!(paused.status.success(), "{}", stderr(&paused));
    write(&attached.ready, &data(1));
    let status = scene.status();
    assert_eq!((&status["state"], dirty(&status)), (&"serving".into(), BYTES as u64));
    assert_eq!(status["attached"]["device"], attached.ready.clone());
    let shown = text(&scene.ask(&["status", "--all"]));
    let place = format!("is attached as {}", attached.ready);
    assert!(shown.contains(&place) && shown.contains("dirty bytes"), "{shown}");
    // An attaching process cannot perform these requests, and refuses each of them with its reason.
    for (words, why) in [
        (&["reload"][..], "reads its settings at the start only"),
        (&["names"], "serves no hosts"),
        (&["gateway", "export", GATEWAY], "detach it (`forebay detach`), and export the log then"),
        (&["gateway", "drain", NODE], "this process does not serve"),
    ] {
        let refused = scene.ask(words);
        let said = stderr(&refused);
        assert!(!refused.status.success() && said.contains(why), "{words:?}: {said}");
    }
    let checked = text(&scene.ask(&["check"]));
    assert!(checked.contains("it has attached"), "{checked}");
    let larger = scene.ask(&["gateway", "log-resize", GATEWAY, "48MiB", "--json"]);
    let larger: Value = serde_json::from_slice(&larger.stdout).expect("JSON");
    assert_eq!((&larger["done"], &larger["log_bytes"]), (&true.into(), &(48 << 20).into()));

    // A drain that cannot complete leaves the device attached.
    let refused = run(&["detach", "--drain", "--timeout", "1s", &attached.ready]);
    let said = stderr(&refused);
    assert!(!refused.status.success() && said.contains("is still attached"), "{said}");
    assert!(said.contains("paused") && has_device(&attached), "{said}");
    let output = run(&["detach", &attached.ready]);
    let said = text(&output);
    assert!(output.status.success() && ends(&mut attached.program), "{said}");
    assert!(
        said.contains("4.0 MiB are only in the log") && said.contains("not on the far volume yet"),
        "{said}"
    );
    assert!(scene.image()[..BYTES].iter().all(|byte| *byte == 0), "it is in the log only");

    let _left = Left(&scene.config);
    let (_, command) = said.split_once("to destage them: ").expect("a command");
    let folder = Path::new(env!("CARGO_BIN_EXE_forebay")).parent().expect("a folder");
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    let sent =
        Command::new("sh").args(["-c", command]).env("PATH", path).output().expect("sh runs");
    assert!(sent.status.success(), "{command}: {}", stderr(&sent));
    assert!(text(&sent).contains("is stable on the far volume"), "{}", text(&sent));
    assert!(scene.image()[..BYTES] == data(1), "it is on the far volume");
}

#[test]
fn a_detach_drains_first_and_keeps_the_device_if_the_drain_fails() {
    if !is_possible() {
        return;
    }
    let mut scene = Scene::new("drains");
    let mount = Mount::new(&scene.place);
    let folder = mount.0.display().to_string();
    let mut attached = scene.attach(&["--mkfs", "ext4", "--mount", &folder]);
    let address = scene.node.address;
    scene.node.kill();
    fs::write(mount.file("file"), data(2)).expect("in the page cache");
    let refused = run(&["detach", "--drain", "--timeout", "2s", &folder]);
    let said = stderr(&refused);
    assert!(!refused.status.success() && said.contains("is still attached"), "{said}");
    assert!(mount.is_mounted() && has_device(&attached));
    assert!(dirty(&scene.status()) >= BYTES as u64);
    let again = Scene::node_settings(&scene.place, "drains", address.port());
    scene.node = scene.place.serve("node", &again);
    let output = run(&["detach", "--drain", "--json", &folder]);
    assert!(output.status.success(), "{}", stderr(&output));
    let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&told["stable"], &told["dirty_bytes"]), (&true.into(), &0.into()));
    assert_eq!(told["log"], scene.place.path("gateway.log").display().to_string());
    assert!(ends(&mut attached.program) && !mount.is_mounted());
    // The detach has destaged all data: read the volume at the node, without the cache.
    let url = scene.node.url(NODE);
    let far = attach(&[&url, "--read-only", "--mount", &folder]);
    assert!(fs::read(mount.file("file")).expect("read") == data(2));
    detached(far);
}

/// The device is more important than the control socket, so the attach continues without the socket.
#[test]
fn a_control_socket_that_another_process_has_stops_no_attach() {
    if !is_possible() {
        return;
    }
    let scene = Scene::new("socket");
    let settings = fs::read_to_string(&scene.config).expect("settings");
    let taken = settings.replace("control = \"gateway.sock\"", "control = \"node.sock\"");
    fs::write(&scene.config, taken).expect("written");
    let mut command = forebay();
    command.args(["attach", GATEWAY, "--config"]).arg(&scene.config);
    let mut attached = start(&mut command).expect("attached");
    let mut events = attached.stderr();
    // The attachment could not take the node's control socket, so the node still answers there.
    assert_eq!(scene.status()["targets"][0]["name"], NODE);
    attached.signal(rustix::process::Signal::TERM);
    assert!(ends(&mut attached.program));
    let mut said = String::new();
    std::io::Read::read_to_string(&mut events, &mut said).expect("text");
    let (_, own) = said.split_once("`forebay gateway` with --control ").expect("another socket");
    assert!(own.starts_with("/run/forebay-attach/"), "{said}");
}

/// The attaching process answers before its far volume does, and reports that it is starting.
#[test]
fn an_attach_that_waits_for_its_far_volume_reports_that_it_starts() {
    if !is_possible() {
        return;
    }
    let mut scene = Scene::new("waits");
    scene.node.kill();
    let config = scene.config.display().to_string();
    let mut command = forebay();
    command.args(["attach", GATEWAY, "--config", &config]).stderr(std::process::Stdio::null());
    let mut waiting = program::start(&mut command).expect("the binary runs");
    let begun = Instant::now();
    let status = loop {
        let output = scene.ask(&["status", "--json"]);
        if output.status.success() {
            break serde_json::from_slice::<Value>(&output.stdout).expect("JSON");
        }
        assert!(begun.elapsed() < LIMIT, "{}", stderr(&output));
        std::thread::yield_now();
    };
    assert_eq!(status["state"], "starting");
    waiting.signal(rustix::process::Signal::TERM).expect("it runs");
    assert!(ends(&mut waiting));
}

/// An attachment in the background. Dropping it detaches the device, in case the test has failed.
struct Left<'a>(&'a Path);

impl Drop for Left<'_> {
    fn drop(&mut self) {
        let _ = run(&["detach", "--force", &format!("{GATEWAY}/0 of {}", self.0.display())]);
    }
}
