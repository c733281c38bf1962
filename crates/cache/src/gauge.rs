//! Measures how fast hosts write to the log, and how fast the log fills.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// Samples of the use of the log, taken in the last ten minutes, the oldest first.
#[derive(Default)]
pub(crate) struct LogFillGauge {
    samples: VecDeque<Sample>,
}

#[derive(Clone, Copy)]
struct Sample {
    at: Instant,
    /// Number of log blocks in use.
    used: u32,
    /// Number of blocks written to the log so far.
    appended: u64,
}

/// The rates of the log in the last minute and in the last ten minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct RecentLogFillRates {
    pub minute: LogFillRates,
    pub ten_minutes: LogFillRates,
}

/// The rates of the log in blocks per second, averaged over a window of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LogFillRates {
    /// Growth of the blocks in use. The rate is negative while destage frees more blocks than hosts write.
    pub growth: f64,
    /// Blocks written to the log. The log fills at this rate while nothing is destaged.
    pub appended: f64,
}

impl LogFillGauge {
    /// Notes that `used` blocks are in use now and that `appended` were written so far. Returns the rates up to
    /// now.
    pub fn rates(&mut self, used: u32, appended: u64) -> RecentLogFillRates {
        let at = Instant::now();
        while self.samples.front().is_some_and(|sample| at - sample.at > TEN_MINUTES) {
            self.samples.pop_front();
        }
        if self.samples.back().is_none_or(|sample| at - sample.at >= LEAST_APART) {
            self.samples.push_back(Sample { at, used, appended });
        }
        let now = Sample { at, used, appended };
        let first_of_minute = self.samples.partition_point(|sample| at - sample.at > MINUTE);
        let since =
            |then: Option<&Sample>| then.map_or_else(LogFillRates::default, |then| now.since(then));
        RecentLogFillRates {
            minute: since(self.samples.get(first_of_minute)),
            ten_minutes: since(self.samples.front()),
        }
    }
}

impl Sample {
    fn since(&self, then: &Self) -> LogFillRates {
        let seconds = (self.at - then.at).as_secs_f64();
        if seconds == 0.0 {
            return LogFillRates::default();
        }
        LogFillRates {
            growth: (f64::from(self.used) - f64::from(then.used)) / seconds,
            appended: self.appended.saturating_sub(then.appended) as f64 / seconds,
        }
    }
}

/// The short averaging window: several destage rounds fall into one minute, and each frees log blocks in a jump.
const MINUTE: Duration = Duration::from_secs(60);
/// The long averaging window. A monitor warns if the log will be full in less than an hour. Averaged over ten minutes,
/// a burst of writes causes this warning only if it fills a sixth of the free log. (With the short window, a tenth
/// within a minute is enough.)
pub(crate) const TEN_MINUTES: Duration = Duration::from_secs(600);
/// A sample is kept only if this time has passed since the last one kept.
const LEAST_APART: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_rates_are_those_of_the_last_minute_and_of_the_last_ten() {
        let mut gauge = LogFillGauge::default();
        assert_eq!(gauge.rates(1000, 7000), RecentLogFillRates::default());
        let (mut used, mut appended) = (1000, 7000);
        for _ in 0..120 {
            advance(Duration::from_millis(500)).await;
            used += 5;
            appended += 20;
            gauge.rates(used, appended);
        }
        let rates = gauge.rates(used, appended).minute;
        assert!((rates.growth - 10.0).abs() < 0.1 && (rates.appended - 40.0).abs() < 0.1);
        for _ in 0..62 {
            advance(Duration::from_secs(1)).await;
            gauge.rates(used, appended);
        }
        let rates = gauge.rates(used, appended);
        assert_eq!(rates.minute, LogFillRates::default(), "nothing came in for a minute");
        assert!(rates.ten_minutes.growth > 4.0 && rates.ten_minutes.appended > 18.0, "{rates:?}");
        advance(Duration::from_secs(1)).await;
        assert!(gauge.rates(used - 100, appended).minute.growth < 0.0);
        for _ in 0..602 {
            advance(Duration::from_secs(1)).await;
            gauge.rates(used, appended);
        }
        assert_eq!(gauge.rates(used, appended), RecentLogFillRates::default());
        assert!(gauge.samples.len() <= 602);
    }
}
