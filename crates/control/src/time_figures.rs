//! Figures that several parts report in the same form: response times, commands by name, PDUs by size.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Response times since the start of the process, counted in classes that are accurate to 25 %. One in 16 calls that
/// finish at once is timed, and of writes and of commands that wait, one in four.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ResponseTimes {
    /// Number of calls. A timed call counts for those that were not timed, too.
    pub count: u64,
    /// Mean response time.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Longest.
    pub max_us: f64,
    /// Histogram: for each class with calls, its upper bound in microseconds and the number of calls.
    pub classes_us: Vec<(f64, u64)>,
}

/// Number of SCSI commands by name, such as `READ(10)`. An operation code without a name is written as `C1h`, a
/// service action of a variable-length CDB without a name as `7Fh/888Dh`.
pub type CommandCounts = BTreeMap<String, u64>;

/// Number of PDUs by their length, with header, data and padding, but without digests: the classes of STICS, table 3.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct PduLengths {
    /// PDUs of less than 64 bytes.
    pub below_64: u64,
    /// PDUs of 64 to 127 bytes.
    pub below_128: u64,
    /// PDUs of 128 to 255 bytes.
    pub below_256: u64,
    /// PDUs of 256 to 511 bytes.
    pub below_512: u64,
    /// PDUs of 512 to 1023 bytes.
    pub below_1024: u64,
    /// PDUs of 1024 bytes or more.
    pub from_1024: u64,
    /// Sum of the lengths of all counted PDUs.
    pub bytes: u64,
}
