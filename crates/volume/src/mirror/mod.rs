//! A mirror: two legs that hold the same blocks. One leg may be lost and replaced while the volume is in use.
//!
//! A write is acknowledged when both legs have it. A leg that fails is left out from then on; before the next
//! acknowledgment, the label of the other leg records this. After a crash, the labels ([`label`]) show which leg is
//! right ([`assemble`]). A leg that lacks blocks is filled in the background.

mod label;
mod assemble;
mod pair;
mod change;
mod filling;
mod resize;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, Notify};

use crate::{
    Data, Durability, Error, Extensions, Extent, Geometry, Io, Lba, RedundantCopies, Stack, Volume,
};
use assemble::{
    MirrorAssemblyPlan, MirrorLabelScan, RESERVED_BYTES, decide, look, write_both_copies,
};
use change::MirrorChange;
use label::MirrorLabel;
use pair::{Labels, MirrorCore, MirrorLeg, MirrorState, region_blocks, slice};

/// The reason why two legs cannot be used as a mirror, or why a change of the mirror failed.
#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    /// A leg cannot be read or written.
    #[error("leg {} of the mirror cannot be used: {error}", half + 1)]
    Io {
        /// Index of the leg: 0 or 1.
        half: usize,
        error: Error,
    },
    #[error("leg {} of the mirror holds other data, or both its labels are damaged", half + 1)]
    NotAHalf {
        /// Index of the leg: 0 or 1.
        half: usize,
        /// The first bytes of the leg.
        begins: [u8; 8],
        /// True if the label of the other leg is valid and that leg may hold all blocks.
        other_is_whole: bool,
    },
    /// A leg was written by a newer program.
    #[error(
        "leg {} of the mirror has format version {version}; this program supports version 1",
        half + 1
    )]
    Version {
        /// Index of the leg: 0 or 1.
        half: usize,
        version: u32,
    },
    #[error("leg {} of the mirror is too small, or has another block size", half + 1)]
    TooSmall {
        /// Index of the leg: 0 or 1.
        half: usize,
    },
    #[error("the legs belong to different mirrors")]
    Strangers,
    #[error(
        "each leg of the mirror was used without the other: the first has epoch {}, the second \
         epoch {}; leave out the leg whose writes are to be discarded",
        epochs[0], epochs[1]
    )]
    Split {
        /// The epoch in the label of each leg.
        epochs: [u64; 2],
    },
    /// A leg is missing or blank, and the label of the other leg, which has this epoch, does not say that it was used
    /// alone.
    #[error(
        "leg {} of the mirror is missing and may have newer data than the other one, which has \
         epoch {epoch}",
        half + 1
    )]
    Absent {
        /// Index of the leg: 0 or 1.
        half: usize,
        /// The epoch in the label of the leg that is present.
        epoch: u64,
    },
    #[error("the mirror cannot be resized: {0}")]
    Size(&'static str),
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub enum MirrorLegStatus {
    /// The leg holds the current content of all blocks.
    InSync,
    /// The leg is being filled from the other leg. All blocks before this one are current.
    Filling(u64),
    /// The mirror does not use the leg, for this reason.
    Out(Arc<str>),
}

impl fmt::Display for MirrorLegStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InSync => f.write_str("in sync"),
            Self::Filling(block) => write!(f, "being filled, at block {block}"),
            Self::Out(reason) => write!(f, "lost: {reason}"),
        }
    }
}

/// The state of a degraded mirror: one leg has, or may have, writes that the other one does not have.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DegradedMirror {
    /// The epoch in which the mirror became degraded; different each time.
    pub epoch: u64,
    /// The number that was set with [`Mirror::set_number`] before; 0: none was set.
    pub number: u64,
}

/// The public part of the label of a leg.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HalfLabel {
    /// The id of the mirror to which the leg belongs.
    pub mirror: [u8; 16],
    /// The number of the last membership change that the leg has recorded; 0: the leg was being filled and holds no
    /// valid data.
    pub epoch: u64,
    /// True if the mirror has used this leg without the other one.
    pub alone: bool,
    /// True if the leg has lost writes that it had acknowledged: see [`Mirror::note_loss`].
    pub has_lost: bool,
}

/// A volume that keeps its data on two legs (RAID 1). Call its methods within a tokio runtime.
pub struct Mirror {
    pair: Arc<MirrorCore>,
}

