//! Why the program ends with an error: what happened, what to do about it, and the exit code.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Something that the person who started the program must hear.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Failure {
    /// What happened, with names and numbers.
    pub message: String,
    /// What to do about it.
    pub remedy: Option<String>,
    /// What the process exits with.
    pub code: u8,
}

/// A failure to start or to do what was asked.
pub const FAILED: u8 = 1;
/// The settings or the command line are wrong; nothing was touched.
pub const WRONG_SETTINGS: u8 = 2;

impl Failure {
    /// Something failed.
    pub fn new(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), remedy: None, code: FAILED }
    }

    /// The settings are wrong.
    pub fn settings(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), remedy: None, code: WRONG_SETTINGS }
    }

    /// And this helps.
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

/// Why a unit's storage was not opened.
#[derive(Debug)]
pub enum NotOpened {
    /// The storage of this unit does not agree with what is recorded about it, or another gateway
    /// has its claim. Other units of the process can be served.
    Refused(Failure),
    /// Any other failure, such as a wrong setting.
    Failed(Failure),
}

impl From<Failure> for NotOpened {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<NotOpened> for Failure {
    fn from(not_opened: NotOpened) -> Self {
        match not_opened {
            NotOpened::Refused(failure) | NotOpened::Failed(failure) => failure,
        }
    }
}
