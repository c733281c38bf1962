//! The layer `fault`: errors, for trials.

use serde::Deserialize;

/// Settings of a fault layer.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct FaultLayerSettings {
    /// The calls that fail: "any", "read", "write", "flush" or "discard".
    pub operation: FaultOperationSetting,
    /// The error: "medium", "no-space", "busy", "unreachable", "device" or "hang".
    pub error: FaultError,
    /// Number of such calls that succeed first.
    pub after: u64,
    /// Number of such calls that fail then; 0 for all.
    pub count: u64,
}

/// The calls that a fault layer lets fail.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum FaultOperationSetting {
    /// All calls.
    #[default]
    Any,
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes.
    Flush,
    /// Discards.
    Discard,
}

/// The error of a fault layer.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum FaultError {
    /// Medium error: these blocks cannot be read or written.
    #[default]
    Medium,
    /// No space on the lower volume.
    NoSpace,
    /// Busy: try again later.
    Busy,
    /// The lower storage does not answer.
    Unreachable,
    /// Device error.
    Device,
    /// The call never returns.
    Hang,
}
