//! A lower volume that grows while it is cached.

use std::sync::atomic::Ordering;

use volume::Volume;

use crate::state::Shared;

impl Shared {
    /// Whether there is more of the lower volume than is used.
    pub fn has_grown(&self) -> bool {
        self.lower.geometry().blocks > self.blocks.load(Ordering::Relaxed)
    }

    /// Takes what is new into use. The superblock tells of it first: recovery takes no segment
    /// for whole that has slots beyond the size it knows.
    ///
    /// Where the former end was inside a slot, the rest of that slot may read as zeros for a while,
    /// whatever the lower volume has there: nobody wrote to it through this cache.
    pub async fn follow_growth(&self) {
        let found = self.lower.geometry();
        if found.block_size != self.opened.block_size || !self.has_grown() {
            return;
        }
        let grown = |superblock: &mut crate::log::superblock::Superblock| {
            superblock.identity.geometry.blocks = found.blocks;
        };
        match self.write_superblock(grown).await {
            Ok(()) => {
                self.blocks.fetch_max(found.blocks, Ordering::AcqRel);
                tracing::info!(blocks = found.blocks, "the volume below the cache has grown");
            }
            // The next look tries again.
            Err(error) => tracing::warn!(%error, "the log cannot note that its volume has grown"),
        }
    }
}
