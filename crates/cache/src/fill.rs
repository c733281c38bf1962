//! The fill of the log in percent, and the time until it is full at the recent rate.

use std::time::Duration;

use crate::{
    core::CacheCore,
    gauge::{LogFillRates, TEN_MINUTES},
    slots::sectors::SLOT_BYTES,
    state::CacheState,
};

/// How full the log is at one moment.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct LogFill {
    /// From 0 to 100. The value is 100 only if even a write of one slot does not fit, or a waiting write does
    /// not fit.
    pub percent: u64,
    /// Time until the log is full at the rate of the last ten minutes, or at that of the last minute if this
    /// fills it within ten minutes; `None` if it does not fill, or is full.
    pub lasts: Option<Duration>,
}

impl CacheCore {
    pub fn fill(&self, state: &mut CacheState) -> LogFill {
        let most = state.log.ring.most_room().saturating_sub(state.log.ring.reserve()).max(1);
        let left = state.log.ring.room().saturating_sub(state.promised_room());
        // Compare with the room that the first waiting call wants: a call in this queue may wait for something
        // else, such as the end of a resize or entries of the slot table.
        let lacks_room = state.room.log_line.first().is_some_and(|wants| wants > left as usize);
        let is_full = left < LEAST_WRITE || lacks_room;
        let used = most.saturating_sub(left);
        let percent = match is_full {
            true => 100,
            false => (u64::from(used) * 100 / u64::from(most)).min(99),
        };
        let rates = state.log.gauge.rates(used, state.log.ring.pushed());
        // While destage is stopped, use the rate at which hosts write. The growth of the last minutes may be lower,
        // because destage may have run in a part of them.
        let is_stopped = self.is_away(state)
            || state.lower.refuses.is_some()
            || state.destage.orders.hold().is_some();
        let lasts_at = |rates: LogFillRates| {
            let growth = if is_stopped { rates.appended } else { rates.growth };
            let seconds = f64::from(left) / growth;
            let fills = growth * SLOT_BYTES as f64 >= 1.0 && seconds < LONGEST;
            fills.then(|| Duration::from_secs_f64(seconds))
        };
        // Use the rate of the last minute only if the log would be full within ten minutes at that rate: otherwise a
        // short burst of writes would look as if the log were about to be full.
        let soon = lasts_at(rates.minute).filter(|lasts| *lasts < TEN_MINUTES);
        let lasts = soon.or_else(|| lasts_at(rates.ten_minutes));
        LogFill { percent, lasts: if is_full { None } else { lasts } }
    }
}

/// Number of log blocks that a write of one slot needs: its data, and the headers that are counted
/// for it.
const LEAST_WRITE: u32 = 3;
/// One year in seconds: a log that lasts longer counts as one that does not fill.
const LONGEST: f64 = 365.0 * 86_400.0;
