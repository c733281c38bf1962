//! The pace of destage from the log to the lower volume (level 2). Destage gives way to requests of hosts until the log
//! is filled beyond its threshold or data has waited too long (STICS 4.3.3). Destage keeps to the configured rate, and
//! waits while it is paused.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::{Instant, sleep};

use crate::core::CacheCore;

/// The activity of hosts and the amount of sent data, as far as the pace depends on them.
pub(crate) struct DestagePace {
    /// The number of hosts' requests that the last call of [`Self::quiet`] has seen.
    seen: u64,
    /// The time since which there was no request, and no host waited for the lower volume.
    quiet_since: Instant,
    /// Bytes that were sent beyond the configured rate until `settled`.
    debt: f64,
    settled: Instant,
}

/// The reason why destage must wait.
enum Obstacle {
    /// An operator has paused destage, or has set the rate to 0.
    Hold,
    /// Destage has to wait this long, or it would exceed the configured rate.
    Rate(Duration),
    /// Hosts have sent requests lately: destage waits at least this long for an idle period.
    Requests(Duration),
}

impl DestagePace {
    pub fn new() -> Self {
        let now = Instant::now();
        Self { seen: 0, quiet_since: now, debt: 0.0, settled: now }
    }

    /// Waits until the next piece may be sent. The future may be dropped at any time.
    pub async fn give_way(&mut self, shared: &CacheCore) {
        while let Some(obstacle) = self.obstacle(shared) {
            shared.follow_growth().await;
            let time = match obstacle {
                Obstacle::Rate(time) | Obstacle::Requests(time) => time,
                Obstacle::Hold => {
                    refresh_superblock(shared).await;
                    HELD_LOOK
                }
            };
            tokio::select! {
                () = sleep(time) => {}
                () = shared.signals.wake_destage.notified() => {}
            }
        }
    }

    /// Counts `bytes` bytes that destage sends now, against the configured rate.
    pub fn spend(&mut self, shared: &CacheCore, bytes: u64) {
        let mut state = shared.state.lock();
        state.destage.meter.count(bytes);
        if state.destage.orders.rate.is_some() {
            self.debt += bytes as f64;
        }
    }

    fn obstacle(&mut self, shared: &CacheCore) -> Option<Obstacle> {
        let state = shared.state.lock();
        if shared.ends_round(&state) {
            return None;
        }
        if state.destage.orders.hold().is_some() {
            return Some(Obstacle::Hold);
        }
        let wait = self.settle(state.destage.orders.rate);
        if !wait.is_zero() {
            return Some(Obstacle::Rate(wait));
        }
        let filled = f64::from(state.log.ring.used()) / f64::from(state.log.ring.blocks());
        let age = Duration::from_millis(shared.settings.max_dirty_age_ms);
        let is_urgent = state.destage.draining > 0
            || state.destage.is_starving
            || filled > shared.settings.destage_threshold
            || state.destage.dirty_since.is_some_and(|since| since.elapsed() > age);
        drop(state);
        let quiet = self.quiet(shared);
        let period = Duration::from_millis(shared.settings.idle_ms);
        (!is_urgent && quiet < period).then(|| Obstacle::Requests((period - quiet).min(LOOK)))
    }

    /// Subtracts what the rate has allowed since the last call from the debt. Returns the time until the debt
    /// is paid.
    fn settle(&mut self, rate: Option<u64>) -> Duration {
        let now = Instant::now();
        let elapsed = (now - std::mem::replace(&mut self.settled, now)).as_secs_f64();
        let Some(rate) = rate else {
            self.debt = 0.0;
            return Duration::ZERO;
        };
        self.debt = (self.debt - elapsed * rate as f64).max(0.0);
        // Less than a byte is a rounding error.
        if self.debt < 1.0 { Duration::ZERO } else { wait_for(self.debt / rate as f64) }
    }

    /// Returns for how long hosts have sent no request and have waited for no read of the lower volume. A
    /// request counts from the call of this function that first sees it.
    fn quiet(&mut self, shared: &CacheCore) -> Duration {
        let requests = shared.counters.requests.value();
        let fetching = shared.lower.link.host_fetches.load(Ordering::Relaxed) > 0;
        if fetching || requests != std::mem::replace(&mut self.seen, requests) {
            self.quiet_since = Instant::now();
        }
        self.quiet_since.elapsed()
    }
}

/// Returns a wait of at least a millisecond, since timers count whole milliseconds, and of at most a minute.
fn wait_for(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.clamp(0.001, 60.0))
}

/// Updates the number of the newest stable segment in the superblock, if it is too low. While nothing is sent
/// to the lower volume, no round does that.
pub(crate) async fn refresh_superblock(shared: &CacheCore) {
    let known = shared.log.superblock.lock().await.committed;
    if known + 1 < shared.state.lock().log.ring.next()
        && let Err(error) = shared.write_superblock(|_| {}).await
    {
        tracing::debug!(%error, "cannot record the newest segment in the superblock");
    }
}

/// How often a destage that waits for idle hosts checks whether it has become urgent. A log of 8 MiB takes
/// longer to fill from any disk.
const LOOK: Duration = Duration::from_millis(20);

/// How often a destage that is held checks for growth of the volume and updates the superblock.
const HELD_LOOK: Duration = Duration::from_secs(5);
