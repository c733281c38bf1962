//! Files that an earlier program has written are served by this one.
//!
//! Each archive in `earlier/` has the folder of a node and a gateway as the program of commit 5039d61 left it: after
//! `kill -9` or after a clean end, in both cases with data that only the log or the NVRAM holds. To make archives with
//! another program, or to see what one program does with the files of another:
//!
//!     WRITER=FILE READER=FILE SAVE=FOLDER cargo test -p forebay --test gateway earlier_program -- --ignored

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use initiator::RemoteVolume;
use volume::Volume;

use crate::support::{Place, Serving, content, forebay, read, stderr, write};

const NODE: &str = "iqn.2026-11.test:node";
const GATEWAY: &str = "iqn.2026-11.test:gateway";

/// A node and a gateway over it, run by an earlier version of the program.
struct EarlierSite {
    name: &'static str,
    front: Front,
    /// Settings keys of the cache, except those of its log.
    cache: &'static str,
}

/// The process that the host writes to.
#[derive(Clone, Copy, PartialEq)]
enum Front {
    Gateway,
    /// A gateway with two units that share a log.
    Common,
}

#[derive(Clone, Copy)]
enum EarlierEnd {
    Killed,
    Clean,
}

const SITES: &[EarlierSite] = &[
    EarlierSite {
        name: "after-complete",
        front: Front::Gateway,
        cache: "report = 'after-complete'",
    },
    EarlierSite {
        name: "immediate",
        front: Front::Gateway,
        cache: "report = 'immediate', nvram = 'gateway.nvram', nvram_size = '256KiB', \
                nvram_survives = 'power-loss'",
    },
    EarlierSite { name: "through", front: Front::Gateway, cache: "report = 'through'" },
    EarlierSite { name: "around", front: Front::Gateway, cache: "report = 'around'" },
    EarlierSite {
        name: "at-flush",
        front: Front::Gateway,
        cache: "report = 'at-flush', epoch_too_large = 'split'",
    },
    EarlierSite {
        name: "mirrored",
        front: Front::Gateway,
        cache: "report = 'after-complete', log_mirror = 'mirror.log'",
    },
    EarlierSite {
        name: "encrypted",
        front: Front::Gateway,
        cache: "report = 'after-complete', log_key = 'log.key', log_secret_file = 'log.secret'",
    },
    EarlierSite {
        name: "read-tier",
        front: Front::Gateway,
        cache: "report = 'after-complete', read_tier = 'tier', read_tier_size = '8MiB'",
    },
    EarlierSite { name: "common", front: Front::Common, cache: "report = 'after-complete'" },
];

/// Blocks that are written and destaged to the far volume.
const DESTAGED: std::ops::Range<u64> = 0..24;
/// Blocks that are written afterwards and are only in the log or the NVRAM at the end.
const DIRTY: std::ops::Range<u64> = 12..36;

impl EarlierSite {
    fn node() -> String {
        format!(
            "listen = ['127.0.0.1:0']\nstate = 'node.state'\n[[target]]\nname = '{NODE}'\n\
             [[target.unit]]\nlun = 0\n\
             stack = [ {{ file = {{ path = 'volume.img', size = '8MiB' }} }} ]\n\
             [[target.unit]]\nlun = 1\n\
             stack = [ {{ file = {{ path = 'other.img', size = '8MiB' }} }} ]\n"
        )
    }

    fn gateway(&self, node: &Serving) -> String {
        let remote =
            |lun| format!("{{ remote = {{ url = 'iscsi://{}/{NODE}/{lun}' }} }}", node.address);
        let keys = self.cache_keys();
        let head = "listen = ['127.0.0.1:0']\nstate = 'gateway.state'\n";
        let target = format!("[[target]]\nname = '{GATEWAY}'\n");
        if self.front == Front::Gateway {
            return format!(
                "{head}{target}[[target.unit]]\nstack = [ {}, {{ cache = {{ {keys} }} }} ]\n",
                remote(0)
            );
        }
        let keys = keys.replace(", ", "\n");
        let unit = |lun| {
            format!(
                "[[target.unit]]\nlun = {lun}\n\
                 stack = [ {}, {{ common-cache = {{ name = 'both' }} }} ]\n",
                remote(lun)
            )
        };
        format!(
            "{head}[[common_cache]]\nname = 'both'\n[common_cache.cache]\n{keys}\n{target}{}{}",
            unit(0),
            unit(1)
        )
    }

    fn cache_keys(&self) -> String {
        let nvram = if self.cache.contains("nvram_size") { "" } else { "nvram_size = '256KiB', " };
        format!("log = 'log', log_size = '8MiB', dram = '2MiB', {nvram}{}", self.cache)
    }

    fn luns(&self) -> std::ops::Range<u16> {
        0..if self.front == Front::Common { 2 } else { 1 }
    }

    /// Starts the processes whose files are in the folder of `place`. The last one is the gateway that the host
    /// uses.
    fn start(&self, program: &Path, place: &Place) -> Vec<Serving> {
        let serve = |name, text: &str| {
            place
                .try_serve_by(command(program), name, text)
                .unwrap_or_else(|error| panic!("{}: {name} does not start: {error}", self.name))
        };
        let node = serve("node", &Self::node());
        let gateway = serve("gateway", &self.gateway(&node));
        vec![node, gateway]
    }

