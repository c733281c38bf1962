//! The content of a report. Other modules write it as an HTML page or as CSV.

mod number_format;
mod plot;
mod paper_value;
mod table;
mod finding;
mod doubts;

pub use doubts::{Doubt, doubt_kind, doubts, not_measured};
pub use finding::{ClaimResult, Finding, MeasuredRatio, PaperClaim, PointCount, quartiles};
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
    /// The statements of the paper with the measured ratios, the most important one first.
    pub findings: Vec<Finding>,
    /// The number of points that have results; `None` if it is not known.
    pub progress: Option<RunProgress>,
    /// The reasons why measurements may be wrong or are missing.
    pub doubts: Vec<Doubt>,
    pub sections: Vec<Section>,
}

/// How many points have results, and whether the run was stopped.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RunProgress {
    pub requested: PointCount,
    pub experiment: PointCount,
    /// True if points are measured again that have results from an earlier run.
    pub again: bool,
    /// The command line of the run, if it was stopped before its end; otherwise `None`.
    pub stopped: Option<String>,
}

/// A section about a table or figure of the paper.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    /// Heading of the section, such as "Table 1: microbenchmarks".
    pub title: String,
    /// Paragraphs before the tables and plots: what the section shows and how the measurement
    /// differs from the paper's.
    pub text: Vec<String>,
    pub parts: Vec<SectionPart>,
    /// Sentences about differences from the paper (deviations), and about numbers that do not keep their required bound
    /// (bar), with explanations.
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
    /// Returns an empty report with the heading `title`.
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

    /// Adds statements of the paper with their measured ratios, the most important one first.
    #[must_use]
    pub fn findings(mut self, findings: impl IntoIterator<Item = Finding>) -> Self {
        self.findings.extend(findings);
        self
    }

    /// Returns the sentences at the beginning of the report, which are about one claim: the first claim for which
    /// several ratios were measured, since a single ratio proves little; otherwise the first one with a ratio;
    /// otherwise the first one.
    #[must_use]
    pub fn opening(&self) -> Option<[String; 3]> {
        Some(self.first_finding()?.sentences(self.progress.as_ref().map(|it| it.experiment)))
    }

    /// Returns the report's lines for a terminal: the first sentences of the report, the state of the run unless it was
    /// stopped, and each reason to doubt measurements once.
    #[must_use]
    pub fn summary(&self) -> Vec<String> {
        let ended = self.progress.iter().filter(|progress| progress.stopped.is_none());
        let doubts = self.doubts.iter().map(|doubt| format!("in doubt: {}", doubt.sentence()));
        let opening = self.opening().into_iter().flatten();
        opening.chain(ended.map(RunProgress::sentence)).chain(doubts).collect()
    }

    /// Returns the most important statement, which [`opening`](Self::opening) describes.
    #[must_use]
    pub fn first_finding(&self) -> Option<&Finding> {
        let with = |least: usize| self.findings.iter().find(|it| it.ratios.len() >= least);
        with(2).or_else(|| with(1)).or_else(|| with(0))
    }

    #[must_use]
    pub fn section(mut self, section: Section) -> Self {
        self.sections.push(section);
        self
    }
}

impl RunProgress {
    /// Returns a sentence: how many points have results, and whether the run was stopped.
    #[must_use]
    pub fn sentence(&self) -> String {
        let PointCount { measured, all } = self.requested;
        let whole = match self.experiment {
            whole if whole.all > all => {
                format!(
                    "; the whole experiment has {} points, {} with results",
                    whole.all, whole.measured
                )
            }
            _ => String::new(),
        };
        match self.stopped {
            Some(_) if self.again => format!(
                "Stopped after {measured} of {all} points that were to be measured again{whole}; the others have their \
                 earlier results. This command measures all of them again:"
            ),
            Some(_) => format!(
                "Stopped after {measured} of {all} points{whole}; the same command goes on:"
            ),
            None if measured < all => {
                format!("{measured} of {all} points have results{whole}; the others were left out.")
            }
            None => format!("All {all} requested points have results{whole}."),
        }
    }
}

impl Section {
    /// Returns an empty section with the heading `title`.
    #[must_use]
    pub fn new(title: &str) -> Self {
        Self { title: title.to_owned(), ..Self::default() }
    }

    /// Adds a paragraph of text to the section, before its tables and plots.
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

    /// Adds a paragraph about a difference from the paper, or about a number that does not keep its required bound
    /// (bar).
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
