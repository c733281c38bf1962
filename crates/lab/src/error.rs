//! Why a site does not stand, or a point has no result.

use std::{io, path::Path};

/// Why.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The link.
    #[error(transparent)]
    Link(#[from] wan::Error),
    /// What was asked for does not go together; nothing was started.
    #[error("{0}")]
    Settings(String),
    /// A program did not start, failed, took too long, or somebody asked to stop.
    #[error(transparent)]
    Process(program::Error),
    /// A folder is another run's, or nobody's that we know, or has in it what cannot be read.
    #[error("{0}")]
    Folder(String),
    /// The system failed.
    #[error("cannot {act}: {error}")]
    System {
        /// What was tried.
        act: String,
        /// What the system says.
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
    /// A failure of the system in an act.
    pub(crate) fn system(act: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let act = act.into();
        move |error| Self::System { act, error }
    }

    /// The same with a file.
    pub(crate) fn file(act: &str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        Self::system(format!("{act} {}", path.display()))
    }
}
