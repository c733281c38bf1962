//! The layer `half`: this gateway's half of the log of a pair, which it shows to the partner.

use serde::Deserialize;

use crate::{
    problem::KeyPath,
    rule::{SettingsRuleResult, required},
    value_types::IscsiName,
};

/// Settings of a half layer.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct MirrorLegLayerSettings {
    /// The target whose cache has the log. Required.
    pub of: IscsiName,
}

impl MirrorLegLayerSettings {
    /// Checks the keys at `at`.
    pub(crate) fn check(&self, at: &KeyPath) -> SettingsRuleResult {
        required(at, "of", self.of.0.is_empty(), "\"iqn.2026-11.com.example:disk1\"")
    }
}
