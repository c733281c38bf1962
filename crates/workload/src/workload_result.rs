//! The result of a workload.

use serde::{Deserialize, Serialize};

/// The result of a run.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct WorkloadResult {
    /// The first figure is the workload's main metric; the others explain it.
    pub figures: Vec<WorkloadFigure>,
    /// The compared data, as text for the report: "every file that was read".
    pub verified: String,
    /// Series over time or of pairs, for plots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<WorkloadSeries>,
}

/// A number with its name.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct WorkloadFigure {
    /// The quantity, such as "transactions".
    pub name: String,
    /// The unit: "1/s", "s", "MB/s", "us", "bytes"; "" for a count.
    pub unit: String,
    pub value: f64,
}

/// A series of points for a plot.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct WorkloadSeries {
    /// The name of the series.
    pub name: String,
    /// The meaning of the x values, with their unit: "time, s".
    pub x: String,
    /// The meaning of the y values.
    pub y: String,
    /// The points, in the order in which they were measured.
    pub points: Vec<[f64; 2]>,
}

impl WorkloadResult {
    #[must_use]
    pub fn figure(mut self, name: &str, unit: &str, value: f64) -> Self {
        self.figures.push(WorkloadFigure { name: name.to_owned(), unit: unit.to_owned(), value });
        self
    }

    /// Returns the figure with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|figure| figure.name == name).map(|figure| figure.value)
    }
}
