//! The layer `common-cache`: a unit's share of a cache of several volumes with one log, and the table of that cache.

use ::cache::{DestageOrder, LogErrorPolicy, WriteMode};
use serde::Deserialize;

use super::{CacheLayerSettings, file::LayerFiles};
use crate::{
    problem::KeyPath,
    rule::{SettingsRuleResult, wrong},
};

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct InCommon {
    /// Name of the `[[common_cache]]` table that caches this unit. Required.
    pub name: String,
}

/// A common cache: a cache of several volumes with one log, so that their far volumes stay consistent with each other.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct CommonCache {
    /// Name by which the `common-cache` layers of its units refer to this table. At most 16 units may use it. Required.
    pub name: String,
    /// The cache, with the keys of a `cache` layer except `pair` and `share`. `report` must be "after-complete" or
    /// "immediate"; `order` and `on_log_error` keep their defaults. Required.
    pub cache: CacheLayerSettings,
}

impl CommonCache {
    pub(crate) fn check<'a>(
        &'a self,
        at: &KeyPath,
        files: &mut LayerFiles<'a>,
    ) -> SettingsRuleResult {
        let cache = &self.cache;
        cache.check(at, files)?;
        let only = |name: &str, holds: bool, message: &str| match holds {
            true => Ok(()),
            false => wrong(
                at.key(name),
                message,
                format!("leave `{name}` out, or give each unit a cache"),
            ),
        };
        let is_logged = matches!(cache.report, WriteMode::AfterComplete | WriteMode::Immediate);
        only(
            "report",
            is_logged,
            "all writes of a common cache must go to its log, which keeps their order",
        )?;
        let is_strict = cache.order == DestageOrder::Strict;
        only(
            "order",
            is_strict,
            "writes that overtake the log have no order with the other volumes",
        )?;
        let stops = cache.on_log_error == LogErrorPolicy::StopWrites;
        only(
            "on_log_error",
            stops,
            "writes that bypass the log have no order with the other volumes",
        )?;
        only("share", !cache.share, "coherence tokens exist for single volumes only")?;
        only("pair", cache.pair.is_none(), "a pair can hand over the log of one target only")
    }
}
