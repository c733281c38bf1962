//! The measurement of one point of an experiment: a line of the file from which a run can be resumed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use workload::{WorkloadFigure, WorkloadResult};

/// A measured point.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct PointRecord {
    /// Identifies the point in its experiment: words separated by `/`, such as `table-1/dnes/random-read/4ms`.
    pub point: String,
    /// All settings of the point, as data: the same settings result in the same point.
    pub settings: serde_json::Value,
    /// The program and the machine ([`crate::maker`]).
    #[serde(default)]
    pub maker: BTreeMap<String, String>,
    /// The result of the workload; of several runs the one with the median of its first figure.
    pub outcome: WorkloadResult,
    /// The first figure of each run, in the order of the runs.
    pub runs: Vec<f64>,
    /// Counted around the workload: bytes and packets over the link, windows, processor time.
    #[serde(default)]
    pub counted: Vec<WorkloadFigure>,
    /// Why the figures may not be trusted; empty if there is no doubt.
    #[serde(default)]
    pub taints: Vec<String>,
    /// Other notes: the machine's load, what was left out.
    #[serde(default)]
    pub notes: BTreeMap<String, String>,
    /// Seconds since 1970 at its begin.
    pub began: u64,
    /// Duration in seconds, including the setup of the site.
    pub took: f64,
}
