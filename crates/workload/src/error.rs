//! The reasons why a workload has no valid result.

use std::{io, path::PathBuf, time::Duration};

use crate::Missing;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program that the workload needs is not installed.
    #[error(transparent)]
    Missing(#[from] Missing),
    #[error("{workload} runs on {wanted}, which {place} is not")]
    Place {
        workload: &'static str,
        /// The kinds of locations that the workload supports, as words.
        wanted: &'static str,
        /// The location that the user gave.
        place: String,
    },
    /// The folder, device or unit does not exist, and the workload has changed nothing.
    #[error("{0}")]
    Absent(String),
    /// The device is mounted or part of another device, and the workload has changed nothing.
    #[error("{} is in use: mounted, or part of another device", .0.display())]
    InUse(PathBuf),
    /// A setting of the workload is invalid, and the workload has changed nothing.
    #[error("{0}")]
    Settings(String),
    #[error("{needed} bytes are needed, and {free} are free")]
    Space {
        /// Number of bytes that the workload needs.
        needed: u64,
        free: u64,
    },
    /// The data read differs from the data written. This is a fault of the storage, not of the
    /// workload.
    #[error("wrong data: {0}")]
    Wrong(String),
    /// A program that the workload ran has failed.
    #[error("{program} {ending}: {said}")]
    Program {
        program: String,
        /// The exit status or the signal, as text.
        ending: String,
        /// The last lines of the program's output.
        said: String,
    },
    #[error("{program} did not end within {} s", .limit.as_secs())]
    Late { program: String, limit: Duration },
    /// The caller has stopped the workload.
    #[error("{program} was stopped")]
    Stopped {
        /// The program that was running when the workload was stopped.
        program: String,
    },
    /// The output of a program is not in the format that the workload reads.
    #[error("cannot read what {program} printed: {what}")]
    Unreadable {
        program: String,
        /// The part of the output that is missing, or the text found in its place.
        what: String,
    },
    /// A request to the remote target has failed.
    #[error("cannot {act}: {reason}")]
    Session {
        /// The request that failed, as words after "cannot".
        act: String,
        reason: String,
    },
    /// A system call of the workload itself has failed.
    #[error("cannot {act}: {error}")]
    System {
        /// The failed action as a verb with its object, such as "read /dev/sda".
        act: String,
        error: io::Error,
    },
}

impl Error {
    pub(crate) fn wrong_setting(why: &str) -> Result<(), Self> {
        Err(Self::Settings(why.to_owned()))
    }

    /// Returns a function that makes an [`Error::System`]. `act` completes the sentence "cannot
    /// ...".
    pub(crate) fn system(act: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let act = act.into();
        move |error| Self::System { act, error }
    }
}
