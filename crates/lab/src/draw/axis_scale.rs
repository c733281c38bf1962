//! Maps numbers to positions along the axis of a plot, and chooses the ticks of the axis.

use crate::number;

/// The scale of a plot's axis: its range of numbers and its ticks.
#[derive(Clone, Debug, PartialEq)]
pub struct AxisScale {
    low: f64,
    high: f64,
    logarithmic: bool,
    /// The position of each tick, as a share of the length of the axis, and its label.
    pub ticks: Vec<(f64, String)>,
}

/// Numbers with a larger absolute value are not drawn. No measurement is as large, and with this
/// bound the range of an axis cannot overflow.
const FARTHEST: f64 = 1e300;

const TICKS: usize = 12;

impl AxisScale {
    /// Returns an axis for these numbers with about `wanted` ticks. Numbers that cannot be drawn
    /// are ignored. Without numbers, a linear axis is from 0 to 1, a logarithmic one from 1 to 10.
    pub fn over(values: impl IntoIterator<Item = f64>, logarithmic: bool, wanted: usize) -> Self {
        let shown = values.into_iter().filter(|value| is_shown(*value, logarithmic));
        let range = shown.fold(None, |range: Option<(f64, f64)>, value| {
            Some(range.map_or((value, value), |(low, high)| (low.min(value), high.max(value))))
        });
        match (range, logarithmic) {
            (None, false) => Self::linear(0.0, 1.0, wanted),
            (None, true) => Self::powers(1.0, 10.0),
            (Some((low, high)), false) => Self::linear(low, high, wanted),
            (Some((low, high)), true) => Self::powers(low, high),
        }
    }

    /// Returns an axis with labels instead of numbers: number 0 is in the middle of the first label, 1 in the middle of
    /// the second.
    pub fn named(labels: &[String]) -> Self {
        let (low, high) = (-0.5, labels.len() as f64 - 0.5);
        let place = |n: usize| (n as f64 + 0.5) / labels.len() as f64;
        let ticks = labels.iter().enumerate().map(|(n, label)| (place(n), label.clone())).collect();
        Self { low, high, logarithmic: false, ticks }
    }

    /// Returns a linear axis with ticks at multiples of 1, 2 or 5 times a power of ten. The range
    /// ends at ticks.
    fn linear(low: f64, high: f64, wanted: usize) -> Self {
        let (low, high) = widened(low, high);
        let rough = (high - low) / wanted.max(1) as f64;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|times| times * power);
        let step = step.into_iter().find(|step| *step >= rough * 0.999).unwrap_or(rough);
        let (first, last) = ((low / step).floor(), (high / step).ceil());
        let count = ((last - first) as usize).clamp(1, TICKS);
        let (low, high) = (first * step, (first + count as f64) * step);
        // Divide and round, since a multiple of the step may have a rounding error, such as 3 ×
        // 0.1.
        let at = |n: usize| ((first + n as f64) * step / power).round() * power;
        let ticks = (0..=count).map(|n| (n as f64 / count as f64, number(tidy(at(n))))).collect();
        Self { low, high, logarithmic: false, ticks }
    }

    /// Returns a logarithmic axis with ticks at powers of ten. If there is space, it also has ticks
    /// at twice and five times each power.
    fn powers(low: f64, high: f64) -> Self {
        let below = |value: f64| {
            let power = 10_f64.powf(value.log10().floor());
            let steps = [5.0, 2.0, 1.0].map(|times| times * power);
            steps.into_iter().find(|step| *step <= value * 1.001).unwrap_or(power)
        };
        let above = |value: f64| {
            let power = 10_f64.powf(value.log10().floor());
            let steps = [1.0, 2.0, 5.0, 10.0].map(|times| times * power);
            steps.into_iter().find(|step| *step >= value * 0.999).unwrap_or(power * 10.0)
        };
        let (low, mut high) = (below(low), above(high));
        if high <= low {
            high = low * 10.0;
        }
        let decades = high.log10() - low.log10();
        let times: &[f64] = if decades <= 3.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let every = (decades / TICKS as f64).ceil().max(1.0);
        let first = low.log10().floor();
        let powers = (0..=TICKS + 1).map(|n| 10_f64.powf(first + n as f64 * every));
        let ticks = powers
            .flat_map(|power| times.iter().map(move |times| times * power))
            .filter(|at| (low * 0.999..=high * 1.001).contains(at))
            .map(|at| (((at / low).log10() / decades).clamp(0.0, 1.0), number(tidy(at))))
            .collect();
        Self { low, high, logarithmic: true, ticks }
    }

    /// Returns the position of a number as a share of the axis, from 0 at its low end to 1; `None` if the number cannot
    /// be drawn.
    pub fn place(&self, value: f64) -> Option<f64> {
        if !is_shown(value, self.logarithmic) {
            return None;
        }
        let place = if self.logarithmic {
            (value / self.low).log10() / (self.high / self.low).log10()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        place.is_finite().then(|| place.clamp(0.0, 1.0))
    }

    /// Returns the position from which bars are drawn: zero, or the low end if zero is not on the
    /// axis.
    pub fn foot(&self) -> f64 {
        if self.logarithmic { 0.0 } else { self.place(0.0).unwrap_or(0.0) }
    }
}

