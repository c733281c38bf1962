//! The numbers that the papers print, each with its place there: what ours are set beside.
//!
//! Only numbers that are printed, in a table or in the text, are here. Curves and bars of figures are
//! not read off: where a figure's numbers are nowhere in words, a report shows ours alone.

pub mod outsourcing;
pub mod stics;
pub mod fair_tcp;

use crate::{Printed, number};

/// What a paper prints of a figure: a number or a range of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaperFigure {
    /// Where: "Figure 12, section 4.4".
    pub place: &'static str,
    /// Of what.
    pub what: &'static str,
    /// The smallest.
    pub least: f64,
    /// The largest; the same where the paper has one number.
    pub most: f64,
}

/// What a paper says of a figure in words, without a number. It is nothing that a number of ours is set beside.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaperStatement {
    /// Where: "Figure 5, section 4.4.1".
    pub place: &'static str,
    /// Of what.
    pub what: &'static str,
    /// The words.
    pub said: &'static str,
    /// From where the words hold, as we read them: the bound is ours, not the paper's. Negative infinity for none.
    pub least: f64,
    /// And up to where; infinity for no bound.
    pub most: f64,
}

/// An error in print that our reading of a paper found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Misprint {
    /// Where.
    pub place: &'static str,
    /// What stands there.
    pub printed: &'static str,
    /// What it is taken to be here, and how that is known.
    pub taken: &'static str,
}

impl Misprint {
    /// As a sentence for a report.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{} prints {}; {}.", self.place, self.printed, self.taken)
    }
}

impl PaperStatement {
    /// As a note of a table's cell.
    #[must_use]
    pub fn note(&self) -> String {
        format!("the paper: \"{}\"", self.said)
    }

    /// Whether they hold of a number, as we read them.
    #[must_use]
    pub fn hold(&self, value: f64) -> bool {
        (self.least..=self.most).contains(&value)
    }

    /// How we read them: "at least 0.9".
    #[must_use]
    pub fn read_as(&self) -> String {
        let [least, most] = [self.least, self.most].map(number);
        match (self.least.is_finite(), self.most.is_finite()) {
            (true, true) => format!("{least} to {most}"),
            (true, false) => format!("at least {least}"),
            (false, true) => format!("at most {most}"),
            (false, false) => "anything".to_owned(),
        }
    }
}

impl PaperFigure {
    /// One number.
    #[must_use]
    pub const fn number(place: &'static str, what: &'static str, number: f64) -> Self {
        Self { place, what, least: number, most: number }
    }

    /// The number or the range, without where it stands: what a table shows beside ours.
    #[must_use]
    pub fn printed(&self) -> Printed {
        Printed { least: self.least, most: self.most }
    }

    /// Whether a number is in the range.
    #[must_use]
    pub fn holds(&self, value: f64) -> bool {
        (self.least..=self.most).contains(&value)
    }
}
