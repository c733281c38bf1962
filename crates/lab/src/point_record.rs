//! What was measured at one point of an experiment: one line of the file that a run can be resumed from.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use workload::{WorkloadFigure, WorkloadResult};

/// One point, measured.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct PointRecord {
    /// Which point: words that name it among all of its experiment, parted by `/`, such as
    /// `table-1/dnes/random-read/4ms`.
    pub point: String,
    /// All that it was measured with, as data: the same settings give the same point.
    pub settings: serde_json::Value,
    /// With what it was measured ([`crate::maker`]).
    #[serde(default)]
    pub maker: BTreeMap<String, String>,
    /// What the workload found; of several runs the one with the median of its first figure.
    pub outcome: WorkloadResult,
    /// The first figure of each run, in their order.
    pub runs: Vec<f64>,
    /// What was counted around the workload: bytes and packets over the link, windows, processor time.
    #[serde(default)]
    pub counted: Vec<WorkloadFigure>,
    /// Why the figures may not be trusted; empty if nothing is known.
    #[serde(default)]
    pub taints: Vec<String>,
    /// Other notes: the machine's load, what was left out.
    #[serde(default)]
    pub notes: BTreeMap<String, String>,
    /// Seconds since 1970 when it began.
    pub began: u64,
    /// Seconds that it took with all that is set up for it.
    pub took: f64,
}
