//! The mode parameters of a block device: block descriptor, write cache, and the effects of changing them
//! (SBC-3, 6.5).

use scsi::mode::{
    BlockDescriptor, CachingModePage, ModePage, ModeParameters, ProvisioningThreshold,
};

use super::BlockUnit;
use crate::{
    Completion,
    abilities::UnitFuture,
    primary::{DeviceModes, Modes},
};

impl DeviceModes for BlockUnit {
    fn mode_header(&self, modes: Modes, long_lba: bool) -> ModeParameters {
        let geometry = self.volume.geometry();
        ModeParameters {
            write_protected: geometry.read_only || modes.write_protect,
            dpo_fua: true,
            block: Some(BlockDescriptor {
                blocks: geometry.blocks,
                block_size: geometry.block_size,
                long: long_lba,
            }),
            pages: Vec::new(),
        }
    }

    /// Returns true if the descriptor leaves the size unchanged. Zero and all ones mean the present number of
    /// blocks (SBC-3, 6.5.2).
    fn takes_block_descriptor(&self, wanted: &BlockDescriptor) -> bool {
        let geometry = self.volume.geometry();
        let most = if wanted.long { u64::MAX } else { u64::from(u32::MAX) };
        [0, geometry.blocks, most].contains(&wanted.blocks)
            && [0, geometry.block_size].contains(&wanted.block_size)
    }

    /// Returns the mode pages. WCE of a unit with epochs is always 1 and cannot be changed. With WCE=0 each
    /// write of a gateway would end an epoch, so that a part of the gateway's epoch would become stable.
    fn mode_pages(&self, modes: Modes) -> Vec<ModePage> {
        let geometry = self.volume.geometry();
        let caching = CachingModePage {
            write_cache: geometry.volatile_cache
                && (!modes.write_through || geometry.epoch_blocks > 0),
            read_cache_disabled: false,
        };
        let caching = ModePage { saveable: true, ..caching.to_page() };
        let mut pages = vec![ModePage::error_recovery(), caching];
        let threshold = self.threshold.to_mode(self.space(&geometry).as_ref());
        pages.extend(threshold.map(ProvisioningThreshold::to_page));
        pages
    }

    fn with_mode_page(&self, modes: Modes, page: &ModePage) -> Modes {
        match CachingModePage::from_page(page) {
            // Without a volatile cache there is nothing to turn off, so WCE is not saved.
            Some(caching) if self.volume.geometry().volatile_cache => {
                Modes { write_through: !caching.write_cache, ..modes }
            }
            _ => modes,
        }
    }

    fn before_mode_change(
        &self,
        nexus: u64,
        before: Modes,
        wanted: Modes,
    ) -> UnitFuture<'_, Result<(), Completion>> {
        Box::pin(async move {
            if let Some(ownership) = &self.writers.ownership
                && (wanted.write_through, wanted.write_protect)
                    != (before.write_through, before.write_protect)
            {
                // Refuse the change if another nexus has claimed the unit: the flush below would end an epoch of that
                // nexus in the middle.
                ownership.check_modes(nexus)?;
            }
            // Writes that were answered under the old values must be stable before the new values are in force.
            if wanted.write_through && !before.write_through
                || wanted.write_protect && !before.write_protect
            {
                self.flush_as(nexus).await?;
            }
            Ok(())
        })
    }
}
