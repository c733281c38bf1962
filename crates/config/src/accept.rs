//! Settings for volumes that other nodes move to this node.

use std::path::PathBuf;

use serde::Deserialize;

use super::access::Allow;
use crate::quantity::Size;

/// The table [accept].
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct Accept {
    /// The folder of their files; required.
    pub folder: PathBuf,
    /// Maximum number of bytes of all of them; required.
    pub size: Size,
    /// Who may log in to their targets; if left out, every initiator.
    pub allow: Option<Vec<Allow>>,
}
