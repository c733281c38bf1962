//! The layer `memory`: blocks in memory, which are lost when the process ends.

use serde::Deserialize;

use crate::{
    problem::KeyPath,
    quantity::Size,
    rule::{SettingsRuleResult, block_size, required, whole},
};

#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryLayerSettings {
    /// Size in bytes. All data is lost when the process ends. Required.
    pub size: Option<Size>,
    /// Logical block size in bytes: 512 or 4096.
    pub block_size: Size,
}

impl Default for MemoryLayerSettings {
    fn default() -> Self {
        Self { size: None, block_size: Size(512) }
    }
}

impl MemoryLayerSettings {
    pub(crate) fn check(&self, at: &KeyPath) -> SettingsRuleResult {
        required(at, "size", self.size.is_none(), "\"1GiB\"")?;
        block_size(at, self.block_size)?;
        whole(at, "size", self.size, self.block_size)
    }
}
