//! Settings of the layers of a stack.

use std::{num::NonZeroU64, path::PathBuf};

use serde::Deserialize;
use volume::Profile;

use super::{
    access::{ChapCredentialSettings, ChapHashSetting},
    schedule::{Hours, Schedule},
    tls::RemoteTls,
    value_types::{
        CongestionSetting, DestageOrderSetting, Digest, FaultError, FaultOperationSetting,
        FileEngineSetting, IscsiName, LinkCompressionSetting, LogErrorPolicySetting,
        NvramSurvivalSetting, OversizedEpochSetting, WriteModeSetting,
    },
};
use crate::{
    certificates::FarSettingsOrigin,
    quantity::{Size, TimeSpan},
};

/// One layer. The first four variants are bottom layers; the others are on top of the layers listed before them.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// Blocks in memory, which are lost when the process ends.
    Memory(MemoryLayerSettings),
    /// A file or a block device.
    File(File),
    /// A logical unit of another iSCSI target.
    Remote(RemoteLayerSettings),
    /// This gateway's half of the log of a pair, for the partner.
    Half(MirrorLegLayerSettings),
    /// A part of the volume below.
    Slice(Slice),
    /// Encryption of the volume below.
    Encrypt(EncryptLayerSettings),
    /// Delays of calls, for trials.
    Delay(DelayLayerSettings),
    /// The service times of a disk, for trials.
    Disk(DiskLayerSettings),
    /// Counters, shown by `forebay status`.
    Observe(ObserveLayerSettings),
    /// Errors, for trials.
    Fault(FaultLayerSettings),
    /// The write-back cache of a gateway.
    Cache(CacheLayerSettings),
    /// The cache of a unit whose log is common to several units.
    CommonCache(InCommon),
    /// Refuses writes.
    ReadOnly,
}

impl Layer {
    /// Returns true for a cache of a volume that other gateways change.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Cache(cache) if cache.share)
    }

    /// Returns true for a bottom layer.
    pub fn is_bottom(&self) -> bool {
        matches!(self, Self::Memory(_) | Self::File(_) | Self::Half(_) | Self::Remote(_))
    }
}

impl Layer {
    /// Returns the remote unit that the layer needs, with the keys that name it.
    pub fn remote_mut(&mut self) -> Option<(&'static [&'static str], &mut RemoteLayerSettings)> {
        match self {
            Self::Remote(remote) => Some((&["remote"], remote)),
            Self::Cache(cache) => {
                Some((&["cache", "pair", "partner"], &mut cache.pair.as_deref_mut()?.partner))
            }
            _ => None,
        }
    }
}

/// Settings of a memory layer.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryLayerSettings {
    /// Length in bytes; required.
    pub size: Option<Size>,
    /// Logical block size in bytes: 512 or 4096.
    pub block_size: Size,
}

/// Settings of a file layer.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    /// The file or block device; required.
    pub path: PathBuf,
    /// Length in bytes; the file is created with it if it does not exist.
    pub size: Option<Size>,
    /// Whether a new file is filled with zeros first.
    pub preallocate: bool,
    /// Whether the page cache is bypassed (O_DIRECT).
    pub direct: bool,
    /// The I/O engine.
    pub engine: FileEngineSetting,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Logical block size in bytes: 512 or 4096.
    pub block_size: Size,
}

