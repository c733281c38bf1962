//! Why a command, or the program, ends with an error: what happened, what to do about it, and the exit code.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An error for the person who started the program.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Failure {
    /// What happened, with names and numbers.
    pub message: String,
    /// What to do about it.
    pub remedy: Option<String>,
    /// The exit code of the process: [`FAILED`] or [`WRONG_SETTINGS`].
    pub code: u8,
}

/// Exit code: the program did not start, or did not do what was asked.
pub const FAILED: u8 = 1;
/// Exit code: the settings or the command line are wrong; nothing was changed.
pub const WRONG_SETTINGS: u8 = 2;

impl Failure {
    /// A failure with exit code [`FAILED`].
    pub fn new(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), remedy: None, code: FAILED }
    }

    /// A failure with exit code [`WRONG_SETTINGS`].
    pub fn settings(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), remedy: None, code: WRONG_SETTINGS }
    }

    /// Adds a remedy.
    #[must_use]
    pub fn remedy(mut self, remedy: impl fmt::Display) -> Self {
        self.remedy = Some(remedy.to_string());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.remedy {
            Some(remedy) => write!(f, "\n  remedy: {remedy}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}
