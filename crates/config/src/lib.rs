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
    /// Addresses on which targets listen: IP addresses, IPv4 or IPv6, with ports (3260 if left out). Whoever reaches
    /// an address can read and write every volume whose target has no `allow`. These portals are in group 1. If left
    /// out: this machine only, ["127.0.0.1:3260"], or none if there is a `[[portal]]`.
    pub listen: Option<Vec<Address>>,
    /// Portals with more settings than an address: `[[portal]]`.
    pub portal: Vec<PortalSettings>,
    /// The control socket, which `forebay status`, `forebay reload` and other commands ask. Only the user of the
    /// process can open it (mode 0600). `forebay attach --config` listens on it, too, so two processes of one host
    /// need a socket each. If left out: forebay/control.sock in $XDG_RUNTIME_DIR, or in /run for root.
    pub control: Option<PathBuf>,
    /// The folder in which units keep what outlasts the process: persistent reservations (APTPL), saved mode
    /// parameters, identifying information, an unfinished SANITIZE, and how far the log of a gateway has confirmed
    /// its writes. Records of storage (which volume file or log was in use at a path) lie in it, too. It is created
    /// with mode 0700 if it is missing, and refused if group or others may write to it. It belongs on a disk of this
    /// machine. If left out: units report that they cannot keep anything, and the records of storage lie in the
    /// folder forebay-state beside this file.
    pub state: Option<PathBuf>,
    /// The events that are shown on stderr: off, error, warn, info, debug, trace, or a filter such as
    /// "info,cache=debug". The command line (--log-level, -v) takes precedence. If left out: info.
    pub log_level: Option<LogLevel>,
    /// Number of threads that serve; 0 for one per CPU. One thread uses the least CPU time for each operation.
    pub threads: u16,
    /// The iSCSI name for logins to remote volumes. If left out: a name made of the host's name, as here for a host
    /// called `attic`.
    pub initiator_name: Option<IscsiName>,
    /// CHAP users: `[[user]]`.
    pub user: Vec<ChapCredentialSettings>,
    /// The naming service: `[names]`. If left out: this process takes no part in one.
    pub names: Option<NamingServiceSettings>,
    /// Room for volumes that other nodes move here: `[accept]`. If left out: none are accepted.
    pub accept: Option<Accept>,
    /// Access to discovery sessions: `[discovery]`.
    pub discovery: Discovery,
    /// The parameters and limits of all targets: `[iscsi]`.
    pub iscsi: Iscsi,
    /// Caches of several volumes with one log: `[[common_cache]]`.
    pub common_cache: Vec<CommonCache>,
    /// The targets: `[[target]]`.
    pub target: Vec<IscsiTargetSettings>,
    /// The file from which the settings were read.
    #[serde(skip)]
    pub file: PathBuf,
}

/// The parameters and limits of all targets.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct Iscsi {
    /// Maximum number of connections of all initiators together, without those of discovery sessions. If there are
    /// users, a quarter of the places is kept for initiators that have proved to be one of them, or that came through
    /// TLS. A login beyond the limit is refused with status 0302. At recovery level 2, a quarter as many sessions may
    /// wait for their initiators to come back.
    pub max_connections: u32,
    /// Maximum number of connections that have not logged in yet. Each may hold 64 KiB. Beyond the limit, the
    /// connection is closed that has waited longest of the address that has most.
    pub max_logins: u32,
    /// Maximum number of such connections from one address (for IPv6, from one /64 network).
    pub max_logins_per_address: u32,
    /// Maximum number of discovery sessions of all initiators together. Beyond the limit, the oldest one of the
    /// address that has most is closed.
    pub max_discovery_sessions: u32,
    /// Maximum number of discovery sessions of one address (for IPv6, of one /64 network).
    pub max_discovery_sessions_per_address: u32,
    /// Time without a request after which a discovery session is closed, 1s to 1h.
    pub discovery_timeout: TimeSpan,
    /// Memory for write data of all sessions that waits: for earlier commands, for the rest of its data, or for data
    /// that was requested. At least 128MiB. Each of `max_connections` connections has a share of its own (256 KiB if
    /// that fits), and 64 MiB or more are divided among those that need more. A write that has waited 5s for room
    /// ends in BUSY.
    pub waiting_data: Size,
    /// The CHAP hashes that initiators may use; the first one that both ends know is used. iPXE, Windows and ESXi
    /// know MD5 only.
    pub chap: Vec<ChapHashSetting>,
    /// Maximum time from the connect to the end of the login.
    pub login_timeout: TimeSpan,
    /// Maximum number of outstanding commands of a session (the command window), 1 to 1024.
    pub queue_depth: u16,
    /// MaxRecvDataSegmentLength: maximum number of data bytes in one PDU.
    pub max_recv_data_segment_length: Size,
    /// MaxBurstLength: maximum number of bytes that are requested at once.
    pub max_burst_length: Size,
    /// FirstBurstLength: maximum number of bytes of a write that may come without a request.
    pub first_burst_length: Size,
    /// MaxOutstandingR2T: maximum number of outstanding requests for data of a command.
    pub max_outstanding_r2t: u16,
    /// InitialR2T: whether data of a write beyond the immediate data waits for a request.
    pub initial_r2t: bool,
    /// ImmediateData: whether a command may carry data.
    pub immediate_data: bool,
    /// HeaderDigest, CRC32C: "never", "accept" (if the initiator wants it), "prefer" or "require".
    pub header_digest: Digest,
    /// DataDigest, CRC32C: the same four values.
    pub data_digest: Digest,
    /// The compression methods that Forebay's own initiators may use on the link: "lz4" and "zstd". They use CPU time
    /// and memory of this process (up to half a MiB for a connection, with "zstd" one MiB). If left out: none.
    pub compression: Vec<LinkCompressionSetting>,
    /// The congestion control of TCP towards initiators. "kernel default"; "ensemble": all connections of a session
    /// share one congestion window; "ensemble by model": they share a model of the path and are paced by it, as by
    /// BBR; or a name in /proc/sys/net/ipv4/tcp_available_congestion_control, such as "cubic". For comparison there
    /// are "ensemble per connection" (a window for each connection), "ensemble per ack" and "ensemble per connection
    /// per ack" (growth by acknowledgment, as in Linux 2.4). An ensemble needs Linux 6.4 and root, or CAP_BPF and
    /// CAP_PERFMON; without these, sessions use the kernel's default, and one event reports it.
    pub congestion: CongestionSetting,
    /// Send and receive buffer of each connection's socket, "16KiB" to "256MiB". Without CAP_NET_ADMIN,
    /// net.core.wmem_max and net.core.rmem_max limit it. If left out: the kernel tunes the buffers, which is usually
    /// better.
    pub socket_buffer: Option<Size>,
    /// Time without a sign of life after which an initiator is pinged, 1s or more; 0 for never.
    pub ping_interval: TimeSpan,
    /// Number of commands whose responses leave with one write, unless all received commands are answered before.
    /// Fewer means less time for each command, more means less CPU time.
    pub batch_commands: u32,
    /// How long an active connection is polled before its thread sleeps, such as "50us"; 0 for never. This uses a CPU
    /// to lower the latency.
    pub busy_poll: TimeSpan,
}