impl Mirror {
    /// Opens a mirror of two legs, one of which may be absent. Two blank legs become a new mirror with the id `id`,
    /// which must be unique. Regions in which the legs may differ after a crash are compared before this returns:
    /// blocks that differ are reported by [`RedundantCopies::divergent`], and a block that one leg cannot read is
    /// copied from the other. A leg that lacks more is filled in the background.
    ///
    /// With `degraded`, the mirror opens with one leg although the other may have newer data.
    ///
    /// # Errors
    /// Both legs are unchanged, except after [`MirrorError::Io`].
    pub async fn open(
        halves: [Option<Stack>; 2],
        id: [u8; 16],
        degraded: bool,
    ) -> Result<Self, MirrorError> {
        let (plan, geometry, counts, has_lost) = survey(&halves, degraded).await?;
        let (id, right, dirty, labels) = match plan {
            // Label a new mirror as if the first leg had been used alone: after a crash at any point, one leg is
            // right.
            MirrorAssemblyPlan::New => (
                id,
                None,
                Vec::new(),
                Labels { epoch: 1, alone: true, number: 0, counts, has_lost },
            ),
            MirrorAssemblyPlan::Both { label, dirty } => {
                let labels =
                    Labels { epoch: label.epoch, alone: false, number: 0, counts, has_lost };
                (label.mirror, None, dirty, labels)
            }
            MirrorAssemblyPlan::One { right, label } => {
                // Begin a new epoch on the leg that has all writes: the label of the other leg may not show yet that it
                // lacks some.
                let epoch = label.epoch + u64::from(!label.alone);
                let labels = Labels { epoch, alone: true, number: label.number, counts, has_lost };
                (label.mirror, Some(right), Vec::new(), labels)
            }
        };
        let mut index = 0;
        let halves = halves.map(|device| {
            let standing = match (&device, right) {
                (None, _) => MirrorLegStatus::Out("the leg is missing".into()),
                (Some(_), Some(right)) if right != index => MirrorLegStatus::Filling(0),
                (Some(_), _) => MirrorLegStatus::InSync,
            };
            index += 1;
            MirrorLeg::new(device, geometry, standing)
        });
        let pair = Arc::new(MirrorCore {
            id,
            shape: geometry,
            blocks: geometry.blocks.into(),
            region_blocks: region_blocks(&geometry),
            state: Mutex::new(MirrorState {
                halves,
                alone: right.and(labels.told()),
                dirty: Vec::new(),
                doubt: BTreeMap::new(),
                under_way: Vec::new(),
                held: None,
                clock: 0,
            }),
            labels: AsyncMutex::new(labels),
            changed: Notify::new(),
            mended: AtomicU64::new(0),
            zeroed: AtomicU64::new(0),
            next_number: AtomicU64::new(0),
        });
        pair.begin(right, &dirty).await?;
        if let Some(right) = right {
            pair.start_filling(1 - right);
        }
        Ok(Self { pair })
    }

