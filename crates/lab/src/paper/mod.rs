//! The numbers that the papers print, each with its place there: what ours are set beside.
//!
//! Only numbers that are printed, in a table or in the text, are here. Curves and bars of figures are
//! not read off: where a figure's numbers are nowhere in words, a report shows ours alone.

pub mod outsourcing;
pub mod stics;
pub mod fair_tcp;

/// What a paper says of a figure in words: a number or a range of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Claim {
    /// Where: "Figure 12, section 4.4".
    pub place: &'static str,
    /// Of what.
    pub what: &'static str,
    /// The smallest.
    pub least: f64,
    /// The largest; the same where the paper has one number.
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

impl Claim {
    /// One number.
    #[must_use]
    pub const fn number(place: &'static str, what: &'static str, number: f64) -> Self {
        Self { place, what, least: number, most: number }
    }

    /// The number, or the middle of the range: what a single column of a table can show.
    #[must_use]
    pub fn middle(&self) -> f64 {
        self.least.midpoint(self.most)
    }

    /// Whether a number is in the range.
    #[must_use]
    pub fn holds(&self, value: f64) -> bool {
        (self.least..=self.most).contains(&value)
    }
}
