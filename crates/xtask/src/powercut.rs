//! A file system for tests. When the simulated power fails, it loses, reorders and tears unsynced
//! writes.
//!
//! It runs in this process and is mounted with FUSE, so that the real program can use it. Every write(2) reaches this
//! process at once, since the kernel's page cache for this file system is write-through. Only the dirty pages of a
//! shared mapping wait in the kernel until msync(2) or the end of the process.
//!
//! | call | bytes or names that become stable |
//! |---|---|
//! | fsync, fdatasync, msync | all bytes of the file that were written before, and its size |
//! | write with O_DSYNC or RWF_DSYNC | the bytes of this write, and the size of the file |
//! | fsync of a folder | the names in it: creations, renames and removals |
//!
//! fsync of a file does not make its name stable: POSIX does not promise that.

pub mod fate;
pub mod content;
pub mod tree;
pub mod supply;
pub mod system;
pub mod mounted;

pub use fate::Chance;
pub use mounted::{Boot, Mounted, missing, private_namespace};
pub use supply::Supply;
pub use system::{FaultFsSync, FaultFsSyncKind, Honour};
pub use tree::FaultFsTree;

#[cfg(test)]
mod tests;
