//! What a node takes from others that move volumes to it, as data.

use std::path::PathBuf;

use serde::Deserialize;

use super::access::Allow;
use crate::quantity::Size;

/// Room for volumes that others move here.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct Accept {
    /// The folder in which each gets a file; required.
    pub folder: PathBuf,
    /// Bytes that all of them together may have; required.
    pub size: Size,
    /// Who may log in to their targets; if left out, everybody.
    pub allow: Option<Vec<Allow>>,
}
