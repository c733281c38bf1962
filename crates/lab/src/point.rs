//! One point of an experiment: what is run, where, and how often.

use serde::{Deserialize, Serialize};
use workload::WorkloadTask;

use crate::LabSite;

/// What is measured as one.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ExperimentPoint {
    /// Names it in its experiment: words parted by `/`, such as `table-1/dnes/random-read/4ms`.
    pub name: String,
    /// Where.
    pub site: LabSite,
    /// What.
    pub task: WorkloadTask,
    /// How often, 1 and more; the median of the first figure counts.
    pub runs: u32,
    /// About how many seconds one run takes, for the estimate and for the bound on it.
    pub seconds: f64,
    /// Whether the windows of the connections are sampled meanwhile.
    #[serde(default)]
    pub windows: bool,
}

/// How much of an experiment is run.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExperimentScale {
    /// All of it in under ten minutes on two processors: small sets, short runs.
    Quick,
    /// In under three hours.
    Full,
}

impl ExperimentScale {
    /// One of two values.
    #[must_use]
    pub fn pick<T>(self, quick: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Full => full,
        }
    }
}
