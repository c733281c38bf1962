//! The layer `delay`: adds time to calls, for tests.

use std::num::NonZeroU64;

use serde::Deserialize;

use crate::quantity::TimeSpan;

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct DelayLayerSettings {
    /// Time added to each read.
    pub read: TimeSpan,
    /// Time added to each write and each discard.
    pub write: TimeSpan,
    /// Time added to each flush.
    pub flush: TimeSpan,
    /// Delays only one call in this number of calls. If left out: every call is delayed.
    pub every: Option<NonZeroU64>,
}
