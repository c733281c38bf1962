//! The clock of this crate.

use std::time::Instant;

/// Returns the time of tokio's clock, which a test can pause.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
