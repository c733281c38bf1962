//! Addresses of blocks and runs of blocks.

/// Logical block address, counted in blocks of the volume.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Lba(pub u64);

/// A range of blocks, `lba .. lba + blocks`, which is never empty.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Extent {
    pub lba: Lba,
    /// Number of blocks in the range; at least one.
    pub blocks: u32,
}

impl Extent {
    /// Returns the address after the last block, or the highest possible address if that would
    /// overflow.
    #[must_use]
    pub fn end(self) -> Lba {
        Lba(self.lba.0.saturating_add(u64::from(self.blocks)))
    }
}
