//! The errors of the laboratory: reasons why a site cannot be set up, or why a point has no result.

use std::{io, path::Path};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call of the link emulation (crate `wan`) has failed.
    #[error(transparent)]
    Link(#[from] wan::Error),
    /// The settings contradict each other, so no program was started.
    #[error("{0}")]
    Settings(String),
    /// A program did not start, failed or took too long, or the run was stopped.
    #[error(transparent)]
    Process(program::Error),
    /// A folder is in use by another run, is of unknown origin, or has unreadable files.
    #[error("{0}")]
    Folder(String),
    #[error("cannot {act}: {error}")]
    System {
        /// The action that failed, as words after "cannot".
        act: String,
        error: io::Error,
    },
}

impl From<program::Error> for Error {
    fn from(error: program::Error) -> Self {
        match error {
            program::Error::System { act, error } => Self::System { act, error },
            error => Self::Process(error),
        }
    }
}

impl Error {
    /// Returns a function that makes an [`Error::System`]. `act` completes the sentence "cannot
    /// ...".
    pub(crate) fn system(act: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let act = act.into();
        move |error| Self::System { act, error }
    }

    /// Returns a function that makes an [`Error::System`] for an action on a file.
    pub(crate) fn file(act: &str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        Self::system(format!("{act} {}", path.display()))
    }
}
