//! Starts two gateways that form a pair, and their node, and queries their state.

use std::{
    net::{SocketAddr, TcpListener},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use initiator::RemoteVolume;

use crate::support::{Place, Serving, content, eventually, node, read, write};

pub const GATEWAY: &str = "iqn.2026-11.test:gateway";

/// Settings of a node that supports claims.
pub fn keeping(place: &Place, port: u16) -> String {
    format!("state = '{}'\n{}", place.path("state").display(), node(place.folder.path(), port))
}

#[derive(Clone, Copy)]
pub struct Member {
    pub name: &'static str,
    pub address: SocketAddr,
}

pub fn members() -> [Member; 2] {
    // Hold both listeners until both ports are known, so that the ports differ.
    let held = [0, 1].map(|_| free_port());
    let [a, b] = held.map(|listener| listener.local_addr().expect("an address"));
    [Member { name: "a", address: a }, Member { name: "b", address: b }]
}

/// Returns a listener on a port below the kernel's ephemeral ports (ip_local_port_range). If it is closed and opened
/// again a moment later, no other test has taken it meanwhile.
fn free_port() -> TcpListener {
    const FROM: u32 = 12_000;
    const COUNT: u32 = 20_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(37);
    let next = || FROM + first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
    let mut ports = (0..COUNT).map(|_| TcpListener::bind(("127.0.0.1", next() as u16)));
    ports.find_map(Result::ok).expect("a port")
}

/// Returns the settings of one of the two gateways. `more` is added to its cache, with the gateway's name in place of
/// NAME.
pub fn settings(
    place: &Place,
    node: SocketAddr,
    members: [Member; 2],
    index: usize,
    more: &str,
) -> String {
    let (own, other) = (members[index], members[1 - index]);
    format!(
        r#"
initiator_name = "iqn.2026-11.test:host-{name}"
listen = ["{address}"]
state = "state-of-{name}"
[[target]]
name = "iqn.2026-11.test:half-{name}"
[[target.unit]]
stack = [ {{ half = {{ of = "{GATEWAY}" }} }} ]
[[target]]
name = "{GATEWAY}"
[[target.unit]]
[[target.unit.stack]]
remote = {{ url = "iscsi://{node}/iqn.2026-11.test:node/0", give_up_after = "2s" }}
[[target.unit.stack]]
[target.unit.stack.cache]
log = "{log}"
log_size = "16MiB"
dram = "8MiB"
nvram_size = "1MiB"
destage_idle = "2s"
{more}
[target.unit.stack.cache.pair]
partner = {{ url = "iscsi://{partner}/iqn.2026-11.test:half-{partner_name}/0" }}
dead_after = "2s"
first = {first}
"#,
        name = own.name,
        address = own.address,
        log = place.path(&format!("{}.log", own.name)).display(),
        partner = other.address,
        partner_name = other.name,
        first = index == 0,
        more = more.replace("NAME", own.name),
    )
}

pub fn pair(serving: &Serving) -> serde_json::Value {
    let status = serving.status();
    let targets = status["targets"].as_array().expect("targets").clone();
    let target = targets.iter().find(|target| target["name"] == GATEWAY).expect("the pair's");
    target["pair"].clone()
}

/// A node, and a pair of gateways whose first one is active.
pub struct Scene {
    pub place: Place,
    pub node: Serving,
    pub members: [Member; 2],
    more: String,
    pub serving: [Serving; 2],
}

impl Scene {
    pub async fn new(place: Place, more: &str) -> Self {
        let node = place.serve("node", &keeping(&place, 0));
        let members = members();
        let text = |index| settings(&place, node.address, members, index, more);
        let serving = [0, 1].map(|index| place.serve(members[index].name, &text(index)));
        let scene = Self { place, node, members, more: more.to_owned(), serving };
        scene.until(0, "active").await;
        scene
    }

    pub fn start(&mut self, index: usize) {
        self.start_with(index, "");
    }

    /// As [`Self::start`], with additional settings of the gateway's cache.
    pub fn start_with(&mut self, index: usize, more: &str) {
        self.start_instead(index, &format!("{}\n{more}", self.more));
    }

    /// Like [`Self::start`], but with other cache settings for the gateway than before.
    pub fn start_instead(&mut self, index: usize, more: &str) {
        let text = settings(&self.place, self.node.address, self.members, index, more);
        self.serving[index] = self.place.serve(self.members[index].name, &text);
    }

    pub fn start_node(&mut self) {
        let port = self.node.address.port();
        self.node = self.place.serve("node", &keeping(&self.place, port));
    }

    pub async fn until(&self, index: usize, role: &str) {
        let name = self.members[index].name;
        eventually(&format!("{name}: {role}"), || pair(&self.serving[index])["role"] == role).await;
    }

    /// Waits until standby gateway `index` gives `words` as the reason for its state.
    pub async fn until_refused(&self, index: usize, words: &[&str]) {
        let is_reported = || {
            let pair = pair(&self.serving[index]);
            let reason = pair["reason"].as_str().unwrap_or_default().to_owned();
            pair["role"] == "standby" && words.iter().all(|word| reason.contains(word))
        };
        eventually(&format!("{}: {words:?}", self.members[index].name), is_reported).await;
    }

    pub fn role(&self, index: usize) -> String {
        pair(&self.serving[index])["role"].as_str().unwrap_or_default().to_owned()
    }

    /// Connects a host to gateway `index`, and waits until that gateway is active.
    pub async fn host(&self, index: usize) -> Arc<RemoteVolume> {
        loop {
            if let Ok(host) = self.log_in(index).await {
                return host;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub async fn log_in(&self, index: usize) -> Result<Arc<RemoteVolume>, initiator::Error> {
        let address = self.members[index].address.to_string();
        let mut settings = initiator::Settings::new(address, GATEWAY, 0);
        settings.connect_time_out = Duration::from_millis(500);
        settings.login_time_out = Duration::from_secs(1);
        // Wait for a gateway that does not answer for a while, but not for one that has ended.
        settings.give_up_after = Duration::from_millis(300);
        settings.command_time_out = Duration::from_secs(60);
        settings.timing.ping_after = Duration::from_secs(60);
        settings.timing.probe_after = Duration::from_secs(60);
        settings.error_recovery_level = 0;
        RemoteVolume::connect(settings).await.map(Arc::new)
    }

    /// Writes as a host does, until the write is accepted: a temporary BUSY is not an error.
    pub async fn write(&self, host: &RemoteVolume, blocks: Range<u64>, version: u64) {
        for block in blocks {
            while let Err(error) = write(host, block, version).await {
                assert!(matches!(error, volume::Error::Busy(_)), "{error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }

    pub async fn check(&self, host: &RemoteVolume, blocks: Range<u64>, version: u64) {
        for block in blocks {
            let found = loop {
                match read(host, block).await {
                    Ok(found) => break found,
                    Err(error) => assert!(matches!(error, volume::Error::Busy(_)), "{error}"),
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            };
            assert_eq!(found, content(block, version), "block {block}");
        }
    }
}
