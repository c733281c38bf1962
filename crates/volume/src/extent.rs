//! Addresses of blocks.

/// Logical block address, counted in blocks of the volume.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Lba(pub u64);

/// A run of blocks: `lba .. lba + blocks`. Never empty.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Extent {
    /// The first block.
    pub lba: Lba,
    /// How many blocks; at least one.
    pub blocks: u32,
}

impl Extent {
    /// The first address after the run; the highest there is, if it would be beyond that.
    #[must_use]
    pub fn end(self) -> Lba {
        Lba(self.lba.0.saturating_add(u64::from(self.blocks)))
    }
}
