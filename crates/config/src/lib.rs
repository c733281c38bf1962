//! The settings of a process: one TOML file as data. Every default is in the `Default` of its table.
//!
//! This crate parses the file, checks the rules between keys, locates errors by line and column, reads the secrets and
//! certificates that the file names, and makes CHAP and TLS configurations of them. It opens no storage: the crate
//! `stack` does that with these settings.

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
mod object_drive;
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
pub use object_drive::{DriveSecurity, ObjectDriveSettings, read_master_key_file};
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
    /// Addresses on which targets listen: IPv4 or IPv6 with a port (3260 if left out), all in portal group 1. Every
    /// initiator that can connect has full access to targets without `allow`. An IPv6 address accepts IPv6 only. If
    /// left out: ["127.0.0.1:3260"], or none if there is a `[[portal]]`.
    pub listen: Option<Vec<Address>>,
    /// Portals with more settings than an address, such as TLS: `[[portal]]`.
    pub portal: Vec<PortalSettings>,
    /// Path of the control socket, which `forebay status`, `forebay reload` and other commands use (mode 0600). Each
    /// process of a host needs its own; `forebay attach --config` opens it, too. If left out: forebay/control.sock in
    /// $XDG_RUNTIME_DIR, or in /run for root.
    pub control: Option<PathBuf>,
    /// Folder for persistent reservations, saved mode parameters, claims and records of storage, created with mode
    /// 0700. Put it on a local disk and give each process its own. If it is lost, older copies of logs are no longer
    /// detected. If left out: reservations and claims are not kept, and records lie in forebay-state next to this file.
    pub state: Option<PathBuf>,
    /// Events shown on stderr: off, error, warn, info, debug, trace, or a filter such as "info,cache=debug". The
    /// options --log-level and -v take precedence. If left out: info.
    pub log_level: Option<LogLevel>,
    /// Number of threads that serve, up to 1024; 0 means one per CPU. One thread uses the least CPU time per operation.
    pub threads: u16,
    /// iSCSI name for logins to remote volumes, and the identity under which a gateway claims them. Give each process a
    /// name of its own: nodes show it as the owner of the claim, and processes with one name may end each other's
    /// sessions. If left out: a name made of the host name, as here for the host `attic`.
    pub initiator_name: Option<IscsiName>,
    /// CHAP users that initiators authenticate as: `[[user]]`.
    pub user: Vec<ChapCredentialSettings>,
    /// Naming service, in which volumes keep their name when they move: `[names]`. If left out: this process does not
    /// take part in one.
    pub names: Option<NamingServiceSettings>,
    /// Storage for volumes that other nodes move here: `[accept]`. If left out: no volume is accepted.
    pub accept: Option<Accept>,
    /// Access to discovery sessions: `[discovery]`.
    pub discovery: Discovery,
    /// Protocol parameters and limits of all targets: `[iscsi]`.
    pub iscsi: Iscsi,
    /// Caches that several units share, with one log: `[[common_cache]]`.
    pub common_cache: Vec<CommonCache>,
    /// The targets that this process serves: `[[target]]`.
    pub target: Vec<IscsiTargetSettings>,
    /// File from which the settings were read.
    #[serde(skip)]
    pub file: PathBuf,
}

