//! Settings: one TOML file as data, with every default in the `Default` of the table it belongs to.
//! Turning them into parts is the work of `stack` and `serve`.

mod value_types;
mod secret;
mod access;
mod tls;
mod schedule;
mod byte_range;
mod layer;
mod portal;
mod names;
mod accept;
mod problem;
mod rule;
mod used_files;
mod remote_rules;
mod cache_rules;
mod rules;
mod loading;
#[cfg(test)]
mod example;

use std::path::{Path, PathBuf};

use ::names::VolumeName;
use serde::Deserialize;

pub use accept::Accept;
pub use access::{Allow, ChapCredentialSettings, ChapHashSetting, Discovery};
pub use byte_range::ByteRange;
pub use layer::{
    CacheLayerSettings, CommonCache, EncryptLayerSettings, FaultLayerSettings, File, Layer,
    MemoryLayerSettings, PairPartnerSettings, RemoteLayerSettings, Slice,
};
pub use names::{FarVolumeAddress, NamingServiceSettings, with_port};
pub use portal::{HostPort, PortalGroupSettings, PortalSettings};
pub use remote_rules::SOCKET_BUFFER;
pub use schedule::{Schedule, TimeOfDay};
pub use secret::{SecretWithSource, read as read_secret};
pub use tls::{PortalTls, RemoteTls};
pub use value_types::{
    Address, CongestionSetting, DestageOrderSetting, Digest, FaultError, FaultOperationSetting,
    FileEngineSetting, IscsiName, LinkCompressionSetting, LogErrorPolicySetting, LogLevel,
    NvramSurvivalSetting, OversizedEpochSetting, WriteModeSetting,
};

use crate::output::quoted;
use crate::quantity::{Size, TimeSpan};

/// Everything that one process serves.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Addresses of portals of group 1; if left out, loopback, or none if there are `portal`s.
    pub listen: Option<Vec<Address>>,
    /// Portals with more to them than an address.
    pub portal: Vec<PortalSettings>,
    /// The control socket; if left out, `forebay/control.sock` in `$XDG_RUNTIME_DIR` or `/run`.
    pub control: Option<PathBuf>,
    /// The folder where units keep reservations and mode parameters; if left out, they forget them.
    pub state: Option<PathBuf>,
    /// Which events are shown; if left out, `info`.
    pub log_level: Option<LogLevel>,
    /// Threads that serve; 0: one per CPU.
    pub threads: u16,
    /// The name under which remote volumes are logged in to; if left out, made from the host's.
    pub initiator_name: Option<IscsiName>,
    /// CHAP users: initiators that can prove who they are.
    pub user: Vec<ChapCredentialSettings>,
    /// Who tells whom which volume is where; if left out, nobody.
    pub names: Option<NamingServiceSettings>,
    /// What is taken from other nodes that move volumes here; if left out, nothing.
    pub accept: Option<Accept>,
    /// Who may ask which targets there are.
    pub discovery: Discovery,
    /// What every target offers and bears.
    pub iscsi: Iscsi,
    /// Caches of several units each.
    pub common_cache: Vec<CommonCache>,
    /// The targets.
    pub target: Vec<IscsiTargetSettings>,
    /// The file that the settings were read from.
    #[serde(skip)]
    pub file: PathBuf,
}

