//! The settings for accepting volumes that other nodes move to this node.

use std::path::PathBuf;

use serde::Deserialize;

use super::access::Allow;
use crate::quantity::Size;

/// The table `[accept]`: storage for volumes that other nodes move here.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct Accept {
    /// Folder in which each accepted volume gets one file. A move is refused if its file system has less space than the
    /// volume uses. Provide space for `size` bytes: the files are sparse and grow as hosts write. Required.
    pub folder: PathBuf,
    /// Maximum total size in bytes of all volumes that other nodes have moved here. Whole sizes count, not used space.
    /// A move that exceeds it is refused before any data is sent. Required.
    pub size: Size,
    /// Initiators that may log in to the targets of accepted volumes, with the same keys as `allow` of a target. A
    /// volume is refused if this list admits an initiator that the source node does not admit. If left out: all
    /// initiators may log in.
    pub allow: Option<Vec<Allow>>,
}
