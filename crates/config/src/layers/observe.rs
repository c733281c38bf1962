//! The layer `observe`: counters of calls and bytes, shown by `forebay status`.

use serde::Deserialize;

use crate::{
    problem::KeyPath,
    rule::{SettingsRuleResult, required},
};

/// Settings of an observe layer.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct ObserveLayerSettings {
    /// The name of the counters in `forebay status --all`. Required.
    pub name: String,
}

impl ObserveLayerSettings {
    /// Checks the keys at `at`.
    pub(crate) fn check(&self, at: &KeyPath) -> SettingsRuleResult {
        required(at, "name", self.name.is_empty(), "\"below the cache\"")
    }
}
