//! The options of `cargo xtask bench`.

use std::path::PathBuf;
use std::time::Duration;

use crate::emc::replay::BenchTracePace;

/// The points to measure, and the files to write.
#[derive(Debug)]
pub struct BenchOptions {
    /// Names of groups. Empty for all.
    pub groups: Vec<String>,
    /// Number of times that each point is measured.
    pub rounds: usize,
    /// Length of one measurement.
    pub time: Duration,
    /// True to use real-time scheduling.
    pub realtime: bool,
    /// The program to measure. `None` builds the release build and measures that.
    pub program: Option<PathBuf>,
    /// Total time for repeating points that other work disturbed.
    pub patience: Duration,
    /// Speed of the replay of the trace.
    pub pace: BenchTracePace,
    /// Number of requests of the trace to replay.
    pub requests: u64,
    /// A JSON file for every round of every point.
    pub json: Option<PathBuf>,
    /// A Markdown file for a page with the medians.
    pub markdown: Option<PathBuf>,
}