/// What targets offer to initiators, and their limits.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct Iscsi {
    /// Connections of normal sessions at once.
    pub max_connections: u32,
    /// Connections that have not logged in yet.
    pub max_logins: u32,
    /// Connections from one address that have not logged in yet.
    pub max_logins_per_address: u32,
    /// Discovery sessions at once.
    pub max_discovery_sessions: u32,
    /// Discovery sessions at once from one address.
    pub max_discovery_sessions_per_address: u32,
    /// Time without a request after which a discovery session is closed.
    pub discovery_timeout: TimeSpan,
    /// Bytes that the data of writes may take, of all sessions together, while the writes wait for earlier
    /// commands or for the rest of their data.
    pub waiting_data: Size,
    /// The hashes of CHAP that are accepted, most wanted first.
    pub chap: Vec<ChapHashSetting>,
    /// Time from connect to the end of login.
    pub login_timeout: TimeSpan,
    /// Commands that a session may have outstanding.
    pub queue_depth: u16,
    /// `MaxRecvDataSegmentLength`: bytes taken in one PDU.
    pub max_recv_data_segment_length: Size,
    /// `MaxBurstLength`: bytes in one solicited burst.
    pub max_burst_length: Size,
    /// `FirstBurstLength`: unsolicited bytes of one command.
    pub first_burst_length: Size,
    /// `MaxOutstandingR2T`: bursts asked for at once.
    pub max_outstanding_r2t: u16,
    /// `InitialR2T`: whether unsolicited data needs asking for.
    pub initial_r2t: bool,
    /// `ImmediateData`: whether a command may carry data.
    pub immediate_data: bool,
    /// `HeaderDigest`.
    pub header_digest: Digest,
    /// `DataDigest`.
    pub data_digest: Digest,
    /// Compression that initiators may have.
    pub compression: Vec<LinkCompressionSetting>,
    /// The congestion control of a session's connections.
    pub congestion: CongestionSetting,
    /// Send and receive buffer of each connection's socket; if left out: as the kernel tunes them.
    pub socket_buffer: Option<Size>,
    /// Idle time before an initiator is asked whether it lives; 0: never.
    pub ping_interval: TimeSpan,
    /// Commands whose answers leave with one write, unless the input is drained before.
    pub batch_commands: u32,
    /// How long a connection is polled after its last byte instead of slept on; 0: never.
    pub busy_poll: TimeSpan,
}

/// One iSCSI target.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct IscsiTargetSettings {
    /// Its iSCSI name; required.
    pub name: IscsiName,
    /// A name for people.
    pub alias: Option<String>,
    /// Its own portals, in place of the common ones.
    pub listen: Option<Vec<Address>>,
    /// The tags of the portal groups through which it is reached; if left out, all of them.
    pub groups: Option<Vec<u16>>,
    /// Where everybody who logs in to it is sent.
    pub redirect: Option<HostPort>,
    /// Whether they need not come here again.
    pub redirect_permanently: bool,
    /// Who may log in to it; if left out, everybody.
    pub allow: Option<Vec<Allow>>,
    /// What it proves itself with, if an initiator asks.
    pub mutual: Option<ChapCredentialSettings>,
    /// Its logical units.
    pub unit: Vec<Unit>,
}

impl IscsiTargetSettings {
    fn has_remote(&self) -> bool {
        self.unit.iter().flat_map(|unit| &unit.stack).any(|layer| matches!(layer, Layer::Remote(_)))
    }
}

impl Settings {
    /// Whether opening one of the target's units needs another target: its own, or those that are opened
    /// with them.
    pub fn needs_another(&self, target: &IscsiTargetSettings) -> bool {
        let common = target.unit.iter().filter_map(Unit::in_common);
        target.has_remote()
            || common.flat_map(|name| self.units_of(name)).any(|(other, _)| other.has_remote())
    }

    /// A cache of several units.
    pub fn common_cache(&self, name: &str) -> Option<&CacheLayerSettings> {
        self.common_cache.iter().find(|common| common.name == name).map(|common| &common.cache)
    }

    /// The units of a common cache.
    pub fn units_of(&self, name: &str) -> Vec<(&IscsiTargetSettings, &Unit)> {
        let units =
            self.target.iter().flat_map(|target| target.unit.iter().map(move |u| (target, u)));
        units.filter(|(_, unit)| unit.in_common() == Some(name)).collect()
    }
}

impl Unit {
    /// The name of the cache that it has in common with others.
    pub fn in_common(&self) -> Option<&str> {
        self.stack.iter().find_map(|layer| match layer {
            Layer::CommonCache(common) => Some(&*common.name),
            _ => None,
        })
    }

    /// The pair that its cache is of.
    pub fn pair(&self) -> Option<&PairPartnerSettings> {
        self.stack.iter().find_map(|layer| match layer {
            Layer::Cache(cache) => cache.pair.as_deref(),
            _ => None,
        })
    }
}

