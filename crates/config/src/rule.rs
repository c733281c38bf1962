//! The result of a rule about settings, and checks that many rules need.

use std::collections::HashMap;

use super::problem::KeyPath;
use crate::quantity::Size;

/// A rule that the settings break, located by the key.
pub struct BrokenSettingsRule {
    pub key: KeyPath,
    pub message: String,
    pub remedy: String,
}

pub(super) type SettingsRuleResult = Result<(), BrokenSettingsRule>;

/// Checks that a size is a positive multiple of the block size.
pub(super) fn whole(
    at: &KeyPath,
    name: &str,
    size: Option<Size>,
    block: Size,
) -> SettingsRuleResult {
    match size {
        Some(size) if size.0 == 0 || !size.0.is_multiple_of(block.0) => wrong(
            at.key(name),
            format!("{size} is not a whole number of {block} blocks"),
            "write a size such as \"10GiB\"",
        ),
        _ => Ok(()),
    }
}

/// Checks a logical block size: 512 or 4096.
pub(super) fn block_size(at: &KeyPath, size: Size) -> SettingsRuleResult {
    match size.0 {
        512 | 4096 => Ok(()),
        _ => wrong(
            at.key("block_size"),
            format!("{size} is not a supported block size"),
            "write 512 or 4096",
        ),
    }
}

pub(super) fn range<T>(at: &KeyPath, name: &str, value: T, least: T, most: T) -> SettingsRuleResult
where
    T: PartialOrd + std::fmt::Display,
{
    if value >= least && value <= most {
        return Ok(());
    }
    let message = format!("{value} is not between {least} and {most}");
    wrong(at.key(name), message, format!("write a value from {least} to {most}"))
}

pub(super) fn required(
    at: &KeyPath,
    name: &str,
    missing: bool,
    example: &str,
) -> SettingsRuleResult {
    if !missing {
        return Ok(());
    }
    wrong(at.key(name), format!("`{name}` is missing"), format!("add {name} = {example}"))
}

pub(super) fn wrong(
    key: KeyPath,
    message: impl Into<String>,
    remedy: impl Into<String>,
) -> SettingsRuleResult {
    Err(BrokenSettingsRule { key, message: message.into(), remedy: remedy.into() })
}

/// Checks that values are unique, and remembers the key at which each was used.
#[derive(Default)]
pub(super) struct UniqueSettingValues<'a>(HashMap<&'a str, KeyPath>);

impl<'a> UniqueSettingValues<'a> {
    pub(super) fn once(
        &mut self,
        value: &'a str,
        at: &KeyPath,
        what: &str,
        remedy: &str,
    ) -> SettingsRuleResult {
        match self.0.insert(value, at.clone()) {
            None => Ok(()),
            Some(first) => {
                wrong(at.clone(), format!("{what} {value} is already used at {first}"), remedy)
            }
        }
    }

    /// Returns the number of different values so far.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }
}