/// The table `[iscsi]`: protocol parameters and limits of all targets.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct Iscsi {
    /// Maximum number of connections of normal sessions, 1 to 65536. Further logins are refused with status 0302. If
    /// there are users, a quarter is reserved for initiators that have authenticated by CHAP or TLS. At recovery level
    /// 2, a quarter as many sessions may wait for their initiator to reconnect. Lower it together with `waiting_data`
    /// to save memory.
    pub max_connections: u32,
    /// Maximum number of connections that have not logged in yet, 1 to 4096, of 64 KiB each. Beyond it, a connection
    /// that waits for the answer to a wrong proof is closed first, then the oldest one of the address that has most of
    /// them.
    pub max_logins: u32,
    /// Maximum number of connections that have not logged in yet from one address (one /64 network for IPv6), 1 to
    /// `max_logins`. It keeps one host from locking out others.
    pub max_logins_per_address: u32,
    /// Maximum number of discovery sessions, 1 to 4096. Beyond it, the oldest one of the address that has most is
    /// closed.
    pub max_discovery_sessions: u32,
    /// Maximum number of discovery sessions from one address (one /64 network for IPv6), 1 to `max_discovery_sessions`.
    /// Beyond it, the oldest one of that address is closed.
    pub max_discovery_sessions_per_address: u32,
    /// Time without a request after which a discovery session is closed, 1s to 1h. Answers to pings do not count as
    /// requests.
    pub discovery_timeout: TimeSpan,
    /// Memory in bytes for write data that waits for earlier commands or for the rest of a write, over all sessions;
    /// 128 MiB to 1 TiB. Each connection has a share of 256 KiB if that fits. If memory runs out, sessions get no new
    /// command numbers, and a write that waits 5s gets BUSY.
    pub waiting_data: Size,
    /// CHAP hashes that initiators may use: the first of these that the initiator proposes is chosen. iPXE, Windows and
    /// ESXi support only MD5, which is weak: remove "md5" if no such initiator logs in.
    pub chap: Vec<ChapHashSetting>,
    /// Maximum time from the connect to the end of the login, 1s to 10min. Proofs with a wrong secret are answered with
    /// a delay; if the delay would exceed this time, the connection is closed.
    pub login_timeout: TimeSpan,
    /// Maximum number of outstanding commands of a session (the command window), 1 to 1024. A link with a long round
    /// trip needs more commands in flight to be filled.
    pub queue_depth: u16,
    /// MaxRecvDataSegmentLength: maximum number of data bytes in one received PDU, 512 to 8 MiB. Each connection may
    /// hold one incomplete PDU in memory.
    pub max_recv_data_segment_length: Size,
    /// MaxBurstLength: maximum number of bytes of a write that one R2T requests, 512 to 8 MiB.
    pub max_burst_length: Size,
    /// FirstBurstLength: maximum number of bytes of a write that the initiator may send without an R2T, 512 to
    /// `max_burst_length`. Larger values save a round trip per write on long links.
    pub first_burst_length: Size,
    /// MaxOutstandingR2T: maximum number of outstanding R2Ts of a command, 1 to 64.
    pub max_outstanding_r2t: u16,
    /// InitialR2T: if true, the initiator sends data beyond the immediate data only after an R2T, which costs a round
    /// trip per write.
    pub initial_r2t: bool,
    /// ImmediateData: if true, a command PDU may carry write data. If false, each write takes more PDUs.
    pub immediate_data: bool,
    /// HeaderDigest, CRC32C of PDU headers: "never", "accept" (if the initiator requests it), "prefer" (accepts
    /// initiators without it) or "require" (refuses them).
    pub header_digest: Digest,
    /// DataDigest, CRC32C of PDU data: "never", "accept", "prefer" or "require", as `header_digest`. It detects
    /// corruption that the TCP checksum misses, at the cost of CPU time.
    pub data_digest: Digest,
    /// Compression methods that Forebay gateways may use on the link: "lz4" and "zstd". Each connection takes CPU time
    /// and up to 512 KiB of memory of this process, with "zstd" 1 MiB. If empty: no compression.
    pub compression: Vec<LinkCompressionSetting>,
    /// TCP congestion control towards initiators: "kernel default"; a kernel algorithm such as "cubic"; "ensemble" (a
    /// session's connections share one congestion window); "ensemble by model" (they share a path model, as BBR).
    /// Ensembles need Linux 6.4 with CONFIG_DEBUG_INFO_BTF and CONFIG_BPF_JIT, CAP_BPF and CAP_PERFMON; otherwise the
    /// default applies. For comparison only: "ensemble per connection", "ensemble per ack", "ensemble per connection
    /// per ack".
    pub congestion: CongestionSetting,
    /// Send and receive buffer of each connection's socket, 16 KiB to 256 MiB, set before the connection begins, so
    /// that the TCP window scale fits. The kernel takes as much again. Without CAP_NET_ADMIN, net.core.wmem_max and
    /// net.core.rmem_max limit it. If left out: the kernel tunes the buffers, which is usually better.
    pub socket_buffer: Option<Size>,
    /// Silence of an initiator after which it is pinged, 1s to 1h. 0 disables pings: then only TCP keepalive detects an
    /// initiator whose host has vanished, and a hung initiator keeps its session.
    pub ping_interval: TimeSpan,
    /// Maximum number of responses that one write to the socket carries, 1 to 1024; the write is sent earlier if no
    /// received command is left. Smaller values lower the latency of single commands, larger ones save CPU time.
    pub batch_commands: u32,
    /// How long an active connection is polled before its thread sleeps, up to 1ms, such as "50us"; 0 disables polling.
    /// It lowers the latency and keeps a CPU busy. At most `threads` sessions poll at once, idle sessions never. A
    /// session stops for 0.1 to 1.6 s if other threads want its CPU.
    pub busy_poll: TimeSpan,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct IscsiTargetSettings {
    /// iSCSI name of the target (iqn., eui. or naa.). Hosts that know the target find it by this name; unless a unit
    /// has a `serial`, a changed name makes its disks new disks. Required.
    pub name: IscsiName,
    /// Description of the target that initiators show to people (TargetAlias).
    pub alias: Option<String>,
    /// Portals of this target alone, in place of the common ones. Targets with an equal list share the portals.
    /// `groups` is not allowed then. If left out: the common portals.
    pub listen: Option<Vec<Address>>,
    /// Tags of the portal groups through which initiators reach the target. If left out: all groups.
    pub groups: Option<Vec<u16>>,
    /// Address (host:port) to which every login is redirected, with status 0101. The target then needs no unit.
    pub redirect: Option<HostPort>,
    /// If true, the redirect is reported as permanent (status 0102), so initiators may store the new address.
    pub redirect_permanently: bool,
    /// Initiators that may log in: `[[target.allow]]`. An empty list admits none. If left out: every initiator that can
    /// connect may log in.
    pub allow: Option<Vec<Allow>>,
    /// Credential with which the target authenticates itself to initiators that request it (mutual CHAP):
    /// `[target.mutual]`. The secret must differ from those of all users.
    pub mutual: Option<ChapCredentialSettings>,
    /// Logical units of the target, which hosts see as disks: `[[target.unit]]`.
    pub unit: Vec<Unit>,
}

