//! Older copies of a machine's state: the state folder of the node, of the gateway or of both is restored from
//! an earlier moment, or two copies of one gateway run at once. Each case runs with the right clock, and with
//! one that is a day behind.
//!
//! In each case all acknowledged data is served, or the unit is refused with a remedy.

use std::{
    net::SocketAddr,
    ops::Range,
    path::{Path, PathBuf},
    process::Command,
};

use support::{
    Place, Serving, connect, content, eventually, forebay, gateway, node, read, run, stderr, write,
};
use volume::Volume;

use crate::support;

const GATEWAY: &str = "iqn.2026-11.test:gateway";
const NODE: &str = "iqn.2026-11.test:node";
const BLOCKS: Range<u64> = 0..20;

/// Settings of a cache that keeps most writes in the log.
const KEEPS: &str = "destage_idle = '30s'\ndirty_age = '1h'\ndestage_threshold = 0.9";

/// The clock that a process sees.
#[derive(Clone, Copy, Debug)]
enum Clock {
    Right,
    /// The process sees yesterday's date through libfaketime. The clock of the machine is not changed.
    DayBehind,
}

impl Clock {
    fn start(self) -> Command {
        let mut command = forebay();
        if let Clock::DayBehind = self {
            command.env("LD_PRELOAD", faketime()).env("FAKETIME", "-1d");
            // Timeouts use the monotonic clock, which is never set back.
            command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1");
        }
        command
    }
}

/// Returns the library of the Debian package faketime.
fn faketime() -> PathBuf {
    let folders = ["/usr/lib/x86_64-linux-gnu/faketime", "/usr/lib/aarch64-linux-gnu/faketime"];
    let libraries = folders.map(|folder| Path::new(folder).join("libfaketime.so.1"));
    let found = libraries.into_iter().find(|library| library.is_file());
    found.expect("libfaketime (Debian package faketime; FOREBAY_NO_INTEROP=1 leaves this out)")
}

fn clocks() -> Vec<Clock> {
    if std::env::var_os("FOREBAY_NO_INTEROP").is_some_and(|value| value == "1") {
        eprintln!("left out: a clock that is a day behind (FOREBAY_NO_INTEROP=1)");
        return vec![Clock::Right];
    }
    vec![Clock::Right, Clock::DayBehind]
}

/// Checks that the writer of a record of storage in this folder saw this clock.
fn assert_seen(clock: Clock, folder: &Path) {
    let files = std::fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path());
    let mut records = files.filter(|file| file.extension().is_some_and(|it| it == "storage"));
    let bytes = std::fs::read(records.next().expect("a record")).expect("it is there");
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (_, opened) = text.split_once("\"opened\":\"").expect("a time");
    let opened: jiff::Timestamp =
        opened.split('"').next().expect("a time").parse().expect("a time");
    let hours = (jiff::Timestamp::now().as_second() - opened.as_second()) / 3600;
    let expected = match clock {
        Clock::Right => 0..1,
        Clock::DayBehind => 23..26,
    };
    assert!(expected.contains(&hours), "{clock:?}: {hours} hours ago");
}

/// A node and a gateway over it, each with a state folder of its own.
struct Site {
    place: Place,
    port: u16,
}

impl Site {
    fn new() -> (Self, Serving) {
        let place = Place::new();
        let text = format!("state = 'node-state'\n{}", node(place.folder.path(), 0));
        let far = place.serve("node", &text);
        let port = far.address.port();
        (Self { place, port }, far)
    }

    fn node(&self, clock: Clock) -> Result<Serving, String> {
        let text = format!("state = 'node-state'\n{}", node(self.place.folder.path(), self.port));
        self.place.try_serve_by(clock.start(), "node", &text)
    }

    /// Starts the gateway with this name, whose files and state folder have that name, too.
    fn gateway(&self, name: &str, clock: Clock) -> Result<Serving, String> {
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        let text = gateway(self.place.folder.path(), address, KEEPS)
            .replace("gateway.log", &format!("{name}.log"));
        let text = format!("state = '{name}-state'\n{text}");
        self.place.try_serve_by(clock.start(), name, &text)
    }

    fn copy(&self, from: &str, to: &str) {
        let to = self.place.path(to);
        let _ = std::fs::remove_dir_all(&to);
        let copied = Command::new("cp").arg("-a").arg(self.place.path(from)).arg(&to).status();
        assert!(copied.expect("cp runs").success());
    }
}

async fn write_all(volume: &dyn Volume, version: u64) {
    for block in BLOCKS {
        write(volume, block, version).await.expect("written");
    }
}

/// Asserts that each block of the volume has one of these versions.
async fn check_all(volume: &dyn Volume, versions: Range<u64>, what: &str) {
    for block in BLOCKS {
        let found = read(volume, block).await.expect("read");
        let is_expected = versions.clone().any(|version| found == content(block, version));
        assert!(is_expected, "{what}: block {block} is of none of the versions {versions:?}");
    }
}

fn drain(gateway: &Serving) {
    let control = gateway.control.to_str().expect("plain");
    let output = run(&["gateway", "drain", GATEWAY, "--control", control]);
    assert!(output.status.success(), "{}", stderr(&output));
}

