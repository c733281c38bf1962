//! A claim of a paper, and three sentences about it: the claim, the measured ratio with its spread, and whether the
//! claim held.

use super::{Cell, rounded};

/// A statement of a paper about a ratio.
#[derive(Clone, Debug, PartialEq)]
pub struct PaperClaim {
    /// Where the statement is in the paper, such as "Figure 6, section 5.3.1".
    pub place: &'static str,
    /// The statement, as the end of a sentence: "a cache makes PostMark 1.6 to 2.1 times as fast".
    pub statement: &'static str,
    /// The ratio that is measured, after "the ratio of": "transactions with a cache to those without".
    pub ratio: &'static str,
    /// The smallest ratio that confirms the statement; negative infinity for no bound.
    pub least: f64,
    /// The largest ratio that confirms the statement; infinity for no bound.
    pub most: f64,
    /// The largest ratio that the paper prints. Set only for a claim with which a larger measured ratio agrees, too.
    pub printed_most: Option<f64>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ClaimResult {
    Held,
    NotHeld,
    Undecided,
}

/// The number of points in an experiment, and the number of those with a result.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PointCount {
    pub measured: usize,
    pub all: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredRatio {
    pub value: f64,
    /// True if there is a reason to doubt one of the two measurements that were divided.
    pub is_doubtful: bool,
}

impl MeasuredRatio {
    /// Returns the number that was measured for `cell`; `None` if the cell has no such number.
    #[must_use]
    pub fn of(cell: &Cell) -> Option<Self> {
        let value = cell.ours.filter(|value| value.is_finite())?;
        Some(Self { value, is_doubtful: !cell.taints.is_empty() })
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    pub claim: PaperClaim,
    pub ratios: Vec<MeasuredRatio>,
}

impl Finding {
    /// Returns three sentences: the claim, the measured ratio with its spread, and whether the claim held. If not all
    /// points have results, the second sentence says so.
    #[must_use]
    pub fn sentences(&self, points: Option<PointCount>) -> [String; 3] {
        let PaperClaim { place, statement, ratio, .. } = self.claim;
        let (result, why) = self.result();
        let verdict = match result {
            ClaimResult::Held => "The claim held",
            ClaimResult::NotHeld => "The claim did not hold",
            ClaimResult::Undecided => "This is not decided",
        };
        let place = format!("{}{}", place[..1].to_lowercase(), &place[1..]);
        let part = points.filter(|points| points.measured < points.all);
        let part = part.map_or(String::new(), |PointCount { measured, all }| {
            format!(" in {measured} of {all} points")
        });
        [
            format!("The paper claims ({place}) that {statement}."),
            format!("Measured here{part}, the ratio of {ratio} is {}.", self.spread()),
            format!("{verdict}: {why}."),
        ]
    }

    /// Returns the median of the measured ratios, their number and their quartiles, as text.
    #[must_use]
    pub fn spread(&self) -> String {
        match (self.ratios.as_slice(), self.quartiles()) {
            (_, None) => "unknown".to_owned(),
            ([one], _) => format!("{} (a single ratio)", rounded(one.value)),
            (ratios, Some([low, median, high])) => format!(
                "{} (median of {} ratios, quartiles {} and {})",
                rounded(median),
                ratios.len(),
                rounded(low),
                rounded(high)
            ),
        }
    }

    /// Returns whether the measurements confirm the statement, and the reason as a part of a sentence.
    #[must_use]
    pub fn result(&self) -> (ClaimResult, String) {
        let undecided = |why: String| (ClaimResult::Undecided, why);
        let Some([low, median, high]) = self.quartiles() else {
            return undecided("no pair of points that it compares has results".to_owned());
        };
        let all = self.ratios.len();
        if all == 1 {
            return undecided("a single ratio has no spread".to_owned());
        }
        let doubtful = self.ratios.iter().filter(|ratio| ratio.is_doubtful).count();
        if doubtful == all {
            return undecided(format!("all {all} ratios are in doubt"));
        }
        if doubtful * 2 > all {
            return undecided(format!("{doubtful} of the {all} ratios are in doubt"));
        }
        let doubt = match doubtful {
            0 => String::new(),
            1 => format!("; 1 of the {all} ratios is in doubt"),
            some => format!("; {some} of the {all} ratios are in doubt"),
        };
        let PaperClaim { least, most, printed_most, .. } = self.claim;
        let [shown_least, shown_most] = [least, most].map(rounded);
        let bounds = match (least.is_finite(), most.is_finite()) {
            (true, true) => format!("between {shown_least} and {shown_most}"),
            (true, false) => format!("at least {shown_least}"),
            _ => format!("at most {shown_most}"),
        };
        let above = printed_most.filter(|most| median > *most).map_or(String::new(), |most| {
            format!(", and the median is above the paper's {}", rounded(most))
        });
        if low >= least && high <= most {
            (ClaimResult::Held, format!("both quartiles are {bounds}{above}{doubt}"))
        } else if high < least {
            (ClaimResult::NotHeld, format!("both quartiles are below {shown_least}{doubt}"))
        } else if low > most {
            (ClaimResult::NotHeld, format!("both quartiles are above {shown_most}{doubt}"))
        } else {
            undecided(format!("not both quartiles are {bounds}{doubt}"))
        }
    }