/// Returns true if an axis, logarithmic or not, can show `value`.
fn is_shown(value: f64, logarithmic: bool) -> bool {
    value.is_finite() && value.abs() < FARTHEST && (!logarithmic || value > 1.0 / FARTHEST)
}

/// Widens a range that may be a single number. The range for one number includes zero; the range
/// for zero is from -0.5 to 0.5.
fn widened(low: f64, high: f64) -> (f64, f64) {
    let size = low.abs().max(high.abs());
    if high - low > size * 1e-9 {
        return (low, high);
    }
    if size < 1.0 / FARTHEST { (-0.5, 0.5) } else { (low.min(0.0), high.max(0.0)) }
}

/// Rounds to seven digits, which removes the rounding errors of powers of ten.
fn tidy(value: f64) -> f64 {
    format!("{value:.6e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(scale: &AxisScale) -> Vec<&str> {
        scale.ticks.iter().map(|(_, text)| text.as_str()).collect()
    }

    #[test]
    fn ticks_are_round_numbers_over_the_whole_range() {
        let scale = AxisScale::over([0.0, 27.18], false, 6);
        assert_eq!(texts(&scale), ["0", "5", "10", "15", "20", "25", "30"]);
        let scale = AxisScale::over([0.1, 0.42], false, 5);
        assert_eq!(texts(&scale), ["0.1", "0.2", "0.3", "0.4", "0.5"]);
        let scale = AxisScale::over([-3.0, 3.0], false, 6);
        assert_eq!(texts(&scale), ["−3", "−2", "−1", "0", "1", "2", "3"]);
    }

    #[test]
    fn powers_of_ten_have_their_places_between() {
        let scale = AxisScale::over([1.0, 64.0], true, 6);
        assert_eq!(texts(&scale), ["1", "2", "5", "10", "20", "50", "100"]);
        assert_eq!(scale.place(10.0), Some(0.5));
        let scale = AxisScale::over([0.001, 1e6], true, 6);
        assert_eq!(scale.ticks.len(), 10);
    }

    #[test]
    fn no_data_has_an_axis_too() {
        for logarithmic in [false, true] {
            for data in [
                vec![],
                vec![f64::NAN],
                vec![0.0],
                vec![7.0],
                vec![7.0, 7.0],
                vec![f64::INFINITY, -1.0],
            ] {
                let scale = AxisScale::over(data.clone(), logarithmic, 6);
                assert!(scale.ticks.len() >= 2, "{data:?} {logarithmic}: {scale:?}");
                for value in data.into_iter().chain([1e-320, 1e299, -1e299]) {
                    let place = scale.place(value).unwrap_or(0.0);
                    assert!((0.0..=1.0).contains(&place), "{value} {scale:?}");
                }
            }
        }
    }

    #[test]
    fn ends_of_the_range_of_numbers_have_an_axis_too() {
        for data in [[-9e299, 9e299], [1e16, 1e16 + 2.0], [1e-300, 9e299], [1e-299, 2e-299]] {
            for logarithmic in [false, true] {
                let scale = AxisScale::over(data, logarithmic, 6);
                assert!((1..=60).contains(&scale.ticks.len()), "{data:?}: {}", scale.ticks.len());
                assert!(
                    scale
                        .ticks
                        .iter()
                        .all(|(place, text)| (0.0..=1.0).contains(place) && text != "none"),
                    "{scale:?}"
                );
            }
        }
    }

    #[test]
    fn names_are_in_the_middle_of_their_parts_of_the_axis() {
        let scale = AxisScale::named(&["512".to_owned(), "1024".to_owned()]);
        assert_eq!(scale.ticks, [(0.25, "512".to_owned()), (0.75, "1024".to_owned())]);
        assert_eq!(scale.place(1.0), Some(0.75));
    }
}
