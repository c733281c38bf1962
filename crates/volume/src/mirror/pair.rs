//! The mirror without its outside: its halves, what their labels say, and which blocks nobody may
//! change for a while.

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

/// The mirror without its outside: what calls and the filling share.
pub(super) struct MirrorCore {
    pub(super) id: [u8; 16],
    /// But for the number of blocks.
    pub(super) shape: Geometry,
    pub(super) blocks: AtomicU64,
    pub(super) region_blocks: u64,
    pub(super) state: Mutex<MirrorState>,
    /// Who changes labels takes turns.
    pub(super) labels: AsyncMutex<Labels>,
    /// A call has ended, or whoever had blocks for itself.
    pub(super) changed: Notify,
    pub(super) mended: AtomicU64,
    /// Blocks that could not be read when a half was filled.
    pub(super) zeroed: AtomicU64,
    /// What it is known by when it is alone the next time.
    pub(super) next_number: AtomicU64,
}

pub(super) struct MirrorState {
    pub(super) halves: [MirrorLeg; 2],
    /// One half has what the other has not, or may have.
    pub(super) alone: Option<DegradedMirror>,
    /// Regions that the labels name, with when they were last written to.
    pub(super) dirty: Vec<(u32, u64)>,
    /// Blocks that differ, and which half plain reads take: until somebody has judged them, nobody
    /// knows which is right. They are in dirty regions, if both halves are used.
    pub(super) doubt: BTreeMap<u64, usize>,
    /// Changes under way.
    pub(super) under_way: Vec<Extent>,
    /// Blocks that nobody may change: first, and the one after the last.
    pub(super) held: Option<(u64, u64)>,
    /// Counts the ends of changes.
    pub(super) clock: u64,
}

pub(super) struct MirrorLeg {
    /// The whole device, with its labels.
    pub(super) device: Option<Stack>,
    /// The mirror's blocks on it.
    pub(super) data: Option<Stack>,
    /// The same: to make it longer or shorter.
    pub(super) slice: Option<Arc<SliceVolume>>,
    pub(super) standing: MirrorLegStatus,
}

/// What the labels say now.
pub(super) struct Labels {
    pub(super) epoch: u64,
    pub(super) alone: bool,
    /// While it is alone.
    pub(super) number: u64,
    /// Of each half: its copies take turns.
    pub(super) counts: [u64; 2],
    /// For each half: it lacks writes that it had answered, and has not been made equal to the other half since.
    pub(super) has_lost: [bool; 2],
}

impl Labels {
    pub(super) fn told(&self) -> Option<DegradedMirror> {
        self.alone.then_some(DegradedMirror { epoch: self.epoch, number: self.number })
    }
}

/// Blocks that nobody may change, until dropped.
pub(super) struct HeldMirrorBlocks {
    pub(super) pair: Arc<MirrorCore>,
}

impl MirrorLeg {
    /// A device, of which the mirror has so much; or none.
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

    /// How many blocks there are.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    pub(super) fn data(&self, half: usize) -> Option<Stack> {
        self.state.lock().halves[half].data.clone()
    }

    /// The halves that hold everything.
    pub(super) fn in_sync(&self) -> Vec<(usize, Stack)> {
        let state = self.state.lock();
        let halves = state.halves.iter().enumerate();
        halves
            .filter(|(_, half)| half.standing == MirrorLegStatus::InSync)
            .filter_map(|(i, half)| Some((i, half.data.clone()?)))
            .collect()
    }

    /// The halves that a plain read may take.
    pub(super) fn readable(&self, extent: Extent) -> Vec<(usize, Stack)> {
        let mut halves = self.in_sync();
        let state = self.state.lock();
        // Not one content now and another one later.
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

    /// These blocks do not differ any more.
    pub(super) fn no_doubt(&self, extent: Extent) {
        let mut state = self.state.lock();
        let state = &mut *state;
        if state.doubt.is_empty() {
            return;
        }
        state.doubt.retain(|&block, _| block < extent.lba.0 || extent.end().0 <= block);
        // Their regions are dirty until both halves have flushed after this.
        state.clock += 1;
        for region in self.regions(extent) {
            if let Some((_, used)) = state.dirty.iter_mut().find(|(dirty, _)| *dirty == region) {
                *used = state.clock;
            }
        }
    }

    /// The regions that have blocks in doubt.
    pub(super) fn doubtful(&self, state: &MirrorState) -> Vec<u32> {
        let mut regions: Vec<u32> =
            state.doubt.keys().map(|block| (block / self.region_blocks) as u32).collect();
        regions.dedup();
        regions
    }

    /// Writes labels to some halves, one after the other.
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
        let Some(device) = device else { return Err(Error::Device("it is not there".into())) };
        label.count = labels.counts[half] + 1;
        let blocks = LABEL_BYTES as u64 / u64::from(self.shape.block_size);
        let lba = Lba(label.count % 2 * blocks);
        device.write(lba, label.encode().into(), Durability::Stable).await?;
        // A half with an NVRAM in front of its disk answers a write from the NVRAM. The label must be on the disk.
        device.flush().await?;
        // A write that failed may have torn its copy: it is written again.
        labels.counts[half] = label.count;
        Ok(())
    }

    /// Says on a half that is to be filled that it holds nothing.
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
        // Both copies: none of what it was may be found.
        for _ in 0..2 {
            let put = self.put_label(&mut labels, half, &mut label).await;
            put.map_err(|error| MirrorError::Io { half, error })?;
        }
        Ok(())
    }

    /// Leaves a half out from now on, if it still is on this device. The other one has noted it when
    /// this returns: only then may anything be answered that the lost one does not have.
    ///
    /// # Errors
    /// The other half does not hold everything, or cannot note it. Then nothing has changed.
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
                // Nobody took it for right.
                MirrorLegStatus::Filling(_) => {
                    tracing::error!(half = half + 1, %error, "a half of the mirror cannot be filled");
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
            // It may have reached the disk all the same: this epoch is not used again.
            (labels.alone, labels.number) = before;
            return Err(error);
        }
        tracing::error!(half = half + 1, %error, "a half of the mirror is lost; going on with the other");
        let mut state = self.state.lock();
        state.alone = labels.told();
        state.dirty.clear();
        state.doubt.retain(|_, only| *only == half);
        state.halves[half].standing = MirrorLegStatus::Out(error.to_string().into());
        Ok(())
    }

    /// Has blocks for itself: no change of them is under way, and none begins.
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

    /// Waits until `check` holds; it is asked again after every change.
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

    /// What is read or compared at once.
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

/// Smallest region, 4 MiB: what is compared of it after a crash takes some ten milliseconds.
const LEAST_REGION: u64 = 4 << 20;
/// Copied or compared at once: a disk does it at nearly full speed, and who waits waits little.
const STEP_BYTES: u64 = 1 << 20;
