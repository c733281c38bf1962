//! How long a single request takes over a distance: equation (1) of the storage outsourcing paper, its
//! masking rule, and the rule with the time of the disk's own answer added. All times are in ms.

/// A request at one distance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelRequest {
    /// What the disk takes for it without a network (`T_disk`).
    pub disk: f64,
    /// What the disk takes to say that it has a write in its cache.
    pub answer: f64,
    /// There and back (2 × `T_netDelay`).
    pub round_trip: f64,
    /// Whether it is a write that the disk's cache takes while the disk still works on those before it: the
    /// disk works during the round trip then.
    pub is_behind: bool,
}

/// A rule that foretells the time of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LatencyRule {
    /// Equation (1): `T_disk + 2 × T_netDelay + T_iSCSI`.
    Sum,
    /// Section 4.1: of a write behind, the longer of disk and round trip, and `T_iSCSI`.
    Masked,
    /// Beyond the paper: the same, with the disk's answer as part of the round trip.
    Answered,
}

impl LatencyRule {
    /// All, in the order of how much they take into account.
    pub const ALL: [Self; 3] = [Self::Sum, Self::Masked, Self::Answered];

    /// For people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sum => "equation (1)",
            Self::Masked => "with the paper's masking",
            Self::Answered => "with masking and the disk's answer",
        }
    }

    /// The time of a request, with what the protocol takes (`T_iSCSI`).
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

/// What the protocol takes by these measurements (`T_iSCSI`): the median of what is left of their times beside
/// disk and round trip, over those that no rule masks. `None` without such.
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

/// How well a rule fits measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fit {
    /// Measurements.
    pub count: usize,
    /// Their distance from the rule in the mean, ms; 0 without any.
    pub mean_residual: f64,
    /// The one that is farthest: above the rule if positive.
    pub worst: f64,
    /// How many differ by at most a tenth.
    pub within_tenth: usize,
    /// How many differ by at most a tenth or [`TOLERANCE`].
    pub within: usize,
}

/// What a time may differ from a rule if a tenth of it is less, ms. The paper's own unmasked times give protocol
/// times that are 0.35 ms apart between 0 and 8 ms.
pub const TOLERANCE: f64 = 0.35;

impl Fit {
    /// Of these measurements, each with what a rule says.
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

    /// The share of measurements that differ by at most a tenth or [`TOLERANCE`]; `None` without any.
    #[must_use]
    pub fn share(&self) -> Option<f64> {
        (self.count > 0).then(|| self.within as f64 / self.count as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::outsourcing::{ANSWER_MS, DELAYS_MS, ISCSI_MS, RESPONSE_MS};

    /// The paper's Table 1 against a rule; `behind` says which disks take random writes behind.
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
    fn a_fit_of_nothing_has_no_share() {
        assert_eq!(Fit::of([]).share(), None);
        assert_eq!(Fit::of([(f64::NAN, 1.0)]), Fit::default());
        let fit = Fit::of([(1.0, 1.3), (10.0, 10.9), (10.0, 12.0)]);
        assert_eq!((fit.within_tenth, fit.within, fit.worst), (1, 2, -2.0));
    }
}
