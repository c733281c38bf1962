//! Why a site does not stand, or a point has no result.

use std::{io, path::Path, time::Duration};

/// Why.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The link.
    #[error(transparent)]
    Link(#[from] wan::Error),
    /// What was asked for does not go together; nothing was started.
    #[error("{0}")]
    Settings(String),
    /// A program that was started ended, or said something else than expected.
    #[error("{name} {what}{}", after(.said))]
    Program {
        /// What it is for: "node 1".
        name: String,
        /// What happened.
        what: String,
        /// The last that it said.
        said: String,
    },
    /// A program that was started took too long.
    #[error("{name} was not {what} within {} s", .limit.as_secs())]
    Late {
        /// What it is for.
        name: String,
        /// Ready, done, ended.
        what: &'static str,
        /// What it had.
        limit: Duration,
    },
    /// Somebody asked to stop.
    #[error("stopped")]
    Stopped,
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

fn after(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!(": {said}") }
}

impl From<program::Error> for Error {
    fn from(error: program::Error) -> Self {
        match error {
            program::Error::NotReady { name, said } => {
                Self::Program { name, what: "ended before it was ready".to_owned(), said }
            }
            program::Error::Failed { name, what, said } => Self::Program { name, what, said },
            program::Error::Late { name, what, limit } => Self::Late { name, what, limit },
            program::Error::Stopped => Self::Stopped,
            program::Error::System { act, error } => Self::System { act, error },
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
