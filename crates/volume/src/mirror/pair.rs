//! The core of a mirror, which calls and the filling task share: the legs, the content of their labels, and the
//! blocks that must not be changed at the moment.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, Notify};

use super::{
    DegradedMirror, MirrorError, MirrorLegStatus,
    assemble::RESERVED_BYTES,
    label::{LABEL_BYTES, MOST_REGIONS, MirrorLabel},
};
use crate::{Durability, Error, Extent, Geometry, Lba, SliceVolume, Stack};

/// The state and the operations that calls and the filling task share. Lock order: `labels` before `state`.
pub(super) struct MirrorCore {
    pub(super) id: [u8; 16],
    /// The geometry of the mirror, except for the number of blocks.
    pub(super) shape: Geometry,
    pub(super) blocks: AtomicU64,
    pub(super) region_blocks: u64,
    pub(super) state: Mutex<MirrorState>,
    /// Held while labels are changed, so that label writes do not interleave.
    pub(super) labels: AsyncMutex<Labels>,
    /// Notified when a call has ended, and when held blocks are released.
    pub(super) changed: Notify,
    pub(super) mended: AtomicU64,
    /// Number of blocks that could not be read while a leg was filled. They are zeros on that leg.
    pub(super) zeroed: AtomicU64,
    /// The number that the label records when the mirror becomes degraded the next time.
    pub(super) next_number: AtomicU64,
}

pub(super) struct MirrorState {
    pub(super) halves: [MirrorLeg; 2],
    /// The degraded state, if one leg has or may have writes that the other does not have.
    pub(super) alone: Option<DegradedMirror>,
    /// Regions that the labels mark as dirty, with the value of `clock` at their last change.
    pub(super) dirty: Vec<(u32, u64)>,
    /// Doubtful blocks: those that differ on the two legs, with the leg that plain reads use until a user has
    /// judged the copies. If both legs are in use, their regions are dirty.
    pub(super) doubt: BTreeMap<u64, usize>,
    /// The extents of changes in progress.
    pub(super) under_way: Vec<Extent>,
    /// Range of blocks that no write may change for now: its first block, and the block after its last.
    pub(super) held: Option<(u64, u64)>,
    /// Counts the changes that have ended.
    pub(super) clock: u64,
}

pub(super) struct MirrorLeg {
    /// The whole device, including the labels.
    pub(super) device: Option<Stack>,
    /// The blocks of the mirror on the device.
    pub(super) data: Option<Stack>,
    /// A second reference to `data`, with the type that can be resized.
    pub(super) slice: Option<Arc<SliceVolume>>,
    pub(super) standing: MirrorLegStatus,
}

/// The current content of the labels.
pub(super) struct Labels {
    pub(super) epoch: u64,
    pub(super) alone: bool,
    /// The number to record while the mirror is degraded.
    pub(super) number: u64,
    /// The write count of each leg's label; its lowest bit selects the copy to write.
    pub(super) counts: [u64; 2],
    /// True for a leg that lacks writes which it had acknowledged, and that has not been made equal to the other leg
    /// since.
    pub(super) has_lost: [bool; 2],
}

impl Labels {
    pub(super) fn told(&self) -> Option<DegradedMirror> {
        self.alone.then_some(DegradedMirror { epoch: self.epoch, number: self.number })
    }
}

/// A hold on blocks: no other call may change them until this value is dropped.
pub(super) struct HeldMirrorBlocks {
    pub(super) pair: Arc<MirrorCore>,
}

impl MirrorLeg {
    /// Makes a leg of a device, on which the mirror has `geometry`, or a leg without a device.
    pub(super) fn new(
        device: Option<Stack>,
        geometry: Geometry,
        standing: MirrorLegStatus,
    ) -> Self {
        let slice = device.clone().map(|device| slice(device, geometry));
        let data = slice.clone().map(|slice| slice as Stack);
        Self { device, data, slice, standing }
    }
}

impl MirrorCore {
    pub(super) fn geometry(&self) -> Geometry {
        Geometry { blocks: self.blocks(), ..self.shape }
    }

    pub(super) fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    pub(super) fn data(&self, half: usize) -> Option<Stack> {
        self.state.lock().halves[half].data.clone()
    }

