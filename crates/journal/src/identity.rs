//! The id of a log, and the identity of the volume that the log belongs to.

use std::fmt;

use volume::Geometry;

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LogVolumeIdentity {
    /// The volume's name, at most 248 bytes. For a remote volume it is made of target and unit.
    pub name: String,
    /// The volume's properties when the log was formatted; the number of blocks is that of the last opening or
    /// growth.
    pub geometry: Geometry,
}

impl LogVolumeIdentity {
    /// Returns true if data logged for `self` may be written to a volume with this geometry: the block size must be
    /// the same, and the volume may have grown but not shrunk.
    pub fn fits(&self, geometry: Geometry) -> bool {
        self.geometry.block_size == geometry.block_size && self.geometry.blocks <= geometry.blocks
    }
}

/// The random id of a log. Every record carries it. Records of other logs, and those that were on the disk
/// before the log was formatted, have another id and are ignored.
#[derive(Clone, Copy, Default, Eq, PartialEq)]
pub struct InstanceId(pub [u8; 16]);

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