/// The log has all acknowledged data, so it is served regardless of the opening that the restored folders record. Only
/// a node with the folder of an earlier opening refuses it, until its newest folder is back.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_copy_of_the_state_folder_loses_no_acknowledged_data() {
    let both = ["node-state", "a-state"];
    for clock in clocks() {
        // In the last case, the gateway opens its log once more after the folders were copied.
        for (restored, openings) in
            [(&both[..1], 1), (&both[1..], 1), (&both[..], 1), (&both[..], 2)]
        {
            let what = format!("{restored:?}, {clock:?}, {openings} openings");
            let (site, mut far) = Site::new();
            let mut near = site.gateway("a", Clock::Right).expect("it starts");
            let volume = connect(near.address, GATEWAY).await;
            write_all(&*volume, 1).await;
            for folder in restored {
                site.copy(folder, &format!("{folder}-old"));
            }
            drop(volume);
            for _ in 1..openings {
                assert!(near.terminate().0.success());
                near = site.gateway("a", Clock::Right).expect("it starts");
            }
            let volume = connect(near.address, GATEWAY).await;
            write_all(&*volume, 2).await;
            drain(&near);
            write_all(&*volume, 3).await;
            near.kill();
            far.kill();
            site.copy("node-state", "node-state-new");
            for folder in restored {
                site.copy(&format!("{folder}-old"), folder);
            }
            let mut far = site.node(clock).unwrap_or_else(|error| panic!("{what}: {error}"));
            if openings > 1 {
                let refused = site.gateway("a", clock).err().expect("the node is older");
                assert!(
                    refused.contains("the node was restored from an older backup"),
                    "{what}: {refused}"
                );
                assert!(refused.contains("restore the node's newest"), "{what}: {refused}");
                far.kill();
                site.copy("node-state-new", "node-state");
                far = site.node(clock).unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            let near = site.gateway("a", clock).unwrap_or_else(|error| panic!("{what}: {error}"));
            for folder in both {
                assert_seen(clock, &site.place.path(folder));
            }
            let volume = connect(near.address, GATEWAY).await;
            check_all(&*volume, 3..4, &what).await;
            drain(&near);
            let raw = connect(SocketAddr::from(([127, 0, 0, 1], site.port)), NODE).await;
            check_all(&*raw, 3..4, &what).await;
        }
    }
}

/// No decision about a volume file depends on the clock.
#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_volume_file_is_refused_regardless_of_the_clock() {
    let place = Place::new();
    let text = |name: &str| {
        let text = node(place.folder.path(), 0).replace("node.img", &format!("{name}.img"));
        format!("state = 'state'\n{}", text.replace(", size = \"64MiB\"", ""))
    };
    for name in ["node", "other"] {
        let file = place.path(&format!("{name}.img"));
        std::fs::File::create(&file).and_then(|it| it.set_len(8 << 20)).expect("made");
        let serving = place.serve(name, &text(name));
        write(&*connect(serving.address, NODE).await, 1, 1).await.expect("written");
        assert!(serving.terminate().0.success());
    }
    let [file, other, kept] = ["node.img", "other.img", "kept.img"].map(|name| place.path(name));
    std::fs::rename(&file, &kept).expect("moved");
    let bytes = std::fs::read(&kept).expect("a volume");
    let cases: [(&str, &dyn Fn()); 3] = [
        ("replaced by a file of 16777216 bytes", &|| {
            std::fs::write(&file, [&bytes[..], &bytes].concat()).expect("longer");
        }),
        ("replaced by a file of 4194304 bytes", &|| {
            std::fs::write(&file, &bytes[..4 << 20]).expect("shorter");
        }),
        ("replaced by the volume recorded as", &|| {
            std::fs::hard_link(&other, &file).expect("linked");
        }),
    ];
    for clock in clocks() {
        for (why, replace) in cases {
            replace();
            let told = place.try_serve_by(clock.start(), "node", &text("node"));
            let told = told.err().unwrap_or_else(|| panic!("{clock:?}: {why}: it is served"));
            assert!(told.contains(why) && told.contains("remedy: "), "{clock:?}: {told}");
            std::fs::remove_file(&file).expect("it was put there");
        }
        std::fs::rename(&kept, &file).expect("moved");
        let serving = place.try_serve_by(clock.start(), "node", &text("node")).expect("its own");
        let volume = connect(serving.address, NODE).await;
        assert_eq!(read(&*volume, 1).await.expect("read"), content(1, 1));
        drop(serving);
        std::fs::rename(&file, &kept).expect("moved");
    }
}

/// Clone the gateway's machine while the gateway runs, and start the clone.
#[tokio::test(flavor = "multi_thread")]
async fn only_one_of_two_running_copies_of_a_gateway_serves_and_nothing_is_lost() {
    for clock in clocks() {
        let what = format!("{clock:?}");
        let (site, far) = Site::new();
        let near = site.gateway("a", Clock::Right).expect("it starts");
        let volume = connect(near.address, GATEWAY).await;
        write_all(&*volume, 1).await;
        for (from, to) in [("a.log", "b.log"), ("a-state", "b-state")] {
            site.copy(from, to);
        }
        write_all(&*volume, 2).await;
        eventually("the confirmed number", || {
            far.status()["targets"][0]["units"][0]["claim"]["confirmed"].as_u64() >= Some(40)
        })
        .await;
        match site.gateway("b", clock) {
            // The clone has taken over the volume, with the data that the log had when it was copied. The first gateway
            // must notice that and acknowledge nothing from then on.
            Ok(clone) => {
                eventually("the first one is shut out", || {
                    near.status().to_string().contains("fenced")
                })
                .await;
                assert!(write(&*volume, 0, 9).await.is_err(), "{what}");
                let volume = connect(clone.address, GATEWAY).await;
                check_all(&*volume, 2..3, &what).await;
            }
            Err(error) => {
                assert!(error.contains("remedy: "), "{what}: {error}");
                write(&*volume, 0, 2).await.expect("the first one goes on");
                check_all(&*volume, 2..3, &what).await;
                drain(&near);
                let raw = connect(far.address, NODE).await;
                check_all(&*raw, 2..3, &what).await;
            }
        }
    }
}
