//! A point of an experiment: what is run, on which site, and how often.

use serde::{Deserialize, Serialize};
use workload::WorkloadTask;

use crate::LabSite;

/// A point of an experiment, the unit of measurement: a site, a workload and the number of runs.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ExperimentPoint {
    /// Name of the point in its experiment: words separated by `/`, such as `table-1/dnes/random-read/4ms`.
    pub name: String,
    pub site: LabSite,
    pub task: WorkloadTask,
    /// Number of runs, 1 or more. The record stores the run with the median of the first figure.
    pub runs: u32,
    /// Estimated seconds of one run. The time limit of a run is derived from this.
    pub seconds: f64,
    /// True to sample the congestion windows of connections during the run.
    #[serde(default)]
    pub windows: bool,
}

/// The extent of a run: how many points are measured, and for how long.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExperimentScale {
    /// A run of less than ten minutes on two processors: small working sets, short runs.
    Quick,
    /// A run of less than three hours.
    Full,
}

impl ExperimentScale {
    /// Returns `quick` or `full`, depending on the scale.
    #[must_use]
    pub fn pick<T>(self, quick: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Full => full,
        }
    }
}
