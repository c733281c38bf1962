//! The layers of a stack as data: what stands at the bottom, and what lies on it.

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
    quantity::{Size, TimeSpan},
    tls::FarSettingsOrigin,
};

/// One layer. The first three are bottoms, the others lie on what is listed before them.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// Blocks in memory, gone with the process.
    Memory(MemoryLayerSettings),
    /// A file or a block device.
    File(File),
    /// A logical unit of another iSCSI target.
    Remote(RemoteLayerSettings),
    /// The half of the log of a pair that is here, for the partner.
    Half(MirrorLegLayerSettings),
    /// A part of the volume below.
    Slice(Slice),
    /// Encryption of the volume below.
    Encrypt(EncryptLayerSettings),
    /// Slowness, for trials.
    Delay(DelayLayerSettings),
    /// The service times of a disk, for trials.
    Disk(DiskLayerSettings),
    /// Counters, shown by `forebay status`.
    Observe(ObserveLayerSettings),
    /// Errors, for trials.
    Fault(FaultLayerSettings),
    /// The write-back cache of a gateway.
    Cache(CacheLayerSettings),
    /// The cache that has its log in common with other units.
    CommonCache(InCommon),
    /// Writes are refused.
    ReadOnly,
}

impl Layer {
    /// Whether it is a cache of a volume that others change, too.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Cache(cache) if cache.share)
    }

    /// Whether it stands at the bottom of a stack.
    pub fn is_bottom(&self) -> bool {
        matches!(self, Self::Memory(_) | Self::File(_) | Self::Half(_) | Self::Remote(_))
    }
}

impl Layer {
    /// The unit of another target that it needs, with the keys that lead there.
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
    /// Bytes; required.
    pub size: Option<Size>,
    /// Bytes in a logical block: 512 or 4096.
    pub block_size: Size,
}

/// Settings of a file layer.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    /// The file or block device; required.
    pub path: PathBuf,
    /// Bytes; creates the file if it does not exist.
    pub size: Option<Size>,
    /// Whether a new file is written full of zeros first.
    pub preallocate: bool,
    /// Whether the page cache is passed by (O_DIRECT).
    pub direct: bool,
    /// How it is read and written.
    pub engine: FileEngineSetting,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Bytes in a logical block: 512 or 4096.
    pub block_size: Size,
}

/// Settings of a remote layer.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct RemoteLayerSettings {
    /// `iscsi://host[:port]/target-name/lun`; required.
    pub url: String,
    /// Who we prove to be.
    pub user: Option<ChapCredentialSettings>,
    /// Who the target has to prove to be.
    pub mutual: Option<ChapCredentialSettings>,
    /// With what every connection begins.
    pub tls: Option<Box<RemoteTls>>,
    /// The hashes of CHAP that are proposed, most wanted first.
    pub chap: Vec<ChapHashSetting>,
    /// Whether a unit that knows no claims is reserved for the cache above.
    pub reserve: bool,
    /// Commands outstanding at once.
    pub queue_depth: u16,
    /// Connections of the session.
    pub connections: u16,
    /// The most of error recovery that is asked for: 0, 1 or 2.
    pub error_recovery_level: u8,
    /// Digests of headers.
    pub header_digest: Digest,
    /// Digests of data.
    pub data_digest: Digest,
    /// Compression that is asked for.
    pub compression: LinkCompressionSetting,
    /// The congestion control of the session's connections.
    pub congestion: CongestionSetting,
    /// Send and receive buffer of each connection's socket; if left out: as the kernel tunes them.
    pub socket_buffer: Option<Size>,
    /// How long a TCP connection may take to open.
    pub connect_timeout: TimeSpan,
    /// How long a login may take.
    pub login_timeout: TimeSpan,
    /// How long one command may take.
    pub command_timeout: TimeSpan,
    /// How long a command waits for a reconnect before it fails.
    pub give_up_after: TimeSpan,
    /// Idle time before the target is asked whether it lives.
    pub ping_interval: TimeSpan,
    /// How long a start waits for a far side that is away, where nothing local knows the volume.
    pub start_timeout: TimeSpan,
    /// Where the user has given these values: on the command line or in a settings file.
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
    /// Its half of the log, as a remote layer names a unit; required.
    pub partner: RemoteLayerSettings,
    /// Without a word for so long, the other one is gone.
    pub dead_after: TimeSpan,
    /// Whether this one serves where both could.
    pub first: bool,
}

/// Settings of a slice layer.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct Slice {
    /// Where it begins, in bytes.
    pub start: Size,
    /// Bytes; up to the end if left out.
    pub size: Option<Size>,
}

/// Settings of an encrypt layer.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct EncryptLayerSettings {
    /// The file with the volume's key, which the secret locks; required.
    pub key: PathBuf,
    /// The file that holds the secret, readable by its owner only.
    pub secret_file: Option<PathBuf>,
    /// The environment variable that holds it.
    pub secret_env: Option<String>,
}

/// Settings of a delay layer.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct DelayLayerSettings {
    /// Added to each read.
    pub read: TimeSpan,
    /// Added to each write and discard.
    pub write: TimeSpan,
    /// Added to each flush.
    pub flush: TimeSpan,
    /// The layer delays one of this number of calls. By default it delays all.
    pub every: Option<NonZeroU64>,
}

