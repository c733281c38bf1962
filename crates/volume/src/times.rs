//! A histogram of durations that many threads can update.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// A histogram of durations. A class spans a quarter of an octave, so its bounds are exact to 25 %.
///
/// Recording a time takes two relaxed additions: 6 ns if no other thread counts at the same moment. Reading the clock
/// twice takes 70 ns. For short calls, measure one call in many and record its time with their number as weight.
#[derive(Debug)]
pub struct TimeHistogram {
    classes: [AtomicU64; CLASSES],
    sum_ns: AtomicU64,
}

impl TimeHistogram {
    /// Counts `weight` calls that took `time` each. The caller need not have measured each of them.
    pub fn add(&self, time: Duration, weight: u64) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.classes[class_of(ns)].fetch_add(weight, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns.saturating_mul(weight), Ordering::Relaxed);
    }

    pub fn taken(&self) -> TimeHistogramSnapshot {
        TimeHistogramSnapshot {
            classes: self.classes.iter().map(|class| class.load(Ordering::Relaxed)).collect(),
            sum_ns: self.sum_ns.load(Ordering::Relaxed),
        }
    }
}

impl Default for TimeHistogram {
    fn default() -> Self {
        Self { classes: [const { AtomicU64::new(0) }; CLASSES], sum_ns: AtomicU64::new(0) }
    }
}

#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TimeHistogramSnapshot {
    classes: Vec<u64>,
    sum_ns: u64,
}

impl TimeHistogramSnapshot {
    /// Returns the number of counted calls.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.classes.iter().sum()
    }

    /// Returns the mean time; zero if no calls were counted.
    #[must_use]
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.sum_ns.checked_div(self.count()).unwrap_or(0))
    }

    /// Returns the time that a `share` (0 to 1) of the calls took at most; zero if there are no calls.
    /// The result is up to 25 % too high.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        let wanted = ((self.count() as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (end, count) in self.classes() {
            seen += count;
            if seen >= wanted {
                return end;
            }
        }
        Duration::ZERO
    }

    /// Returns the upper bound and the count of each class that is not empty.
    pub fn classes(&self) -> impl Iterator<Item = (Duration, u64)> {
        let classes = self.classes.iter().enumerate().filter(|(_, count)| **count > 0);
        classes.map(|(class, count)| (Duration::from_nanos(end_of(class)), *count))
    }
}

/// Adds the counts of the other histogram, class by class.
impl std::ops::AddAssign<&TimeHistogramSnapshot> for TimeHistogramSnapshot {
    fn add_assign(&mut self, other: &TimeHistogramSnapshot) {
        self.classes.resize(self.classes.len().max(other.classes.len()), 0);
        self.classes.iter_mut().zip(&other.classes).for_each(|(sum, count)| *sum += count);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }
}

fn class_of(ns: u64) -> usize {
    let grains = ns / GRAIN_NS;
    if grains < 4 {
        return grains as usize;
    }
    let octave = grains.ilog2() as usize;
    let quarter = (grains >> (octave - 2)) as usize & 3;
    ((octave - 1) * 4 + quarter).min(CLASSES - 1)
}

fn end_of(class: usize) -> u64 {
    if class < 4 {
        return (class as u64 + 1) * GRAIN_NS;
    }
    (class as u64 % 4 + 5) << (class / 4 - 1) << GRAIN_NS.ilog2()
}

/// Width of the first classes in nanoseconds.
const GRAIN_NS: u64 = 256;
/// Number of classes; the last one begins at 4 minutes, longer than any call waits.
const CLASSES: usize = 120;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_below_the_end_of_its_class_by_at_most_a_quarter() {
        for ns in
            (0..5000).chain((12..37).flat_map(|bits| [1 << bits, (1 << bits) - 1, 3 << bits >> 1]))
        {
            let end = end_of(class_of(ns));
            assert!(
                end > ns && end <= (ns + ns / 4).max(ns + GRAIN_NS) + 1,
                "{ns} in a class to {end}"
            );
        }
        assert_eq!(class_of(u64::MAX), CLASSES - 1);
    }

    #[test]
    fn quantiles_and_the_mean_cover_every_counted_time() {
        let times = TimeHistogram::default();
        assert_eq!((times.taken().quantile(0.5), times.taken().mean()), Default::default());
        times.add(Duration::from_micros(10), 99);
        times.add(Duration::from_millis(10), 1);
        let taken = times.taken();
        assert_eq!((taken.count(), taken.mean()), (100, Duration::from_nanos(109_900)));
        assert!((10..=13).contains(&taken.quantile(0.5).as_micros()));
        assert!((10..=13).contains(&taken.quantile(1.0).as_millis()));
        let mut sum = TimeHistogramSnapshot::default();
        sum += &taken;
        sum += &taken;
        assert_eq!(sum.count(), 200);
        assert_eq!(sum.classes().map(|(_, count)| count).collect::<Vec<_>>(), [198, 2]);
    }
}
