//! The statements of the Fair-TCP paper, and the measured ratios that confirm or refute them.

use super::{delays, point};
use crate::{
    Finding, MeasuredPoints, PaperClaim,
    paper::{PaperFigure, fair_tcp as paper},
};

/// The two figures whose ratio decides a claim: the experiment, the name and the unit of the figure, and the kinds of
/// windows of the numerator and the denominator.
type Compared = (&'static str, &'static str, &'static str, [&'static str; 2]);

const GAIN: [&str; 2] = ["ensemble", "reno"];
const TIMES: [&str; 2] = ["reno", "ensemble"];

const MORE: [f64; 2] = [1.0, f64::INFINITY];
const LESS: [f64; 2] = [f64::NEG_INFINITY, 1.0];

/// Statements of the Fair-TCP paper that the report checks, the most important one first.
const CLAIMS: [(PaperClaim, Compared); 7] = [
    (
        words(
            "Figure 7, section 4.1",
            "connections that share a congestion window write faster than connections with Reno at all delays",
            "the throughput of writes with a shared window to that with Reno",
            MORE,
        ),
        ("writes", "throughput", "Mbit/s", GAIN),
    ),
    (
        words(
            "Table 2, section 4.1",
            "the sum of the windows varies less with a shared window than with Reno",
            "the variation of the sum of the windows with a shared window to that with Reno",
            LESS,
        ),
        ("writes", "window spread", "%", GAIN),
    ),
    (
        words(
            "Table 3, section 4.1",
            "a write takes less time with a shared window than with Reno",
            "the mean time of a write with a shared window to that with Reno",
            LESS,
        ),
        ("writes", "turnaround mean", "ms", GAIN),
    ),
    (
        printed(
            paper::POSTMARK_10,
            "ten processes of PostMark take 1.17 to 1.5 times as long with Reno as with a shared window",
            "the time of PostMark with Reno to that with a shared window",
        ),
        ("postmark-10", "time", "s", TIMES),
    ),
    (
        printed(
            paper::POSTMARK_1,
            "one process of PostMark takes 1.1 to 1.18 times as long with Reno as with a shared window",
            "the time of PostMark with Reno to that with a shared window",
        ),
        ("postmark-1", "time", "s", TIMES),
    ),
    (
        printed(
            paper::BONNIE_4_SEEKS,
            "four processes of Bonnie++ seek 1.2 to 1.3 times as often with a shared window as with Reno",
            "seeks a second with a shared window to those with Reno",
        ),
        ("bonnie-4", "seeks", "1/s", GAIN),
    ),
    (
        printed(
            paper::KERNEL_COMPILE,
            "a software build takes 1.08 to 1.17 times as long with Reno as with a shared window",
            "builds an hour with a shared window to those with Reno",
        ),
        ("build", "", "1/h", GAIN),
    ),
];

/// Returns a claim of the paper with a printed ratio. A measured ratio that is larger than the printed one also
/// confirms the claim.
const fn printed(claim: PaperFigure, statement: &'static str, ratio: &'static str) -> PaperClaim {
    PaperClaim {
        place: claim.place,
        statement,
        ratio,
        least: claim.least,
        most: f64::INFINITY,
        printed_most: Some(claim.most),
    }
}

/// Returns a claim that the paper makes in words, without a number. The bounds for the measured ratio are derived from
/// these words.
const fn words(
    place: &'static str,
    statement: &'static str,
    ratio: &'static str,
    [least, most]: [f64; 2],
) -> PaperClaim {
    PaperClaim { place, statement, ratio, least, most, printed_most: None }
}

/// Returns the claims, each with a measured ratio for every delay and run.
pub fn findings(measured: &MeasuredPoints<'_>) -> Vec<Finding> {
    let found = |(claim, (experiment, figure, unit, windows)): (PaperClaim, Compared)| {
        let ratios = delays().flat_map(|(_, delay)| {
            let [over, under] = windows.map(|windows| point(experiment, windows, delay));
            measured.ratios([&over, &under], figure, unit)
        });
        Finding { claim, ratios: ratios.collect() }
    };
    CLAIMS.into_iter().map(found).collect()
}
