//! Block volumes and the layers that stack on them.
//!
//! A [`Volume`] is an array of fixed-size blocks. A *layer* is a struct that holds the volume below it in a field
//! called `lower` and is itself a `Volume`.
//!
//! | kind | volumes |
//! |------|---------|
//! | storage | [`FileVolume`] (a file or block device), [`MemVolume`] |
//! | several lower volumes | [`Mirror`] (two equal legs), [`JoinedVolume`] (one after the other) |
//! | layers | [`CheckedVolume`], [`SliceVolume`], [`EncryptVolume`], [`ObserveVolume`], [`OverlayVolume`], [`Watched`] |
//! | layers that simulate slow or failing storage | [`DelayVolume`], [`DiskVolume`], [`FaultVolume`] |
//!
//! The cache and the remote volume are in crates of their own (`cache` and `initiator`).

mod reply;
mod data;
mod allocation;
mod claim;
mod extent;
mod error;
mod geometry;
mod extensions;
mod volume;
mod times;
mod ongoing;
mod page;
mod mem;
mod checked;
mod slice;
mod joined;
mod overlay;
mod delay;
mod disk;
mod observe;
mod fault;
mod watched;
mod mirror;
mod buffer;
mod engine;
mod encrypt;
mod opening;
mod change;
mod file;
#[cfg(test)]
mod testing;

pub use allocation::{Allocation, AllocationRun, MOST_RUNS};
pub use change::OpenFileChange;
pub use checked::CheckedVolume;
pub use claim::{Claim, Confirmed, Dirty, Holding};
pub use data::Data;
pub use delay::{DelayVolume, Latency};
pub use disk::{DiskVolume, Profile};
pub use encrypt::{EncryptVolume, Keyring, Renewed, VolumeKey};
pub use engine::EngineKind;
pub use error::{Error, Io};
pub use extensions::{
    CoherenceChannel, EpochRollback, ErasableKey, ExclusiveWriter, Extensions, FlushBegunCallback,
    FlushedReads, OrderedFlush, Provisioning, RedundantCopies, Resizable, ThinSpaceUsage,
};
pub use extent::{Extent, Lba};
pub use fault::{FaultCallKind, FaultRule, FaultVolume, Faults, Symptom};
pub use file::{FileVolume, FileVolumeOpenError, FileVolumeOptions};
pub use geometry::{Durability, Geometry};
pub use joined::{JoinedVolume, JoinedVolumeMember};
pub use mem::MemVolume;
pub use mirror::{DegradedMirror, HalfLabel, Mirror, MirrorError, MirrorLegStatus};
pub use observe::{ObserveVolume, VolumeCallCounters, VolumeCallCounts};
pub use ongoing::{ConditionChange, OngoingCondition};
pub use opening::{NamedFile, OpenNamed, UntrustedLink, free_bytes, is_ours, narrow, open_own};
pub use overlay::OverlayVolume;
pub use reply::Reply;
pub use slice::SliceVolume;
pub use times::{TimeHistogram, TimeHistogramSnapshot};
pub use volume::{Stack, Volume, examine, flush_ahead};
pub use watched::{ChangedRegions, Watched};
