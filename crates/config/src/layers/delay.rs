//! The layer `delay`: delays of calls, for trials.

use std::num::NonZeroU64;

use serde::Deserialize;

use crate::quantity::TimeSpan;

/// Settings of a delay layer.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct DelayLayerSettings {
    /// The delay of each read.
    pub read: TimeSpan,
    /// The delay of each write and discard.
    pub write: TimeSpan,
    /// The delay of each flush.
    pub flush: TimeSpan,
    /// Delays one of this number of calls only. If left out: every call is delayed.
    pub every: Option<NonZeroU64>,
}
