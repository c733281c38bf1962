//! The layer `fault`: makes calls fail, for tests.

use serde::Deserialize;

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct FaultLayerSettings {
    /// Calls that fail: "any", "read", "write", "flush" or "discard".
    pub operation: FaultOperationSetting,
    /// Error of these calls: "medium" (blocks cannot be read or written), "no-space", "busy", "unreachable" (the
    /// storage does not answer), "device", or "hang" (the call never returns).
    pub error: FaultError,
    /// Number of such calls that succeed before the first one fails.
    pub after: u64,
    /// Number of such calls that fail, after which calls succeed again. 0: all further calls fail.
    pub count: u64,
}

/// The calls that a `fault` layer makes fail.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum FaultOperationSetting {
    #[default]
    Any,
    Read,
    Write,
    Flush,
    Discard,
}

/// The error that a `fault` layer returns.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "kebab-case")]
pub enum FaultError {
    /// Medium error: these blocks cannot be read or written.
    #[default]
    Medium,
    /// No space is left on the lower volume.
    NoSpace,
    /// Busy: the caller may try again later.
    Busy,
    /// The lower storage does not answer.
    Unreachable,
    Device,
    /// The call never returns.
    Hang,
}
