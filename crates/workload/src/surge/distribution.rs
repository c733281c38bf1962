//! The distributions of Surge, each by the inverse of its function.
//!
//! From Barford and Crovella, "Generating Representative Web Workloads for Network and Server Performance Evaluation",
//! SIGMETRICS 1998, the table of models with their parameters. The page itself was not at hand; programs that took
//! their numbers from it have these: the X-Cloud simulator, src/service/FileTransfer1998.java (sizes of files, both
//! kinds of pauses), and a generator of file sizes in R that names the paper (both parts of the sizes, where they part
//! and how many files are in which). [`PAGE`] and [`STACK`] were found nowhere else and are as remembered. Surge's
//! own program of April 1998 (object.c 1.0) has pages by Pareto with k 2 and alpha 1.245, up to 150 files: a model that
//! came after the paper's.

use std::f64::consts::TAU;

use sim::Rng;

/// A distribution of positive numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Distribution {
    /// Its logarithm is normal, with this mean and deviation.
    Lognormal { mean: f64, deviation: f64 },
    /// `1 - (least / x)^shape`.
    Pareto { least: f64, shape: f64 },
    /// `1 - exp(-(x / scale)^shape)`.
    Weibull { scale: f64, shape: f64 },
}

use Distribution::{Lognormal, Pareto, Weibull};

/// Bytes of a file, for all that are smaller than [`LARGE`].
pub(super) const BODY: Distribution = Lognormal { mean: 9.357, deviation: 1.318 };
/// Bytes of the largest files.
pub(super) const TAIL: Distribution = Pareto { least: LARGE, shape: 1.1 };
/// Where the tail begins, in bytes.
pub(super) const LARGE: f64 = 133_000.0;
/// Of a hundred files those that are of the tail.
pub(super) const TAIL_PERCENT: u32 = 7;
/// Files that a page is made of.
pub(super) const PAGE: Distribution = Pareto { least: 1.0, shape: 2.43 };
/// How many other files were asked for since one was asked for before.
pub(super) const STACK: Distribution = Lognormal { mean: 1.5, deviation: 0.80 };
/// Seconds between the files of a page: the paper's alpha is the scale and its beta the shape, so that half the pauses
/// are shorter than 0.56 s and a few are of many seconds.
pub(super) const ACTIVE_OFF: Distribution = Weibull { scale: 1.46, shape: 0.382 };
/// Seconds between pages.
pub(super) const INACTIVE_OFF: Distribution = Pareto { least: 1.0, shape: 1.5 };

impl Distribution {
    /// One number.
    pub(super) fn draw(self, rng: &mut Rng) -> f64 {
        // Above 0 and up to 1, so that it has a logarithm.
        let mut share = || ((rng.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        match self {
            // Box and Muller 1958.
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

    /// The quartiles of many, against those that the distribution has.
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
    fn what_is_drawn_has_the_quartiles_of_its_distribution() {
        // The normal distribution's quartiles are 0.67449 deviations from its mean.
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
        // The middle of a Weibull is scale * ln(2)^(1 / shape).
        let weibull = [0.75, 0.5, 0.25].map(|above: f64| 1.46 * (-above.ln()).powf(1.0 / 0.382));
        check(ACTIVE_OFF, weibull);
    }

    #[test]
    fn means_are_those_of_the_distributions_that_have_one_to_be_seen() {
        let mut rng = Rng::new(6);
        let mut mean =
            |of: Distribution| (0..200_000).map(|_| of.draw(&mut rng)).sum::<f64>() / 2e5;
        // exp(mean + deviation^2 / 2).
        assert!((mean(BODY) / 27_610.0 - 1.0).abs() < 0.05);
        assert!((mean(STACK) / 6.172 - 1.0).abs() < 0.03);
        // shape / (shape - 1).
        assert!((mean(PAGE) / 1.699 - 1.0).abs() < 0.05);
    }
}