    async fn volumes(&self, front: &Serving) -> Vec<Arc<RemoteVolume>> {
        let mut volumes = Vec::new();
        for lun in self.luns() {
            let settings = initiator::Settings::new(front.address.to_string(), GATEWAY, lun);
            volumes.push(Arc::new(RemoteVolume::connect(settings).await.expect("a login")));
        }
        volumes
    }

    /// Runs `forebay gateway VERB` for each unit.
    fn ask(&self, program: &Path, front: &Serving, verb: &str) {
        for lun in self.luns() {
            let mut command = command(program);
            command.args(["gateway", verb, &format!("{GATEWAY}/{lun}"), "--control"]);
            let output = command.arg(&front.control).output().expect("the program runs");
            assert!(output.status.success(), "{} {verb}: {}", self.name, stderr(&output));
        }
    }

    /// Runs `program` as the server, writes to its unit, ends it, and keeps its files.
    async fn write(&self, program: &Path, place: &Place, end: EarlierEnd) {
        if self.cache.contains("log_key") {
            make_key(program, place);
        }
        let mut processes = self.start(program, place);
        let front = processes.last().expect("the front");
        let volumes = self.volumes(front).await;
        for volume in &volumes {
            for block in DESTAGED {
                write(volume.as_ref(), block, 1).await.expect("written");
            }
            volume.flush().await.expect("flushed");
        }
        if self.has_dirty_data() {
            self.ask(program, front, "drain");
            self.ask(program, front, "pause");
        }
        for volume in &volumes {
            for block in DIRTY {
                write(volume.as_ref(), block, 2).await.expect("written");
            }
            volume.flush().await.expect("flushed");
        }
        drop(volumes);
        while let Some(mut process) = processes.pop() {
            match end {
                EarlierEnd::Killed => process.kill(),
                EarlierEnd::Clean => assert!(process.terminate().0.success()),
            }
        }
    }

    /// Starts a program on these files, and checks that it serves every acknowledged write and destages it to the far
    /// volume.
    async fn check(&self, program: &Path, place: &Place) {
        let processes = self.start(program, place);
        let front = processes.last().expect("the front");
        for volume in self.volumes(front).await {
            for block in DESTAGED.start..DIRTY.end {
                let version = if DIRTY.contains(&block) { 2 } else { 1 };
                let found = read(volume.as_ref(), block).await.expect("read");
                assert!(found == content(block, version), "{}: block {block}", self.name);
            }
        }
        if self.has_dirty_data() {
            self.ask(program, front, "drain");
        }
    }

    fn has_dirty_data(&self) -> bool {
        !matches!(self.name, "through" | "around")
    }
}

/// Returns the command of a program with default signal dispositions. An empty path stands for the program under test.
fn command(file: &Path) -> Command {
    if file.as_os_str().is_empty() {
        return forebay();
    }
    let mut command = Command::new(file);
    program::reset_signals(&mut command);
    command
}

fn make_key(program: &Path, place: &Place) {
    let path = |name: &str| place.path(name).to_str().expect("a plain path").to_owned();
    let (secret, key) = (path("log.secret"), path("log.key"));
    for arguments in
        [&["secret", &secret, "--characters", "64"][..], &["key", &key, "--secret-file", &secret]]
    {
        let output = command(program).args(arguments).output().expect("the program runs");
        assert!(output.status.success(), "{}", stderr(&output));
    }
}

fn tar(arguments: &[&str], folder: &Path) {
    let status = Command::new("tar").arg("-C").arg(folder).args(arguments).status().expect("tar");
    assert!(status.success());
}

fn unpacked(archive: &Path) -> Place {
    let place = Place::new();
    tar(&["-xzf", archive.to_str().expect("a plain path")], place.folder.path());
    place
}

fn archives() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/earlier")
}

#[tokio::test]
async fn files_written_by_an_earlier_version_are_served() {
    let this = Path::new("");
    for site in SITES {
        for end in ["killed", "clean"] {
            let place = unpacked(&archives().join(format!("{}-{end}.tar.gz", site.name)));
            site.check(this, &place).await;
        }
    }
}

#[tokio::test]
#[ignore = "compares two programs: WRITER, READER and SAVE say which, and where archives go"]
async fn one_version_serves_the_files_that_another_has_written() {
    let variable = |name| env::var_os(name).map(PathBuf::from).unwrap_or_default();
    let (writer, reader, save) = (variable("WRITER"), variable("READER"), variable("SAVE"));
    for site in SITES {
        for (end, name) in [(EarlierEnd::Killed, "killed"), (EarlierEnd::Clean, "clean")] {
            let written = Place::new();
            site.write(&writer, &written, end).await;
            let scratch = Place::new();
            let folder = if save.as_os_str().is_empty() { scratch.path("") } else { save.clone() };
            fs::create_dir_all(&folder).expect("a folder");
            let archive = folder.join(format!("{}-{name}.tar.gz", site.name));
            let file = archive.to_str().expect("a plain path");
            tar(
                &["--exclude=*.sock*", "--exclude=*.tar.gz", "-Sczf", file, "."],
                &written.path(""),
            );
            site.check(&reader, &unpacked(&archive)).await;
            println!("{} {name}", site.name);
        }
    }
}
