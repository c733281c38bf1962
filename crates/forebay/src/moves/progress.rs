//! How far a move is.

use ::names::VolumeName;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// One that is under way here, or the last one of its volume.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct VolumeMoveProgress {
    /// What moves.
    pub volume: VolumeName,
    /// The node that it goes to.
    pub to: String,
    /// How far it is.
    pub stage: MoveStage,
    /// Bytes that were sent, those that changed meanwhile each time.
    pub copied_bytes: u64,
    /// Bytes that are still to be sent, as far as is known now.
    pub left_bytes: u64,
    /// Bytes per second, over the whole copy.
    pub rate: u64,
    /// Seconds since it began.
    pub seconds: f64,
    /// Seconds that hosts had to wait, once they had.
    pub pause_seconds: Option<f64>,
    /// Why it was given up, or what is still to be done.
    pub failure: Option<Failure>,
}

/// How far.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MoveStage {
    /// It is copied while hosts use it here.
    Copying,
    /// Hosts wait.
    Switching,
    /// It is not here any more.
    Moved,
    /// It is here, as before.
    Undone,
}

impl MoveStage {
    /// Whether it goes on.
    pub fn is_under_way(self) -> bool {
        matches!(self, Self::Copying | Self::Switching)
    }
}

/// A volume that is or was moved, as this node knows it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct VolumeMoveStatus {
    /// Its name.
    pub volume: VolumeName,
    /// `leaving`, `arriving`, `waiting` (whole, and undecided), `here` or `gone`.
    pub how: String,
    /// The node that it goes to, went to, comes or came from.
    pub node: String,
    /// How far it is, if it is leaving.
    pub progress: Option<VolumeMoveProgress>,
    /// Why it is not served, or not decided.
    #[serde(default)]
    pub why: Option<String>,
}
