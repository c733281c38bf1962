//! The unit's clock. The clock shows the time of the machine until an initiator sets it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use scsi::{Timestamp, TimestampOrigin};
use tokio::time::Instant;

/// The time that REPORT TIMESTAMP returns.
#[derive(Debug, Default)]
pub(crate) struct UnitClock {
    /// The time that an initiator has set, in milliseconds since 1970, and the moment when it was set.
    set: Mutex<Option<(u64, Instant)>>,
}

impl UnitClock {
    pub(crate) fn set(&self, milliseconds: u64) {
        *self.set.lock() = Some((milliseconds, Instant::now()));
    }

    /// Forgets the time that was set, as a hard reset does (SPC-4, 5.2).
    pub(crate) fn reset(&self) {
        *self.set.lock() = None;
    }

    pub(crate) fn now(&self) -> Timestamp {
        let whole = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let (origin, milliseconds) = match *self.set.lock() {
            Some((set, at)) => {
                (TimestampOrigin::Initiator, set.saturating_add(whole(at.elapsed())))
            }
            None => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH);
                (TimestampOrigin::Elsewhere, whole(since.unwrap_or_default()))
            }
        };
        Timestamp { origin, milliseconds }
    }
}
