//! Volumes that move from node to node (`forebay volume`).

use names::VolumeName;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// A move that this node makes, or the last one of its volume.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct VolumeMoveProgress {
    /// The volume.
    pub volume: VolumeName,
    /// The node to which it goes.
    pub to: String,
    /// The stage of the move.
    pub stage: MoveStage,
    /// Bytes sent. Blocks that changed during the copy count each time that they were sent.
    pub copied_bytes: u64,
    /// Bytes still to be sent, as far as is known now.
    pub left_bytes: u64,
    /// Bytes per second, over the whole copy.
    pub rate: u64,
    /// Seconds since the start of the move.
    pub seconds: f64,
    /// Seconds for which hosts had to wait; `None` before the switch is over.
    pub pause_seconds: Option<f64>,
    /// Why the move was given up, or what the operator still has to do.
    pub failure: Option<Failure>,
}

/// The stage of a move.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MoveStage {
    /// The volume is copied while hosts use it here.
    Copying,
    /// Hosts wait for the last of the copy.
    Switching,
    /// The other node has the volume.
    Moved,
    /// The move was given up, and the volume is here as before.
    Undone,
}

impl MoveStage {
    /// True until the move is complete or given up.
    pub fn is_under_way(self) -> bool {
        matches!(self, Self::Copying | Self::Switching)
    }
}

/// A volume that is moving or was moved, as this node knows it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct VolumeMoveStatus {
    /// Name of the volume.
    pub volume: VolumeName,
    /// `leaving`, `arriving`, `waiting` (the copy is complete, and which node has the volume is undecided), `here` or
    /// `gone`.
    pub how: String,
    /// The other node: where the volume goes or went, or where it comes or came from.
    pub node: String,
    /// Progress of a volume that is leaving.
    pub progress: Option<VolumeMoveProgress>,
    /// Why the volume is not served, or why it is undecided which node has it.
    #[serde(default)]
    pub why: Option<String>,
}
