//! Why a workload did not run to its end, or why what it found does not count.

use std::{io, path::PathBuf, time::Duration};

use crate::Missing;

/// Why there is no outcome.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program is not installed.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// It does not run on a place of this kind.
    #[error("{workload} runs on {wanted}, and {place} is none")]
    Place {
        /// Its name.
        workload: &'static str,
        /// What it would run on.
        wanted: &'static str,
        /// What it was given.
        place: String,
    },
    /// The place is not there; nothing was touched.
    #[error("{0}")]
    Absent(String),
    /// Somebody uses the device; nothing was touched.
    #[error("{} is in use: mounted, or part of another device", .0.display())]
    InUse(PathBuf),
    /// A setting is wrong; nothing was touched.
    #[error("{0}")]
    Settings(String),
    /// The place has too little room.
    #[error("{needed} bytes are needed, and {free} are free")]
    Space {
        /// Bytes.
        needed: u64,
        /// Bytes.
        free: u64,
    },
    /// What was read is not what was written. The storage is wrong, not the workload.
    #[error("wrong data: {0}")]
    Wrong(String),
    /// A program failed.
    #[error("{program} {ending}: {said}")]
    Program {
        /// Its name.
        program: String,
        /// How it ended.
        ending: String,
        /// The last that it said.
        said: String,
    },
    /// A program took longer than it may, and was ended.
    #[error("{program} was not done within {} s", .limit.as_secs())]
    Late {
        /// Its name.
        program: String,
        /// What it had.
        limit: Duration,
    },
    /// Somebody wanted it to end before it was done.
    #[error("{program} was stopped")]
    Stopped {
        /// Its name.
        program: String,
    },
    /// What a program printed has not the form that is known.
    #[error("cannot read what {program} printed: {what}")]
    Unreadable {
        /// Its name.
        program: String,
        /// What is missing, or what stands there.
        what: String,
    },
    /// The far side did not do what was asked of it.
    #[error("cannot {act}: {reason}")]
    Session {
        /// What was asked.
        act: String,
        /// Why it did not.
        reason: String,
    },
    /// The system failed.
    #[error("cannot {act}: {error}")]
    System {
        /// What was tried.
        act: String,
        /// What the system says.
        error: io::Error,
    },
}

impl Error {
    /// A setting that makes no sense, as the answer to who asked whether all do.
    pub(crate) fn wrong_setting(why: &str) -> Result<(), Self> {
        Err(Self::Settings(why.to_owned()))
    }

    /// A failure of the system in an act.
    pub(crate) fn system(act: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let act = act.into();
        move |error| Self::System { act, error }
    }
}