/// One logical unit.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct Unit {
    /// Its number.
    pub lun: u16,
    /// What its volume is called wherever it is; if left out, nobody is told of it.
    #[serde(deserialize_with = "names::volume")]
    pub volume: Option<VolumeName>,
    /// How often that volume has moved: of two nodes that tell of it, the one with the higher number is right.
    pub generation: u64,
    /// Its serial number; if left out, made from target name and number.
    pub serial: Option<String>,
    /// The product name that INQUIRY tells, at most 16 characters.
    pub product: String,
    /// Whether its medium can be ejected (RMB).
    pub removable: bool,
    /// Share of a thin volume's space above which initiators are told; if left out, never.
    pub soft_threshold: Option<f64>,
    /// Bytes of a physical block as initiators are told; if left out, as the volume has it.
    pub physical_block_size: Option<Size>,
    /// Whether a WRITE SAME of no blocks goes to the end of the unit.
    pub write_same_to_end: bool,
    /// The version of SPC that INQUIRY claims: 3 or 4.
    pub spc: u8,
    /// Whether others may read it while a cache elsewhere has claimed it.
    pub reads_beside_claim: bool,
    /// Bytes that one gateway has at a time, of a volume that several gateways share; if left out, it is not shared.
    pub share_grain: Option<Size>,
    /// After how long without a word a gateway that shares the volume is no longer waited for, by those who
    /// want what it only reads.
    pub share_lease: TimeSpan,
    /// Its layers, bottom first; required.
    pub stack: Vec<Layer>,
}

impl Default for Iscsi {
    fn default() -> Self {
        Self {
            max_connections: 1024,
            max_logins: 128,
            max_logins_per_address: 64,
            max_discovery_sessions: 64,
            max_discovery_sessions_per_address: 16,
            discovery_timeout: TimeSpan::seconds(10),
            waiting_data: Size::mib(384),
            chap: ChapHashSetting::ALL.to_vec(),
            login_timeout: TimeSpan::seconds(15),
            queue_depth: 128,
            max_recv_data_segment_length: Size::kib(256),
            max_burst_length: Size::mib(1),
            first_burst_length: Size::kib(256),
            max_outstanding_r2t: 8,
            initial_r2t: false,
            immediate_data: true,
            header_digest: Digest::default(),
            data_digest: Digest::default(),
            compression: Vec::new(),
            congestion: CongestionSetting::default(),
            socket_buffer: None,
            ping_interval: TimeSpan::seconds(15),
            batch_commands: 16,
            busy_poll: TimeSpan::millis(0),
        }
    }
}

impl Default for Unit {
    fn default() -> Self {
        Self {
            lun: 0,
            volume: None,
            generation: 0,
            serial: None,
            product: "VIRTUAL-DISK".into(),
            removable: false,
            soft_threshold: None,
            physical_block_size: None,
            write_same_to_end: false,
            spc: 4,
            reads_beside_claim: true,
            share_grain: None,
            share_lease: TimeSpan::seconds(10),
            stack: Vec::new(),
        }
    }
}

impl Unit {
    /// How the unit behaves.
    pub fn behavior(&self) -> unit::Settings {
        unit::Settings {
            removable: self.removable,
            soft_threshold_percent: self.soft_threshold.map(|share| (share * 100.0).round() as u8),
            physical_block_bytes: self.physical_block_size.and_then(|s| u32::try_from(s.0).ok()),
            write_same_to_end: self.write_same_to_end,
            spc_3: self.spc == 3,
            reads_beside_claim: self.reads_beside_claim,
            share: self.share_grain.map(|grain| unit::Share {
                grain_bytes: u32::try_from(grain.0).unwrap_or(u32::MAX),
                lease_ms: u32::try_from(self.share_lease.0.as_millis()).unwrap_or(u32::MAX),
            }),
            is_one_of_many: self.stack.iter().any(Layer::is_shared),
            ..unit::Settings::default()
        }
    }
}

impl Settings {
    /// Returns the folder for records of storage and of confirmed writes: the `state` folder if there is one,
    /// else a folder beside the settings file. Claims and reservations are kept in a `state` folder only.
    pub fn records_folder(&self) -> PathBuf {
        records_folder(self.state.as_deref(), &self.file)
    }
}

fn records_folder(state: Option<&Path>, file: &Path) -> PathBuf {
    let beside = || file.parent().unwrap_or(Path::new("")).join(BESIDE_SETTINGS);
    lasting(&state.map_or_else(beside, Path::to_owned))
}

/// Returns the path in absolute form, which holds in each working directory.
fn lasting(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Returns the command that removes the record of a path that the settings file `config` names.
pub fn forget_command(config: &Path, path: &Path, loses_data: bool) -> String {
    let lose = if loses_data { " --lose-data" } else { "" };
    let (path, config) = (lasting(path), lasting(config));
    format!("forebay forget {} --config {}{lose}", quoted(&path), quoted(&config))
}

/// The name of the folder for records if the settings name no `state`.
const BESIDE_SETTINGS: &str = "forebay-state";