impl IscsiTargetSettings {
    fn has_remote(&self) -> bool {
        self.unit.iter().flat_map(|unit| &unit.stack).any(|layer| matches!(layer, Layer::Remote(_)))
    }
}

impl Settings {
    /// Returns true if opening a unit of this target needs another target: for the unit itself, or for a unit that is
    /// opened together with it because they share a common cache.
    pub fn needs_another(&self, target: &IscsiTargetSettings) -> bool {
        let common = target.unit.iter().filter_map(Unit::in_common);
        target.has_remote()
            || common.flat_map(|name| self.units_of(name)).any(|(other, _)| other.has_remote())
    }

    pub fn common_cache(&self, name: &str) -> Option<&CacheLayerSettings> {
        self.common_cache.iter().find(|common| common.name == name).map(|common| &common.cache)
    }

    /// Returns the units that use the common cache named `name`, each with its target.
    pub fn units_of(&self, name: &str) -> Vec<(&IscsiTargetSettings, &Unit)> {
        let units =
            self.target.iter().flat_map(|target| target.unit.iter().map(move |u| (target, u)));
        units.filter(|(_, unit)| unit.in_common() == Some(name)).collect()
    }
}

impl Unit {
    /// Returns the name of the common cache that the unit uses, if any.
    pub fn in_common(&self) -> Option<&str> {
        self.stack.iter().find_map(|layer| match layer {
            Layer::CommonCache(common) => Some(&*common.name),
            _ => None,
        })
    }

    /// Returns the file at the bottom and the slice directly above it, if the stack begins with these two. Several
    /// units may have slices of one file.
    pub fn file_part(&self) -> Option<(&File, &Slice)> {
        match &self.stack[..] {
            [Layer::File(file), Layer::Slice(slice), ..] => Some((file, slice)),
            _ => None,
        }
    }

    /// Returns the settings of the pair to which the unit's cache belongs, if there are any.
    pub fn pair(&self) -> Option<&PairPartnerSettings> {
        self.stack.iter().find_map(|layer| match layer {
            Layer::Cache(cache) => cache.pair.as_deref(),
            _ => None,
        })
    }
}

