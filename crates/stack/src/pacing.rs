//! How fast the destage of one cache may go: by the settings and the time of the day, or as somebody
//! has said on the control socket.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use cache::Cache;
use config::{Schedule, TimeOfDay};
use control::Rate;
use parking_lot::Mutex;

/// Tells a cache its rate, for as long as it lives.
pub struct Pacing {
    cache: Arc<Cache>,
    inner: Mutex<DestagePacingState>,
}

struct DestagePacingState {
    schedule: Schedule,
    /// What was said goes before the schedule.
    told: Rate,
}

impl Pacing {
    /// Begins to keep a cache to a schedule. In a runtime.
    pub fn begin(cache: Arc<Cache>, schedule: Schedule) -> Arc<Self> {
        let inner = Mutex::new(DestagePacingState { schedule, told: Rate::Settings });
        let pacing = Arc::new(Self { cache, inner });
        pacing.apply();
        tokio::spawn(look_at_the_clock(Arc::downgrade(&pacing)));
        pacing
    }

    /// Other settings hold from now on. What was said on the control socket stays.
    pub fn follow(&self, schedule: Schedule) {
        self.inner.lock().schedule = schedule;
        self.apply();
    }

    /// Somebody says how fast.
    pub fn tell(&self, rate: Rate) {
        self.inner.lock().told = rate;
        self.apply();
    }

    /// Who says how fast: "settings" or "control".
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

/// Looks often enough that a clock which is set, or a summer that begins, is followed at once.
async fn look_at_the_clock(pacing: Weak<Pacing>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Some(pacing) = pacing.upgrade() else { return };
        pacing.apply();
    }
}

/// Local time, as TZ or /etc/localtime say.
fn time_of_day() -> TimeOfDay {
    let now = jiff::Zoned::now();
    let minutes = i32::from(now.hour()) * 60 + i32::from(now.minute());
    TimeOfDay(u16::try_from(minutes).expect("hours and minutes of a day"))
}

/// Rates change with the minute; this is soon enough after it.
const LOOK_EVERY: Duration = Duration::from_secs(5);
