//! A report as data. Other modules write it as a page or as CSV.

mod number_format;
mod plot;
mod paper_value;
mod table;

pub use number_format::{factor, number, rounded};
pub use paper_value::Printed;
pub use plot::{Axis, Curve, CurveSource, Drawn, Plot};
pub use table::{Cell, CellBound, NOT_MEASURED, ReportColumn, ReportRow, ReportTable};

/// The report of a run: text, tables and plots in sections.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LabReport {
    pub title: String,
    /// A description of what was measured, in a few paragraphs.
    pub about: Vec<String>,
    /// The environment of the measurement: name and value.
    pub facts: Vec<(String, String)>,
    pub sections: Vec<Section>,
}

/// A section of a report, about a table or figure of a paper.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    /// The heading, such as "Table 1: microbenchmarks".
    pub title: String,
    /// Paragraphs before the tables and plots: what the section shows and how the measurement
    /// differs from the paper's.
    pub text: Vec<String>,
    pub parts: Vec<SectionPart>,
    /// Deviations from the paper and missed bars, with explanations.
    pub deviations: Vec<String>,
    /// Misprints of the paper in the section's table or figure, and how the report treats them.
    pub misprints: Vec<String>,
}

/// A table or a plot of a section.
#[derive(Clone, Debug, PartialEq)]
pub enum SectionPart {
    Table(ReportTable),
    Plot(Plot),
}

impl LabReport {
    /// Returns an empty report with this heading.
    #[must_use]
    pub fn new(title: &str) -> Self {
        Self { title: title.to_owned(), ..Self::default() }
    }

    /// Adds a paragraph to the report's description of what was measured.
    #[must_use]
    pub fn about(mut self, text: &str) -> Self {
        self.about.push(text.to_owned());
        self
    }

    /// Adds a fact about the environment of the measurement to the report.
    #[must_use]
    pub fn fact(mut self, name: &str, value: &str) -> Self {
        self.facts.push((name.to_owned(), value.to_owned()));
        self
    }

    #[must_use]
    pub fn section(mut self, section: Section) -> Self {
        self.sections.push(section);
        self
    }
}

impl Section {
    /// Returns an empty section with this heading.
    #[must_use]
    pub fn new(title: &str) -> Self {
        Self { title: title.to_owned(), ..Self::default() }
    }

    /// Adds a paragraph to the section, before its tables and plots.
    #[must_use]
    pub fn text(mut self, text: &str) -> Self {
        self.text.push(text.to_owned());
        self
    }

    #[must_use]
    pub fn table(mut self, table: ReportTable) -> Self {
        self.parts.push(SectionPart::Table(table));
        self
    }

    #[must_use]
    pub fn plot(mut self, plot: Plot) -> Self {
        self.parts.push(SectionPart::Plot(plot));
        self
    }

    /// Adds a paragraph about a deviation from the paper, or about a missed bar.
    #[must_use]
    pub fn deviation(mut self, text: &str) -> Self {
        self.deviations.push(text.to_owned());
        self
    }

    /// Returns every cell of every table, with its table, the name of its row, and its column.
    pub fn cells(&self) -> impl Iterator<Item = (&ReportTable, &str, &ReportColumn, &Cell)> {
        let tables = self.parts.iter().filter_map(|part| match part {
            SectionPart::Table(table) => Some(table),
            SectionPart::Plot(_) => None,
        });
        tables.flat_map(|table| {
            table.rows.iter().flat_map(move |row| {
                let cells = table.columns.iter().zip(&row.cells);
                cells.map(move |(column, cell)| (table, row.name.as_str(), column, cell))
            })
        })
    }

    /// Adds a misprint of the paper to the section.
    #[must_use]
    pub fn misprint(mut self, text: &str) -> Self {
        self.misprints.push(text.to_owned());
        self
    }
}
