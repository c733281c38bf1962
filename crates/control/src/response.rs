//! The responses that a process sends on its control socket.

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

/// A response on the control socket, sent as one line of JSON.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ControlResponse {
    Status(Box<ServingStatus>),
    /// Changes that a reload made or would make.
    Changes(ReloadChanges),
    Cache(CacheControlStatus),
    /// The last claim on a unit, or the claims of all gateways that share it. After `DropClaim`: the dropped claims as
    /// they were before.
    Claims(Vec<ClaimStatus>),
    /// All nodes and volumes that the naming service knows.
    Names(NamingStatus),
    /// The node that has a volume.
    Located(VolumeLocation),
    /// The log that was closed, so that a gateway on another host can use it.
    Exported(Exported),
    /// The state of the pair after the request.
    Pair(PairStatus),
    Moving(VolumeMoveProgress),
    Moves(Vec<VolumeMoveStatus>),
    Attachment(AttachedVolumeStatus),
    /// The device that was detached, and the log of its cache if it had one.
    Detached(Detached),
    Link(Box<Linked>),
    Resized {
        /// The new size in bytes.
        bytes: u64,
    },
    /// The request was refused or has failed.
    Failure(Failure),
    /// The process did not understand the request; the text says why.
    Error(String),
}

impl ControlResponse {
    /// Converts a response that does not belong to the request to the failure to report: the failure or error in it, or
    /// else that the response is unexpected.
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
            | Self::Resized { .. } => Failure::new("the response does not belong to the request")
                .remedy("use the same version of forebay on both sides of the socket"),
        }
    }
}
