//! What this host does not give us.

use std::{io, path::PathBuf};

/// A part of the host that an attachment needs, and what it said.
#[derive(Debug, thiserror::Error)]
#[error("{part}: {error}")]
pub struct Error {
    /// Which part.
    pub part: AttachStep,
    /// What the system says.
    pub error: io::Error,
}

/// What can fail.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AttachStep {
    /// `/dev/fuse` does not open.
    #[error("cannot open /dev/fuse")]
    Fuse,
    /// The kernel refuses a FUSE file system.
    #[error("cannot make a FUSE file system")]
    FuseMount,
    /// The FUSE file system is there, and its file does not open.
    #[error("cannot open the file over the volume")]
    File,
    /// `/dev/loop-control` does not open, or gives no number.
    #[error("cannot ask /dev/loop-control for a loop device")]
    LoopControl,
    /// The loop device does not open.
    #[error("cannot open /dev/loop{0}")]
    LoopDevice(u32),
    /// It does not take the file.
    #[error("cannot set up /dev/loop{0}")]
    LoopSetUp(u32),
    /// What was written to the device does not become stable.
    #[error("cannot flush /dev/loop{0}")]
    LoopFlush(u32),
    /// What was written to a file system does not become stable.
    #[error("cannot write back {}", .0.display())]
    Sync(PathBuf),
    /// A file system does not let itself be unmounted.
    #[error("cannot unmount {}", .0.display())]
    Unmount(PathBuf),
    /// A thread does not start.
    #[error("cannot start a thread")]
    Thread,
}

impl AttachStep {
    /// An error of this part.
    pub(crate) fn failed(&self, error: impl Into<io::Error>) -> Error {
        Error { part: self.clone(), error: error.into() }
    }
}
