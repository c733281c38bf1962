//! Sets the destage rate of one cache: from the settings and the time of day, or from a command on
//! the control socket.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use cache::Cache;
use config::{Schedule, TimeOfDay};
use control::Rate;
use parking_lot::Mutex;

/// Sets the destage rate of a cache for as long as the cache exists.
pub struct Pacing {
    cache: Arc<Cache>,
    inner: Mutex<DestagePacingState>,
}

struct DestagePacingState {
    schedule: Schedule,
    /// The destage rate that was set over the control socket, which overrides the schedule.
    told: Rate,
}

impl Pacing {
    /// Starts to apply a schedule to a cache. Must be called within a tokio runtime.
    pub fn begin(cache: Arc<Cache>, schedule: Schedule) -> Arc<Self> {
        let inner = Mutex::new(DestagePacingState { schedule, told: Rate::Settings });
        let pacing = Arc::new(Self { cache, inner });
        pacing.apply();
        tokio::spawn(look_at_the_clock(Arc::downgrade(&pacing)));
        pacing
    }

    /// Replaces the schedule of destage rates. A rate that was set over the control socket stays in force.
    pub fn follow(&self, schedule: Schedule) {
        self.inner.lock().schedule = schedule;
        self.apply();
    }

    pub fn tell(&self, rate: Rate) {
        self.inner.lock().told = rate;
        self.apply();
    }

    /// Returns the source of the present rate: "settings" or "control".
    pub fn source(&self) -> &'static str {
        if self.inner.lock().told == Rate::Settings { "settings" } else { "control" }
    }

    fn apply(&self) {
        let inner = self.inner.lock();
        let rate = match inner.told {
            Rate::Bytes(bytes) => Some(bytes),
            Rate::Unlimited => None,
            Rate::Settings => inner.schedule.rate_at(time_of_day()),
        };
        self.cache.set_destage_rate(rate);
    }
}

/// Applies the schedule often, so that a change of the clock or of daylight saving time takes effect
/// soon.
async fn look_at_the_clock(pacing: Weak<Pacing>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Some(pacing) = pacing.upgrade() else { return };
        pacing.apply();
    }
}

/// Returns the local time of day, according to TZ or /etc/localtime.
fn time_of_day() -> TimeOfDay {
    let now = jiff::Zoned::now();
    let minutes = i32::from(now.hour()) * 60 + i32::from(now.minute());
    TimeOfDay(u16::try_from(minutes).expect("hours and minutes of a day"))
}

/// Interval at which the clock is checked. Rates change at full minutes, and a few seconds of delay do no harm.
const LOOK_EVERY: Duration = Duration::from_secs(5);