    /// Returns the legs that hold all blocks.
    pub(super) fn in_sync(&self) -> Vec<(usize, Stack)> {
        let state = self.state.lock();
        let halves = state.halves.iter().enumerate();
        halves
            .filter(|(_, half)| half.standing == MirrorLegStatus::InSync)
            .filter_map(|(i, half)| Some((i, half.data.clone()?)))
            .collect()
    }

    /// Returns the legs from which a plain read may take `extent`.
    pub(super) fn readable(&self, extent: Extent) -> Vec<(usize, Stack)> {
        let mut halves = self.in_sync();
        let state = self.state.lock();
        // A doubtful block must always be read from the same leg, so that its content does not change between
        // reads.
        for &only in state.doubt.range(extent.lba.0..extent.end().0).map(|(_, half)| half) {
            halves.retain(|&(half, _)| half == only);
        }
        halves
    }

    /// Returns the numbers of the regions that have blocks of `extent`, which is not empty.
    pub(super) fn regions(&self, extent: Extent) -> impl Iterator<Item = u32> + use<> {
        let last = (extent.end().0 - 1) / self.region_blocks;
        (extent.lba.0 / self.region_blocks) as u32..=last as u32
    }

    /// Records that the blocks of `extent` are equal on both legs.
    pub(super) fn no_doubt(&self, extent: Extent) {
        let mut state = self.state.lock();
        let state = &mut *state;
        if state.doubt.is_empty() {
            return;
        }
        state.doubt.retain(|&block, _| block < extent.lba.0 || extent.end().0 <= block);
        // Give the regions the present time of `clock`: they stay marked as dirty until both legs have been flushed
        // after now.
        state.clock += 1;
        for region in self.regions(extent) {
            if let Some((_, used)) = state.dirty.iter_mut().find(|(dirty, _)| *dirty == region) {
                *used = state.clock;
            }
        }
    }

    /// Returns the regions that contain doubtful blocks.
    pub(super) fn doubtful(&self, state: &MirrorState) -> Vec<u32> {
        let mut regions: Vec<u32> =
            state.doubt.keys().map(|block| (block / self.region_blocks) as u32).collect();
        regions.dedup();
        regions
    }

    /// Writes the labels of the given legs, one after the other.
    pub(super) async fn put_labels(
        &self,
        labels: &mut Labels,
        halves: impl Iterator<Item = usize>,
        dirty: Vec<u32>,
    ) -> Result<(), (usize, Error)> {
        let mut label = MirrorLabel {
            mirror: self.id,
            blocks: self.blocks(),
            count: 0,
            epoch: labels.epoch,
            alone: labels.alone,
            has_lost: false,
            number: labels.number,
            dirty,
        };
        for half in halves {
            label.has_lost = labels.has_lost[half];
            let put = self.put_label(labels, half, &mut label).await;
            put.map_err(|error| (half, error))?;
        }
        Ok(())
    }

    pub(super) async fn put_label(
        &self,
        labels: &mut Labels,
        half: usize,
        label: &mut MirrorLabel,
    ) -> Result<(), Error> {
        let device = self.state.lock().halves[half].device.clone();
        let Some(device) = device else { return Err(Error::Device("the leg is missing".into())) };
        label.count = labels.counts[half] + 1;
        let blocks = LABEL_BYTES as u64 / u64::from(self.shape.block_size);
        let lba = Lba(label.count % 2 * blocks);
        device.write(lba, label.encode().into(), Durability::Stable).await?;
        // A leg with an NVRAM in front of its disk acknowledges a write from the NVRAM. The label must be on the
        // disk.
        device.flush().await?;
        // Advance the count only after success. A failed write may have torn the copy of the label that it wrote; the
        // next write must overwrite that same copy.
        labels.counts[half] = label.count;
        Ok(())
    }

    /// Writes labels with epoch 0 to a leg that is to be filled: it holds no valid data.
    pub(super) async fn void(&self, half: usize) -> Result<(), MirrorError> {
        let mut labels = self.labels.lock().await;
        let mut label = MirrorLabel {
            mirror: self.id,
            blocks: self.blocks(),
            count: 0,
            epoch: 0,
            alone: false,
            has_lost: false,
            number: 0,
            dirty: Vec::new(),
        };
        labels.has_lost[half] = false;
        // A label has two copies on the leg. Overwrite both, so that no valid label remains.
        for _ in 0..2 {
            let put = self.put_label(&mut labels, half, &mut label).await;
            put.map_err(|error| MirrorError::Io { half, error })?;
        }
        Ok(())
    }

