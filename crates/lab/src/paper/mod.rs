//! The numbers that the papers print, each with its place in the paper. Reports compare our numbers
//! with them.
//!
//! Only numbers that are printed in a table or in the text are included. Values are not read from curves or bar charts:
//! if the text has no numbers for a figure, a report shows only our numbers.

pub mod outsourcing;
pub mod stics;
pub mod fair_tcp;

use crate::{Printed, rounded};

/// A number or a range of numbers that a paper prints.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaperFigure {
    /// Where the figure is in the paper, such as "Figure 12, section 4.4".
    pub place: &'static str,
    /// The measured quantity and its unit.
    pub what: &'static str,
    /// The smallest number that the paper prints.
    pub least: f64,
    /// The largest number that the paper prints. It equals `least` if the paper prints one number.
    pub most: f64,
}

/// A statement of a paper in words, without a number. `least` and `most` are the bounds that we
/// derive from the words.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaperStatement {
    /// Where the statement is in the paper, such as "Figure 5, section 4.4.1".
    pub place: &'static str,
    /// The subject of the statement, as words for a report.
    pub what: &'static str,
    pub said: &'static str,
    /// Our lower bound for the meaning of the words. Negative infinity if there is none.
    pub least: f64,
    /// Our upper bound for the meaning of the statement; infinity for no bound.
    pub most: f64,
}

/// A misprint in a paper, and the text that we assume instead.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Misprint {
    pub place: &'static str,
    /// The text of the paper that is wrong.
    pub printed: &'static str,
    /// The number or statement that we use instead, and the reason.
    pub taken: &'static str,
}

impl Misprint {
    /// Returns the misprint as a sentence for a report.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{} prints {}; {}.", self.place, self.printed, self.taken)
    }
}

impl PaperStatement {
    /// Returns the statement as a note for a cell of a table.
    #[must_use]
    pub fn note(&self) -> String {
        format!("the paper: \"{}\"", self.said)
    }

    /// Returns true if a number is within our bounds for the statement.
    #[must_use]
    pub fn hold(&self, value: f64) -> bool {
        (self.least..=self.most).contains(&value)
    }

    /// Returns our bounds for the statement as text: "at least 0.9".
    #[must_use]
    pub fn read_as(&self) -> String {
        let [least, most] = [self.least, self.most].map(rounded);
        match (self.least.is_finite(), self.most.is_finite()) {
            (true, true) => format!("{least} to {most}"),
            (true, false) => format!("at least {least}"),
            (false, true) => format!("at most {most}"),
            (false, false) => "anything".to_owned(),
        }
    }
}

impl PaperFigure {
    /// Returns a figure of a paper that is a single number.
    #[must_use]
    pub const fn number(place: &'static str, what: &'static str, number: f64) -> Self {
        Self { place, what, least: number, most: number }
    }

    /// Returns the number or the range without its place. A table shows it below our number.
    #[must_use]
    pub fn printed(&self) -> Printed {
        Printed { least: self.least, most: self.most }
    }

    /// Returns true if a number is in the range that the paper prints.
    #[must_use]
    pub fn holds(&self, value: f64) -> bool {
        (self.least..=self.most).contains(&value)
    }
}