/// Settings of a remote layer.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct RemoteLayerSettings {
    /// `iscsi://host[:port]/target-name/lun`; required.
    pub url: String,
    /// The CHAP credential with which we authenticate.
    pub user: Option<ChapCredentialSettings>,
    /// The CHAP credential of the target, which it has to prove.
    pub mutual: Option<ChapCredentialSettings>,
    /// TLS: every connection begins with a handshake.
    pub tls: Option<Box<RemoteTls>>,
    /// The CHAP algorithms that are proposed, the preferred one first.
    pub chap: Vec<ChapHashSetting>,
    /// Whether a unit that does not support claims is reserved for the cache above.
    pub reserve: bool,
    /// Maximum number of commands in flight.
    pub queue_depth: u16,
    /// Number of connections of the session.
    pub connections: u16,
    /// The highest error recovery level that is proposed: 0, 1 or 2.
    pub error_recovery_level: u8,
    /// Header digests.
    pub header_digest: Digest,
    /// Data digests.
    pub data_digest: Digest,
    /// The compression methods that are proposed.
    pub compression: LinkCompressionSetting,
    /// The congestion control of the session's connections.
    pub congestion: CongestionSetting,
    /// Send and receive buffer of each connection's socket; if left out, the kernel tunes them.
    pub socket_buffer: Option<Size>,
    /// Time-out of a TCP connect.
    pub connect_timeout: TimeSpan,
    /// Time-out of a login.
    pub login_timeout: TimeSpan,
    /// Time-out of a command.
    pub command_timeout: TimeSpan,
    /// How long a command waits for a reconnect before it fails.
    pub give_up_after: TimeSpan,
    /// Idle time after which the target is pinged.
    pub ping_interval: TimeSpan,
    /// How long a start waits for a target that cannot be reached, if no local state describes the volume.
    pub start_timeout: TimeSpan,
    /// Whether these values come from the command line or from a settings file.
    #[serde(skip)]
    pub named: FarSettingsOrigin,
}

/// Settings of a half layer.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct MirrorLegLayerSettings {
    /// The name of the target whose unit has the cache with this log; required.
    pub of: IscsiName,
}

/// The other gateway of a pair.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct PairPartnerSettings {
    /// The partner's half of the log, named as in a remote layer; required.
    pub partner: RemoteLayerSettings,
    /// The partner counts as failed if it does not answer for this time.
    pub dead_after: TimeSpan,
    /// Whether this gateway serves if both could.
    pub first: bool,
}

/// Settings of a slice layer.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct Slice {
    /// The first byte.
    pub start: Size,
    /// Length in bytes; if left out, up to the end.
    pub size: Option<Size>,
}

/// Settings of an encrypt layer.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct EncryptLayerSettings {
    /// The file with the volume's key, which a secret wraps; required.
    pub key: PathBuf,
    /// The file of the secret, which only its owner may read.
    pub secret_file: Option<PathBuf>,
    /// The environment variable of the secret.
    pub secret_env: Option<String>,
}

/// Settings of a delay layer.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct DelayLayerSettings {
    /// The delay of each read.
    pub read: TimeSpan,
    /// The delay of each write and discard.
    pub write: TimeSpan,
    /// The delay of each flush.
    pub flush: TimeSpan,
    /// One of this number of calls is delayed. By default all calls are.
    pub every: Option<NonZeroU64>,
}

/// Settings of a disk layer. Keys that are left out have the value of the model.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct DiskLayerSettings {
    /// The model of the disk; required.
    pub model: String,
    /// Size of its cache in bytes; 0 for none.
    pub cache: Option<Size>,
    /// Whether the cache keeps its data without power, so that a flush need not wait for the medium.
    pub cache_protected: Option<bool>,
    /// Number of concurrent accesses.
    pub arms: Option<u16>,
    /// Time of seek and rotation before a read.
    pub read_position: Option<TimeSpan>,
    /// Time of seek and rotation before a write.
    pub write_position: Option<TimeSpan>,
    /// The random variation of this time, as a share of it.
    pub spread: f64,
    /// The seed of the variation.
    pub seed: u64,
    /// Media rate in bytes per second.
    pub media_rate: Option<Size>,
    /// Interface rate in bytes per second.
    pub bus_rate: Option<Size>,
}

impl DiskLayerSettings {
    /// Returns the properties of the disk; `None` if the model is unknown.
    pub fn profile(&self) -> Option<Profile> {
        let model = Profile::named(&self.model)?;
        Some(Profile {
            cache: self.cache.map_or(model.cache, |size| size.0),
            cache_protected: self.cache_protected.unwrap_or(model.cache_protected),
            arms: self.arms.map_or(model.arms, usize::from),
            read_position: self.read_position.map_or(model.read_position, |span| span.0),
            write_position: self.write_position.map_or(model.write_position, |span| span.0),
            spread: self.spread,
            seed: self.seed,
            media_rate: self.media_rate.map_or(model.media_rate, |rate| rate.0),
            bus_rate: self.bus_rate.map_or(model.bus_rate, |rate| rate.0),
            ..model
        })
    }
}

