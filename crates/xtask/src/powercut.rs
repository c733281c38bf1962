//! A file system for tests that forgets, reorders and tears what was not synced when the power fails.
//!
//! It lives in this process and is mounted with FUSE, so that the real program runs on it. Every
//! write reaches it at once: the kernel keeps pages for reading, but writes through them. Only the
//! pages of a shared mapping wait in the kernel until msync(2) or the end of the process.
//!
//! | call | what becomes stable |
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
pub use system::{Honour, Kind, Sync};
pub use tree::Tree;

#[cfg(test)]
mod tests;
