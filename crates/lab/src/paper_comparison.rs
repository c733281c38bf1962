//! Compares our figures with the numbers and statements of a paper. Each clear difference results
//! in a sentence, with explanations from other measurements of the run.

use crate::{
    Cell, factor,
    paper::{PaperFigure, PaperStatement},
    rounded,
};

/// A figure may differ from the paper's number by this share of it without being reported. The value was chosen
/// because, with this tolerance, equation (1) with masking predicts the paper's own Table 1.
pub const TOLERANCE: f64 = 0.1;

/// The text for a deviation without explanations.
pub const NO_REASON: &str = "No reason for it is known.";

/// Returns a sentence if `ours` was measured and differs from the claim by more than [`TOLERANCE`].
/// `what` names the figure. Pass the most important explanation first.
#[must_use]
pub fn deviation(
    what: &str,
    ours: &Cell,
    claim: &PaperFigure,
    reasons: impl IntoIterator<Item = Option<String>>,
) -> Option<String> {
    let value = ours.ours?;
    let nearest = claim.printed().nearest(value);
    if (value - nearest).abs() <= TOLERANCE * nearest.abs() {
        return None;
    }
    let range = if claim.least == claim.most {
        rounded(claim.least)
    } else {
        format!("{} to {}", rounded(claim.least), rounded(claim.most))
    };
    let by = value / nearest;
    let by = if by.is_finite() { format!(" ({} of it)", factor(by)) } else { String::new() };
    let why = because(reasons, &ours.taints);
    Some(format!("{}: {what}: {} instead of {range}{by}. {why}", claim.place, rounded(value)))
}

/// Returns a sentence if `ours` was measured and is outside of our bounds for the paper's
/// statement. `what` names the figure. There is no tolerance, since the bounds are our own.
/// Explanations are passed as to [`deviation`].
#[must_use]
pub fn contradiction(
    what: &str,
    ours: &Cell,
    words: &PaperStatement,
    reasons: impl IntoIterator<Item = Option<String>>,
) -> Option<String> {
    let value = ours.ours.filter(|value| !words.hold(*value))?;
    let why = because(reasons, &ours.taints);
    Some(format!(
        "{}: {what}: {}; the paper says \"{}\", read here as {}. {why}",
        words.place,
        rounded(value),
        words.said,
        words.read_as()
    ))
}

/// Added to a sentence about a difference from the paper if there are reasons to doubt the measured points. The reasons
/// themselves are in the report's list of doubts.
const IN_DOUBT: &str = "The measurement is in doubt.";

/// Joins explanations, with a remark if there are reasons to doubt the runs (taints), or returns [`NO_REASON`] if there
/// are none.
#[must_use]
pub fn because(reasons: impl IntoIterator<Item = Option<String>>, taints: &[String]) -> String {
    let doubts = (!taints.is_empty()).then(|| IN_DOUBT.to_owned());
    let reasons: Vec<String> = reasons.into_iter().flatten().chain(doubts).collect();
    if reasons.is_empty() { NO_REASON.to_owned() } else { reasons.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLAIM: PaperFigure =
        PaperFigure { place: "Figure 5", what: "a share", least: 1.5, most: 2.0 };

    #[test]
    fn a_close_or_missing_value_is_no_deviation() {
        for value in [1.36, 1.5, 1.9, 2.0, 2.19] {
            assert_eq!(deviation("x", &Cell::ours(value), &CLAIM, []), None, "{value}");
        }
        assert_eq!(deviation("x", &Cell::words("not measured"), &CLAIM, []), None);
    }

    #[test]
    fn words_are_shown_as_words_and_the_bound_as_ours() {
        let words = PaperStatement {
            place: "Figure 5",
            what: "x",
            said: "almost all",
            least: 0.9,
            most: f64::INFINITY,
        };
        for value in [0.9, 1.0, 7.0] {
            assert_eq!(contradiction("x", &Cell::ours(value), &words, []), None, "{value}");
        }
        assert_eq!(contradiction("x", &Cell::words("not measured"), &words, []), None);
        assert_eq!(
            contradiction("kept", &Cell::ours(0.89), &words, []).unwrap(),
            "Figure 5: kept: 0.89; the paper says \"almost all\", read here as at least 0.9. No reason for it is known."
        );
        assert_eq!(PaperStatement { most: 1.1, ..words }.read_as(), "0.9 to 1.1");
        assert_eq!(
            PaperStatement { least: f64::NEG_INFINITY, most: 0.9, ..words }.read_as(),
            "at most 0.9"
        );
    }

    #[test]
    fn a_deviation_is_reported_with_its_reasons_or_as_unexplained() {
        let far = Cell::ours(4.0);
        assert_eq!(
            deviation("gain", &far, &CLAIM, [None]).unwrap(),
            "Figure 5: gain: 4 instead of 1.5 to 2 (×2.00 of it). No reason for it is known."
        );
        let doubtful = far.tainted(&["packets were late".to_owned()]);
        let told = deviation("gain", &doubtful, &CLAIM, [None, Some("It is so.".to_owned())]);
        assert!(told.unwrap().ends_with("It is so. The measurement is in doubt."));
        let zero = PaperFigure { least: 0.0, most: 0.0, ..CLAIM };
        let told = deviation("gain", &Cell::ours(0.1), &zero, []).unwrap();
        assert!(told.contains("0.1 instead of 0. No"), "{told}");
    }
}
