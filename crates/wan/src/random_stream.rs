//! Random numbers of the kinds that a link needs.

use sim::Rng;

/// One row of random numbers. Each thing that a link does at random has a row of its own, and takes
/// as many of it for every packet: so what one setting does to packet n of a run does not depend on
/// the others.
#[derive(Clone, Debug)]
pub(crate) struct RandomStream(Rng);

impl RandomStream {
    /// A row that is independent of what `rng` gives later.
    pub fn of(rng: &mut Rng) -> Self {
        Self(rng.fork())
    }

    /// A number of 0 and more, below 1.
    pub fn unit(&mut self) -> f64 {
        self.0.share()
    }

    /// True with this probability.
    pub fn hits(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// The time to the next of events that come whenever they like, `mean` apart.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        self.0.exponential(mean)
    }

    /// A number about zero with a standard deviation of one (Box and Muller, 1958).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_and_deviations_are_those_asked_for() {
        let mut dice = RandomStream::of(&mut Rng::new(3));
        const COUNT: usize = 100_000;
        let mean = |numbers: &[f64]| numbers.iter().sum::<f64>() / numbers.len() as f64;
        let gaps: Vec<f64> = (0..COUNT).map(|_| dice.exponential(7.0)).collect();
        assert!((mean(&gaps) - 7.0).abs() < 0.1);
        let normal: Vec<f64> = (0..COUNT).map(|_| dice.normal()).collect();
        let squares: Vec<f64> = normal.iter().map(|x| x * x).collect();
        assert!(mean(&normal).abs() < 0.01 && (mean(&squares) - 1.0).abs() < 0.02);
    }
}
