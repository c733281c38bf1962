//! The errors of starting, waiting for and ending a program.

use std::{io, time::Duration};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program ended before it had printed the line that reports it as ready.
    #[error("{name} ended before it was ready{}", after(.said))]
    NotReady {
        name: String,
        /// The last lines that the program printed.
        said: String,
    },
    /// The program exited with an error, or printed unexpected output.
    #[error("{name} {what}{}", after(.said))]
    Failed {
        name: String,
        what: String,
        /// The last lines that the program printed.
        said: String,
    },
    #[error("{name} was not {what} within {} s", .limit.as_secs())]
    Late {
        name: String,
        /// The awaited event: "ready", "done" or "ended".
        what: &'static str,
        limit: Duration,
    },
    /// The `stop` flag of the wait was set.
    #[error("stopped")]
    Stopped,
    #[error("cannot {act}: {error}")]
    System {
        /// The failed action, such as "start node 1".
        act: String,
        error: io::Error,
    },
}

fn after(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!(": {said}") }
}

impl Error {
    /// Returns a function that makes an [`Error::System`] of a failed system call.
    pub fn system(act: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let act = act.into();
        move |error| Self::System { act, error }
    }
}
