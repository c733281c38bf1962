//! The cache of a gateway, after X. He, M. Zhang, Q. Yang, "STICS: SCSI-to-IP cache for storage area
//! networks" (J. Parallel Distrib. Comput., 2004): a `Volume` over a `Volume`, with a crash-safe log disk and
//! memory in front.
//!
//! A write is acknowledged when it is in the log or in NVRAM, depending on the write mode. Later it is
//! destaged: joined with adjacent writes, and overwritten blocks are sent once. The cache does not know
//! whether `lower` is remote.

#[cfg(test)]
mod format_page;
mod random;
mod mutant;
mod slots;
mod mapping;
mod nvram;
mod confirmed;
mod settings;
mod rules;
mod log_buffer;
mod statistics;
mod tier;
mod epoch;
mod orders;
mod meter;
mod gauge;
mod line;
mod fetch;
mod streams;
mod seals;
mod degraded_pair;
mod lower;
mod state;
mod core;
mod lower_flush;
mod tiering;
mod lose;
mod indexing;
mod witness;
mod confirm;
mod commit;
mod read;
mod bypass;
mod fill;
mod write;
mod mode;
mod rollback;
mod growth;
mod destage;
mod resize;
mod scrub;
mod refusal;
mod inspect;
mod open;
mod cache;
mod several;
mod pair;
mod share;

pub use cache::{Cache, WriteOrderMark};
pub use confirmed::{BootId, ConfirmedIn, ConfirmedStore, ConfirmedWrites};
pub use inspect::{InspectError, LogInfo, format, inspect};
pub use journal::{
    identity::{InstanceId, LogVolumeIdentity},
    members::{GivenUp, MemberRecord},
    recovery::AcknowledgedLoss,
    seal::LogKey,
    superblock::is_log,
};
pub use log_buffer::{BufferError, BufferLoss, FoundBuffer, LogBuffer, NvramPromise, needs_buffer};
#[cfg(feature = "mutation")]
pub use mutant::Mutant;
pub use nvram::{MappedFile, NvramWatch, StableMemory, length_for};
pub use open::older::check_older;
pub use open::{Parts, check_nvram};
pub use pair::{
    LogLeg, PairMember, PairMemberAnswer, PairMemberHost, PairMemberStatus, PairTiming, Role,
};
pub use refusal::{CacheOpenError, KeyRefusal};
pub use resize::ResizeError;
pub use settings::{
    DestageOrder, LogErrorPolicy, NvramSurvival, OversizedEpoch, Settings, WriteMode,
};
pub use several::common::CommonMember;
pub use several::give_up::{dirty_of, give_up, take_in};
pub use share::coherent::{Coherent, TokenStatistics};
pub use statistics::{
    BYPASS_ALLOWED, CacheStatistics, DestageStatistics, HitStatistics, LinkStatistics,
    LogStatistics, LowerStatistics, OrderStatistics, RecoveryStatistics, ScrubStatistics,
    TierStatistics, TrafficStatistics,
};
pub use tiering::{TierError, inspect_tier};
