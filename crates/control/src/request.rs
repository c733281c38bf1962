//! The requests that clients send to a process on its control socket.

use std::path::PathBuf;

use names::VolumeName;
use serde::{Deserialize, Serialize};

use crate::cache_control::{CacheControlCommand, UnitName};

/// A request on the control socket, sent as one line of JSON.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase", tag = "request")]
pub enum ControlRequest {
    Status,
    /// Read the settings file again, and apply the differences.
    Reload,
    /// Report the changes that a reload with this settings file would make.
    Compare {
        /// Absolute path of the settings file.
        config: PathBuf,
    },
    /// Send a command to the cache of a unit.
    Cache {
        unit: UnitName,
        order: CacheControlCommand,
    },
    /// Report the last claim on a unit; for a shared unit, the claims of all gateways that share it.
    Claim {
        unit: UnitName,
    },
    /// Report all nodes and volumes that the naming service knows.
    Names,
    /// Report which node has a volume.
    Locate {
        volume: VolumeName,
    },
    DropClaim {
        unit: UnitName,
        /// Drop the claim even though the log of its owner may hold acknowledged data that the unit lacks: this data is
        /// lost.
        lose_dirty_data: bool,
        /// The operator states that no host has the volume mounted. Needed if data is lost.
        #[serde(default)]
        hosts_unmounted: bool,
    },
    /// Close the log of a unit, so that a gateway on another host can use it.
    Export {
        unit: UnitName,
    },
    /// Make the standby gateway of a pair serve the unit.
    TakeOver {
        unit: UnitName,
    },
    /// Move a volume to another node.
    Move {
        /// Volume as `gln:NAME`, `NAME` or the iSCSI name of its target.
        volume: String,
        /// Number or name of the destination node.
        to: String,
        /// Maximum rate in bytes per second; `None` for no limit.
        rate: Option<u64>,
        /// Maximum time in milliseconds that hosts may wait while the last blocks are copied.
        pause_ms: u64,
    },
    /// Report the progress of a move.
    Moving {
        volume: VolumeName,
    },
    CancelMove {
        volume: VolumeName,
    },
    /// Report all moves of volumes that this node has recorded.
    Moves,
    /// Report the device that `forebay attach` serves.
    Attachment,
    Detach {
        /// True to detach the device even if it is in use.
        force: bool,
    },
    /// Destage all dirty data of the cache in the process, then detach the device. Repeat the request while the
    /// response is the state of the cache.
    DrainAndDetach,
    /// Change an emulated link; each setting has the form `key=value`.
    Link {
        near_to_far: Vec<String>,
        far_to_near: Vec<String>,
    },
    /// Grow the file or device of a unit.
    Resize {
        target: String,
        lun: u16,
        /// New size in bytes; `None` for the present size of a block device.
        bytes: Option<u64>,
    },
}