/// Settings of an observe layer.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct ObserveLayerSettings {
    /// The name in `forebay status`; required.
    pub name: String,
}

/// Settings of a fault layer.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct FaultLayerSettings {
    /// The kind of calls that fail.
    pub operation: FaultOperationSetting,
    /// The error.
    pub error: FaultError,
    /// Number of such calls that succeed first.
    pub after: u64,
    /// Number of calls that fail then; 0 for all.
    pub count: u64,
}

/// Settings of a common-cache layer.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct InCommon {
    /// The name of the `common_cache`; required.
    pub name: String,
}

/// A common cache: a cache of several volumes with one log.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct CommonCache {
    /// The name by which the layers of its units refer to it; required.
    pub name: String,
    /// The keys of a cache layer.
    pub cache: CacheLayerSettings,
}

/// Settings of a cache layer.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct CacheLayerSettings {
    /// The log disk: a file or block device; required.
    pub log: PathBuf,
    /// Size of the log in bytes; the file is created with it if it does not exist.
    pub log_size: Option<Size>,
    /// A second file or device of the same size for a mirror of the log.
    pub log_mirror: Option<PathBuf>,
    /// Whether one leg of a mirrored log is used although the other may be newer.
    pub log_degraded: bool,
    /// Bytes of dirty data in the log that are read and verified each second; 0 for none.
    pub log_scrub: Size,
    /// The file with the key that encrypts the log and the NVRAM, which a secret wraps.
    pub log_key: Option<PathBuf>,
    /// The file of the secret, which only its owner may read.
    pub log_secret_file: Option<PathBuf>,
    /// The partner gateway, which has the other half of the log.
    pub pair: Option<Box<PairPartnerSettings>>,
    /// The I/O engine of the log.
    pub log_engine: FileEngineSetting,
    /// Whether the log bypasses the page cache (O_DIRECT), if the file system supports it.
    pub log_direct: bool,
    /// The NVRAM file. Its file system decides which failures it survives.
    pub nvram: Option<PathBuf>,
    /// The failures that the NVRAM file survives: whether a flush may rely on it.
    pub nvram_survives: NvramSurvivalSetting,
    /// Size of the NVRAM in bytes.
    pub nvram_size: Size,
    /// Size of the DRAM read cache in bytes.
    pub dram: Size,
    /// When a write is acknowledged.
    pub report: WriteModeSetting,
    /// Whether writes may reach the lower volume in another order than that of the log.
    pub order: DestageOrderSetting,
    /// What is done with more data between two flushes than the log can hold.
    pub epoch_too_large: OversizedEpochSetting,
    /// What is done with writes while the log disk fails.
    pub on_log_error: LogErrorPolicySetting,
    /// The share of the log above which destage no longer gives way to requests.
    pub destage_threshold: f64,
    /// The time without requests after which destage runs.
    pub destage_idle: TimeSpan,
    /// Maximum length of a destage write in bytes.
    pub destage_run: Size,
    /// Maximum number of destage writes of full length in flight.
    pub destage_in_flight: u16,
    /// Maximum destage rate in bytes per second; if left out, as fast as the link.
    pub destage_rate: Option<Size>,
    /// Times of the day with another rate.
    pub destage_rates: Vec<Hours>,
    /// The age at which dirty data is destaged even if requests never pause.
    pub dirty_age: TimeSpan,
    /// How long a write waits for room in a full log before it ends in BUSY; 0: it ends at once.
    pub busy_after: TimeSpan,
    /// The second read tier: a file or block device for data that leaves memory.
    pub read_tier: Option<PathBuf>,
    /// Size of the read tier in bytes; the file is created with it if it does not exist.
    pub read_tier_size: Option<Size>,
    /// Maximum read-ahead for a sequential reader in bytes; 0 for none.
    pub read_ahead: Size,
    /// Whether other gateways change the volume as well, and all of them use coherence tokens.
    pub share: bool,
    /// Whether a damaged log is used although acknowledged writes are missing in it.
    pub accept_loss: bool,
    /// The log was brought here on purpose, and its former gateway is fenced. This cannot be set in a file, because
    /// it applies only once.
    #[serde(skip)]
    pub takes_over: bool,
    /// The folder of the log's confirmed writes. The program sets it, not the file.
    #[serde(skip)]
    pub state: Option<PathBuf>,
    /// The settings file, for the commands in messages. The program sets it, not the file.
    #[serde(skip)]
    pub config: PathBuf,
}

