//! The reasons why a workload has no valid result.

use std::{io, path::PathBuf, time::Duration};

use crate::Missing;

/// The error of a workload.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program is not installed.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The workload does not support this kind of location.
    #[error("{workload} runs on {wanted}, which {place} is not")]
    Place {
        workload: &'static str,
        /// The kinds of locations that it supports.
        wanted: &'static str,
        /// The location that was given.
        place: String,
    },
    /// The location does not exist. Nothing was changed.
    #[error("{0}")]
    Absent(String),
    /// The device is in use. Nothing was changed.
    #[error("{} is in use: mounted, or part of another device", .0.display())]
    InUse(PathBuf),
    /// A setting is wrong. Nothing was changed.
    #[error("{0}")]
    Settings(String),
    /// The location does not have enough space.
    #[error("{needed} bytes are needed, and {free} are free")]
    Space {
        /// Number of bytes that the workload needs.
        needed: u64,
        /// Number of bytes that are free.
        free: u64,
    },
    /// The data read differs from the data written. The storage is wrong, not the workload.
    #[error("wrong data: {0}")]
    Wrong(String),
    /// A program has failed.
    #[error("{program} {ending}: {said}")]
    Program {
        /// The name of the program.
        program: String,
        /// The exit status or the signal, as text.
        ending: String,
        /// The end of its output.
        said: String,
    },
    /// A program exceeded its time limit and was ended.
    #[error("{program} did not end within {} s", .limit.as_secs())]
    Late {
        /// The name of the program.
        program: String,
        limit: Duration,
    },
    /// The workload was stopped.
    #[error("{program} was stopped")]
    Stopped {
        /// The program that was running.
        program: String,
    },
    /// The output of a program has an unknown format.
    #[error("cannot read what {program} printed: {what}")]
    Unreadable {
        /// The name of the program.
        program: String,
        /// The missing part of the output, or the text in its place.
        what: String,
    },
    /// The remote target has failed.
    #[error("cannot {act}: {reason}")]
    Session {
        /// The request that failed.
        act: String,
        reason: String,
    },
    /// A system call has failed.
    #[error("cannot {act}: {error}")]
    System {
        /// The action that failed, as a verb with its object.
        act: String,
        /// The error of the system.
        error: io::Error,
    },
}

impl Error {
    /// Makes an error of an invalid setting.
    pub(crate) fn wrong_setting(why: &str) -> Result<(), Self> {
        Err(Self::Settings(why.to_owned()))
    }

    /// Makes an error of a system call.
    pub(crate) fn system(act: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let act = act.into();
        move |error| Self::System { act, error }
    }
}
