//! Volumes that move between nodes (`forebay volume`).

use names::VolumeName;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// Progress of the move of a volume from this node to another one.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct VolumeMoveProgress {
    pub volume: VolumeName,
    /// Name of the destination node.
    pub to: String,
    pub stage: MoveStage,
    /// Bytes sent. Blocks that changed during the copy count each time that they were sent.
    pub copied_bytes: u64,
    /// Bytes still to be sent, as far as is known now.
    pub left_bytes: u64,
    /// Mean rate of the whole copy, in bytes per second.
    pub rate: u64,
    /// Seconds since the start of the move.
    pub seconds: f64,
    /// Seconds for which hosts had to wait during the switch; `None` before it is over.
    pub pause_seconds: Option<f64>,
    /// Why the move was cancelled, or the action that the operator still has to take.
    pub failure: Option<Failure>,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MoveStage {
    /// The volume is copied while hosts use it here.
    Copying,
    /// Hosts wait while the last blocks are copied.
    Switching,
    /// The other node has the volume.
    Moved,
    /// The move was cancelled, and this node still has the volume.
    Undone,
}

impl MoveStage {
    /// Returns true until the move is complete or cancelled.
    pub fn is_under_way(self) -> bool {
        matches!(self, Self::Copying | Self::Switching)
    }
}

/// A volume that is moving or has moved, as this node has recorded it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct VolumeMoveStatus {
    pub volume: VolumeName,
    /// One of `leaving`, `arriving`, `waiting` (the copy is complete, but it is undecided which node has the volume),
    /// `here` and `gone`.
    pub how: String,
    /// The other node: destination of a volume that leaves, or source of one that arrives.
    pub node: String,
    /// Progress of a volume that is leaving.
    pub progress: Option<VolumeMoveProgress>,
    /// Reason why the volume is not served, or why it is undecided which node has it.
    #[serde(default)]
    pub why: Option<String>,
}