/// A target.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct IscsiTargetSettings {
    /// The iSCSI name of the target. Required.
    pub name: IscsiName,
    /// The name of the target for people.
    pub alias: Option<String>,
    /// Portals of the target's own, in place of the common ones. Targets with the same list share them. Such a target
    /// has no `groups`.
    pub listen: Option<Vec<Address>>,
    /// The portal groups through which the target is reached. If left out: all groups.
    pub groups: Option<Vec<u16>>,
    /// The address to which every login is redirected. Such a target needs no unit.
    pub redirect: Option<HostPort>,
    /// Whether that redirect is permanent.
    pub redirect_permanently: bool,
    /// Who may log in: `[[target.allow]]`. If left out: everybody who can reach the target.
    pub allow: Option<Vec<Allow>>,
    /// The credential with which the target authenticates itself: `[target.mutual]`.
    pub mutual: Option<ChapCredentialSettings>,
    /// The logical units: `[[target.unit]]`.
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
    /// The logical unit number, 0 to 16383.
    pub lun: u16,
    /// What the unit serves: "block", a disk whose blocks are in a stack of layers.
    pub kind: UnitKind,
    /// The name of the volume in the naming service (`[names]`), which is the same wherever the volume is: a-z, 0-9,
    /// `.`, `-`, `_`. If left out: the volume is not announced.
    #[serde(deserialize_with = "names::volume")]
    pub volume: Option<VolumeName>,
    /// How often the volume has moved from node to node. If two nodes announce the volume, the one with the higher
    /// number is right. `forebay volume move` counts. At most 4503599627370495 (2^52 - 1).
    pub generation: u64,
    /// The serial number, at most 36 characters. If left out: a number made of the target's name and the LUN, which
    /// stays the same as long as these do.
    pub serial: Option<String>,
    /// The product name in INQUIRY data, at most 16 characters.
    pub product: String,
    /// Whether the medium is removable, so that START STOP UNIT ejects and loads it.
    pub removable: bool,
    /// Share of the space below a thin volume, 0.01 to 1, above which initiators are notified that space runs out
    /// (38/07). It works over a sparse file without a slice or a cache above it. If left out: initiators are told
    /// only when there is no space left.
    pub soft_threshold: Option<f64>,
    /// Bytes of a physical block as initiators see it: a power of two from the logical block size to 4KiB, over a
    /// remote layer 4KiB. Some old systems need 512B. If left out: the size that the storage has, mostly 4KiB.
    pub physical_block_size: Option<Size>,
    /// Whether a WRITE SAME of no blocks extends to the end of the unit, if that is at most 16MiB away. Otherwise it
    /// is refused (WSNZ).
    pub write_same_to_end: bool,
    /// The version of SPC in INQUIRY data: 4, or 3 for initiators that know no newer one.
    pub spc: u8,
    /// Whether other initiators may read the unit while the cache of a gateway has claimed it. They see it as of a
    /// flush of the gateway; without a cache with `report = "at-flush"` on this node, reads are refused while the
    /// gateway destages a round. They may not write in any case.
    pub reads_beside_claim: bool,
    /// Number of bytes that a gateway has at a time of a volume that several gateways share, 64KiB to 1GiB. Each of
    /// these gateways has `share = true` in its cache, and this node has `state`. If left out: one gateway has the
    /// whole volume.
    pub share_grain: Option<Size>,
    /// Time without a sign of life of such a gateway after which the others no longer wait for what it only reads, 1s
    /// to 1h. What it wrote is waited for until it comes back, or until `forebay claim drop`.
    pub share_lease: TimeSpan,
    /// The layers of the unit, the bottom layer first. Required.
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
