//! How long calls took: counted in classes, by many at once.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Counters of times. A class is a quarter of an octave: what it says is good to 25 %.
///
/// Two relaxed additions for each time: 6 ns, where nobody else counts at the same moment. Looking at
/// the clock twice costs 70 ns; who counts what does not take much longer looks at one call in many, and
/// counts it for all of them.
#[derive(Debug)]
pub struct TimeHistogram {
    classes: [AtomicU64; CLASSES],
    sum_ns: AtomicU64,
}

impl TimeHistogram {
    /// A call took this long, and `weight` calls like it.
    pub fn add(&self, time: Duration, weight: u64) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.classes[class_of(ns)].fetch_add(weight, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns.saturating_mul(weight), Ordering::Relaxed);
    }

    /// What was counted.
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

/// Times that were counted.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TimeHistogramSnapshot {
    classes: Vec<u64>,
    sum_ns: u64,
}

impl TimeHistogramSnapshot {
    /// How many.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.classes.iter().sum()
    }

    /// Nothing if there were none.
    #[must_use]
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.sum_ns.checked_div(self.count()).unwrap_or(0))
    }

    /// What `share` (0 to 1) of them took at most; nothing if there were none. Above the truth by up to
    /// 25 %.
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

    /// Each class that has any: its end, and how many are in it.
    pub fn classes(&self) -> impl Iterator<Item = (Duration, u64)> {
        let classes = self.classes.iter().enumerate().filter(|(_, count)| **count > 0);
        classes.map(|(class, count)| (Duration::from_nanos(end_of(class)), *count))
    }
}

/// Adds what others have counted.
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

/// The first classes are as wide as this.
const GRAIN_NS: u64 = 256;
/// The last begins at 4 minutes: longer than any call waits.
const CLASSES: usize = 120;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_below_the_end_of_its_class_and_not_by_much() {
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
    fn quantiles_and_the_mean_are_of_what_was_counted() {
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
