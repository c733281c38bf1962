//! What a workload found.

use serde::{Deserialize, Serialize};

/// What a run of a workload found.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct WorkloadResult {
    /// The first is the workload's own metric; others explain it.
    pub figures: Vec<WorkloadFigure>,
    /// What of the data was compared, for people: "every file that was read".
    pub verified: String,
    /// Values over time or in pairs, for plots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<WorkloadSeries>,
}

/// One number.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct WorkloadFigure {
    /// What it is of: "transactions".
    pub name: String,
    /// In what: "1/s", "s", "MB/s", "us", "bytes", "" for a count.
    pub unit: String,
    /// The number.
    pub value: f64,
}

/// Points for a plot.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct WorkloadSeries {
    /// What it is of.
    pub name: String,
    /// What the first numbers are, with their unit: "time, s".
    pub x: String,
    /// What the second are.
    pub y: String,
    /// In the order in which they were found.
    pub points: Vec<[f64; 2]>,
}

impl WorkloadResult {
    /// With one more figure.
    #[must_use]
    pub fn figure(mut self, name: &str, unit: &str, value: f64) -> Self {
        self.figures.push(WorkloadFigure { name: name.to_owned(), unit: unit.to_owned(), value });
        self
    }

    /// The figure of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|figure| figure.name == name).map(|figure| figure.value)
    }
}
