//! A report as data: what is in it, not how it looks.

/// A whole report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Its heading.
    pub title: String,
    /// What was done, in a few paragraphs.
    pub about: Vec<String>,
    /// What it was measured on and with: name and value.
    pub facts: Vec<(String, String)>,
    /// Its parts, in their order.
    pub sections: Vec<Section>,
}

/// What is about one table or figure of the paper.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    /// Its heading: "Table 1: microbenchmarks".
    pub title: String,
    /// Paragraphs before its parts: what it shows and what differs from the paper.
    pub text: Vec<String>,
    /// Tables and plots.
    pub parts: Vec<Part>,
    /// Deviations from the paper or from a promise, each with its reason.
    pub deviations: Vec<String>,
}

/// A table or a plot.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Numbers.
    Table(Table),
    /// A drawing.
    Plot(Plot),
}

/// Numbers of ours and of the paper.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// Its heading, with units.
    pub title: String,
    /// One for each column, that of the rows' names included.
    pub heads: Vec<String>,
    /// A name, and a cell for each column after it.
    pub rows: Vec<(String, Vec<Cell>)>,
}

/// A place in a table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    /// What was measured here.
    pub ours: Option<f64>,
    /// What the paper has.
    pub paper: Option<f64>,
    /// A promise that it is held against.
    pub bar: Option<Bar>,
    /// Words in place of numbers, or after them: "left out: bonnie++ is not installed".
    pub note: String,
}

/// Where a figure has to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bar {
    /// At least this.
    Least(f64),
    /// At most this.
    Most(f64),
}

/// A drawing of curves on one pair of axes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plot {
    /// Its heading.
    pub title: String,
    /// Along the bottom.
    pub x: Axis,
    /// Along the side.
    pub y: Axis,
    /// What is drawn.
    pub curves: Vec<Curve>,
}

/// One axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axis {
    /// What it is of, with its unit: "one-way delay, ms".
    pub name: String,
    /// Whether it is drawn in powers of ten.
    pub logarithmic: bool,
}

/// One curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// For the legend.
    pub name: String,
    /// Whose numbers they are.
    pub source: Source,
    /// How it is drawn.
    pub drawn: Drawn,
    /// Its points.
    pub points: Vec<[f64; 2]>,
}

/// Whose numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Source {
    /// Measured here.
    Ours,
    /// The paper's.
    Paper,
    /// Computed by a formula.
    Model,
}

/// How a curve is drawn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Drawn {
    /// Points joined by lines.
    Line,
    /// Dots: scatter plots.
    Dots,
    /// A bar for each point: histograms.
    Bars,
}
