//! The layer `observe`: counts calls and bytes, shown by `forebay status`.

use serde::Deserialize;

use crate::{
    problem::KeyPath,
    rule::{SettingsRuleResult, required},
};

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct ObserveLayerSettings {
    /// Name under which `forebay status --all` shows these counters. Required.
    pub name: String,
}

impl ObserveLayerSettings {
    pub(crate) fn check(&self, at: &KeyPath) -> SettingsRuleResult {
        required(at, "name", self.name.is_empty(), "\"below the cache\"")
    }
}
