//! Adapts an open cache when its lower volume grows.

use volume::{Geometry, Volume};

use crate::core::CacheCore;

impl CacheCore {
    /// Returns true if the lower volume number `place` has become larger than the part of it that the cache uses.
    pub fn has_grown(&self, place: usize) -> bool {
        self.found(place).is_some_and(|found| found.blocks > self.lower.extents.blocks(place))
    }

    /// Returns the current geometry of the volume in a region. Returns `None` if the region is unused, or if
    /// the volume has become larger than its region: the next region belongs to another volume, so the size
    /// that the cache uses must not change.
    fn found(&self, place: usize) -> Option<Geometry> {
        match &self.lower.joined {
            Some(joined) => {
                let found = joined.member(place)?.lower.geometry();
                (found.blocks <= joined.stride()).then_some(found)
            }
            None => Some(self.lower.volume.geometry()),
        }
    }

    /// Uses the new blocks of volumes that have grown. The superblock records the new size first: recovery
    /// rejects segments with slots beyond the size in the superblock, and rejects a volume that is smaller
    /// than that.
    ///
    /// If the former end was inside of a slot, memory and log do not claim to have the sectors behind it.
    pub async fn follow_growth(&self) {
        for place in 0..self.lower.extents.places() {
            self.follow_growth_of(place).await;
        }
    }

    async fn follow_growth_of(&self, place: usize) {
        let Some(found) = self.found(place) else { return self.report_outgrown(place) };
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
        let written = self.write_superblock(grown).await;
        let change = self.state.lock().log.growth_fails.turn(written.is_err());
        match written {
            Ok(()) => {
                let mut state = self.state.lock();
                let last = self.lower.extents.last(place);
                // Change the size under the lock, so that a read of the rest of the last slot does not join a
                // fetch that ends at the former end.
                self.lower.extents.grow(place, found.blocks);
                if let Some(last) = last {
                    // Drop the clean copy of the last slot, because it ends at the former end of the volume.
                    // Dirty content stays.
                    state.drop_clean(last / self.lower.blocks_per_slot());
                }
                drop(state);
                tracing::info!(blocks = found.blocks, "the volume below the cache has grown");
            }
            // The next call tries again. The event about the new size also reports the end of the failures.
            Err(error) if change.is_some() => {
                tracing::warn!(
                    %error,
                    remedy = "nothing has to be done unless it lasts: then check the disk of the log; \
                     until it works, the cache uses the former size",
                    "cannot record the new size of the volume in the log"
                );
            }
            Err(_) => {}
        }
    }

    /// Warns the operator, once, that a volume is larger than its region. The cache uses the former size.
    fn report_outgrown(&self, place: usize) {
        let member = self.lower.joined.as_ref().and_then(|joined| joined.member(place));
        let Some(member) = member else { return };
        if self.lower.extents.outgrow(place) {
            tracing::warn!(
                volume = %member.name, blocks = self.lower.extents.blocks(place),
                found = member.lower.geometry().blocks,
                remedy = "give the volume a cache of its own, in place of the `common_cache`",
                "a volume of a common cache is larger than its region of 64 PiB: the cache uses its \
                 former size"
            );
        }
    }
}
