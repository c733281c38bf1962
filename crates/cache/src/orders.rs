//! The operator's requests to level 2 destage: pause, or a limit of the rate.

use tokio::time::Instant;

/// The pause and the rate of destage that an operator has requested. They are valid until they are changed or the cache
/// is opened again.
#[derive(Default)]
pub(crate) struct Orders {
    /// The time since which destage is paused; `None` if it is not. During a pause no destage round
    /// begins.
    pub paused_since: Option<Instant>,
    /// Bytes per second that may be destaged. With 0 no data is destaged; `None` means no limit.
    pub rate: Option<u64>,
}

impl Orders {
    /// Returns why no data is destaged: a pause, or a rate of 0. Returns `None` otherwise.
    pub fn hold(&self) -> Option<&'static str> {
        if self.paused_since.is_some() {
            Some("destage is paused")
        } else if self.rate == Some(0) {
            Some("the rate of destage is 0 at this time")
        } else {
            None
        }
    }
}
