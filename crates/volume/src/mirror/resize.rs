//! Changes the size of a mirror in use: on both legs or on neither.
//!
//! Blocks beyond the former end are used only after both labels have the larger size. Blocks beyond a
//! smaller end are no longer used before the first label has the smaller size. If a crash leaves
//! labels with different sizes, the smaller size is therefore sufficient.

use std::sync::{Arc, atomic::Ordering};

use super::{
    MirrorError, MirrorLegStatus,
    assemble::RESERVED_BYTES,
    pair::{MirrorCore, region_blocks},
};
use crate::{Geometry, Stack};

impl MirrorCore {
    /// Changes the number of blocks: see [`super::Mirror::resize`].
    pub(super) async fn resize(self: Arc<Self>, blocks: u64) -> Result<(), MirrorError> {
        let shape = Geometry { blocks, ..self.shape };
        if blocks == 0 || region_blocks(&shape) != self.region_blocks {
            // With another region size, the dirty bits in the labels would stand for other blocks than
            // before.
            let why = "its labels would need regions of another size";
            return Err(MirrorError::Size(why));
        }
        let _held = self.hold(0, u64::MAX).await;
        let mut labels = self.labels.lock().await;
        let devices = self.whole_devices()?;
        for (half, device) in devices.iter().enumerate() {
            self.fits_with(half, device, blocks)?;
        }
        let before = self.blocks();
        self.set_blocks(before.max(blocks))?;
        self.blocks.store(blocks, Ordering::Release);
        let dirty = {
            let mut state = self.state.lock();
            let regions = blocks.div_ceil(self.region_blocks);
            state.dirty.retain(|&(region, _)| u64::from(region) < regions);
            state.doubt.retain(|&block, _| block < blocks);
            state.dirty.iter().map(|&(region, _)| region).collect()
        };
        // Write the labels even if the size is unchanged: an earlier attempt may have written one label and failed at
        // the other.
        let put = self.put_labels(&mut labels, [0, 1].into_iter(), dirty).await;
        let Err((half, error)) = put else {
            return self.set_blocks(blocks);
        };
        self.blocks.store(before, Ordering::Release);
        self.set_blocks(before)?;
        drop(labels);
        if let Some(data) = self.data(half) {
            // The label of this leg may have the old or the new size. Leave the leg out: this writes the old size to
            // the label of the other leg, and that label decides.
            let lost = self.lose(half, &data, &error).await;
            lost.map_err(|error| MirrorError::Io { half: 1 - half, error })?;
        }
        Err(MirrorError::Io { half, error })
    }

    /// Returns the devices of both legs if each holds the current content of all blocks.
    fn whole_devices(&self) -> Result<[Stack; 2], MirrorError> {
        let state = self.state.lock();
        let whole = state.halves.iter().filter(|half| half.standing == MirrorLegStatus::InSync);
        let devices: Vec<_> = whole.filter_map(|half| half.device.clone()).collect();
        devices.try_into().map_err(|_| MirrorError::Size("a leg is lost or being filled"))
    }

    /// Sets the number of blocks for which the legs accept calls.
    fn set_blocks(&self, blocks: u64) -> Result<(), MirrorError> {
        for (half, of_mirror) in self.state.lock().halves.iter().enumerate() {
            if let Some(slice) = &of_mirror.slice {
                slice.set_blocks(blocks).map_err(|error| MirrorError::Io { half, error })?;
            }
        }
        Ok(())
    }

    /// Checks whether `device` has the right block size and enough blocks for a leg of this mirror.
    pub(super) fn fits(&self, half: usize, device: &Stack) -> Result<(), MirrorError> {
        self.fits_with(half, device, self.blocks())
    }

    fn fits_with(&self, half: usize, device: &Stack, blocks: u64) -> Result<(), MirrorError> {
        let found = device.geometry();
        let reserved = RESERVED_BYTES / u64::from(self.shape.block_size);
        let fits = found.block_size == self.shape.block_size
            && blocks.checked_add(reserved).is_some_and(|needed| needed <= found.blocks);
        if fits { Ok(()) } else { Err(MirrorError::TooSmall { half }) }
    }
}
