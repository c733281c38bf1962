//! The identity of a log, and that of the volume that it is for.

use std::fmt;

use volume::Geometry;

/// The volume a log belongs to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LogVolumeIdentity {
    /// Its name, at most 248 bytes: for a remote volume its target and unit.
    pub name: String,
    /// Its properties when the log was formatted, but for its size, which is that of the last opening or growth.
    pub geometry: Geometry,
}

impl LogVolumeIdentity {
    /// Returns true if data logged for `self` may be written to a volume with this geometry: the block size must be
    /// the same, and the volume may have grown but not shrunk.
    pub fn fits(&self, geometry: Geometry) -> bool {
        self.geometry.block_size == geometry.block_size && self.geometry.blocks <= geometry.blocks
    }
}

/// The random id of a log. All its records carry it: by it they differ from those of any other log, and from those
/// that were on the disk before the log was formatted.
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
