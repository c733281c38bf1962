//! Figures that several parts report in one form: response times, commands by name, PDUs by size.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Response times since the start of the process.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ResponseTimes {
    /// Number of calls.
    pub count: u64,
    /// Mean, in microseconds.
    pub mean_us: f64,
    /// Median, in microseconds.
    pub p50_us: f64,
    /// 90th percentile, in microseconds.
    pub p90_us: f64,
    /// 99th percentile, in microseconds.
    pub p99_us: f64,
    /// 99.9th percentile, in microseconds.
    pub p999_us: f64,
    /// Longest, in microseconds.
    pub max_us: f64,
    /// The histogram: for each class with calls, its upper end in microseconds and the number of calls.
    pub classes_us: Vec<(f64, u64)>,
}

/// Number of SCSI commands by their name, such as `READ(10)`. An operation code without a name is written as `C1h`.
pub type CommandCounts = BTreeMap<String, u64>;

/// Number of PDUs by their length on the wire, header and digests included: the classes of STICS, table 3.
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
    /// Bytes of all these PDUs.
    pub bytes: u64,
}
