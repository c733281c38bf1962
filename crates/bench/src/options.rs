//! The options of `cargo xtask bench`.

use std::path::PathBuf;
use std::time::Duration;

use crate::emc::replay::BenchTracePace;

/// The options of a benchmark run: what to measure, and which files to write.
#[derive(Debug)]
pub struct BenchOptions {
    /// Names of the groups to measure. Empty for all.
    pub groups: Vec<String>,
    /// Number of times that each point is measured.
    pub rounds: usize,
    /// Duration of one measurement, without the warm-up.
    pub time: Duration,
    /// True to run servers and load generators with real-time scheduling.
    pub realtime: bool,
    /// The program to measure. `None` builds the release build and measures that.
    pub program: Option<PathBuf>,
    /// Total time for repeating disturbed points.
    pub patience: Duration,
    /// Speed of the replay of the trace.
    pub pace: BenchTracePace,
    /// Number of requests of the trace to replay.
    pub requests: u64,
    /// Path of a JSON file for the points of every round.
    pub json: Option<PathBuf>,
    /// Path of a Markdown file for the medians.
    pub markdown: Option<PathBuf>,
}