    /// Returns the blocks of the leg with the newest content, for reading only. Changes nothing.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn look(halves: [Option<Stack>; 2], degraded: bool) -> Result<Stack, MirrorError> {
        let (plan, geometry, ..) = survey(&halves, degraded).await?;
        let right = match plan {
            MirrorAssemblyPlan::New | MirrorAssemblyPlan::Both { .. } => 0,
            MirrorAssemblyPlan::One { right, .. } => right,
        };
        let half = halves.into_iter().nth(right).flatten().expect("it was found");
        Ok(slice(half, geometry) as Stack)
    }

    /// Returns the label of a leg; `None` if the leg is blank. Changes nothing.
    ///
    /// # Errors
    /// The leg cannot be read, or holds other data than a mirror.
    pub async fn label_of(half: &Stack) -> Result<Option<HalfLabel>, MirrorError> {
        Ok(match look(0, half).await? {
            MirrorLabelScan::Label(MirrorLabel { mirror, epoch, alone, has_lost, .. }) => {
                Some(HalfLabel { mirror, epoch, alone, has_lost })
            }
            MirrorLabelScan::Blank | MirrorLabelScan::Absent => None,
        })
    }

    /// Records in the label of a leg whether it lacks writes that it had acknowledged. No mirror may use the leg
    /// during the call. Such a leg may be opened together with the other one, because the two differ only in the
    /// regions that their labels mark as dirty. It must not be opened alone. The flag stays until both legs are equal,
    /// or until the leg is filled again.
    ///
    /// # Errors
    /// The leg cannot be read or written, or holds other data.
    pub async fn note_loss(half: &Stack, has_lost: bool) -> Result<(), MirrorError> {
        let MirrorLabelScan::Label(mut label) = look(0, half).await? else { return Ok(()) };
        if label.has_lost == has_lost {
            return Ok(());
        }
        label.has_lost = has_lost;
        write_both_copies(half, label).await.map_err(|error| MirrorError::Io { half: 0, error })
    }

    /// Returns the id of the mirror, which is in the labels of its legs.
    #[must_use]
    pub fn id(&self) -> [u8; 16] {
        self.pair.id
    }

    /// Returns the degraded state, or `None` if both legs hold all blocks. The state is set before the first write is
    /// acknowledged that only one leg has, and cleared when both legs hold all blocks again.
    #[must_use]
    pub fn alone(&self) -> Option<DegradedMirror> {
        self.pair.state.lock().alone
    }

    /// Sets the number that the label records, besides the epoch, when the mirror becomes degraded the next time.
    pub fn set_number(&self, number: u64) {
        self.pair.next_number.store(number, Ordering::Release);
    }

    #[must_use]
    pub fn standings(&self) -> [MirrorLegStatus; 2] {
        let state = self.pair.state.lock();
        [0, 1].map(|i: usize| state.halves[i].standing.clone())
    }

    /// Returns the number of repairs since the mirror was opened; each copies a block or a run of blocks from the
    /// other leg.
    #[must_use]
    pub fn mended(&self) -> u64 {
        self.pair.mended.load(Ordering::Relaxed)
    }

    /// Returns the number of blocks that no leg could read while a leg was filled, since the mirror was opened. They
    /// are zeros on the new leg.
    #[must_use]
    pub fn zeroed(&self) -> u64 {
        self.pair.zeroed.load(Ordering::Relaxed)
    }

    /// Stops using a leg and releases its device. The leg counts as lost from then on.
    ///
    /// # Errors
    /// The other leg does not hold all blocks, or cannot record the loss.
    pub async fn release(&self, half: usize) -> Result<(), MirrorError> {
        let error = Error::Device("the leg was released".into());
        self.give_up(half, &error).await?;
        let mut state = self.pair.state.lock();
        let half = &mut state.halves[half];
        (half.device, half.data, half.slice) = (None, None, None);
        Ok(())
    }

    /// Replaces the device of a leg by another one, overwrites its content and fills it with the blocks of the mirror.
    ///
    /// # Errors
    /// The other leg does not hold all blocks, or the device cannot be a leg.
    pub async fn replace(&self, half: usize, device: Stack) -> Result<(), MirrorError> {
        let pair = &self.pair;
        pair.fits(half, &device)?;
        let error = Error::Device("the leg was replaced".into());
        self.give_up(half, &error).await?;
        {
            let mut state = pair.state.lock();
            // Write no block to the device while its label may say that it is complete.
            let standing =
                MirrorLegStatus::Out("the labels of the new leg are not written yet".into());
            // Check the size of the new device again: the mirror may have been resized in the meantime.
            pair.fits(half, &device)?;
            state.halves[half] = MirrorLeg::new(Some(device), pair.geometry(), standing);
        }
        let voided = pair.void(half).await;
        pair.state.lock().halves[half].standing = match &voided {
            Ok(()) => MirrorLegStatus::Filling(0),
            Err(error) => MirrorLegStatus::Out(error.to_string().into()),
        };
        voided?;
        pair.start_filling(half);
        Ok(())
    }

    /// Changes the number of blocks while the mirror is in use. For more blocks, both devices must already have them,
    /// behind [`Self::reserved_bytes`]. For fewer blocks, the blocks beyond the new end must not be in use any more.
    /// New blocks may differ on the two legs until they are written.
    ///
    /// # Errors
    /// The mirror keeps its size. [`MirrorError::Size`] while a leg is lost or being filled;
    /// [`MirrorError::TooSmall`]; [`MirrorError::Io`], and the leg is lost.
    pub async fn resize(&self, blocks: u64) -> Result<(), MirrorError> {
        // Run in a task, so that it ends even if the caller drops the call: labels and size have to agree.
        let ended = tokio::spawn(Arc::clone(&self.pair).resize(blocks)).await;
        ended.unwrap_or(Err(MirrorError::Size("the mirror was closed during the call")))
    }

    /// Returns how many bytes at the beginning of a leg are not blocks of the mirror.
    #[must_use]
    pub const fn reserved_bytes() -> u64 {
        RESERVED_BYTES
    }

    /// Stops using leg `half` because of `error`, whatever device it has.
    async fn give_up(&self, half: usize, error: &Error) -> Result<(), MirrorError> {
        let Some(device) = self.pair.data(half) else { return Ok(()) };
        let lost = self.pair.lose(half, &device, error).await;
        lost.map_err(|error| MirrorError::Io { half: 1 - half, error })
    }
}

