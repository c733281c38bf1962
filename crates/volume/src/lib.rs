//! Block volumes and the layers that stack on them.
//!
//! A [`Volume`] is an array of fixed-size blocks. A *layer* is a struct that holds the volume
//! below it in a field called `lower` and is itself a `Volume`; that is the whole mechanism.

mod reply;
mod data;
mod allocation;
mod claim;
mod volume;
mod times;
mod page;
mod mem;
mod checked;
mod slice;
mod joined;
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

pub use allocation::{Allocation, MOST_RUNS, Run};
pub use change::Change;
pub use checked::Checked;
pub use claim::{Claim, Confirmed, Dirty, Holding};
pub use data::Data;
pub use delay::{Delay, Latency};
pub use disk::{Disk, Profile};
pub use encrypt::{Encrypt, Keyring, Renewed, VolumeKey};
pub use engine::EngineKind;
pub use fault::{Call, Fault, Faults, Rule, Symptom};
pub use file::{FileVolume, OpenError, Options};
pub use joined::{Joined, Member};
pub use mem::MemVolume;
pub use mirror::{Alone, HalfLabel, Mirror, MirrorError, Standing};
pub use observe::{Counters, Counts, Observe};
pub use opening::{Named, OpenNamed, UntrustedLink, free_bytes, is_ours, narrow, open_own};
pub use reply::Reply;
pub use slice::SliceVolume;
pub use times::{Taken, Times};
pub use volume::{Begun, Durability, Error, Extent, Geometry, Io, Lba, Stack, Usage, Volume};
pub use watched::{Changes, Watched};
