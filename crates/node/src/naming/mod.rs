//! The naming service in one process: its table of names, its seeds, and the location of a volume for each connection
//! attempt.
//!
//! Each node announces a record with its number (GLN), its addresses and its volumes. `service` answers callers and
//! calls other nodes at intervals, `conversation` performs one exchange of records, `node_number` stores the number of
//! the node, and `volume_finder` turns the location of a volume into portals. The table with its rules and the messages
//! are in the crate `names`.
//!
//! A session asks the seeds for the location before each connection attempt. If no seed answers in time, the last known
//! location is used.

mod node_number;
mod conversation;
mod service;
mod volume_finder;

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use ::names::{
    Gln, HELLO_BYTES, NamesTable, NamingProblem, NodeExpiryTimes, NodeName, NodeRecord,
    NodeRecordStamp, NodeVolumeEntry, Unresolved, VolumeLocation, VolumeName,
};
use config::{SecretWithSource, Settings};
use control::{Failure, KnownNode, NamingStatus};
use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use parking_lot::Mutex;
use stack::FindFarVolume;
use tokio::{net::TcpStream, sync::Notify, time::timeout};
use zeroize::Zeroizing;

pub use service::{cannot_listen, serve};
pub use volume_finder::usable;

pub struct Naming {
    table: Mutex<NamesTable>,
    secret: Zeroizing<Vec<u8>>,
    seeds: Vec<String>,
    /// The file with the number of this node and the version of its record; `None` if this process only asks other
    /// nodes and announces nothing.
    kept: Option<PathBuf>,
    /// The version that is in the file `kept`. Lock order: lock this before the table, and hold it while another
    /// version is written.
    written: Mutex<Option<u64>>,
    /// Notified when this node has new volumes or addresses to announce.
    news: Notify,
    /// The time before which the seeds are not asked again. Locked while they are being asked.
    asked: tokio::sync::Mutex<Option<tokio::time::Instant>>,
    /// Addresses that have not answered. Each is logged when it is added.
    silent: Mutex<BTreeSet<String>>,
    /// Handles connections whose hello names a protocol other than that of the naming service.
    other: OnceLock<OtherProtocolHandler>,
}

/// A handler of connections whose hello is not about names. It gets the connection, the hello and the permit, and
/// must keep the permit once the caller has proved that it knows the secret.
pub type OtherProtocolHandler = Box<
    dyn Fn(TcpStream, [u8; HELLO_BYTES], Arc<transport::ConnectionPermit>) -> BoxFuture<'static, ()>
        + Send
        + Sync,
>;

/// Time without a message from a node after which its record is removed. A node that returns announces itself again.
const FORGET_AFTER: Duration = Duration::from_secs(7 * 86_400);

impl Naming {
    /// Creates the naming service from the settings. Its number is read from the folder `state`, or drawn and written
    /// there.
    pub fn open(settings: &Settings) -> Result<Option<Self>, Failure> {
        let (Some(names), Some(state)) = (&settings.names, &settings.state) else {
            return Ok(None);
        };
        let kept = node_number::path(state);
        let (gln, version) = node_number::load_or_make(&kept)?;
        // Raise the version, so that records from now on are newer than all that were sent before.
        let naming = Self::new(names, gln, version + 1, Some(kept))?;
        naming.keep()?;
        Ok(Some(naming))
    }

    /// Checks the secret and the stored number, and describes the number in words. Changes nothing.
    pub fn check(settings: &Settings) -> Result<String, Failure> {
        let Some(names) = &settings.names else { return Ok("none".to_owned()) };
        secret(names)?;
        Ok(match &settings.state {
            None => "this process only queries others, and announces nothing".to_owned(),
            Some(state) => match node_number::load(&node_number::path(state))? {
                Some((gln, _)) => format!("this node has the number {gln}"),
                None => "this node would take part with a new number".to_owned(),
            },
        })
    }

