//! Predicts the time of a single request over a distance: by equation (1) of the storage
//! outsourcing paper, by its masking rule, and by this rule extended by the disk's response time.
//! All times are in ms.

/// A disk request over a network, as the paper's rules for its response time describe it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelRequest {
    /// The time of the request at the disk, without a network (`T_disk`).
    pub disk: f64,
    /// Response time of the disk for a write that its cache accepts.
    pub answer: f64,
    /// The round trip time (2 × `T_netDelay`).
    pub round_trip: f64,
    /// True for a write that the disk's cache accepts while the disk still executes earlier writes. The disk then works
    /// while the request and its response cross the link.
    pub is_behind: bool,
}

/// A rule that predicts the time of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LatencyRule {
    /// Equation (1): `T_disk + 2 × T_netDelay + T_iSCSI`.
    Sum,
    /// Section 4.1 of the paper: a request with `is_behind` takes the longer of disk time and round trip, plus
    /// `T_iSCSI`.
    Masked,
    /// Not in the paper: like `Masked`, but the disk's response time is added to the round trip.
    Answered,
}

impl LatencyRule {
    /// All rules, from the simplest to the most complete.
    pub const ALL: [Self; 3] = [Self::Sum, Self::Masked, Self::Answered];

    /// Returns the name of the rule for the report.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sum => "equation (1)",
            Self::Masked => "with the paper's masking",
            Self::Answered => "with masking and the disk's answer",
        }
    }

    /// Returns the predicted time of a request. `iscsi` is the time that the protocol takes
    /// (`T_iSCSI`).
    #[must_use]
    pub fn time(self, request: &ModelRequest, iscsi: f64) -> f64 {
        let ModelRequest { disk, answer, round_trip, is_behind } = *request;
        iscsi
            + match self {
                Self::Masked if is_behind => disk.max(round_trip),
                Self::Answered if is_behind => disk.max(round_trip + answer),
                _ => disk + round_trip,
            }
    }
}

/// Computes the time that the protocol takes (`T_iSCSI`): the median of measured time minus disk time minus round trip.
/// Ignores requests with `is_behind`, since the round trip may hide their disk time. Returns `None` if there are no
/// other requests.
#[must_use]
pub fn protocol_time(measured: &[(ModelRequest, f64)]) -> Option<f64> {
    let open = measured.iter().filter(|(request, _)| !request.is_behind);
    let mut left: Vec<f64> = open
        .map(|(request, time)| time - request.disk - request.round_trip)
        .filter(|left| left.is_finite())
        .collect();
    left.sort_by(f64::total_cmp);
    let (low, high) = (left.get(left.len().saturating_sub(1) / 2)?, left.get(left.len() / 2)?);
    Some(low.midpoint(*high))
}

/// How well a rule predicts measured times.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fit {
    /// Number of measurements to which the rule was applied.
    pub count: usize,
    /// Mean absolute difference between measurement and prediction, in ms; 0 without measurements.
    pub mean_residual: f64,
    /// The difference with the largest absolute value, in ms; positive if the measured time is
    /// longer.
    pub worst: f64,
    /// Number of measurements that differ from the prediction by at most a tenth.
    pub within_tenth: usize,
    /// Number of measurements that differ from the prediction by at most a tenth of it or by [`TOLERANCE`], whichever
    /// is more.
    pub within: usize,
}

/// A measurement may differ from a prediction by this number of ms, or by a tenth of the prediction if that is more. In
/// the paper's own unmasked times, `T_iSCSI` differs by 0.35 ms between 0 and 8 ms.
pub const TOLERANCE: f64 = 0.35;

impl Fit {
    /// Computes how well a rule fits. Each pair is a measured time and the rule's prediction.
    #[must_use]
    pub fn of(pairs: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let mut fit = Self::default();
        let mut sum = 0.0;
        for (measured, foretold) in pairs {
            let residual = measured - foretold;
            if !residual.is_finite() {
                continue;
            }
            fit.count += 1;
            sum += residual.abs();
            let is_within_tenth = residual.abs() <= measured.abs() / 10.0;
            fit.within_tenth += usize::from(is_within_tenth);
            fit.within += usize::from(is_within_tenth || residual.abs() <= TOLERANCE);
            if residual.abs() > fit.worst.abs() {
                fit.worst = residual;
            }
        }
        if fit.count > 0 {
            fit.mean_residual = sum / fit.count as f64;
        }
        fit
    }

    /// Returns the share of measurements that differ from the prediction by at most a tenth of it or by [`TOLERANCE`],
    /// whichever is more; `None` without measurements.
    #[must_use]
    pub fn share(&self) -> Option<f64> {
        (self.count > 0).then(|| self.within as f64 / self.count as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::outsourcing::{ANSWER_MS, DELAYS_MS, ISCSI_MS, RESPONSE_MS};

    /// Compares the paper's Table 1 with a rule. `behind` is true for each disk that is assumed to
    /// accept random writes into its cache (`is_behind`).
    fn paper(rule: LatencyRule, behind: [bool; 4]) -> Fit {
        let mut pairs = vec![];
        for (row, delay) in RESPONSE_MS[2..].iter().zip(DELAYS_MS) {
            for disk in 0..4 {
                for access in 0..4 {
                    let request = ModelRequest {
                        disk: RESPONSE_MS[0][disk][access],
                        answer: ANSWER_MS[disk],
                        round_trip: 2.0 * delay,
                        is_behind: access == 1 && behind[disk],
                    };
                    pairs.push((row[disk][access], rule.time(&request, ISCSI_MS)));
                }
            }
        }
        Fit::of(pairs)
    }

    #[test]
    fn each_rule_fits_the_papers_own_table_better_than_the_one_before() {
        let single = [true, true, false, false];
        let fits = [
            paper(LatencyRule::Sum, single),
            paper(LatencyRule::Masked, single),
            paper(LatencyRule::Answered, [true, true, true, false]),
        ];
        let residuals = fits.map(|fit| (fit.mean_residual * 1000.0).round());
        assert_eq!(residuals, [769.0, 315.0, 221.0]);
        assert_eq!(fits.map(|fit| fit.within_tenth), [64, 72, 75]);
        assert_eq!(fits.map(|fit| fit.count), [80; 3]);
    }

    #[test]
    fn the_protocols_time_is_a_median_and_leaves_masked_writes_out() {
        let request =
            |is_behind| ModelRequest { disk: 5.0, answer: 0.2, round_trip: 2.0, is_behind };
        let measured = [
            (request(false), 7.4),
            (request(false), 7.6),
            (request(false), 9.0),
            (request(true), 5.1),
        ];
        assert_eq!(protocol_time(&measured).map(|time| (time * 10.0).round()), Some(6.0));
        assert_eq!(protocol_time(&measured[3..]), None);
        assert_eq!(protocol_time(&[]), None);
    }

    #[test]
    fn a_fit_without_values_has_no_share() {
        assert_eq!(Fit::of([]).share(), None);
        assert_eq!(Fit::of([(f64::NAN, 1.0)]), Fit::default());
        let fit = Fit::of([(1.0, 1.3), (10.0, 10.9), (10.0, 12.0)]);
        assert_eq!((fit.within_tenth, fit.within, fit.worst), (1, 2, -2.0));
    }
}
