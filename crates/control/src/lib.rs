//! The protocol of the control socket: requests, responses and the status of a process, as types that are serialized as
//! JSON. All readers of the status use these types: the commands, quickstart and the laboratory.
//!
//! Each field documents its unit. A released field keeps its name and type, because monitors and scripts read the JSON
//! by name; a new field has `#[serde(default)]`, so that the response of an older process can still be read. The
//! program contains the socket itself and the texts for people.

mod failure;
mod time_figures;
mod cache_figures;
mod session;
mod remote_figures;
mod layer;
mod counters;
mod claim;
mod attachment;
mod serving;
mod health;
mod cache_control;
mod link;
mod moves;
mod naming;
mod reload;
mod request;
mod response;

pub use attachment::{AttachedVolumeStatus, Detached, LogLeft};
pub use cache_control::{CacheControlCommand, CacheControlStatus, Exported, Rate, UnitName};
pub use cache_figures::{
    CacheClaim, CacheFigures, CacheHitFigures, CacheLogFigures, CacheRequestFigures,
    CacheTimeFigures, CommonCacheFigures, DestageFigures, DirtyDataFigures, EpochFigures,
    FarLinkFigures, LogMirrorFigures, LowerVolumeFigures, ReadTierFigures, SharingFigures,
};
pub use claim::{ClaimStatus, ShareStatus};
pub use counters::{
    CommandTimeFigures, LoginCounters, ProcessCounters, ServedTraffic, ServingCounters,
};
pub use failure::{FAILED, Failure, WRONG_SETTINGS};
pub use health::{HealthLevel, HealthProblem, LOG_FILLING_PERCENT, LOG_NEARLY_FULL_PERCENT};
pub use layer::{FileFigures, LayerFigures, LayerStatus, ObserveFigures};
pub use link::{LinkDirectionSettings, LinkEnd, Linked};
pub use moves::{MoveStage, VolumeMoveProgress, VolumeMoveStatus};
pub use naming::{KnownNode, NamingStatus};
pub use reload::ReloadChanges;
pub use remote_figures::{
    FarCallFigures, FarEnsembleFigures, FarLinkState, FarRecoveryFigures, FarSessionFigures,
    FarTrafficFigures, RemoteFigures,
};
pub use request::ControlRequest;
pub use response::ControlResponse;
pub use serving::{
    ObjectDriveStatus, PairNvram, PairStatus, PortalStatus, RefusedStatus, ServingPhase,
    ServingStatus, TargetStatus, UnitStatus,
};
pub use session::{CompressionStatus, ConnectionStatus, EnsembleStatus, PathStatus, SessionStatus};
pub use time_figures::{CommandCounts, PduLengths, ResponseTimes};