    /// Creates a naming service for a command, which asks other nodes, including the process that listens on the
    /// addresses of `listen`, and announces nothing.
    pub fn guest(settings: &Settings) -> Result<Option<Self>, Failure> {
        let Some(names) = &settings.names else { return Ok(None) };
        let mut naming = Self::new(names, node_number::random()?, 0, None)?;
        naming.seeds.extend(names.listen.iter().map(|address| address.0.to_string()));
        Ok(Some(naming))
    }

    fn new(
        names: &config::NamingServiceSettings,
        gln: Gln,
        version: u64,
        kept: Option<PathBuf>,
    ) -> Result<Self, Failure> {
        let mut instance = [0; 8];
        getrandom::fill(&mut instance).map_err(Failure::new)?;
        let own = NodeRecord {
            stamp: NodeRecordStamp { gln, version, beat: 0 },
            instance: u64::from_ne_bytes(instance),
            node: names.node.clone().unwrap_or_else(node_of_host),
            addresses: Vec::new(),
            volumes: Vec::new(),
        };
        let times =
            NodeExpiryTimes { stale_after: names.stale_after.0, forget_after: FORGET_AFTER };
        Ok(Self {
            table: Mutex::new(NamesTable::new(own, times)),
            secret: secret(names)?,
            seeds: names.seeds().collect(),
            kept,
            written: Mutex::new(None),
            news: Notify::new(),
            asked: tokio::sync::Mutex::default(),
            silent: Mutex::default(),
            other: OnceLock::new(),
        })
    }

    /// Returns the naming service as the interface that a stack uses.
    pub fn for_stacks(naming: Option<&Arc<Self>>) -> Option<Arc<dyn FindFarVolume>> {
        naming.map(|naming| Arc::clone(naming) as _)
    }

    /// Sets the handler of connections whose hello is not about names.
    pub fn visited_by(&self, other: OtherProtocolHandler) {
        // Ignore a second call: a process has one node, which sets this handler once.
        let _ = self.other.set(other);
    }

    pub fn secret(&self) -> &[u8] {
        &self.secret
    }

    pub fn node(&self) -> NodeName {
        self.table.lock().own().node.clone()
    }

    /// Returns the nodes whose number (GLN) or name is `node`, with their addresses.
    pub async fn find(&self, node: &str) -> Vec<KnownNode> {
        let mut nodes = self.known_by_seeds().await.nodes;
        nodes.retain(|known| known.gln.to_string() == node || known.node.as_str() == node);
        nodes
    }

    pub fn gln(&self) -> Gln {
        self.table.lock().own().stamp.gln
    }

    /// Announces these volumes instead of those that were announced before.
    pub fn tell(&self, addresses: Vec<String>, volumes: Vec<NodeVolumeEntry>) {
        if self.table.lock().tell(addresses, volumes) {
            if let Err(failure) = self.keep() {
                tracing::error!(%failure, "cannot save the sequence number of announcements");
            }
            self.news.notify_one();
        }
    }

    /// Writes the version of this node's record to the file, if it is not there yet.
    fn keep(&self) -> Result<(), Failure> {
        let Some(path) = &self.kept else { return Ok(()) };
        let mut written = self.written.lock();
        let NodeRecordStamp { gln, version, .. } = self.table.lock().own().stamp;
        if *written != Some(version) {
            node_number::keep(path, gln, version)?;
            *written = Some(version);
        }
        Ok(())
    }

    /// Returns the location of a volume as the seeds know it now, or the last known location if no seed answers.
    pub async fn locate(&self, volume: &VolumeName) -> Result<VolumeLocation, Unresolved> {
        self.ask_seeds().await;
        self.table.lock().resolve(volume, Instant::now())
    }

