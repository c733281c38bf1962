//! Another size for a mirror that is used: on both halves, or on none.
//!
//! Blocks are used beyond the former end only when both labels tell of them, and are used no more
//! before the first label leaves them out. So of two labels that a crash has left different the lesser
//! size is enough.

use std::sync::{Arc, atomic::Ordering};

use super::{
    MirrorError, MirrorLegStatus,
    assemble::RESERVED_BYTES,
    pair::{MirrorCore, region_blocks},
};
use crate::{Geometry, Stack};

impl MirrorCore {
    /// See [`super::Mirror::resize`].
    pub(super) async fn resize(self: Arc<Self>, blocks: u64) -> Result<(), MirrorError> {
        let shape = Geometry { blocks, ..self.shape };
        if blocks == 0 || region_blocks(&shape) != self.region_blocks {
            // A bit of a label would mean other blocks than before.
            let why = "its labels would note what is written in regions of another size";
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
        // Also if it has that size: an earlier try may have reached one of them.
        let put = self.put_labels(&mut labels, [0, 1].into_iter(), dirty).await;
        let Err((half, error)) = put else {
            return self.set_blocks(blocks);
        };
        self.blocks.store(before, Ordering::Release);
        self.set_blocks(before)?;
        drop(labels);
        if let Some(data) = self.data(half) {
            // Its label may say the one or the other, which the other half cannot know.
            let lost = self.lose(half, &data, &error).await;
            lost.map_err(|error| MirrorError::Io { half: 1 - half, error })?;
        }
        Err(MirrorError::Io { half, error })
    }

    /// The devices of both halves, if both hold everything.
    fn whole_devices(&self) -> Result<[Stack; 2], MirrorError> {
        let state = self.state.lock();
        let whole = state.halves.iter().filter(|half| half.standing == MirrorLegStatus::InSync);
        let devices: Vec<_> = whole.filter_map(|half| half.device.clone()).collect();
        devices.try_into().map_err(|_| MirrorError::Size("a half is lost or being filled"))
    }

    /// Has the halves take calls for so many blocks.
    fn set_blocks(&self, blocks: u64) -> Result<(), MirrorError> {
        for (half, of_mirror) in self.state.lock().halves.iter().enumerate() {
            if let Some(slice) = &of_mirror.slice {
                slice.set_blocks(blocks).map_err(|error| MirrorError::Io { half, error })?;
            }
        }
        Ok(())
    }

    /// Whether a device can be a half.
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