/// The table `[[target.unit]]`: one logical unit.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct Unit {
    /// Logical unit number, 0 to 16383, unique within the target.
    pub lun: u16,
    /// Device type of the unit: "block", a disk whose blocks are in a stack of layers, or "object", an object drive
    /// (T10 OSD-2), which keeps objects with attributes in the stack. See `[target.unit.object]`.
    pub kind: UnitKind,
    /// Name of the volume in the naming service (`[names]`): a-z, 0-9, `.`, `-`, `_`. The name stays the same when the
    /// volume moves to another node. If left out: the volume is not announced.
    #[serde(deserialize_with = "names::volume")]
    pub volume: Option<VolumeName>,
    /// Number of moves of the volume between nodes, up to 4503599627370495 (2^52 - 1). `forebay volume move` increments
    /// it. If two nodes announce the volume, the higher number wins: raise it by hand only to serve an older copy on
    /// purpose.
    pub generation: u64,
    /// Serial number, 1 to 36 ASCII characters, from which the NAA name is derived, too. Hosts recognize the disk by
    /// it. If left out: derived from target name and LUN, so renaming the target makes it a new disk for every host.
    pub serial: Option<String>,
    /// Product name in INQUIRY data, at most 16 ASCII characters. Some hosts select multipath settings by it.
    pub product: String,
    /// If true, hosts see a removable medium, which START STOP UNIT ejects and loads.
    pub removable: bool,
    /// Used share of the space below a thin volume, 0.01 to 1, above which initiators get a warning that space runs out
    /// (sense 38/07). Only for a sparse file without a slice or cache above it. If left out: no warning before space
    /// has run out.
    pub soft_threshold: Option<f64>,
    /// Physical block size that initiators see: a power of two from the logical block size (4KiB over a remote layer)
    /// to 4KiB. Some old systems need 512B. If left out: the value of the storage, mostly 4KiB.
    pub physical_block_size: Option<Size>,
    /// If true, WRITE SAME with a block count of 0 extends to the end of the unit, up to 16 MiB. If false, it is
    /// refused (WSNZ).
    pub write_same_to_end: bool,
    /// SPC version in INQUIRY data: 4, or 3 for initiators that refuse newer ones.
    pub spc: u8,
    /// If true, other initiators may read the unit while a gateway has claimed it; they never may write. They see the
    /// state of the gateway's last flush. Unless this node has a cache with `report = "at-flush"`, their reads are
    /// refused while a destage round runs.
    pub reads_beside_claim: bool,
    /// Number of bytes that a gateway claims at a time of a volume that several gateways share, 64 KiB to 1 GiB, a
    /// multiple of 4 KiB. Large values need fewer messages; small ones cause fewer conflicts. The gateways set `share`;
    /// this node needs `state`. If left out: one gateway has the whole volume.
    pub share_grain: Option<Size>,
    /// Silence of a sharing gateway after which the others stop waiting for ranges that it only reads, 1s to 1h. Ranges
    /// that it wrote stay locked until it is back, or until `forebay claim drop`, which loses these writes.
    pub share_lease: TimeSpan,
    /// Keys of an object drive: `[target.unit.object]`. Only with `kind = "object"`.
    pub object: Option<ObjectDriveSettings>,
    /// Layers of the unit, the bottom layer first, such as [ { file = { path = "disk.img", size = "10GiB" } } ].
    /// Required.
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
            object: None,
            stack: Vec::new(),
        }
    }
}

impl Unit {
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
    /// Returns the folder for records of storage and of confirmed writes: the `state` folder if there is one, otherwise
    /// a folder next to the settings file. Claims and reservations are kept in a `state` folder only.
    pub fn records_folder(&self) -> PathBuf {
        records_folder(self.state.as_deref(), &self.file)
    }
}

fn records_folder(state: Option<&Path>, file: &Path) -> PathBuf {
    let beside = || file.parent().unwrap_or(Path::new("")).join(BESIDE_SETTINGS);
    lasting(&state.map_or_else(beside, Path::to_owned))
}

/// Returns the path in absolute form, valid in every working directory.
fn lasting(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The first step of every remedy after which a volume has older content than its hosts have seen.
pub const UNMOUNT_REMEDY: &str = "first unmount the volume at every host, since its content is older afterwards and a \
                                  file system that is still mounted would be damaged \
                                  (docs/guide/recover.md#before-an-older-state-is-served)";

/// Returns the command that removes the record of `path` from the settings file `config`. A command that loses data
/// states that all hosts have unmounted the volume: the text around it must say so.
pub fn forget_command(config: &Path, path: &Path, loses_data: bool) -> String {
    let lose = if loses_data { " --lose-data --hosts-unmounted" } else { "" };
    let (path, config) = (lasting(path), lasting(config));
    format!("forebay forget {} --config {}{lose}", quoted(&path), quoted(&config))
}

/// Name of the folder for records, next to the settings file, if the settings have no key `state`.
const BESIDE_SETTINGS: &str = "forebay-state";
