//! Requests on the control socket.

use std::path::PathBuf;

use names::VolumeName;
use serde::{Deserialize, Serialize};

use crate::cache_control::{CacheControlCommand, UnitName};

/// A request: one line of JSON.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase", tag = "request")]
pub enum ControlRequest {
    /// Report the status of the process.
    Status,
    /// Read the settings again and apply what is different.
    Reload,
    /// Report what a reload would do with these settings.
    Compare {
        /// Absolute path of the settings file.
        config: PathBuf,
    },
    /// Command the cache of a unit.
    Cache {
        /// The unit.
        unit: UnitName,
        /// The command.
        order: CacheControlCommand,
    },
    /// Report the last claim on a unit, or the claims of all who share it.
    Claim {
        /// The unit.
        unit: UnitName,
    },
    /// Report what is known of names.
    Names,
    /// Report where a volume is.
    Locate {
        /// Name of the volume.
        volume: VolumeName,
    },
    /// End the claim on a unit.
    DropClaim {
        /// The unit.
        unit: UnitName,
        /// End it although the log of its owner may hold data that exists nowhere else.
        lose_dirty_data: bool,
    },
    /// Close the log of a unit, so that another host can use it.
    Export {
        /// The unit.
        unit: UnitName,
    },
    /// Make the standby gateway of a pair the active one.
    TakeOver {
        /// The unit.
        unit: UnitName,
    },
    /// Move a volume to another node.
    Move {
        /// `gln:NAME`, `NAME` or the iSCSI name of its target.
        volume: String,
        /// Number or name of the other node.
        to: String,
        /// Most bytes per second; `None`: no limit.
        rate: Option<u64>,
        /// Most milliseconds that hosts may wait for the last of the copy.
        pause_ms: u64,
    },
    /// Report the progress of a move.
    Moving {
        /// Name of the volume.
        volume: VolumeName,
    },
    /// Give up a move.
    CancelMove {
        /// Name of the volume.
        volume: VolumeName,
    },
    /// Report all known moves.
    Moves,
    /// Report the attached device.
    Attachment,
    /// Detach the device.
    Detach {
        /// Detach it although it is in use.
        force: bool,
    },
    /// Destage all dirty data of the cache in the process, then detach the device. Repeat the request while the answer
    /// is the state of the cache.
    DrainAndDetach,
    /// Change an emulated link; each setting is `key=value`.
    Link {
        /// Settings from the near end to the far one.
        near_to_far: Vec<String>,
        /// Settings from the far end to the near one.
        far_to_near: Vec<String>,
    },
    /// Grow the file or device of a unit.
    Resize {
        /// iSCSI name of the target.
        target: String,
        /// LUN.
        lun: u16,
        /// New size in bytes; `None`: the present size of a block device.
        bytes: Option<u64>,
    },
}
