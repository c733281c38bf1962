//! The measurement of one point of an experiment: a line of the file of results.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use workload::{WorkloadFigure, WorkloadResult};

/// A measured point of an experiment. The file of results has it as one line of JSON.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct PointRecord {
    /// Name of the point in its experiment: words separated by `/`, such as `table-1/dnes/random-read/4ms`.
    pub point: String,
    /// All settings of the point. Another point with the same settings can use the record.
    pub settings: serde_json::Value,
    /// Identity of the program and of the machine that made the measurement: version, kernel, processors and memory, by
    /// name ([`crate::maker`]).
    #[serde(default)]
    pub maker: BTreeMap<String, String>,
    /// The result of the workload. After several runs, the result of the run with the median of the
    /// first figure.
    pub outcome: WorkloadResult,
    /// The first figure of each run, in the order of the runs.
    pub runs: Vec<f64>,
    /// Figures that the laboratory counted while the workload ran: bytes and packets over the link, windows, processor
    /// time.
    #[serde(default)]
    pub counted: Vec<WorkloadFigure>,
    /// Reasons why the figures of this record may be wrong. Empty if there are none.
    #[serde(default)]
    pub taints: Vec<String>,
    /// Other observations during the measurement, such as the load of the machine.
    #[serde(default)]
    pub notes: BTreeMap<String, String>,
    /// Start of the measurement in seconds since 1970.
    pub began: u64,
    /// Duration in seconds, including the time to set up the site.
    pub took: f64,
}
