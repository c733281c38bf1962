//! A table of a report. A cell can have our number, the paper's number, and a bound that our number must keep (bar).

use std::fmt;

use super::{Printed, quartiles};

/// A table of our numbers and the paper's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReportTable {
    pub title: String,
    /// The heading above the names of the rows, such as "one-way delay, ms".
    pub corner: String,
    pub columns: Vec<ReportColumn>,
    pub rows: Vec<ReportRow>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReportColumn {
    /// A common heading above the names of neighbouring columns: "IBM DNES". Empty if the column is
    /// in no group.
    pub group: String,
    pub name: String,
    /// The unit of the column's numbers. Empty for a count or a ratio.
    pub unit: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReportRow {
    pub name: String,
    pub cells: Vec<Cell>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    /// The number that was measured in this run; `None` if there is none.
    pub ours: Option<f64>,
    /// The lower and the upper quartile of several runs.
    pub quartiles: Option<[f64; 2]>,
    pub paper: Option<Printed>,
    /// The bar: the bound that our number should keep.
    pub bar: Option<CellBound>,
    /// Words in place of a missing number, or after the numbers: "not measured: bonnie++ is not
    /// installed".
    pub note: String,
    /// Reasons why the measured number may be wrong; empty without doubts.
    pub taints: Vec<String>,
}

/// The bar of a cell: a bound that our number should keep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CellBound {
    Least(f64),
    Most(f64),
}

impl fmt::Display for ReportColumn {
    /// Writes the column's group and name in one line, such as "Reno mean".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() {
            return f.write_str(&self.name);
        }
        write!(f, "{} {}", self.group, self.name)
    }
}

impl ReportTable {
    /// Returns a table without columns and rows. `corner` is the heading above the names of the
    /// rows.
    #[must_use]
    pub fn new(title: &str, corner: &str) -> Self {
        Self { title: title.to_owned(), corner: corner.to_owned(), ..Self::default() }
    }

    /// Adds a column that is in no group of columns.
    #[must_use]
    pub fn column(self, name: &str, unit: &str) -> Self {
        self.column_of("", name, unit)
    }

    /// Adds a column to the group of columns with the heading `group`.
    #[must_use]
    pub fn column_of(mut self, group: &str, name: &str, unit: &str) -> Self {
        let [group, name, unit] = [group, name, unit].map(str::to_owned);
        self.columns.push(ReportColumn { group, name, unit });
        self
    }

    /// Adds a row to the table: its name, and one cell for each column.
    #[must_use]
    pub fn row(mut self, name: &str, cells: impl IntoIterator<Item = Cell>) -> Self {
        let cells = cells.into_iter().collect();
        self.rows.push(ReportRow { name: name.to_owned(), cells });
        self
    }

    /// Adds a row for each element of `of`, such as the delays of a sweep. `name` returns the name
    /// of the row, `cells` its cells.
    #[must_use]
    pub fn rows<T, C: IntoIterator<Item = Cell>>(
        self,
        of: impl IntoIterator<Item = T>,
        name: impl Fn(&T) -> String,
        cells: impl Fn(&T) -> C,
    ) -> Self {
        of.into_iter().fold(self, |table, one| table.row(&name(&one), cells(&one)))
    }

    /// Removes rows and columns that have neither a number nor a reason why one is missing. Such rows and columns are
    /// not measured in a quick run.
    #[must_use]
    pub fn without_blanks(mut self) -> Self {
        self.rows.retain(|row| !row.cells.iter().all(Cell::is_blank));
        let kept: Vec<bool> = (0..self.columns.len())
            .map(|n| {
                self.rows.iter().any(|row| row.cells.get(n).is_some_and(|cell| !cell.is_blank()))
            })
            .collect();
        let is_kept = |n: usize| kept.get(n).copied().unwrap_or(false);
        let mut n = 0..;
        self.columns.retain(|_| n.next().is_some_and(is_kept));
        for row in &mut self.rows {
            let mut n = 0..;
            row.cells.retain(|_| n.next().is_some_and(is_kept));
        }
        self
    }