    /// Returns the volumes in `ours` that other nodes have with a higher generation, with their locations. With `asks`,
    /// asks the seeds first; otherwise uses what this process knows.
    pub async fn moved_on(
        &self,
        ours: &[NodeVolumeEntry],
        asks: bool,
    ) -> Vec<(NodeVolumeEntry, u64, VolumeLocation)> {
        if asks && !ours.is_empty() {
            self.ask_seeds().await;
        }
        let table = self.table.lock();
        let now = Instant::now();
        let newer = |entry: &NodeVolumeEntry| {
            let (generation, place) = table.moved_on(entry, now)?;
            Some((entry.clone(), generation, place))
        };
        ours.iter().filter_map(newer).collect()
    }

    /// Asks all seeds, unless they were asked a moment ago. Waits for the first answer, and then briefly for the
    /// others, which may be newer.
    async fn ask_seeds(&self) {
        let mut asked = self.asked.lock().await;
        if asked.is_some_and(|until| tokio::time::Instant::now() < until) {
            return;
        }
        let asking = async {
            let mut calls: FuturesUnordered<_> =
                self.seeds.iter().map(|seed| self.call(seed)).collect();
            while let Some(answered) = calls.next().await {
                if answered {
                    let others = async { while calls.next().await.is_some() {} };
                    let _ = timeout(GRACE, others).await;
                    return true;
                }
            }
            false
        };
        let answered = timeout(ASK_WITHIN, asking).await.unwrap_or(false);
        let again_after = if answered { FRESH } else { SILENCE };
        *asked = Some(tokio::time::Instant::now() + again_after);
    }

    /// Performs one exchange. Returns true if it succeeds. Failures are reported once for each address.
    async fn call(&self, address: &str) -> bool {
        match conversation::call(self, address).await {
            Ok(()) => {
                if self.silent.lock().remove(address) {
                    tracing::info!(address, "the naming service there answers again");
                }
                true
            }
            Err(error) => {
                let mut silent = self.silent.lock();
                // Limit the number of addresses that are remembered, because they may come from other nodes.
                if silent.len() < MOST_SILENT && silent.insert(address.to_owned()) {
                    tracing::warn!(
                        address, %error,
                        remedy = "nothing has to be done unless it lasts: start the node there, open \
                         its naming port, or correct `seeds` in [names]",
                        "cannot exchange names"
                    );
                }
                false
            }
        }
    }

    /// Asks the seeds and returns everything that is known then. Without asking, a volume that has just moved would be
    /// shown at its former node until the next announcement.
    pub async fn known_by_seeds(&self) -> NamingStatus {
        self.ask_seeds().await;
        self.known()
    }

    /// Returns all nodes and volumes that this process knows, without asking other nodes.
    fn known(&self) -> NamingStatus {
        let table = self.table.lock();
        let now = Instant::now();
        let nodes = table.nodes(now).map(|listed| KnownNode {
            gln: listed.record.stamp.gln,
            node: listed.record.node.clone(),
            addresses: listed.record.addresses.clone(),
            heard_seconds: listed.age.as_secs(),
            stale: listed.is_stale,
            twins: listed.twins.is_some(),
            volumes: listed.record.volumes.clone(),
        });
        let troubles = table.troubles(now).collect();
        NamingStatus { gln: table.own().stamp.gln, nodes: nodes.collect(), troubles }
    }

    pub fn troubles(&self) -> Vec<NamingProblem> {
        self.table.lock().troubles(Instant::now()).collect()
    }
}

/// Time within which the seeds are not asked again, because many volumes reconnect at once.
const FRESH: Duration = Duration::from_millis(500);
/// Time within which seeds that did not answer are not asked again. All callers that wait meanwhile share the result of
/// the first one.
const SILENCE: Duration = Duration::from_secs(2);
/// Time-out of the first answer. A reconnect waits for it, and a host's command waits for the reconnect.
const ASK_WITHIN: Duration = Duration::from_secs(2);
/// After the first answer, wait this long for answers of other nodes.
const GRACE: Duration = Duration::from_millis(200);
/// Maximum number of addresses that are remembered as silent.
const MOST_SILENT: usize = 256;

