//! The options of `cargo xtask bench`.

use std::path::PathBuf;
use std::time::Duration;

use crate::emc::replay::BenchTracePace;

/// What to measure and where to write it.
#[derive(Debug)]
pub struct BenchOptions {
    /// Names of groups; all of them if none is named.
    pub groups: Vec<String>,
    /// How often each point is measured.
    pub rounds: usize,
    /// How long one point takes.
    pub time: Duration,
    /// Whether to ask for real-time scheduling.
    pub realtime: bool,
    /// The program to measure. If none is named, the release build is made and measured.
    pub program: Option<PathBuf>,
    /// How long to repeat, all in all, what other work on the machine disturbed.
    pub patience: Duration,
    /// How fast the trace is replayed.
    pub pace: BenchTracePace,
    /// How many requests of it.
    pub requests: u64,
    /// A file for every round of every point.
    pub json: Option<PathBuf>,
    /// A file for a page.
    pub markdown: Option<PathBuf>,
}
