//! Measures the current rate of a flow of bytes.

use std::time::Duration;

use tokio::time::Instant;

/// Counts bytes in the current second and in the previous one, to compute a rate.
pub(crate) struct Meter {
    began: Instant,
    now: u64,
    before: u64,
}

impl Meter {
    pub fn new() -> Self {
        Self { began: Instant::now(), now: 0, before: 0 }
    }

    pub fn count(&mut self, bytes: u64) {
        self.turn();
        self.now += bytes;
    }

    /// Returns the rate in bytes per second, averaged over the last one to two seconds.
    pub fn rate(&mut self) -> u64 {
        let running = self.turn();
        let seconds = SECOND + running;
        ((self.before + self.now) as f64 / seconds.as_secs_f64()) as u64
    }

    /// Begins a new second if the current one is over. Returns how long the current second has lasted.
    fn turn(&mut self) -> Duration {
        let running = self.began.elapsed();
        if running < SECOND {
            return running;
        }
        self.before = if running < SECOND * 2 { self.now } else { 0 };
        self.now = 0;
        let rest = Duration::from_nanos(u64::from(running.subsec_nanos()));
        self.began += running - rest;
        rest
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_rate_is_that_of_the_last_seconds() {
        let mut meter = Meter::new();
        for _ in 0..30 {
            meter.count(100);
            advance(Duration::from_millis(100)).await;
        }
        assert_eq!(meter.rate(), 1000);
        advance(SECOND * 3).await;
        assert_eq!(meter.rate(), 0);
    }
}