impl Volume for Mirror {
    fn geometry(&self) -> Geometry {
        self.pair.geometry()
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        Io::new(Arc::clone(&self.pair).read(extent))
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        match self.pair.geometry().check_write(lba, data.len()) {
            Ok(extent) => {
                let change = MirrorChange::Write(data, durability);
                Io::new(to_the_end(Arc::clone(&self.pair).change(extent, change)))
            }
            Err(error) => Io::done(Err(error)),
        }
    }

    fn flush(&self) -> Io<'_, ()> {
        Io::new(Arc::clone(&self.pair).flush())
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        match self.pair.geometry().check_discard(extent) {
            Ok(()) => {
                Io::new(to_the_end(Arc::clone(&self.pair).change(extent, MirrorChange::Discard)))
            }
            Err(error) => Io::done(Err(error)),
        }
    }

    fn admit(&self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions { copies: Some(self), ..Extensions::default() }
    }
}

impl RedundantCopies for Mirror {
    fn examine<'a>(
        &'a self,
        extent: Extent,
        is_right: &'a (dyn Fn(&Data) -> bool + Sync),
    ) -> Io<'a, Option<Data>> {
        Io::new(Arc::clone(&self.pair).examine(extent, is_right))
    }

    fn divergent(&self) -> Vec<Extent> {
        self.pair.in_doubt()
    }

    fn make_equal(&self) -> Io<'_, ()> {
        Io::new(to_the_end(Arc::clone(&self.pair).settle()))
    }
}

/// Runs a change to its end even if the caller drops the call: a change on only one leg would make the legs differ.
async fn to_the_end(
    change: impl Future<Output = Result<(), Error>> + Send + 'static,
) -> Result<(), Error> {
    let ended = tokio::spawn(change).await;
    ended.unwrap_or_else(|_| Err(Error::Device("the mirror was closed during the call".into())))
}

/// Reads the labels of both legs and checks the sizes of their devices.
async fn survey(
    halves: &[Option<Stack>; 2],
    degraded: bool,
) -> Result<(MirrorAssemblyPlan, Geometry, [u64; 2], [bool; 2]), MirrorError> {
    let mut found = [MirrorLabelScan::Absent, MirrorLabelScan::Absent];
    let mut refused = None;
    for (i, half) in halves.iter().enumerate() {
        let Some(half) = half else { continue };
        match look(i, half).await {
            Ok(label) => found[i] = label,
            Err(error @ MirrorError::NotAHalf { .. }) if refused.is_none() => refused = Some(error),
            // Ignore this error: the result already has an error, that of the first leg without a valid label.
            Err(MirrorError::NotAHalf { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    if let Some(mut error) = refused {
        if let MirrorError::NotAHalf { half, other_is_whole, .. } = &mut error {
            *other_is_whole = found[1 - *half].is_whole();
        }
        return Err(error);
    }
    let counts = [0, 1].map(|i: usize| found[i].count());
    let has_lost = [0, 1].map(|i: usize| found[i].has_lost());
    let plan = decide(found, degraded)?;
    let there: Vec<_> = halves.iter().flatten().map(|half| half.geometry()).collect();
    let Some(&first) = there.first() else {
        return Err(MirrorError::Absent { half: 0, epoch: 0 });
    };
    let reserved = RESERVED_BYTES / u64::from(first.block_size);
    let least = there.iter().map(|geometry| geometry.blocks).min().unwrap_or(0) - reserved;
    let blocks = match &plan {
        MirrorAssemblyPlan::New => least,
        MirrorAssemblyPlan::Both { label, .. } | MirrorAssemblyPlan::One { label, .. } => {
            label.blocks
        }
    };
    let too_small = |half: &Option<Stack>| {
        half.as_ref().is_some_and(|half| {
            let geometry = half.geometry();
            geometry.block_size != first.block_size || geometry.blocks < blocks + reserved
        })
    };
    if let Some(half) = halves.iter().position(too_small) {
        return Err(MirrorError::TooSmall { half });
    }
    let any = |ability: fn(&Geometry) -> bool| there.iter().any(ability);
    let geometry = Geometry {
        block_size: first.block_size,
        physical_block_size: there.iter().map(|g| g.physical_block_size).max().unwrap_or(4096),
        blocks,
        read_only: any(|g| g.read_only),
        thin: !any(|g| !g.thin),
        volatile_cache: any(|g| g.volatile_cache),
        atomic_blocks: 0,
        in_place: !any(|g| !g.in_place),
        epoch_blocks: 0,
        key_erasable: false,
    };
    Ok((plan, geometry, counts, has_lost))
}
