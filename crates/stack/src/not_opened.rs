//! The reasons why the storage of a unit was not opened.

use control::Failure;

/// The reason why a unit's storage was not opened.
#[derive(Debug)]
pub enum NotOpened {
    /// The storage does not agree with its record, or another gateway has the claim. Other units of the process can
    /// be served.
    Refused(Failure),
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
