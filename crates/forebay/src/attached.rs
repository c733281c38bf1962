//! What a process has attached, as it tells others.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A volume as a block device of this host.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Attached {
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
