//! The settings of a process: one TOML file as data. Every default is in the `Default` of its table. This crate also
//! reads the secrets and certificates that a file names, and makes the CHAP and TLS configurations of sessions of them.
//! It opens no storage: the crates above make objects of the settings.

pub mod private_file;
pub mod certificates;
pub mod quantity;
mod shell_word;
mod problem;
mod value_types;
mod host_name;
mod secret;
mod access;
mod tls;
mod schedule;
mod byte_range;
mod portal;
mod names;
mod accept;
mod rule;
mod used_files;
mod connection_rules;
mod layers;
mod certificate_loading;
mod rules;
mod loading;
pub mod login_rules;
#[cfg(test)]
mod example;

use std::path::{Path, PathBuf};

use ::names::VolumeName;
use serde::Deserialize;

pub use accept::Accept;
pub use access::{Allow, ChapCredentialSettings, ChapHashSetting, Discovery};
pub use byte_range::ByteRange;
pub use connection_rules::SOCKET_BUFFER;
pub use host_name::{host_name, name_of_host};
pub use layers::{
    CacheLayerSettings, CommonCache, DelayLayerSettings, DiskLayerSettings, EncryptLayerSettings,
    FaultError, FaultLayerSettings, FaultOperationSetting, File, InCommon, Layer, LayerChange,
    MemoryLayerSettings, MirrorLegLayerSettings, ObserveLayerSettings, PairPartnerSettings,
    RemoteLayerSettings, Slice,
};
pub use names::{FarVolumeAddress, NamingServiceSettings, with_port};
pub use portal::{HostPort, PortalGroupSettings, PortalSettings};
pub use schedule::{Hours, Schedule, TimeOfDay};
pub use secret::{SecretWithSource, read as read_secret};
pub use shell_word::quoted;
pub use tls::{PortalTls, RemoteTls};
pub use value_types::{
    Address, CongestionSetting, Digest, FileEngineSetting, IscsiName, LinkCompressionSetting,
    LogLevel, UnitKind,
};

use crate::quantity::{Size, TimeSpan};

/// The settings of one process.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Addresses of the portals of group 1; if left out, loopback, or none if there are `portal` tables.
    pub listen: Option<Vec<Address>>,
    /// Portals with more settings than an address.
    pub portal: Vec<PortalSettings>,
    /// The control socket; if left out, `forebay/control.sock` in `$XDG_RUNTIME_DIR` or `/run`.
    pub control: Option<PathBuf>,
    /// The folder for the units' reservations and mode parameters; if left out, these are lost when the process ends.
    pub state: Option<PathBuf>,
    /// Which events are shown; if left out, `info`.
    pub log_level: Option<LogLevel>,
    /// Number of threads; 0 for one per CPU.
    pub threads: u16,
    /// The iSCSI name for logins to remote volumes; if left out, it is made of the host name.
    pub initiator_name: Option<IscsiName>,
    /// CHAP users: initiators that can authenticate themselves.
    pub user: Vec<ChapCredentialSettings>,
    /// The naming service; if left out, this process does not take part in one.
    pub names: Option<NamingServiceSettings>,
    /// Room for volumes that other nodes move here; if left out, none are accepted.
    pub accept: Option<Accept>,
    /// Access to discovery sessions.
    pub discovery: Discovery,
    /// The parameters and limits of all targets.
    pub iscsi: Iscsi,
    /// Common caches.
    pub common_cache: Vec<CommonCache>,
    /// The targets.
    pub target: Vec<IscsiTargetSettings>,
    /// The file from which the settings were read.
    #[serde(skip)]
    pub file: PathBuf,
}

/// The parameters and limits of all targets.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct Iscsi {
    /// Maximum number of connections of normal sessions.
    pub max_connections: u32,
    /// Maximum number of connections that have not logged in.
    pub max_logins: u32,
    /// Maximum number of connections of one address that have not logged in.
    pub max_logins_per_address: u32,
    /// Maximum number of discovery sessions.
    pub max_discovery_sessions: u32,
    /// Maximum number of discovery sessions of one address.
    pub max_discovery_sessions_per_address: u32,
    /// A discovery session is closed after this time without a request.
    pub discovery_timeout: TimeSpan,
    /// Maximum number of bytes of write data, over all sessions, that waits for earlier commands or for the rest of
    /// its data.
    pub waiting_data: Size,
    /// The accepted CHAP algorithms, the preferred one first.
    pub chap: Vec<ChapHashSetting>,
    /// Time-out from the connect to the end of the login.
    pub login_timeout: TimeSpan,
    /// Maximum number of outstanding commands of a session.
    pub queue_depth: u16,
    /// `MaxRecvDataSegmentLength`: maximum number of data bytes in a PDU.
    pub max_recv_data_segment_length: Size,
    /// `MaxBurstLength`: maximum number of bytes in a solicited burst.
    pub max_burst_length: Size,
    /// `FirstBurstLength`: maximum number of unsolicited bytes of a command.
    pub first_burst_length: Size,
    /// `MaxOutstandingR2T`: maximum number of outstanding R2Ts of a command.
    pub max_outstanding_r2t: u16,
    /// `InitialR2T`: whether unsolicited data must wait for an R2T.
    pub initial_r2t: bool,
    /// `ImmediateData`: whether a command may carry data.
    pub immediate_data: bool,
    /// `HeaderDigest`.
    pub header_digest: Digest,
    /// `DataDigest`.
    pub data_digest: Digest,
    /// The compression methods that are accepted.
    pub compression: Vec<LinkCompressionSetting>,
    /// The congestion control of a session's connections.
    pub congestion: CongestionSetting,
    /// Send and receive buffer of each connection's socket; if left out, the kernel tunes them.
    pub socket_buffer: Option<Size>,
    /// Idle time after which an initiator is pinged; 0 for never.
    pub ping_interval: TimeSpan,
    /// Number of commands whose responses leave with one write, unless the input is used up before.
    pub batch_commands: u32,
    /// How long a connection is polled after its last input instead of sleeping; 0 for never.
    pub busy_poll: TimeSpan,
}

