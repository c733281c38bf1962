//! Judges whether the emulator could keep the times of the link: how late packets were delivered, and how much
//! processor time the host took from this machine. A run in which packets were too late has not measured the link.

use std::{fs, time::Duration};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Measures lateness, steal time and dropped packets of a run, to judge whether its results can be
/// trusted.
#[derive(Debug)]
pub(crate) struct Timeliness {
    late: Histogram<u64>,
    begun: Option<Ticks>,
    /// Packets dropped for lack of memory before the measurement began.
    no_room: u64,
}

/// The delay of packets beyond the time at which they should have arrived, in microseconds.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Lateness {
    pub count: u64,
    pub median_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
}

/// A run is in doubt (tainted) if the median lateness of its packets exceeds this number of microseconds.
const LATE_MEDIAN_US: f64 = 100.0;
/// A run is in doubt (tainted) if the 99th percentile of the lateness exceeds this number of microseconds.
const LATE_P99_US: f64 = 1000.0;
/// A run is in doubt (tainted) if the hypervisor takes a larger share of the processors' time than this (steal time).
/// With larger shares, the emulator was seen to stop for 5 to 50 ms.
const STOLEN: f64 = 0.01;
/// Upper bound of the histogram of the lateness: the longest time that a packet can be in flight, since delay and
/// jitter are at most 10 s each.
const LATEST: Duration = Duration::from_secs(20);

impl Timeliness {
    /// Begins a measurement. `no_room` is the number of packets dropped for lack of memory before
    /// it.
    pub fn since(no_room: u64) -> Self {
        // Two significant digits: an accuracy of one per cent is enough, and the histogram then takes 20 KiB.
        let late = Histogram::new_with_bounds(1, LATEST.as_nanos() as u64, 2)
            .expect("bounds that a histogram can have");
        Self { late, begun: Ticks::now(), no_room }
    }

    pub fn late(&mut self, by: Duration) {
        self.late.saturating_record(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX).max(1));
    }

    pub fn lateness(&self) -> Lateness {
        let at = |quantile| self.late.value_at_quantile(quantile) as f64 / 1000.0;
        if self.late.is_empty() {
            return Lateness::default();
        }
        Lateness {
            count: self.late.len(),
            median_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: self.late.max() as f64 / 1000.0,
        }
    }

    /// Returns the share of steal time since the measurement began; `None` if the machine does not
    /// report it.
    pub fn stolen(&self) -> Option<f64> {
        let (begun, now) = (self.begun?, Ticks::now()?);
        let all = now.all.checked_sub(begun.all).filter(|all| *all > 0)?;
        Some(now.stolen.saturating_sub(begun.stolen) as f64 / all as f64)
    }

    /// Returns the reasons why the results of this run cannot be trusted; empty if there are none. `no_room`:
    /// packets dropped for lack of memory since the link was made.
    pub fn taints(&self, lateness: &Lateness, stolen: Option<f64>, no_room: u64) -> Vec<String> {
        let mut taints = Vec::new();
        let Lateness { median_us, p99_us, .. } = *lateness;
        if median_us > LATE_MEDIAN_US {
            taints.push(format!(
                "packets arrived {median_us:.0} us late in the median (limit 100 us)"
            ));
        }
        if p99_us > LATE_P99_US {
            taints.push(format!(
                "one packet in a hundred arrived {p99_us:.0} us late (limit 1000 us)"
            ));
        }
        if let Some(stolen) = stolen.filter(|stolen| *stolen > STOLEN) {
            let percent = stolen * 100.0;
            taints.push(format!("{percent:.1} % of this machine's time was stolen (limit 1 %)"));
        }
        let no_room = no_room.saturating_sub(self.no_room);
        if no_room > 0 {
            taints.push(format!("{no_room} packets were dropped for lack of memory"));
        }
        taints
    }
}

/// Times of all CPUs since the start of the machine, in clock ticks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Ticks {
    all: u64,
    stolen: u64,
}

impl Ticks {
    fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// Parses the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal. The times of
    /// guests after these are part of user (proc(5)).
    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Option<Vec<u64>> =
            line.split_whitespace().take(8).map(|ticks| ticks.parse().ok()).collect();
        let ticks = ticks.filter(|ticks| ticks.len() == 8)?;
        Some(Self { all: ticks.iter().sum(), stolen: ticks[7] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_read() {
        let stat = "cpu  10 20 30 40 50 60 70 80 90 100\ncpu0 1 2\n";
        assert_eq!(Ticks::parse(stat), Some(Ticks { all: 360, stolen: 80 }));
        for wrong in ["", "cpu 1 2 3", "cpu  a 2 3 4 5 6 7 8", "intr 1"] {
            assert_eq!(Ticks::parse(wrong), None);
        }
    }

    #[test]
    fn a_machine_that_is_busy_elsewhere_taints_a_run() {
        let mut health = Timeliness::since(2);
        (0..1000).for_each(|_| health.late(Duration::from_micros(30)));
        let good = health.lateness();
        assert!((29.0..31.0).contains(&good.median_us), "{good:?}");
        assert_eq!(health.taints(&good, Some(0.002), 2), [""; 0]);
        (0..20).for_each(|_| health.late(Duration::from_millis(5)));
        assert_eq!(health.taints(&health.lateness(), Some(0.002), 2).len(), 1);
        assert_eq!(health.taints(&good, Some(0.02), 5).len(), 2);
        assert_eq!(health.taints(&Lateness::default(), None, 2), [""; 0]);
    }
}
