//! Why a program did not do what its starter wanted.

use std::{io, time::Duration};

/// Why a program did not do what its starter wanted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program ended before it printed the line that says that it is ready.
    #[error("{name} ended before it was ready{}", after(.said))]
    NotReady {
        /// The program's role, such as "node 1".
        name: String,
        /// The last lines that it printed.
        said: String,
    },
    /// The program ended with an error, or printed something unexpected.
    #[error("{name} {what}{}", after(.said))]
    Failed {
        /// The program's role.
        name: String,
        /// What happened.
        what: String,
        /// The last lines that it printed.
        said: String,
    },
    /// The program took too long.
    #[error("{name} was not {what} within {} s", .limit.as_secs())]
    Late {
        /// The program's role.
        name: String,
        /// What was awaited: "ready", "done" or "ended".
        what: &'static str,
        /// The time limit.
        limit: Duration,
    },
    /// Somebody asked to stop.
    #[error("stopped")]
    Stopped,
    /// A system call failed.
    #[error("cannot {act}: {error}")]
    System {
        /// The act that failed, such as "start node 1".
        act: String,
        /// The system's error.
        error: io::Error,
    },
}

fn after(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!(": {said}") }
}

impl Error {
    /// Returns a function that makes an error of a failed system call.
    pub fn system(act: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let act = act.into();
        move |error| Self::System { act, error }
    }
}
