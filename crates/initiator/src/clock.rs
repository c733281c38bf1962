//! The clock of this crate, which is tokio's, so that tests can pause it.

use std::time::Instant;

/// Returns the time of tokio's clock, which a test can pause.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
