//! The fill of the log in percent, and the time until it is full at the present rate.

use std::time::Duration;

use crate::{
    slot::SLOT_BYTES,
    state::{Shared, State},
};

/// The fill of the log at one moment.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Fill {
    /// From 0 to 100; 100 only if no write fits any more.
    pub percent: u64,
    /// Time until it is full at the present rate; `None` if it does not fill.
    pub lasts: Option<Duration>,
}

impl Shared {
    pub fn fill(&self, state: &mut State) -> Fill {
        let most = state.ring.most_room().saturating_sub(state.ring.reserve()).max(1);
        let left = state.ring.room().saturating_sub(self.promised_room(state));
        let is_full = left < LEAST_WRITE || !state.log_line.is_empty();
        let used = most.saturating_sub(left);
        let percent = match is_full {
            true => 100,
            false => (u64::from(used) * 100 / u64::from(most)).min(99),
        };
        let growth = state.gauge.growth(used);
        let seconds = f64::from(left) / growth;
        let lasts = (growth * SLOT_BYTES as f64 >= 1.0 && seconds < LONGEST)
            .then(|| Duration::from_secs_f64(seconds));
        Fill { percent, lasts: if is_full { None } else { lasts } }
    }
}

/// Blocks of the log for a write of one slot: its data, and the headers that are counted for it.
const LEAST_WRITE: u32 = 3;
/// Beyond a year the log lasts, in seconds.
const LONGEST: f64 = 365.0 * 86_400.0;
