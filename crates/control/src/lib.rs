//! What is said on the control socket of a process: requests, answers and the status, as types that are JSON on the
//! wire.
//!
//! Each field documents its unit. A field keeps its name and type once it was released, because monitors and scripts
//! read the JSON by name; a new field has `#[serde(default)]`, so that an answer of an older process can still be read.
//! The socket itself and the texts for people are in the program.

mod failure;
mod session;
mod layer;
mod claim;
mod attachment;
mod serving;
mod cache_control;
mod link;
mod moves;
mod naming;
mod reload;
mod request;
mod response;

pub use attachment::{AttachedVolumeStatus, Detached, LogLeft};
pub use cache_control::{CacheControlCommand, CacheControlStatus, Exported, Rate, UnitName};
pub use claim::{ClaimStatus, ShareStatus};
pub use failure::{FAILED, Failure, WRONG_SETTINGS};
pub use layer::LayerStatus;
pub use link::{LinkDirectionSettings, LinkEnd, Linked};
pub use moves::{MoveStage, VolumeMoveProgress, VolumeMoveStatus};
pub use naming::{KnownNode, NamingStatus};
pub use reload::ReloadChanges;
pub use request::ControlRequest;
pub use response::ControlResponse;
pub use serving::{
    PairNvram, PairStatus, PortalStatus, RefusedStatus, ServingPhase, ServingStatus, TargetStatus,
    UnitStatus,
};
pub use session::{CompressionStatus, ConnectionStatus, EnsembleStatus, PathStatus, SessionStatus};
