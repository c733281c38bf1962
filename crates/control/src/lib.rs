//! What is said on the control socket of a process: requests, answers and the status, as types that are JSON on the
//! wire. Whoever reads the status uses these types: commands, quickstart, the laboratory.
//!
//! Each field documents its unit. A field keeps its name and type once it was released, because monitors and scripts
//! read the JSON by name; a new field has `#[serde(default)]`, so that an answer of an older process can still be read.
//! The socket itself and the texts for people are in the program.

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
    PairNvram, PairStatus, PortalStatus, RefusedStatus, ServingPhase, ServingStatus, TargetStatus,
    UnitStatus,
};
pub use session::{CompressionStatus, ConnectionStatus, EnsembleStatus, PathStatus, SessionStatus};
pub use time_figures::{CommandCounts, PduLengths, ResponseTimes};
