//! Whether the machine let the emulator work: how late packets were given, and how much time was
//! stolen from the machine. A run in which it did not measures something else than the link.

use std::{fs, time::Duration};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Lateness, stolen time and packets lost here since it was made.
#[derive(Debug)]
pub(crate) struct Timeliness {
    late: Histogram<u64>,
    begun: Option<Ticks>,
    /// Packets without room before.
    no_room: u64,
}

/// How late packets were given to their receiver: after the time at which they should have arrived, in microseconds.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Lateness {
    /// So many times something was given.
    pub count: u64,
    /// Half of them came no later than this.
    pub median_us: f64,
    /// 99 of a hundred.
    pub p99_us: f64,
    /// 999 of a thousand.
    pub p999_us: f64,
    /// All.
    pub max_us: f64,
}

/// What the issue of a link asks of its delay: met within this in the median.
const LATE_MEDIAN_US: f64 = 100.0;
/// And within this for 99 of a hundred packets.
const LATE_P99_US: f64 = 1000.0;
/// Share of the machine's time that somebody else had: then gaps of 5 to 50 ms were seen.
const STOLEN: f64 = 0.01;
/// Nothing is later than it could be on its way.
const LATEST: Duration = Duration::from_secs(20);

impl Timeliness {
    /// From now on; `no_room` packets had none before.
    pub fn since(no_room: u64) -> Self {
        // Two digits: a percent is exact enough, in 20 KiB.
        let late = Histogram::new_with_bounds(1, LATEST.as_nanos() as u64, 2)
            .expect("bounds that a histogram can have");
        Self { late, begun: Ticks::now(), no_room }
    }

    /// Something was given so much too late.
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

    /// The share of the machine's time that was stolen from it; `None` if it does not say.
    pub fn stolen(&self) -> Option<f64> {
        let (begun, now) = (self.begun?, Ticks::now()?);
        let all = now.all.checked_sub(begun.all).filter(|all| *all > 0)?;
        Some(now.stolen.saturating_sub(begun.stolen) as f64 / all as f64)
    }

    /// Why a run with such figures cannot be trusted; empty if it can. `no_room` packets had none since
    /// the link was made.
    pub fn taints(&self, lateness: &Lateness, stolen: Option<f64>, no_room: u64) -> Vec<String> {
        let mut taints = Vec::new();
        let Lateness { median_us, p99_us, .. } = *lateness;
        if median_us > LATE_MEDIAN_US {
            taints
                .push(format!("packets came {median_us:.0} us late in the median, more than 100"));
        }
        if p99_us > LATE_P99_US {
            taints
                .push(format!("one packet of a hundred came {p99_us:.0} us late, more than 1000"));
        }
        if let Some(stolen) = stolen.filter(|stolen| *stolen > STOLEN) {
            let percent = stolen * 100.0;
            taints.push(format!("{percent:.1} % of this machine's time was stolen, more than 1"));
        }
        let no_room = no_room.saturating_sub(self.no_room);
        if no_room > 0 {
            taints.push(format!("{no_room} packets were dropped for lack of memory"));
        }
        taints
    }
}

/// Of all CPUs since the machine started, in its clock ticks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Ticks {
    all: u64,
    stolen: u64,
}

impl Ticks {
    fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// The first line of that file: user, nice, system, idle, iowait, irq, softirq, steal; guests
    /// after that are in user already (proc(5)).
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
