//! Answers on the control socket.

use names::VolumeLocation;
use serde::{Deserialize, Serialize};

use crate::{
    attachment::{AttachedVolumeStatus, Detached},
    cache_control::{CacheControlStatus, Exported},
    claim::ClaimStatus,
    failure::Failure,
    link::Linked,
    moves::{VolumeMoveProgress, VolumeMoveStatus},
    naming::NamingStatus,
    reload::ReloadChanges,
    serving::{PairStatus, ServingStatus},
};

/// An answer: one line of JSON.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ControlResponse {
    /// Status of the process.
    Status(Box<ServingStatus>),
    /// What a reload did or would do.
    Changes(ReloadChanges),
    /// State of a cache.
    Cache(CacheControlStatus),
    /// The last claim on a unit, or the claims of all who share it; after `DropClaim`, the dropped claims as they were.
    Claims(Vec<ClaimStatus>),
    /// What is known of names.
    Names(NamingStatus),
    /// Where a volume is.
    Located(VolumeLocation),
    /// The log is closed.
    Exported(Exported),
    /// State of a pair.
    Pair(PairStatus),
    /// Progress of a move.
    Moving(VolumeMoveProgress),
    /// All known moves.
    Moves(Vec<VolumeMoveStatus>),
    /// The attached device.
    Attachment(AttachedVolumeStatus),
    /// The detached device, and the log of the cache that has stopped.
    Detached(Detached),
    /// State of an emulated link.
    Link(Box<Linked>),
    /// The volume has this size now.
    Resized {
        /// Bytes.
        bytes: u64,
    },
    /// The request was refused or has failed.
    Failure(Failure),
    /// The request was not understood.
    Error(String),
}

impl ControlResponse {
    /// The failure to report for an answer that does not belong to the request.
    pub fn unexpected(self) -> Failure {
        match self {
            Self::Failure(failure) => failure,
            Self::Error(error) => Failure::new(error),
            Self::Status(_)
            | Self::Changes(_)
            | Self::Cache(_)
            | Self::Claims(_)
            | Self::Names(_)
            | Self::Located(_)
            | Self::Exported(_)
            | Self::Pair(_)
            | Self::Moving(_)
            | Self::Moves(_)
            | Self::Attachment(_)
            | Self::Detached(_)
            | Self::Link(_)
            | Self::Resized { .. } => {
                Failure::new("the process gives an answer to another question")
                    .remedy("use the same version of forebay on both sides of the socket")
            }
        }
    }
}