/// Reads the secret that all participants share.
fn secret(names: &config::NamingServiceSettings) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let found = config::read_secret(names.secret_file.as_deref(), names.secret_env.as_deref());
    let found = found.map_err(|(message, remedy)| Failure::settings(message).remedy(remedy))?;
    match found {
        Some(SecretWithSource { secret, .. }) if (12..=255).contains(&secret.len()) => Ok(secret),
        Some(SecretWithSource { secret, place }) => {
            let message =
                format!("{place}: the secret has {} bytes; 12 to 255 are permitted", secret.len());
            Err(Failure::settings(message).remedy("create one with `forebay secret FILE`"))
        }
        None => Err(Failure::settings("[names] has no secret").remedy(
            "create one with `forebay secret FILE`, and name it as `secret_file` in \
             [names]",
        )),
    }
}

fn node_of_host() -> NodeName {
    let host = config::host_name();
    let host = host.trim_start_matches(['-', '.']);
    host.parse().unwrap_or_else(|_| "node".parse().expect("a name"))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::{net::TcpListener, time::Instant};

    use super::*;

    fn settings(folder: &std::path::Path, seed: SocketAddr) -> Settings {
        let secret = folder.join("secret");
        stack::atomic_file::replace(&secret, b"a secret of all who take part\n").unwrap();
        let text = format!(
            "state = \"{}\"\n[names]\nseeds = [\"{}\"]\nsecret_file = \"{}\"\n\
            [[target]]\nname = \"iqn.2026-11.test:a\"\n[[target.unit]]\n\
            stack = [ {{ memory = {{ size = \"1MiB\" }} }} ]\n",
            folder.display(),
            seed,
            secret.display()
        );
        let settings = folder.join("forebay.toml");
        std::fs::write(&settings, text).unwrap();
        Settings::load(&settings).unwrap()
    }

    #[tokio::test]
    async fn a_volume_that_a_seed_knows_is_found_without_waiting_for_the_next_exchange() {
        let folder = tempfile::tempdir().unwrap();
        let unused = "127.0.0.1:9".parse().unwrap();
        let seed = Naming::guest(&settings(folder.path(), unused)).unwrap().unwrap();
        let seed = Arc::new(seed);
        let listen = ["127.0.0.1:0".parse().unwrap()];
        let (_serving, bound) = serve(&seed, &listen).await.unwrap();
        let asker = Naming::guest(&settings(folder.path(), bound[0])).unwrap().unwrap();
        let moved = NodeVolumeEntry {
            volume: "payroll".parse().unwrap(),
            target: "iqn.2026-11.test:a".into(),
            lun: 0,
            portals: Vec::new(),
            generation: 1,
        };
        seed.tell(vec![bound[0].to_string()], vec![moved.clone()]);
        let known = asker.known_by_seeds().await;
        assert!(known.nodes.iter().any(|node| node.volumes == [moved.clone()]), "{known:?}");
    }

    /// Regression: all volumes reconnect at the same time. If each asked the seeds separately, it would first wait
    /// for all others.
    #[tokio::test]
    async fn reconnects_of_many_volumes_wait_once_for_seeds_that_are_silent() {
        // A seed that accepts connections and never answers.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path(), silent.local_addr().unwrap());
        let naming = Naming::guest(&settings).unwrap().unwrap();
        let volume = "payroll".parse().unwrap();
        let begun = Instant::now();
        let reconnects = (0..8).map(|_| naming.locate(&volume));
        for found in futures_util::future::join_all(reconnects).await {
            assert!(found.is_err());
        }
        // If each volume waited separately, this would take eight times `ASK_WITHIN`. Half of that is a limit with room
        // for a slow machine.
        assert!(begun.elapsed() < ASK_WITHIN * 4, "{:?}", begun.elapsed());
    }
}
