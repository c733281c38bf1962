//! A volume attached to this host as a block device (`forebay attach`).

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// An attached volume.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct AttachedVolumeStatus {
    /// The block device, `/dev/loopN`.
    pub device: PathBuf,
    /// The volume as the command line named it.
    pub volume: String,
    /// Bytes of the volume.
    pub bytes: u64,
    /// Bytes of a logical block.
    pub block_size: u32,
    /// True if writes are refused.
    pub read_only: bool,
    /// True if the loop device sends several requests at once, past the page cache of its file.
    pub direct_io: bool,
    /// The folder on which we have mounted the device; `None` if we have not.
    pub mount: Option<PathBuf>,
    /// Number of the process that serves the device.
    pub process: u32,
}

/// A detached device, and the log that may hold data written to it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Detached {
    /// The device as it was.
    pub attached: AttachedVolumeStatus,
    /// The log of the cache that ran in the process, if there was one.
    pub log: Option<LogLeft>,
}

/// The log of a cache that has stopped.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct LogLeft {
    /// Path of the log.
    pub path: PathBuf,
    /// Bytes in the log that the far volume lacks.
    pub dirty_bytes: u64,
    /// The settings file that has the cache.
    pub config: PathBuf,
    /// The unit with the cache: `TARGET/LUN`.
    pub unit: String,
}
