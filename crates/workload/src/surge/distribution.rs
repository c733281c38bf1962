//! The distributions of Surge. Each is drawn by inverting its distribution function.
//!
//! They are from Barford and Crovella, "Generating Representative Web Workloads for Network and Server Performance
//! Evaluation", SIGMETRICS 1998, the table of models with their parameters. We did not have the table itself. The
//! numbers come from programs that took them from the table: the X-Cloud simulator, src/service/FileTransfer1998.java
//! (file sizes, both kinds of pauses), and a generator of file sizes in R that names the paper (both parts of the size
//! distribution, the threshold between them, and the share of files in each). [`PAGE`] and [`STACK`] were found nowhere
//! else and are from memory. Surge's own program of April 1998 (object.c 1.0) draws pages from a Pareto distribution
//! with k 2 and alpha 1.245, up to 150 files: a model that is newer than the paper's.

use std::f64::consts::TAU;

use sim::Rng;

/// A probability distribution of positive numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Distribution {
    /// Log-normal distribution: mean and deviation of the logarithm.
    Lognormal { mean: f64, deviation: f64 },
    /// Pareto distribution with the distribution function `1 - (least / x)^shape`.
    Pareto { least: f64, shape: f64 },
    /// Weibull distribution with the distribution function `1 - exp(-(x / scale)^shape)`.
    Weibull { scale: f64, shape: f64 },
}

use Distribution::{Lognormal, Pareto, Weibull};

/// Distribution of file sizes in bytes below [`LARGE`], which most files have.
pub(super) const BODY: Distribution = Lognormal { mean: 9.357, deviation: 1.318 };
/// Sizes in bytes of the largest files, from [`LARGE`] on.
pub(super) const TAIL: Distribution = Pareto { least: LARGE, shape: 1.1 };
/// Size in bytes from which on a file counts as large and its size is drawn from [`TAIL`].
pub(super) const LARGE: f64 = 133_000.0;
/// Percentage of files whose size is drawn from [`TAIL`].
pub(super) const TAIL_PERCENT: u32 = 7;
/// Number of files that a page consists of.
pub(super) const PAGE: Distribution = Pareto { least: 1.0, shape: 2.43 };
/// Stack distance: the number of other files requested since the last request for the same file.
pub(super) const STACK: Distribution = Lognormal { mean: 1.5, deviation: 0.80 };
/// Pause in seconds between the files of a page. We take the paper's alpha as the scale and its beta as the shape of
/// the Weibull distribution. With these, half of the pauses are shorter than 0.56 s, and a few last many seconds.
pub(super) const ACTIVE_OFF: Distribution = Weibull { scale: 1.46, shape: 0.382 };
/// Pause in seconds between two pages of a user.
pub(super) const INACTIVE_OFF: Distribution = Pareto { least: 1.0, shape: 1.5 };

impl Distribution {
    pub(super) fn draw(self, rng: &mut Rng) -> f64 {
        // Draw a number above 0 and at most 1, because its logarithm is needed.
        let mut share = || ((rng.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        match self {
            // The method of Box and Muller, 1958.
            Lognormal { mean, deviation } => {
                let normal = (-2.0 * share().ln()).sqrt() * (TAU * share()).cos();
                (mean + deviation * normal).exp()
            }
            Pareto { least, shape } => least / share().powf(1.0 / shape),
            Weibull { scale, shape } => scale * (-share().ln()).powf(1.0 / shape),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws random numbers from a distribution, and compares their quartiles with the expected ones.
    fn check(distribution: Distribution, quartiles: [f64; 3]) {
        let mut rng = Rng::new(5);
        let mut drawn: Vec<f64> = (0..40_000).map(|_| distribution.draw(&mut rng)).collect();
        drawn.sort_by(f64::total_cmp);
        for (number, wanted) in (1..).zip(quartiles) {
            let found = drawn[number * drawn.len() / 4];
            assert!((found / wanted - 1.0).abs() < 0.08, "{distribution:?}: {found}, not {wanted}");
        }
    }

    #[test]
    fn random_values_have_the_quartiles_of_their_distribution() {
        // The first and third quartile of a normal distribution are 0.67449 standard deviations from its mean.
        let lognormal = |mean: f64, deviation: f64| {
            [-0.674_49, 0.0, 0.674_49].map(|z: f64| (mean + deviation * z).exp())
        };
        check(BODY, lognormal(9.357, 1.318));
        check(STACK, lognormal(1.5, 0.80));
        let pareto = |least: f64, shape: f64| {
            [0.75, 0.5, 0.25].map(|above: f64| least * above.powf(-1.0 / shape))
        };
        check(TAIL, pareto(LARGE, 1.1));
        check(PAGE, pareto(1.0, 2.43));
        check(INACTIVE_OFF, pareto(1.0, 1.5));
        // The median of a Weibull distribution is scale * ln(2)^(1 / shape).
        let weibull = [0.75, 0.5, 0.25].map(|above: f64| 1.46 * (-above.ln()).powf(1.0 / 0.382));
        check(ACTIVE_OFF, weibull);
    }

    #[test]
    fn random_values_have_the_mean_of_their_distribution() {
        let mut rng = Rng::new(6);
        let mut mean =
            |of: Distribution| (0..200_000).map(|_| of.draw(&mut rng)).sum::<f64>() / 2e5;
        // The mean of a log-normal distribution is exp(mean + deviation^2 / 2).
        assert!((mean(BODY) / 27_610.0 - 1.0).abs() < 0.05);
        assert!((mean(STACK) / 6.172 - 1.0).abs() < 0.03);
        // The mean of a Pareto distribution is least * shape / (shape - 1).
        assert!((mean(PAGE) / 1.699 - 1.0).abs() < 0.05);
    }
}
