//! The error with which a command or the program ends: message, remedy and exit code.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An error to print for the user.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Failure {
    /// Describes the failure, with names and numbers.
    pub message: String,
    /// How to correct the failure; printed on a line of its own.
    pub remedy: Option<String>,
    /// Exit code of the process: [`FAILED`] or [`WRONG_SETTINGS`].
    pub code: u8,
}

/// Exit code if the program did not start, or did not perform the request.
pub const FAILED: u8 = 1;
/// Exit code for wrong settings or a wrong command line. The program has changed nothing.
pub const WRONG_SETTINGS: u8 = 2;

impl Failure {
    /// Returns a failure with exit code [`FAILED`].
    pub fn new(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), remedy: None, code: FAILED }
    }

    /// Returns a failure with exit code [`WRONG_SETTINGS`].
    pub fn settings(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), remedy: None, code: WRONG_SETTINGS }
    }

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
