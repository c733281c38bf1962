//! Settings for volumes that other nodes move to this node.

use std::path::PathBuf;

use serde::Deserialize;

use super::access::Allow;
use crate::quantity::Size;

/// The table [accept].
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct Accept {
    /// The folder in which each volume gets a file. Required.
    pub folder: PathBuf,
    /// Number of bytes that all of these volumes together may have. Required.
    pub size: Size,
    /// Who may log in to their targets, as of a target. A volume is refused if more initiators would reach it here
    /// than where it comes from. If left out: everybody.
    pub allow: Option<Vec<Allow>>,
}
