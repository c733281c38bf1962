//! Two halves that hold the same blocks: one may be lost, and replaced, while the volume is used.
//!
//! A write is answered when both halves have it; a half that fails is left out from then on, which
//! the other notes first. Labels ([`label`]) say after any crash which half is right
//! ([`assemble`]); a half that lacks something is filled in the background.

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

/// Why two halves are no mirror.
#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    /// A half cannot be read or written.
    #[error("half {} of the mirror cannot be used: {error}", half + 1)]
    Io {
        /// 0 or 1.
        half: usize,
        /// What it said.
        error: Error,
    },
    /// A half holds something else.
    #[error("half {} of the mirror holds something else, or both its labels are damaged", half + 1)]
    NotAHalf {
        /// 0 or 1.
        half: usize,
        /// How it begins.
        begins: [u8; 8],
        /// Whether the other half has a whole label, and holds everything.
        other_is_whole: bool,
    },
    /// A half was written by a newer program.
    #[error("half {} of the mirror has format version {version}, this program knows 1", half + 1)]
    Version {
        /// 0 or 1.
        half: usize,
        /// What it says.
        version: u32,
    },
    /// A half has fewer blocks than the mirror has or is to have, or than any mirror, or of another size.
    #[error("half {} of the mirror is too small for it, or has other blocks", half + 1)]
    TooSmall {
        /// 0 or 1.
        half: usize,
    },
    /// The halves are of two mirrors.
    #[error("the halves are not of one mirror")]
    Strangers,
    /// Each half went on without the other.
    #[error(
        "both halves of the mirror went on without the other: the first is of epoch {}, the second \
         of {}; leave out the one whose writes are to be given up",
        epochs[0], epochs[1]
    )]
    Split {
        /// Of each half.
        epochs: [u64; 2],
    },
    /// A half is absent or blank, and the other (of this epoch) does not know that it is alone.
    #[error(
        "half {} of the mirror is not there, and may have newer content than the other one, which \
         is of epoch {epoch}",
        half + 1
    )]
    Absent {
        /// 0 or 1.
        half: usize,
        /// Of the other.
        epoch: u64,
    },
    /// It does not get another size now.
    #[error("the mirror does not get another size: {0}")]
    Size(&'static str),
}

/// How a half stands.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum MirrorLegStatus {
    /// It holds everything.
    InSync,
    /// It is being filled, and has everything before this block.
    Filling(u64),
    /// It is not used, for this reason.
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

/// One half has what the other does not have, or may not.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DegradedMirror {
    /// Since this change of who belongs to the mirror: another one each time.
    pub epoch: u64,
    /// What was given with [`Mirror::set_number`] before; 0 if nothing was.
    pub number: u64,
}

/// What a half says of itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HalfLabel {
    /// Which mirror it is of.
    pub mirror: [u8; 16],
    /// How many changes of who belongs to the mirror it knows of; 0: it was being filled, and holds
    /// nothing.
    pub epoch: u64,
    /// It went on without the other.
    pub alone: bool,
    /// The half lacks writes that it had answered: see [`Mirror::note_loss`].
    pub has_lost: bool,
}

/// A volume on two halves. Lives inside a tokio runtime.
pub struct Mirror {
    pair: Arc<MirrorCore>,
}

