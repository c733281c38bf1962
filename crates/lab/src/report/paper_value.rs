//! A number or a range of numbers that a paper prints.

use super::{number, rounded};

/// A number, or a range of numbers, as printed in a paper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Printed {
    pub least: f64,
    /// The largest number of the printed range; equal to `least` for a single number.
    pub most: f64,
}

impl From<f64> for Printed {
    fn from(number: f64) -> Self {
        Self { least: number, most: number }
    }
}

impl Printed {
    /// Returns the lower end of the printed range, and its upper end unless both are equal.
    fn ends(self) -> (f64, Option<f64>) {
        (self.least, (self.least != self.most).then_some(self.most))
    }

    /// Returns true if `self` is a range and the number is in it. For a single number returns
    /// false: the caller compares it with a tolerance.
    #[must_use]
    pub fn is_around(self, value: f64) -> bool {
        self.ends().1.is_some() && (self.least..=self.most).contains(&value)
    }

    /// Returns the value of the range that is nearest to a number: the number itself if it is in the range, otherwise
    /// an end of the range.
    #[must_use]
    pub fn nearest(self, value: f64) -> f64 {
        value.max(self.least).min(self.most)
    }

    /// Formats the number or range for a page: "0.95", or "0.91–0.99".
    #[must_use]
    pub fn text(self) -> String {
        self.with(number)
    }

    /// Formats the number or range for a sentence, with three digits.
    #[must_use]
    pub fn sentence(self) -> String {
        self.with(rounded)
    }

    fn with(self, shown: fn(f64) -> String) -> String {
        match self.ends() {
            (one, None) => shown(one),
            (least, Some(most)) => format!("{}–{}", shown(least), shown(most)),
        }
    }

    /// Formats the number or range for CSV, with all digits: "0.95", or "0.91-0.99". Returns an
    /// empty text if it is not finite.
    #[must_use]
    pub fn digits(self) -> String {
        match self.ends() {
            _ if !(self.least.is_finite() && self.most.is_finite()) => String::new(),
            (one, None) => one.to_string(),
            (least, Some(most)) => format!("{least}-{most}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: Printed = Printed { least: 0.91, most: 0.99 };

    #[test]
    fn a_range_is_shown_as_a_range_and_a_number_as_a_number() {
        assert_eq!((RANGE.text(), RANGE.digits()), ("0.91–0.99".into(), "0.91-0.99".into()));
        let one = Printed::from(12_345.678);
        assert_eq!((one.text(), one.digits()), (number(12_345.678), "12345.678".into()));
        assert_eq!(Printed::from(f64::INFINITY).digits(), "");
    }

    #[test]
    fn the_nearest_is_the_number_itself_within_and_an_end_outside() {
        assert_eq!([0.5, 0.93, 1.2].map(|value| RANGE.nearest(value)), [0.91, 0.93, 0.99]);
        assert_eq!([0.5, 0.91, 0.99, 1.2].map(|v| RANGE.is_around(v)), [false, true, true, false]);
        assert_eq!(
            (Printed::from(0.95).nearest(0.93), Printed::from(1.0).is_around(1.0)),
            (0.95, false)
        );
    }
}
