//! A lower volume that grows while it is cached.

use volume::{Geometry, Volume};

use crate::core::CacheCore;

impl CacheCore {
    /// Whether there is more of a volume than is used.
    pub fn has_grown(&self, place: usize) -> bool {
        self.found(place).is_some_and(|found| found.blocks > self.lower.extents.blocks(place))
    }

    /// What the volume is now, if there is one at that place. One of several that says it has outgrown its
    /// place stays as it was: the next place is another's, and no superblock may say so.
    fn found(&self, place: usize) -> Option<Geometry> {
        match &self.lower.joined {
            Some(joined) => {
                let found = joined.member(place)?.lower.geometry();
                (found.blocks <= joined.stride()).then_some(found)
            }
            None => Some(self.lower.volume.geometry()),
        }
    }

    /// Takes what is new into use. The superblock tells of it first: recovery takes no segment
    /// for whole that has slots beyond the size it knows, and no volume for the right one that is smaller.
    ///
    /// Where the former end was inside a slot, memory and log say of no sector behind it that they have it.
    pub async fn follow_growth(&self) {
        for place in 0..self.lower.extents.places() {
            self.follow_growth_of(place).await;
        }
    }

    async fn follow_growth_of(&self, place: usize) {
        let Some(found) = self.found(place) else { return self.tell_of_outgrown(place) };
        if found.block_size != self.lower.opened.block_size || !self.has_grown(place) {
            return;
        }
        let is_one = self.lower.joined.is_none();
        let grown = |superblock: &mut journal::superblock::Superblock| {
            let geometry = match is_one {
                true => Some(&mut superblock.identity.geometry),
                false => {
                    let member = superblock.members.iter_mut().find(|m| m.place == place);
                    member.map(|member| &mut member.geometry)
                }
            };
            if let Some(geometry) = geometry {
                geometry.blocks = found.blocks;
            }
        };
        match self.write_superblock(grown).await {
            Ok(()) => {
                let mut state = self.state.lock();
                let last = self.lower.extents.last(place);
                // With the lock: whoever reads the rest of the last slot takes part in no fetch that is short.
                self.lower.extents.grow(place, found.blocks);
                if let Some(last) = last {
                    // What is dirty of it stays.
                    state.drop_clean(last / self.lower.blocks_per_slot());
                }
                drop(state);
                tracing::info!(blocks = found.blocks, "the volume below the cache has grown");
            }
            // The next look tries again.
            Err(error) => tracing::warn!(%error, "the log cannot note that its volume has grown"),
        }
    }

    /// It stays as large as it was, and the operator is told once.
    fn tell_of_outgrown(&self, place: usize) {
        let member = self.lower.joined.as_ref().and_then(|joined| joined.member(place));
        let Some(member) = member else { return };
        if self.lower.extents.outgrow(place) {
            tracing::warn!(
                volume = %member.name,
                blocks = self.lower.extents.blocks(place),
                found = member.lower.geometry().blocks,
                "a volume of a common cache has outgrown its place of 64 PiB: it keeps the size that it had"
            );
        }
    }
}
