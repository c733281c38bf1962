//! The result of a workload: figures, series, and a text about the verified data.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct WorkloadResult {
    /// The figures of the run. The first one is the main metric of the workload; the others explain
    /// it.
    pub figures: Vec<WorkloadFigure>,
    /// A text for the report that says which data was compared: "every file that was read".
    pub verified: String,
    /// Series for plots: values over time, or pairs of values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<WorkloadSeries>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct WorkloadFigure {
    /// Name of the measured quantity, such as "transactions".
    pub name: String,
    /// The unit: "1/s", "s", "MB/s", "us", "bytes"; "" for a count.
    pub unit: String,
    pub value: f64,
}

/// A series of points for a plot.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct WorkloadSeries {
    pub name: String,
    /// Meaning of the x values with their unit, such as "time, s".
    pub x: String,
    /// Meaning of the y values, with their unit.
    pub y: String,
    /// The points of the series, in the order of their measurement.
    pub points: Vec<[f64; 2]>,
}

impl WorkloadResult {
    #[must_use]
    pub fn figure(mut self, name: &str, unit: &str, value: f64) -> Self {
        self.figures.push(WorkloadFigure { name: name.to_owned(), unit: unit.to_owned(), value });
        self
    }

    /// Returns the value of the figure named `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|figure| figure.name == name).map(|figure| figure.value)
    }
}