/// Settings of a disk layer. What is left out is the model's.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct DiskLayerSettings {
    /// Which disk; required.
    pub model: String,
    /// Bytes of its cache; 0: none.
    pub cache: Option<Size>,
    /// Whether the cache keeps its data without power, so that a flush does not wait for the platter.
    pub cache_protected: Option<bool>,
    /// Accesses side by side.
    pub arms: Option<u16>,
    /// Seek and rotation before a read.
    pub read_position: Option<TimeSpan>,
    /// Before a write.
    pub write_position: Option<TimeSpan>,
    /// By which share a positioning is longer or shorter at most.
    pub spread: f64,
    /// Where that chance comes from.
    pub seed: u64,
    /// Bytes per second that pass under an arm.
    pub media_rate: Option<Size>,
    /// Bytes per second between disk and host.
    pub bus_rate: Option<Size>,
}

impl DiskLayerSettings {
    /// What it is like; `None` if there is no such model.
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
    /// What `forebay status` calls it; required.
    pub name: String,
}

/// Settings of a fault layer.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct FaultLayerSettings {
    /// Which calls fail.
    pub operation: FaultOperationSetting,
    /// How.
    pub error: FaultError,
    /// How many such calls succeed first.
    pub after: u64,
    /// How many fail then; 0: all.
    pub count: u64,
}

/// Settings of a common-cache layer.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct InCommon {
    /// The name of the `common_cache`; required.
    pub name: String,
}

/// A cache of several volumes with one log.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct CommonCache {
    /// What the layers of its units call it; required.
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
    /// Bytes of the log; creates the file if it does not exist.
    pub log_size: Option<Size>,
    /// A second file or device, as large, that holds the same.
    pub log_mirror: Option<PathBuf>,
    /// Whether one half of a mirrored log is used though the other may be newer.
    pub log_degraded: bool,
    /// Bytes of dirty data in the log that are read and checked in a second; 0: none.
    pub log_scrub: Size,
    /// The file with the key that the log and the NVRAM are encrypted with, which the secret locks.
    pub log_key: Option<PathBuf>,
    /// The file that holds the secret, readable by its owner only.
    pub log_secret_file: Option<PathBuf>,
    /// The gateway with the other half of the log.
    pub pair: Option<Box<PairPartnerSettings>>,
    /// How the log is written.
    pub log_engine: FileEngineSetting,
    /// Whether the log passes the page cache by (O_DIRECT) where the file system lets it.
    pub log_direct: bool,
    /// The NVRAM file. Where it lives decides what it survives.
    pub nvram: Option<PathBuf>,
    /// What the NVRAM file survives: whether a flush may rely on it.
    pub nvram_survives: NvramSurvivalSetting,
    /// Bytes of NVRAM.
    pub nvram_size: Size,
    /// Bytes of the DRAM read cache.
    pub dram: Size,
    /// When a write is acknowledged.
    pub report: WriteModeSetting,
    /// What may overtake the log on its way down.
    pub order: DestageOrderSetting,
    /// What becomes of more data between two flushes than the log holds.
    pub epoch_too_large: OversizedEpochSetting,
    /// What becomes of writes while the log disk fails.
    pub on_log_error: LogErrorPolicySetting,
    /// Share of the log that may fill before destage no longer gives way to requests.
    pub destage_threshold: f64,
    /// Time without requests that counts as idle, so that destage runs.
    pub destage_idle: TimeSpan,
    /// Bytes that one destage write carries at most.
    pub destage_run: Size,
    /// Destage writes of full length outstanding at once, at most.
    pub destage_in_flight: u16,
    /// Bytes per second that destage sends at most; if left out, as many as the link takes.
    pub destage_rate: Option<Size>,
    /// Times of the day with another rate.
    pub destage_rates: Vec<Hours>,
    /// Age at which dirty data is destaged even if requests never pause.
    pub dirty_age: TimeSpan,
    /// A write that finds the log full is held for this long before it ends in BUSY; 0: it ends at once.
    pub busy_after: TimeSpan,
    /// The second read tier: a file or block device for what leaves memory.
    pub read_tier: Option<PathBuf>,
    /// Bytes of the read tier; creates the file if it does not exist.
    pub read_tier_size: Option<Size>,
    /// Most bytes read ahead of a sequential reader; 0: none.
    pub read_ahead: Size,
    /// Whether other gateways change the volume, too, and all have tokens for what they read and write.
    pub share: bool,
    /// Whether a damaged log is used although acknowledged writes are missing from it.
    pub accept_loss: bool,
    /// The log was brought here on purpose, and whoever had it is shut out: not to be set in a file,
    /// since it holds once.
    #[serde(skip)]
    pub takes_over: bool,
    /// The folder where the log's confirmed writes are noted. The program sets it, not the file.
    #[serde(skip)]
    pub state: Option<PathBuf>,
    /// The settings file, for the commands in messages. The program sets it, not the file.
    #[serde(skip)]
    pub config: PathBuf,
}

impl CacheLayerSettings {
    /// The key of the log, if it has one.
    pub fn key(&self) -> Option<EncryptLayerSettings> {
        let key = self.log_key.clone()?;
        Some(EncryptLayerSettings {
            key,
            secret_file: self.log_secret_file.clone(),
            secret_env: None,
        })
    }

    /// How fast destage may go, and when.
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
