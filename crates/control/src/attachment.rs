//! The status of a volume that `forebay attach` has attached to this host as a block device.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A volume that `forebay attach` serves as a block device of this host.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct AttachedVolumeStatus {
    /// The block device, `/dev/loopN`.
    pub device: PathBuf,
    /// The volume as the command line named it.
    pub volume: String,
    /// Size of the volume in bytes.
    pub bytes: u64,
    /// Size of a block in bytes.
    pub block_size: u32,
    /// True if writes are refused.
    pub read_only: bool,
    /// True if the loop device sends several requests concurrently and bypasses the page cache of its file.
    pub direct_io: bool,
    /// Folder on which `forebay attach` has mounted the device; `None` if it has not.
    pub mount: Option<PathBuf>,
    /// Process id of the process that serves the device.
    pub process: u32,
}

/// A detached device, and the log that may hold data written to it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Detached {
    /// State of the device before it was detached.
    pub attached: AttachedVolumeStatus,
    /// The log of the cache that ran in the process, if there was one.
    pub log: Option<LogLeft>,
}

/// The log of a cache that has stopped.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct LogLeft {
    pub path: PathBuf,
    /// Dirty bytes: data in the log that the far volume lacks.
    pub dirty_bytes: u64,
    /// Settings file in which the cache is configured.
    pub config: PathBuf,
    /// The unit with the cache: `TARGET/LUN`.
    pub unit: String,
}
