//! The layer `half`: serves this gateway's mirror leg of the log of a pair to the partner.

use serde::Deserialize;

use crate::{
    problem::KeyPath,
    rule::{SettingsRuleResult, required},
    value_types::IscsiName,
};

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct MirrorLegLayerSettings {
    /// Name of the target whose cache has the log. Admit only the partner to the target of this unit (`allow`): any
    /// other writer destroys the log. Required.
    pub of: IscsiName,
}

impl MirrorLegLayerSettings {
    pub(crate) fn check(&self, at: &KeyPath) -> SettingsRuleResult {
        required(at, "of", self.of.0.is_empty(), "\"iqn.2026-11.com.example:disk1\"")
    }
}
