//! What a process has attached, as it tells others.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A volume as a block device of this host.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct AttachedVolumeStatus {
    /// `/dev/loopN`.
    pub device: PathBuf,
    /// The volume, as it was named.
    pub volume: String,
    /// Its size.
    pub bytes: u64,
    /// Bytes of a logical block.
    pub block_size: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// Requests go to the volume side by side.
    pub direct_io: bool,
    /// Where we have mounted it.
    pub mount: Option<PathBuf>,
    /// The process that serves it.
    pub process: u32,
}

/// A detached device, and where the data is that was written to it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Detached {
    /// The device.
    pub attached: AttachedVolumeStatus,
    /// The log of the cache that ran in the process, if there was one.
    pub log: Option<LogLeft>,
}

/// The log of a cache that has stopped.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct LogLeft {
    /// The path of the log.
    pub path: PathBuf,
    /// Bytes in the log that the far volume does not have.
    pub dirty_bytes: u64,
    /// The settings file that has the cache.
    pub config: PathBuf,
    /// The unit with the cache: `TARGET/LUN`.
    pub unit: String,
}
