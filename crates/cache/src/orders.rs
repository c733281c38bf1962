//! What an operator has told level 2 destage: to pause, or how fast it may go.

use tokio::time::Instant;

/// Holds until it is told otherwise, or the cache is opened anew.
#[derive(Default)]
pub(crate) struct Orders {
    /// Nothing is begun since then.
    pub paused_since: Option<Instant>,
    /// Bytes per second that may go down; 0: none, `None`: as many as the link takes.
    pub rate: Option<u64>,
}

impl Orders {
    /// Why nothing goes down at all, if so.
    pub fn hold(&self) -> Option<&'static str> {
        if self.paused_since.is_some() {
            Some("destage is paused")
        } else if self.rate == Some(0) {
            Some("destage may send nothing at this time")
        } else {
            None
        }
    }
}
