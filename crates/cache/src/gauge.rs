//! The rate at which the log fills.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// Blocks in use at moments of the last minute, oldest first.
#[derive(Default)]
pub(crate) struct Gauge {
    samples: VecDeque<(Instant, u32)>,
}

impl Gauge {
    /// Notes that `used` blocks are in use now. Returns the growth in blocks per second, averaged over the
    /// window. It is negative while destage frees more blocks than hosts write.
    pub fn growth(&mut self, used: u32) -> f64 {
        let now = Instant::now();
        let is_old = |&(at, _): &(Instant, u32)| now - at > WINDOW;
        while self.samples.front().is_some_and(is_old) {
            self.samples.pop_front();
        }
        if self.samples.back().is_none_or(|&(at, _)| now - at >= LEAST_APART) {
            self.samples.push_back((now, used));
        }
        let Some(&(then, before)) = self.samples.front() else { return 0.0 };
        let seconds = (now - then).as_secs_f64();
        if seconds > 0.0 { (f64::from(used) - f64::from(before)) / seconds } else { 0.0 }
    }
}

/// Long enough to hold several rounds of destage, which free the log in jumps.
const WINDOW: Duration = Duration::from_secs(60);
/// A sample is kept only if this time has passed since the one before.
const LEAST_APART: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_rate_is_that_of_the_last_minute() {
        let mut gauge = Gauge::default();
        assert_eq!(gauge.growth(1000), 0.0);
        let mut used = 1000;
        for _ in 0..120 {
            advance(Duration::from_millis(500)).await;
            used += 5;
            gauge.growth(used);
        }
        assert!((gauge.growth(used) - 10.0).abs() < 0.1);
        for _ in 0..62 {
            advance(Duration::from_secs(1)).await;
            gauge.growth(used);
        }
        assert_eq!(gauge.growth(used), 0.0, "nothing came in for a minute");
        advance(Duration::from_secs(1)).await;
        assert!(gauge.growth(used - 100) < 0.0);
        assert!(gauge.samples.len() <= 62);
    }
}
