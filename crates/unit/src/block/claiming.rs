//! Locks the blocks of a write before it begins. A write also voids the ROD tokens of its blocks.

use smallvec::SmallVec;
use volume::{Extent, Geometry};

use super::BlockUnit;
use crate::{
    block::{access, claim::BlockRangeGuard, patience::StepRetryWait},
    sense::UnitCommandFailure,
};

impl BlockUnit {
    /// Locks the blocks of a write. Returns `None` if it would have to wait for another command, which is rare.
    pub(super) fn claim_now(
        &self,
        extent: Extent,
        geometry: &Geometry,
    ) -> Option<BlockRangeGuard<'_>> {
        let claim = self.claims.shared_now(extent, geometry.block_size)?;
        self.tokens.note_write(extent);
        Some(claim)
    }

    /// Locks the blocks of a write. Waits for the locks if necessary.
    pub(super) async fn claim(&self, extent: Extent, geometry: &Geometry) -> BlockRangeGuard<'_> {
        let claim = self.claims.shared(extent, geometry.block_size).await;
        self.tokens.note_write(extent);
        claim
    }

    /// Locks the blocks of a write in exclusive mode: all other writes of these blocks wait.
    pub(super) async fn claim_alone(
        &self,
        extent: Extent,
        geometry: &Geometry,
    ) -> BlockRangeGuard<'_> {
        let claim = self.claims.alone(extent, geometry.block_size).await;
        self.tokens.note_write(extent);
        claim
    }

    /// Discards (unmaps) the blocks of all extents.
    pub(super) async fn discard(
        &self,
        extents: SmallVec<[Extent; 4]>,
        geometry: Geometry,
        nexus: u64,
    ) -> Result<(), UnitCommandFailure> {
        let mut patience = StepRetryWait::default();
        for extent in extents {
            let _claim = self.claim(extent, &geometry).await;
            self.check_token(nexus, extent)?;
            let discard =
                || async { self.volume.discard(extent).await.map_err(access::failed_write) };
            patience.step(extent.lba.0, discard).await?;
        }
        Ok(())
    }
}
