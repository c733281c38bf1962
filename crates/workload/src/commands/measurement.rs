//! Counts the commands that were answered during the measurement.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::{Error, WorkloadResult};

/// Upper bound of the histogram: a longer turnaround time is recorded as this one. No command takes as long, since the
/// session aborts it much earlier.
const LONGEST: Duration = Duration::from_secs(3600);

/// The turnaround times of commands that were answered during the measurement.
pub(super) struct CommandMeasurement {
    begin: Instant,
    end: Instant,
    /// The time at which the last command was answered.
    last: Instant,
    /// Turnaround times in microseconds, with three significant digits. The histogram takes a few hundred KiB for any
    /// number of commands.
    turnaround: Histogram<u64>,
}

impl CommandMeasurement {
    pub(super) fn new(begin: Instant, end: Instant) -> Self {
        let longest_us = LONGEST.as_micros() as u64;
        let turnaround = Histogram::new_with_bounds(1, longest_us, 3).expect("bounds in order");
        Self { begin, end, last: begin, turnaround }
    }

    pub(super) fn add(&mut self, sent: Instant, answered: Instant) {
        if answered < self.begin || answered >= self.end {
            return;
        }
        self.last = answered;
        let us = (answered - sent).as_micros().try_into().unwrap_or(u64::MAX);
        self.turnaround.saturating_record(us);
    }

    /// Returns the result. `is_all` is true if the measurement ended early, because all data was transferred.
    ///
    /// # Errors
    /// If no command was answered during the measurement.
    pub(super) fn outcome(
        &self,
        block: u32,
        is_all: bool,
        verified: String,
    ) -> Result<WorkloadResult, Error> {
        let commands = self.turnaround.len();
        if commands == 0 && is_all {
            let what = "all data was transferred during the warm-up: choose a larger total or a shorter warm-up";
            return Err(Error::Settings(what.to_owned()));
        }
        if commands == 0 {
            let reason = "no command was answered during the measurement".to_owned();
            return Err(Error::Session { act: "measure".to_owned(), reason });
        }
        let end = if is_all { self.last } else { self.end };
        let time = (end - self.begin).as_secs_f64().max(1e-6);
        let ms = |us: f64| us / 1000.0;
        let bits = commands as f64 * f64::from(block) * 8.0;
        Ok(WorkloadResult { verified, ..WorkloadResult::default() }
            .figure("throughput", "Mbit/s", bits / time / 1e6)
            .figure("commands", "", commands as f64)
            .figure("turnaround mean", "ms", ms(self.turnaround.mean()))
            .figure("turnaround deviation", "ms", ms(self.turnaround.stdev()))
            .figure("turnaround p99", "ms", ms(self.turnaround.value_at_quantile(0.99) as f64))
            .figure("turnaround longest", "ms", ms(self.turnaround.max() as f64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_commands_answered_within_the_interval_count() {
        let zero = Instant::now();
        let at = |ms: u64| zero + Duration::from_millis(ms);
        let mut measured = CommandMeasurement::new(at(1000), at(2000));
        for (sent, answered) in [(0, 900), (900, 1100), (1900, 1999), (1500, 2000)] {
            measured.add(at(sent), at(answered));
        }
        let outcome = measured.outcome(1 << 20, false, String::new()).unwrap();
        assert_eq!(outcome.get("commands"), Some(2.0));
        let throughput = outcome.get("throughput").unwrap();
        assert!((throughput - 2.0 * 8.0 * 1.048_576).abs() < 1e-6, "{throughput}");
        let mean = outcome.get("turnaround mean").unwrap();
        assert!((mean - 149.5).abs() < 0.5, "{mean}");
    }

    #[test]
    fn a_measurement_without_commands_is_an_error() {
        let zero = Instant::now();
        let at = |ms: u64| zero + Duration::from_millis(ms);
        let mut measured = CommandMeasurement::new(at(1000), at(2000));
        measured.add(at(0), at(900));
        let error = measured.outcome(4096, true, String::new()).unwrap_err().to_string();
        assert!(error.contains("during the warm-up"), "{error}");
        let error = measured.outcome(4096, false, String::new()).unwrap_err().to_string();
        assert!(error.contains("no command was answered"), "{error}");
    }
}
