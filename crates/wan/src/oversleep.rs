//! How much later than asked a sleep ends. On a virtual machine a processor that sleeps takes some
//! 50 us to be there again; so a thread that must be in time gets up earlier, and stays awake.

use std::time::Duration;

/// An estimate that nine of ten sleeps do not exceed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Oversleep {
    estimate: Duration,
    most: Duration,
}

/// A sleep that was longer raises the estimate by so much.
const UP: Duration = Duration::from_micros(9);
/// One that was not lowers it by so much: a ninth, so that it stands still at nine of ten.
const DOWN: Duration = Duration::from_micros(1);
/// The longest to stay awake for one packet: more would be a machine that has no time, not one that
/// wakes slowly, and would take it from others.
const MOST: Duration = Duration::from_micros(150);

impl Oversleep {
    /// Nothing is known yet. With one processor the estimate stays zero: staying awake would keep it from the
    /// programs at the ends.
    pub fn new(processors: usize) -> Self {
        let most = if processors > 1 { MOST } else { Duration::ZERO };
        Self { estimate: Duration::ZERO, most }
    }

    /// How much earlier to get up.
    pub fn estimate(self) -> Duration {
        self.estimate
    }

    /// A sleep was so much longer than asked.
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
