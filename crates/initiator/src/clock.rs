//! The time.

use std::time::Instant;

/// The time, from the clock that a test can pause.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
