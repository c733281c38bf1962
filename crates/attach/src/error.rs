//! Errors of the host's FUSE and loop drivers.

use std::{io, path::PathBuf};

/// The step of an attachment that has failed, and the error of the system.
#[derive(Debug, thiserror::Error)]
#[error("{part}: {error}")]
pub struct Error {
    /// The step.
    pub part: AttachStep,
    /// The error of the system.
    pub error: io::Error,
}

/// The steps that can fail.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AttachStep {
    /// Opening `/dev/fuse`.
    #[error("cannot open /dev/fuse")]
    Fuse,
    /// Making a FUSE file system.
    #[error("cannot make a FUSE file system")]
    FuseMount,
    /// Opening the file of the FUSE file system.
    #[error("cannot open the file over the volume")]
    File,
    /// Opening `/dev/loop-control`, or getting a free number from it.
    #[error("cannot ask /dev/loop-control for a loop device")]
    LoopControl,
    /// Opening the loop device.
    #[error("cannot open /dev/loop{0}")]
    LoopDevice(u32),
    /// Setting up the loop device on the file.
    #[error("cannot set up /dev/loop{0}")]
    LoopSetUp(u32),
    /// Writing back the data of the loop device.
    #[error("cannot flush /dev/loop{0}")]
    LoopFlush(u32),
    /// Writing back the data of a file system.
    #[error("cannot write back {}", .0.display())]
    Sync(PathBuf),
    /// Unmounting a file system.
    #[error("cannot unmount {}", .0.display())]
    Unmount(PathBuf),
    /// Starting a thread.
    #[error("cannot start a thread")]
    Thread,
}

impl AttachStep {
    /// Makes an error of this step.
    pub(crate) fn failed(&self, error: impl Into<io::Error>) -> Error {
        Error { part: self.clone(), error: error.into() }
    }
}