    /// Returns the lower quartile, the median and the upper quartile. `None` without ratios.
    #[must_use]
    pub fn quartiles(&self) -> Option<[f64; 3]> {
        quartiles(self.ratios.iter().map(|ratio| ratio.value))
    }
}

/// Returns the lower quartile, the median and the upper quartile of numbers. Each is interpolated between the two
/// nearest numbers. `None` without numbers.
#[must_use]
pub fn quartiles(values: impl IntoIterator<Item = f64>) -> Option<[f64; 3]> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    Some([0.25, 0.5, 0.75].map(|share| {
        let place = share * last as f64;
        let (below, above) = (values[place.floor() as usize], values[place.ceil() as usize]);
        below + (above - below) * place.fract()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLAIM: PaperClaim = PaperClaim {
        place: "Figure 6",
        statement: "a cache makes PostMark 1.6 to 2.1 times as fast",
        ratio: "transactions with a cache to those without",
        least: 1.6,
        most: f64::INFINITY,
        printed_most: Some(2.1),
    };

    fn finding(claim: PaperClaim, ratios: &[f64], doubtful: usize) -> Finding {
        let ratios = ratios.iter().enumerate();
        let ratios =
            ratios.map(|(n, value)| MeasuredRatio { value: *value, is_doubtful: n < doubtful });
        Finding { claim, ratios: ratios.collect() }
    }

    #[test]
    fn a_finding_is_claim_ratio_with_spread_and_result() {
        let whole = PointCount { measured: 9, all: 9 };
        assert_eq!(
            finding(CLAIM, &[2.0, 1.7, 1.8, 1.9, 1.6234], 0).sentences(Some(whole)),
            [
                "The paper claims (figure 6) that a cache makes PostMark 1.6 to 2.1 times as fast.",
                "Measured here, the ratio of transactions with a cache to those without is 1.8 (median of 5 ratios, quartiles 1.7 and 1.9).",
                "The claim held: both quartiles are at least 1.6.",
            ]
        );
        let part = PointCount { measured: 3, all: 9 };
        let told = finding(CLAIM, &[], 0).sentences(Some(part));
        assert!(told[1].starts_with("Measured here in 3 of 9 points, the ratio of "), "{told:?}");
        assert!(
            told[1].ends_with(" is unknown.")
                && told[2].starts_with("This is not decided: no pair")
        );
    }

    #[test]
    fn a_claim_holds_only_if_the_spread_keeps_the_bound() {
        let result = |ratios: &[f64], doubtful| finding(CLAIM, ratios, doubtful).result();
        assert_eq!(result(&[1.6, 1.6], 0).0, ClaimResult::Held);
        assert_eq!(result(&[1.5, 1.59, 1.2], 0).0, ClaimResult::NotHeld);
        assert_eq!(result(&[1.2, 1.7, 2.0], 0).0, ClaimResult::Undecided);
        assert_eq!(
            result(&[9.0], 0),
            (ClaimResult::Undecided, "a single ratio has no spread".to_owned())
        );
        let (held, why) = result(&[3.0, 3.0, 4.0], 1);
        assert_eq!(held, ClaimResult::Held);
        assert!(why.ends_with("above the paper's 2.1; 1 of the 3 ratios is in doubt"), "{why}");
        let (doubtful, why) = result(&[3.0, 3.0, 4.0], 2);
        assert_eq!((doubtful, &*why), (ClaimResult::Undecided, "2 of the 3 ratios are in doubt"));
        let range = PaperClaim { least: 0.9, most: 1.1, ..CLAIM };
        let result = |ratios: &[f64]| finding(range.clone(), ratios, 0).result().0;
        assert_eq!(result(&[1.0, 1.1]), ClaimResult::Held);
        assert_eq!(result(&[1.2, 1.3]), ClaimResult::NotHeld);
        assert_eq!(result(&[0.5, 1.3]), ClaimResult::Undecided);
    }

    #[test]
    fn quartiles_are_between_their_neighbours() {
        assert_eq!(quartiles([]), None);
        assert_eq!(quartiles([3.0]), Some([3.0; 3]));
        assert_eq!(quartiles([4.0, 1.0, 2.0, 3.0]), Some([1.75, 2.5, 3.25]));
    }
}