/// A target.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct IscsiTargetSettings {
    /// Its iSCSI name; required.
    pub name: IscsiName,
    /// A name for people.
    pub alias: Option<String>,
    /// Portals of its own, instead of the common ones.
    pub listen: Option<Vec<Address>>,
    /// The tags of the portal groups through which it can be reached; if left out, all of them.
    pub groups: Option<Vec<u16>>,
    /// The address to which every login is redirected.
    pub redirect: Option<HostPort>,
    /// Whether the redirect is permanent.
    pub redirect_permanently: bool,
    /// Who may log in to it; if left out, every initiator.
    pub allow: Option<Vec<Allow>>,
    /// The credential with which it authenticates itself, if an initiator requests it.
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
    /// Returns true if opening a unit of this target needs another target: for itself, or for units that are opened
    /// together with it.
    pub fn needs_another(&self, target: &IscsiTargetSettings) -> bool {
        let common = target.unit.iter().filter_map(Unit::in_common);
        target.has_remote()
            || common.flat_map(|name| self.units_of(name)).any(|(other, _)| other.has_remote())
    }

    /// Returns the common cache with this name.
    pub fn common_cache(&self, name: &str) -> Option<&CacheLayerSettings> {
        self.common_cache.iter().find(|common| common.name == name).map(|common| &common.cache)
    }

    /// Returns the units of a common cache.
    pub fn units_of(&self, name: &str) -> Vec<(&IscsiTargetSettings, &Unit)> {
        let units =
            self.target.iter().flat_map(|target| target.unit.iter().map(move |u| (target, u)));
        units.filter(|(_, unit)| unit.in_common() == Some(name)).collect()
    }
}

impl Unit {
    /// Returns the name of the unit's common cache, if it has one.
    pub fn in_common(&self) -> Option<&str> {
        self.stack.iter().find_map(|layer| match layer {
            Layer::CommonCache(common) => Some(&*common.name),
            _ => None,
        })
    }

    /// Returns the file at the bottom and the slice directly above it, if the unit begins with these. Several
    /// units may have slices of such a file.
    pub fn file_part(&self) -> Option<(&File, &Slice)> {
        match &self.stack[..] {
            [Layer::File(file), Layer::Slice(slice), ..] => Some((file, slice)),
            _ => None,
        }
    }

    /// Returns the pair of the unit's cache, if it has one.
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
    /// The LUN.
    pub lun: u16,
    /// What the unit serves.
    pub kind: UnitKind,
    /// The name of its volume in the naming service; if left out, the volume is not announced.
    #[serde(deserialize_with = "names::volume")]
    pub volume: Option<VolumeName>,
    /// The generation: how often the volume has moved. If two nodes have the volume, the higher number is right.
    pub generation: u64,
    /// Its serial number; if left out, it is made of the target's name and the LUN.
    pub serial: Option<String>,
    /// The product name in INQUIRY data, at most 16 characters.
    pub product: String,
    /// Whether its medium can be ejected (RMB).
    pub removable: bool,
    /// The share of a thin volume's space above which initiators are notified; if left out, never.
    pub soft_threshold: Option<f64>,
    /// The physical block size that initiators see, in bytes; if left out, that of the volume.
    pub physical_block_size: Option<Size>,
    /// Whether a WRITE SAME of 0 blocks extends to the end of the unit.
    pub write_same_to_end: bool,
    /// The version of SPC in INQUIRY data: 3 or 4.
    pub spc: u8,
    /// Whether other initiators may read the unit while a cache elsewhere has claimed it.
    pub reads_beside_claim: bool,
    /// Size of a coherence range in bytes, if several gateways share the volume; if left out, it is not shared.
    pub share_grain: Option<Size>,
    /// The lease of shared coherence tokens: a gateway that does not answer for this time loses them.
    pub share_lease: TimeSpan,
    /// Its layers, the bottom layer first; required.
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
            kind: UnitKind::default(),
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
    /// Returns the settings of the unit for the crate `unit`.
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

/// The name of the folder of records if the settings have no `state`.
const BESIDE_SETTINGS: &str = "forebay-state";
