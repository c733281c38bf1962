//! The rates at which the log is written and at which it fills.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// Samples of the last minute, the oldest first.
#[derive(Default)]
pub(crate) struct LogFillGauge {
    samples: VecDeque<Sample>,
}

#[derive(Clone, Copy)]
struct Sample {
    at: Instant,
    /// Blocks of the log in use.
    used: u32,
    /// Blocks written to the log so far.
    appended: u64,
}

/// Blocks per second, averaged over the window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LogFillRates {
    /// Growth of the blocks in use. The rate is negative while destage frees more blocks than hosts write.
    pub growth: f64,
    /// Blocks written to the log. The log fills at this rate while nothing is destaged.
    pub appended: f64,
}

impl LogFillGauge {
    /// Notes that `used` blocks are in use now and that `appended` were written so far. Returns the rates of the
    /// last minute.
    pub fn rates(&mut self, used: u32, appended: u64) -> LogFillRates {
        let at = Instant::now();
        while self.samples.front().is_some_and(|sample| at - sample.at > WINDOW) {
            self.samples.pop_front();
        }
        if self.samples.back().is_none_or(|sample| at - sample.at >= LEAST_APART) {
            self.samples.push_back(Sample { at, used, appended });
        }
        let Some(then) = self.samples.front() else { return LogFillRates::default() };
        let seconds = (at - then.at).as_secs_f64();
        if seconds == 0.0 {
            return LogFillRates::default();
        }
        LogFillRates {
            growth: (f64::from(used) - f64::from(then.used)) / seconds,
            appended: appended.saturating_sub(then.appended) as f64 / seconds,
        }
    }
}

/// The averaging window: it contains several destage rounds, which free log blocks in jumps.
const WINDOW: Duration = Duration::from_secs(60);
/// A sample is kept only if this time has passed since the last one kept.
const LEAST_APART: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_rates_are_those_of_the_last_minute() {
        let mut gauge = LogFillGauge::default();
        assert_eq!(gauge.rates(1000, 7000), LogFillRates::default());
        let (mut used, mut appended) = (1000, 7000);
        for _ in 0..120 {
            advance(Duration::from_millis(500)).await;
            used += 5;
            appended += 20;
            gauge.rates(used, appended);
        }
        let rates = gauge.rates(used, appended);
        assert!((rates.growth - 10.0).abs() < 0.1 && (rates.appended - 40.0).abs() < 0.1);
        for _ in 0..62 {
            advance(Duration::from_secs(1)).await;
            gauge.rates(used, appended);
        }
        assert_eq!(
            gauge.rates(used, appended),
            LogFillRates::default(),
            "nothing came in for a minute"
        );
        advance(Duration::from_secs(1)).await;
        assert!(gauge.rates(used - 100, appended).growth < 0.0);
        assert!(gauge.samples.len() <= 62);
    }
}