    /// Returns true if any cell of the table has a number that was measured.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        self.rows.iter().flat_map(|row| &row.cells).any(|cell| cell.ours.is_some())
    }
}

impl Cell {
    /// Returns a cell with a number that was measured in this run.
    #[must_use]
    pub fn ours(value: f64) -> Self {
        Self { ours: Some(value), ..Self::default() }
    }

    /// Returns a cell with the paper's number only, for figures that are not measured here.
    #[must_use]
    pub fn paper(value: f64) -> Self {
        Self { paper: Some(value.into()), ..Self::default() }
    }

    /// Returns a cell with words and no number.
    #[must_use]
    pub fn words(text: &str) -> Self {
        Self { note: text.to_owned(), ..Self::default() }
    }

    /// Sets the quartiles of several runs; a single run has none.
    #[must_use]
    pub fn of_runs(mut self, runs: &[f64]) -> Self {
        let spread = quartiles(runs.iter().copied()).filter(|_| runs.len() > 1);
        self.quartiles = spread.map(|[low, _, high]| [low, high]);
        self
    }

    /// Converts the measured number and its quartiles, but not the paper's number.
    #[must_use]
    pub fn converted(mut self, convert: impl Fn(f64) -> f64) -> Self {
        self.ours = self.ours.map(&convert);
        self.quartiles = self.quartiles.map(|ends| {
            let [low, high] = ends.map(&convert);
            // A shorter time is a higher throughput.
            [low.min(high), low.max(high)]
        });
        self
    }

    /// Sets the number of the paper with which the cell compares; `None` for no number.
    #[must_use]
    pub fn beside(mut self, paper: impl Into<Option<f64>>) -> Self {
        self.paper = paper.into().map(Printed::from);
        self
    }

    /// Sets the paper's number or range of the cell.
    #[must_use]
    pub fn beside_printed(mut self, paper: Printed) -> Self {
        self.paper = Some(paper);
        self
    }

    /// Sets the bound of the cell: the measured number should be at least `value`.
    #[must_use]
    pub fn at_least(mut self, value: f64) -> Self {
        self.bar = Some(CellBound::Least(value));
        self
    }

    /// Sets the bound of the cell: the measured number should be at most `value`.
    #[must_use]
    pub fn at_most(mut self, value: f64) -> Self {
        self.bar = Some(CellBound::Most(value));
        self
    }

    /// Sets the text that the cell shows after its numbers.
    #[must_use]
    pub fn note(mut self, text: &str) -> Self {
        text.clone_into(&mut self.note);
        self
    }

    /// Adds reasons why the number may be wrong (taints). A reason that the cell already has is not added again.
    #[must_use]
    pub fn tainted(mut self, taints: &[String]) -> Self {
        for taint in taints {
            if !self.taints.contains(taint) {
                self.taints.push(taint.clone());
            }
        }
        self
    }

    /// Returns the ratio of this cell to another, with the taints of both cells. If one has no
    /// number, the result is [`NOT_MEASURED`]. [`Cell::beside`] adds the paper's ratio.
    #[must_use]
    pub fn by(&self, other: &Self) -> Self {
        let ratio = match (self.ours, other.ours) {
            (Some(over), Some(under)) => divided(over, under),
            _ => None,
        };
        match ratio {
            Some(ratio) => Self::ours(ratio).tainted(&self.taints).tainted(&other.taints),
            None => Self::words(NOT_MEASURED),
        }
    }

    /// Returns true if the cell has neither a number nor a reason why it is missing.
    fn is_blank(&self) -> bool {
        let has_number = self.ours.is_some() || self.paper.is_some() || self.bar.is_some();
        !has_number && (self.note.is_empty() || self.note == NOT_MEASURED)
    }