impl Mirror {
    /// Puts two halves together; one may be absent. Blank halves become a new mirror, `id`, which
    /// nobody else may draw. Where they may differ after a crash, they are compared before this
    /// returns: blocks that do are [`RedundantCopies::divergent`], and what one cannot read is written anew from
    /// the other. A half that lacks more is filled from then on.
    ///
    /// `degraded` goes on with one half though the other may have newer content.
    ///
    /// # Errors
    /// Nothing was changed, except for [`MirrorError::Io`].
    pub async fn open(
        halves: [Option<Stack>; 2],
        id: [u8; 16],
        degraded: bool,
    ) -> Result<Self, MirrorError> {
        let (plan, geometry, counts, has_lost) = survey(&halves, degraded).await?;
        let (id, right, dirty, labels) = match plan {
            // As if the first had been alone: however far this comes, one is right.
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
                // Another epoch: the other half may not know yet that it lacks something.
                let epoch = label.epoch + u64::from(!label.alone);
                let labels = Labels { epoch, alone: true, number: label.number, counts, has_lost };
                (label.mirror, Some(right), Vec::new(), labels)
            }
        };
        let mut index = 0;
        let halves = halves.map(|device| {
            let standing = match (&device, right) {
                (None, _) => MirrorLegStatus::Out("it is not there".into()),
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

    /// The blocks as they are now, for reading alone; changes nothing.
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

    /// What a half says of itself; `None` if it is blank. Changes nothing.
    ///
    /// # Errors
    /// It cannot be read, or holds something else.
    pub async fn label_of(half: &Stack) -> Result<Option<HalfLabel>, MirrorError> {
        Ok(match look(0, half).await? {
            MirrorLabelScan::Label(MirrorLabel { mirror, epoch, alone, has_lost, .. }) => {
                Some(HalfLabel { mirror, epoch, alone, has_lost })
            }
            MirrorLabelScan::Blank | MirrorLabelScan::Absent => None,
        })
    }

    /// Notes in the label of a half whether it lacks writes that it had answered. No mirror may use the half meanwhile.
    /// Such a half may be opened together with the other one, because the two differ only in the regions that their
    /// labels name. It must not be opened alone. The note stays until both halves are equal, or until the half is filled
    /// anew.
    ///
    /// # Errors
    /// The half cannot be read or written, or holds something else.
    pub async fn note_loss(half: &Stack, has_lost: bool) -> Result<(), MirrorError> {
        let MirrorLabelScan::Label(mut label) = look(0, half).await? else { return Ok(()) };
        if label.has_lost == has_lost {
            return Ok(());
        }
        label.has_lost = has_lost;
        write_both_copies(half, label).await.map_err(|error| MirrorError::Io { half: 0, error })
    }

    /// Which mirror it is: as its labels have it.
    #[must_use]
    pub fn id(&self) -> [u8; 16] {
        self.pair.id
    }

    /// Whether one half has what the other does not have, from before the first such answer on until
    /// both hold everything again.
    #[must_use]
    pub fn alone(&self) -> Option<DegradedMirror> {
        self.pair.state.lock().alone
    }

    /// What the label says, beside the epoch, when it goes on alone the next time.
    pub fn set_number(&self, number: u64) {
        self.pair.next_number.store(number, Ordering::Release);
    }

    /// How the two halves stand.
    #[must_use]
    pub fn standings(&self) -> [MirrorLegStatus; 2] {
        let state = self.pair.state.lock();
        [0, 1].map(|i: usize| state.halves[i].standing.clone())
    }

    /// Blocks or runs of blocks that were written anew from the other half since the opening.
    #[must_use]
    pub fn mended(&self) -> u64 {
        self.pair.mended.load(Ordering::Relaxed)
    }

    /// Blocks that no half could read when one was filled since the opening: they are zeros on the
    /// new half.
    #[must_use]
    pub fn zeroed(&self) -> u64 {
        self.pair.zeroed.load(Ordering::Relaxed)
    }

    /// Lets go of the device of a half, which is lost from then on.
    ///
    /// # Errors
    /// The other half does not hold everything, or cannot note it.
    pub async fn release(&self, half: usize) -> Result<(), MirrorError> {
        let error = Error::Device("it was let go of".into());
        self.give_up(half, &error).await?;
        let mut state = self.pair.state.lock();
        let half = &mut state.halves[half];
        (half.device, half.data, half.slice) = (None, None, None);
        Ok(())
    }

    /// Takes another device for a half, which is lost from then on, and fills it. What the new one
    /// holds is written over.
    ///
    /// # Errors
    /// The other half does not hold everything, or the device cannot be a half.
    pub async fn replace(&self, half: usize, device: Stack) -> Result<(), MirrorError> {
        let pair = &self.pair;
        pair.fits(half, &device)?;
        let error = Error::Device("it was replaced".into());
        self.give_up(half, &error).await?;
        {
            let mut state = pair.state.lock();
            // Not a block is written to it while its label may say that it is whole.
            let standing = MirrorLegStatus::Out("it is not void yet".into());
            // It may have got another size meanwhile.
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

    /// Gives the mirror so many blocks, while it is used: more, which both devices have to have already,
    /// behind [`Self::reserved_bytes`]; or fewer, if nobody uses those beyond any more. What is new may
    /// differ on the two halves until it was written.
    ///
    /// # Errors
    /// It has the size that it had. [`MirrorError::Size`] while a half is lost or being filled;
    /// [`MirrorError::TooSmall`]; [`MirrorError::Io`], and the half is lost.
    pub async fn resize(&self, blocks: u64) -> Result<(), MirrorError> {
        // To its end, though its caller may give it up: labels and size have to agree.
        let ended = tokio::spawn(Arc::clone(&self.pair).resize(blocks)).await;
        ended.unwrap_or(Err(MirrorError::Size("it was closed during the call")))
    }

    /// Bytes of a half before the mirror's own.
    #[must_use]
    pub const fn reserved_bytes() -> u64 {
        RESERVED_BYTES
    }

    /// Leaves out a half, whatever it is on.
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

/// Runs a change to its end, though its caller may give it up: half of it would leave the halves
/// different.
async fn to_the_end(
    change: impl Future<Output = Result<(), Error>> + Send + 'static,
) -> Result<(), Error> {
    let ended = tokio::spawn(change).await;
    ended.unwrap_or_else(|_| Err(Error::Device("the mirror was closed during the call".into())))
}

/// What the halves say, and what they can hold.
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
            // None is whole: say so of the first.
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
