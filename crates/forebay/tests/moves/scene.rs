//! A node with a volume, other nodes that accept it, and a host that writes.

use std::{
    net::SocketAddr,
    process::Output,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use initiator::RemoteVolume;

use crate::support::{
    Place, Serving, content, eventually, forebay,
    nodes::{known_node, names, naming, other, secret, untold},
    read, write,
};

pub const PAYROLL: &str = "iqn.2026-11.test:payroll";
pub const BLOCKS: u64 = 2048;

/// Creates a folder with the secret that all nodes share, and starts a seed node in the folder.
pub fn place() -> (Place, Serving, [SocketAddr; 1]) {
    let place = Place::new();
    secret(&place, "names");
    let seed = place.serve("seed", &other("seed", &[], "names"));
    let at = naming(&seed);
    (place, seed, [at])
}

/// Settings of the node that serves the volume `payroll`; `more` is added to its target.
pub fn attic(port: u16, seeds: &[SocketAddr], more: &str) -> String {
    format!(
        "{}[[target]]\nname = \"{PAYROLL}\"\n{more}[[target.unit]]\nvolume = \"payroll\"\nlun = 3\n\
         serial = \"PAYROLL-1\"\nstack = [ {{ file = {{ path = \"payroll.img\", size = \"64MiB\" }} }} ]\n",
        names("attic", port, seeds, "names")
    )
}

pub fn cellar(node: &str, seeds: &[SocketAddr], accept: &str) -> String {
    format!("{}{accept}{}", names(node, 0, seeds, "names"), untold(node))
}

pub fn accept(node: &str) -> String {
    format!("[accept]\nfolder = \"{node}.moved\"\nsize = \"1GiB\"\n")
}

/// Moves the volume `payroll` to the node `to`.
pub fn move_to(of: &Serving, to: &str, more: &[&str]) -> Output {
    move_volume(of, "gln:payroll", to, more)
}

pub fn move_volume(of: &Serving, volume: &str, to: &str, more: &[&str]) -> Output {
    forebay()
        .args(["volume", "move", volume, "--to", to, "--control"])
        .arg(&of.control)
        .args(more)
        .output()
        .expect("the binary runs")
}

/// Returns true if node `of` serves the target of the volume `payroll` at present.
pub fn serves(of: &Serving) -> bool {
    let status = of.status();
    let targets = status["targets"].as_array().expect("targets").clone();
    targets.iter().any(|target| {
        target["name"] == PAYROLL && !target["units"].as_array().expect("units").is_empty()
    })
}

/// Waits until node `of` has received the naming entries of all `nodes`.
pub async fn knows(of: &Serving, nodes: &[&str]) {
    eventually("names", || nodes.iter().all(|node| known_node(of, node).is_some())).await;
}

pub async fn connect_to(address: SocketAddr) -> Arc<RemoteVolume> {
    let mut settings = initiator::Settings::new(address.to_string(), PAYROLL, 3);
    settings.give_up_after = Duration::from_secs(20);
    Arc::new(RemoteVolume::connect(settings).await.expect("a login"))
}

/// A host that writes its own blocks in turn, and records the last acknowledged version of each.
pub struct Load {
    ends: Arc<AtomicBool>,
    pub versions: Arc<Vec<AtomicU64>>,
    running: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    pub fn start(volume: &Arc<RemoteVolume>, writers: u64) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let versions: Arc<Vec<_>> = Arc::new((0..BLOCKS).map(|_| AtomicU64::new(0)).collect());
        let running = (0..writers).map(|writer| {
            let (volume, ends) = (Arc::clone(volume), Arc::clone(&ends));
            let versions = Arc::clone(&versions);
            tokio::spawn(async move {
                let mut round = writer * 7919;
                while !ends.load(Ordering::Relaxed) {
                    round += 1;
                    let block =
                        (round.wrapping_mul(0x9e37_79b9) % (BLOCKS / writers)) * writers + writer;
                    let version = versions[block as usize].load(Ordering::Relaxed) + 1;
                    write(&*volume, block, version).await.expect("no host sees an error");
                    versions[block as usize].store(version, Ordering::Relaxed);
                    if round.is_multiple_of(16) {
                        let found = read(&*volume, block).await.expect("no host sees an error");
                        assert_eq!(found, content(block, version), "{block}");
                    }
                }
            })
        });
        let running = running.collect();
        Self { ends, versions, running }
    }

    pub fn written(&self) -> u64 {
        self.versions.iter().map(|version| version.load(Ordering::Relaxed)).sum()
    }

    pub async fn end(self) -> Arc<Vec<AtomicU64>> {
        self.ends.store(true, Ordering::Relaxed);
        for writer in self.running {
            writer.await.expect("no host sees an error");
        }
        self.versions
    }
}

pub async fn verify(volume: &RemoteVolume, versions: &[AtomicU64], who: &str) {
    for (block, version) in versions.iter().enumerate() {
        let (block, version) = (block as u64, version.load(Ordering::Relaxed));
        assert_eq!(
            read(volume, block).await.expect("read"),
            content(block, version),
            "{who} {block}"
        );
    }
}