    /// Returns the ratio of our number to the paper's, if both exist and the paper's is not zero.
    /// If the paper has a range, the ratio is to the nearest value of the range, so it is 1 within
    /// the range.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        let ours = self.ours?;
        divided(ours, self.paper?.nearest(ours))
    }

    /// Returns true if our number keeps the bound of this cell (bar). Returns `None` if the cell has no bound or no
    /// measured number.
    #[must_use]
    pub fn holds(&self) -> Option<bool> {
        let ours = self.ours?;
        Some(match self.bar? {
            CellBound::Least(least) => ours >= least,
            CellBound::Most(most) => ours <= most,
        })
    }
}

/// The words in a cell that has no number and no reason why it is missing.
pub const NOT_MEASURED: &str = "not measured";

/// Returns the quotient; `None` if it is not finite.
fn divided(over: f64, under: f64) -> Option<f64> {
    Some(over / under).filter(|ratio| ratio.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_never_by_zero() {
        assert_eq!(Cell::ours(3.0).beside(1.5).ratio(), Some(2.0));
        assert_eq!(Cell::ours(3.0).beside(0.0).ratio(), None);
        assert_eq!(Cell::ours(0.0).beside(0.0).ratio(), None);
        assert_eq!(Cell::ours(f64::NAN).beside(1.0).ratio(), None);
        assert_eq!(Cell::paper(1.0).ratio(), None);
    }

    #[test]
    fn a_ratio_to_a_range_is_to_its_nearest_end() {
        let beside = |ours| Cell::ours(ours).beside_printed(Printed { least: 1.5, most: 2.0 });
        assert_eq!(
            [0.75, 1.5, 1.7, 2.0, 3.0].map(|it| beside(it).ratio().unwrap()),
            [0.5, 1.0, 1.0, 1.0, 1.5]
        );
        assert_eq!(beside(f64::NAN).ratio(), None);
    }

    #[test]
    fn a_bar_holds_or_is_missed_only_where_something_was_measured() {
        assert_eq!(Cell::ours(1.2).at_least(1.15).holds(), Some(true));
        assert_eq!(Cell::ours(1.1).at_least(1.15).holds(), Some(false));
        assert_eq!(Cell::ours(0.2).at_most(0.21).holds(), Some(true));
        assert_eq!(Cell::ours(f64::NAN).at_most(0.21).holds(), Some(false));
        assert_eq!(Cell::words("not measured").at_least(1.0).holds(), None);
    }

    #[test]
    fn empty_rows_and_columns_are_removed_and_reasons_stay() {
        let blank = || Cell::words(NOT_MEASURED);
        let table = ReportTable::new("t", "delay")
            .column("a", "")
            .column("b", "")
            .column("c", "")
            .row("0 ms", [Cell::ours(1.0), blank(), blank()])
            .row("1 ms", [blank(), blank(), blank()])
            .row("2 ms", [blank(), blank(), Cell::words("not measured: tgt is not installed")])
            .without_blanks();
        let names: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
        assert_eq!(names, ["a", "c"]);
        let rows: Vec<_> =
            table.rows.iter().map(|row| (row.name.as_str(), row.cells.len())).collect();
        assert_eq!(rows, [("0 ms", 2), ("2 ms", 2)]);
    }

    #[test]
    fn quartiles_are_converted_with_their_number() {
        let cell = Cell::ours(2.0).of_runs(&[1.0, 2.0, 4.0]).converted(|seconds| 6.0 / seconds);
        assert_eq!((cell.ours, cell.quartiles), (Some(3.0), Some([2.0, 4.0])));
    }

    #[test]
    fn a_quotient_of_two_cells_keeps_the_taints_of_both() {
        let [slow, quiet] =
            ["the machine was slow", "the link dropped"].map(|s| vec![s.to_owned()]);
        let quotient = Cell::ours(6.0).tainted(&slow).by(&Cell::ours(3.0).tainted(&quiet));
        assert_eq!((quotient.ours, quotient.taints), (Some(2.0), [slow, quiet].concat()));
        assert_eq!(Cell::ours(1.0).by(&Cell::ours(0.0)).ours, None);
    }
}