impl CacheLayerSettings {
    /// Returns the layer of the log's key, if the log is encrypted.
    pub fn key(&self) -> Option<EncryptLayerSettings> {
        let key = self.log_key.clone()?;
        Some(EncryptLayerSettings {
            key,
            secret_file: self.log_secret_file.clone(),
            secret_env: None,
        })
    }

    /// Returns the rates of destage over the day.
    pub fn schedule(&self) -> Schedule {
        let otherwise = self.destage_rate.map(|rate| rate.0);
        Schedule { hours: self.destage_rates.clone(), otherwise }
    }
}

impl Default for MemoryLayerSettings {
    fn default() -> Self {
        Self { size: None, block_size: Size(512) }
    }
}

impl Default for File {
    fn default() -> Self {
        Self {
            path: PathBuf::new(),
            size: None,
            preallocate: false,
            direct: false,
            engine: FileEngineSetting::default(),
            read_only: false,
            block_size: Size(512),
        }
    }
}

impl Default for RemoteLayerSettings {
    fn default() -> Self {
        Self {
            url: String::new(),
            user: None,
            mutual: None,
            tls: None,
            chap: ChapHashSetting::ALL.to_vec(),
            reserve: false,
            queue_depth: 128,
            connections: 1,
            error_recovery_level: 2,
            header_digest: Digest::default(),
            data_digest: Digest::default(),
            compression: LinkCompressionSetting::default(),
            congestion: CongestionSetting::default(),
            socket_buffer: None,
            connect_timeout: TimeSpan::seconds(5),
            login_timeout: TimeSpan::seconds(15),
            command_timeout: TimeSpan::seconds(30),
            give_up_after: TimeSpan::seconds(15),
            ping_interval: TimeSpan::seconds(5),
            start_timeout: TimeSpan::seconds(60),
            named: FarSettingsOrigin::default(),
        }
    }
}

impl Default for PairPartnerSettings {
    fn default() -> Self {
        Self {
            partner: RemoteLayerSettings::default(),
            dead_after: TimeSpan::seconds(3),
            first: false,
        }
    }
}

impl Default for CacheLayerSettings {
    fn default() -> Self {
        Self {
            log: PathBuf::new(),
            log_size: None,
            log_mirror: None,
            log_degraded: false,
            log_scrub: Size::mib(4),
            pair: None,
            log_key: None,
            log_secret_file: None,
            log_engine: FileEngineSetting::default(),
            log_direct: true,
            nvram: None,
            nvram_survives: NvramSurvivalSetting::default(),
            nvram_size: Size::mib(4),
            dram: Size::mib(256),
            report: WriteModeSetting::default(),
            order: DestageOrderSetting::default(),
            epoch_too_large: OversizedEpochSetting::default(),
            on_log_error: LogErrorPolicySetting::default(),
            destage_threshold: 0.5,
            destage_idle: TimeSpan::millis(20),
            destage_run: Size::kib(64),
            destage_in_flight: 256,
            destage_rate: None,
            destage_rates: Vec::new(),
            dirty_age: TimeSpan::seconds(5),
            busy_after: TimeSpan::seconds(15),
            read_tier: None,
            read_tier_size: None,
            read_ahead: Size::mib(32),
            share: false,
            accept_loss: false,
            takes_over: false,
            state: None,
            config: PathBuf::new(),
        }
    }
}