    /// Leaves a leg out if it still uses this device. When this returns, the label of the other leg records the
    /// loss. Only then may a write be acknowledged that the lost leg does not have.
    ///
    /// # Errors
    /// The other leg does not hold all blocks, or cannot record the loss. Then nothing has changed.
    pub(super) async fn lose(
        &self,
        half: usize,
        device: &Stack,
        error: &Error,
    ) -> Result<(), Error> {
        let mut labels = self.labels.lock().await;
        let other = 1 - half;
        {
            let mut state = self.state.lock();
            let is_it = |data: &Stack| Arc::ptr_eq(data, device);
            if !state.halves[half].data.as_ref().is_some_and(is_it) {
                return Ok(());
            }
            match &state.halves[half].standing {
                MirrorLegStatus::Out(_) => return Ok(()),
                // The label of the other leg says already that this leg is incomplete, so nothing has to be recorded.
                MirrorLegStatus::Filling(_) => {
                    tracing::error!(half = half + 1, %error, "a leg of the mirror cannot be filled");
                    state.halves[half].standing = MirrorLegStatus::Out(error.to_string().into());
                    return Ok(());
                }
                MirrorLegStatus::InSync
                    if state.halves[other].standing != MirrorLegStatus::InSync
                        || labels.has_lost[other] =>
                {
                    return Err(error.clone());
                }
                MirrorLegStatus::InSync => {}
            }
        }
        let before = (labels.alone, labels.number);
        let number = self.next_number.load(Ordering::Acquire);
        (labels.epoch, labels.alone, labels.number) = (labels.epoch + 1, true, number);
        if let Err((_, error)) =
            self.put_labels(&mut labels, std::iter::once(other), Vec::new()).await
        {
            // Restore all but the epoch: the failed label may have reached the disk, so its epoch must not be used
            // again.
            (labels.alone, labels.number) = before;
            return Err(error);
        }
        tracing::error!(
            half = half + 1, %error,
            "a leg of the mirror is lost; the mirror continues with the other leg"
        );
        let mut state = self.state.lock();
        state.alone = labels.told();
        state.dirty.clear();
        state.doubt.retain(|_, only| *only == half);
        state.halves[half].standing = MirrorLegStatus::Out(error.to_string().into());
        Ok(())
    }

    /// Takes exclusive access to blocks: waits until no change of them is in progress, and blocks new ones.
    pub(super) async fn hold(self: &Arc<Self>, first: u64, end: u64) -> HeldMirrorBlocks {
        self.wait_until(|state| {
            let free = state.held.is_none();
            if free {
                state.held = Some((first, end));
            }
            free
        })
        .await;
        let held = HeldMirrorBlocks { pair: Arc::clone(self) };
        self.wait_until(|state| {
            state.under_way.iter().all(|e| e.end().0 <= first || end <= e.lba.0)
        })
        .await;
        held
    }

    /// Waits until `check` returns true. Calls `check` again each time that a change of the mirror's blocks has ended.
    pub(super) async fn wait_until(&self, check: impl Fn(&mut MirrorState) -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if check(&mut self.state.lock()) {
                return;
            }
            changed.await;
        }
    }

    /// Returns the number of blocks that one step copies or compares.
    pub(super) fn step_blocks(&self) -> u64 {
        STEP_BYTES / u64::from(self.shape.block_size)
    }
}

impl Drop for HeldMirrorBlocks {
    fn drop(&mut self) {
        self.pair.state.lock().held = None;
        self.pair.changed.notify_waiters();
    }
}

pub(super) fn slice(device: Stack, geometry: Geometry) -> Arc<SliceVolume> {
    let start = Lba(RESERVED_BYTES / u64::from(geometry.block_size));
    Arc::new(SliceVolume::new(device, start, geometry.blocks).expect("its size was looked at"))
}

pub(super) fn region_blocks(geometry: &Geometry) -> u64 {
    let least = (LEAST_REGION / u64::from(geometry.block_size)).max(1);
    geometry.blocks.div_ceil(u64::from(MOST_REGIONS)).max(least).next_power_of_two()
}

/// Smallest region in bytes: to compare 4 MiB after a crash takes some ten milliseconds.
const LEAST_REGION: u64 = 4 << 20;
/// Bytes that are copied or compared in one step: a disk is nearly at full speed, and calls that wait for these
/// blocks wait only briefly.
const STEP_BYTES: u64 = 1 << 20;
