//! Random numbers with the distributions that the model of a link needs.

use sim::Rng;

/// A stream of random numbers. Each random feature of a link has its own stream, and takes the same number of values
/// for every packet. Therefore, for example, the loss of packet n of a run does not change if the setting of the jitter
/// changes.
#[derive(Clone, Debug)]
pub(crate) struct RandomStream(Rng);

impl RandomStream {
    /// Seeds a stream with one number of `rng`. Later numbers of `rng` do not affect the stream.
    pub fn of(rng: &mut Rng) -> Self {
        Self(rng.fork())
    }

    /// Returns a number of at least 0 and less than 1.
    pub fn unit(&mut self) -> f64 {
        self.0.share()
    }

    pub fn hits(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Returns a uniformly distributed number of 64 bits.
    pub fn any(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns the time to the next event of a Poisson process with this mean interval.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        self.0.exponential(mean)
    }

    /// Returns a normally distributed number with mean 0 and standard deviation 1 (Box and Muller, 1958).
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
