//! Estimates how much later than requested a sleep ends. On a virtual machine, a sleeping processor takes some 50 us to
//! wake. A thread that has to be on time therefore sleeps for a shorter time, and then busy-waits until its time has
//! come.

use std::time::Duration;

/// Estimates how much later than requested a sleep ends. Nine of ten sleeps end within the
/// estimate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Oversleep {
    estimate: Duration,
    most: Duration,
}

/// The estimate of the oversleep rises by this time after a sleep that ended later than estimated.
const UP: Duration = Duration::from_micros(9);
/// The estimate falls by this time after a sleep that did not end later than estimated: a ninth of [`UP`], so that nine
/// of ten sleeps end within the estimate.
const DOWN: Duration = Duration::from_micros(1);
/// Upper bound of the estimate, and so of the busy-waiting for one packet. If sleeps end even later, the machine is
/// busy, and busy-waiting would only take time from other programs.
const MOST: Duration = Duration::from_micros(150);

impl Oversleep {
    /// Starts with an estimate of zero. With one processor the estimate stays zero, because busy-waiting would keep the
    /// programs at the ends of the link from running.
    pub fn new(processors: usize) -> Self {
        let most = if processors > 1 { MOST } else { Duration::ZERO };
        Self { estimate: Duration::ZERO, most }
    }

    /// Returns the time by which sleeps of this process end late. Subtract it from the length of a sleep.
    pub fn estimate(self) -> Duration {
        self.estimate
    }

    /// Records how much longer a sleep took than requested.
    pub fn observe(&mut self, by: Duration) {
        self.estimate = if by > self.estimate {
            (self.estimate + UP).min(self.most)
        } else {
            self.estimate.saturating_sub(DOWN)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_of_ten_sleeps_are_covered() {
        let mut oversleep = Oversleep::new(2);
        let mut rng = sim::Rng::new(1);
        let mut covered = 0;
        for n in 0..2000 {
            let by = Duration::from_micros(20 + rng.below(50));
            covered += u32::from(n >= 1000 && by <= oversleep.estimate());
            oversleep.observe(by);
        }
        assert!((850..950).contains(&covered), "{covered} of 1000");
        (0..100).for_each(|_| oversleep.observe(Duration::from_secs(1)));
        assert_eq!(oversleep.estimate(), MOST);
        let mut alone = Oversleep::new(1);
        (0..100).for_each(|_| alone.observe(Duration::from_micros(60)));
        assert_eq!(alone.estimate(), Duration::ZERO);
    }
}
