//! Errors of the host's FUSE and loop drivers.

use std::{io, path::PathBuf};

/// The step of an attachment that has failed, and the error of the system.
#[derive(Debug, thiserror::Error)]
#[error("{part}: {error}")]
pub struct Error {
    pub part: AttachStep,
    pub error: io::Error,
}

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AttachStep {
    #[error("cannot open /dev/fuse")]
    Fuse,
    #[error("cannot make a FUSE file system")]
    FuseMount,
    #[error("cannot open the file over the volume")]
    File,
    #[error("cannot ask /dev/loop-control for a loop device")]
    LoopControl,
    #[error("cannot open /dev/loop{0}")]
    LoopDevice(u32),
    #[error("cannot set up /dev/loop{0}")]
    LoopSetUp(u32),
    #[error("cannot flush /dev/loop{0}")]
    LoopFlush(u32),
    #[error("cannot write back {}", .0.display())]
    Sync(PathBuf),
    #[error("cannot unmount {}", .0.display())]
    Unmount(PathBuf),
    #[error("cannot start a thread")]
    Thread,
}

impl AttachStep {
    pub(crate) fn failed(&self, error: impl Into<io::Error>) -> Error {
        Error { part: self.clone(), error: error.into() }
    }
}
