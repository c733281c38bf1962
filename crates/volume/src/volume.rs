//! What every volume answers, and the words its questions are asked in.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{Allocation, Claim, Data, Holding, Reply};

/// An array of blocks that behaves like a SCSI disk with a volatile write cache: between two
/// flushes, writes may reach stable storage in any order.
///
/// Every call must be *in range and whole*: extents inside [`Geometry::blocks`], data a multiple
/// of the block size, never empty. `Checked` is the door that holds callers to it.
///
/// Dropping a returned future abandons the call: it may have happened, or not, or (between two
/// blocks) in part; it never harms other calls or blocks outside its extent.
pub trait Volume: Send + Sync + 'static {
    /// Size and abilities. Changes only when the volume is resized.
    fn geometry(&self) -> Geometry;

    /// The volume below, if this is a layer before one and no more: the same blocks, one for one. What
    /// such a layer does not answer itself goes down, of all that follows [`Volume::discard`].
    fn lower(&self) -> Option<&dyn Volume> {
        None
    }

    /// The blocks of `extent`. A block never written reads as zeros.
    fn read(&self, extent: Extent) -> Io<'_, Data>;

    /// Replaces the blocks from `lba` on. With [`Durability::Stable`] they are on stable storage
    /// when the call returns; otherwise after the next [`Volume::flush`].
    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()>;

    /// Makes every write and discard that was answered before this call stable.
    fn flush(&self) -> Io<'_, ()>;

    /// Does the same as [`Self::flush`] for a caller that goes on to write before the answer. Calls `begun` as soon as
    /// every write and discard that is called from then on comes after the flush, whatever delays either of them.
    /// Never calls it if that cannot be promised; the caller then waits for the answer. A flush for which `begun` was
    /// called is performed at most once, and not at all after it has failed: none of the later calls counts with it.
    fn flush_ahead<'a>(&'a self, begun: FlushBegunCallback<'a>) -> Io<'a, ()> {
        drop(begun);
        self.flush()
    }

    /// Makes the blocks read as zeros, giving back their space where that is possible.
    fn discard(&self, extent: Extent) -> Io<'_, ()>;

    /// Gives up every write and discard that no flush has followed, those of others too, where
    /// [`Geometry::epoch_blocks`] is not 0. What is under way is given up or comes after.
    fn roll_back(&self) -> Io<'_, ()> {
        match self.lower() {
            Some(lower) => lower.roll_back(),
            None => Io::done(Err(Error::Device("the volume has no epochs".into()))),
        }
    }

    /// Reads `extent` as of the end of one flush: without the writes and discards after that flush. It is the
    /// last flush that was answered before this call, or a later one.
    ///
    /// # Errors
    /// [`Error::Device`] where [`Geometry::epoch_blocks`] is 0: such a volume keeps one version of each block.
    fn read_flushed(&self, extent: Extent) -> Io<'_, Data> {
        match self.lower() {
            Some(lower) => lower.read_flushed(extent),
            None => Io::done(Err(Error::Device("the volume has no epochs".into()))),
        }
    }

    /// Which blocks of `extent` are mapped, from its first on. A volume that does not know says
    /// that all are.
    fn allocation(&self, extent: Extent) -> Io<'_, Allocation> {
        match self.lower() {
            Some(lower) => lower.allocation(extent),
            None => Io::done(Ok(Allocation::mapped(extent.blocks))),
        }
    }

    /// Encrypts with another key from now on, and forgets the one of before: no block can be read
    /// any more as it was written. When it returns, the new key is stable and the old one gone.
    fn erase_key(&self) -> Io<'_, ()> {
        match self.lower() {
            Some(lower) => lower.erase_key(),
            None => Io::done(Err(Error::Device("it has no key to erase".into()))),
        }
    }

    /// Whether a write of this many bytes would be taken now. Asked before its data is solicited;
    /// [`Error::Busy`] or [`Error::Away`] says that it would not.
    fn admit(&self, bytes: usize) -> Result<(), Error> {
        self.lower().map_or(Ok(()), |lower| lower.admit(bytes))
    }

    /// Reads every copy that there is of `extent` and judges each. Where one is right, those that
    /// are not are written anew from it, and it is given; `None` if none is.
    fn examine<'a>(
        &'a self,
        extent: Extent,
        is_right: &'a (dyn Fn(&Data) -> bool + Sync),
    ) -> Io<'a, Option<Data>> {
        if let Some(lower) = self.lower() {
            return lower.examine(extent, is_right);
        }
        let read = self.read(extent);
        Io::new(async move { Ok(Some(read.await?).filter(is_right)) })
    }

    /// Blocks of which there are copies that differ, in order. A plain read of them gives one copy,
    /// always the same; [`Self::examine`], a write or [`Self::settle`] makes them equal. Does not
    /// wait for other calls.
    fn in_doubt(&self) -> Vec<Extent> {
        self.lower().map_or_else(Vec::new, |lower| lower.in_doubt())
    }

    /// Makes the copies of what is still in doubt like the one that plain reads give: everything
    /// that matters has been examined.
    fn settle(&self) -> Io<'_, ()> {
        self.lower().map_or_else(|| Io::done(Ok(())), |lower| lower.settle())
    }

    /// How much space its blocks take, and how much is left for them; `None` where that is not
    /// known. Does not wait for other calls.
    fn usage(&self) -> Option<ThinSpaceUsage> {
        self.lower().and_then(|lower| lower.usage())
    }

    /// Returns the most calls that the volume performs at once; further calls wait. `None` if it has no limit of its own.
    fn most_calls(&self) -> Option<usize> {
        self.lower().and_then(|lower| lower.most_calls())
    }

    /// Looks whether the storage below has another size than before, which [`Volume::geometry`]
    /// tells from then on. Does not wait for other calls.
    fn refresh(&self) {
        if let Some(lower) = self.lower() {
            lower.refresh();
        }
    }

    /// Asks to be the only one that changes it, from now on and whenever it comes back. Asked once,
    /// before anything is written.
    fn claim(&self, claim: Claim) -> Io<'_, Holding> {
        match self.lower() {
            Some(lower) => lower.claim(claim),
            None => Io::done(Ok(Holding::Unsupported)),
        }
    }

    /// How the claim stands. Does not wait for other calls.
    fn holding(&self) -> Holding {
        self.lower().map_or(Holding::Unsupported, |lower| lower.holding())
    }

    /// Asks for tokens of a volume that others change, too: a list of requests as the crate `tokens`
    /// has it. What is asked may be lost when it fails, and when it does not.
    fn ask_tokens(&self, list: Bytes) -> Io<'_, ()> {
        match self.lower() {
            Some(lower) => lower.ask_tokens(list),
            None => Io::done(Err(Error::Device("the volume is not shared".into()))),
        }
    }

    /// Waits until there is an answer, or so long; a list of answers as the crate `tokens` has it.
    fn hear_tokens(&self, wait: Duration) -> Io<'_, Bytes> {
        match self.lower() {
            Some(lower) => lower.hear_tokens(wait),
            None => Io::done(Err(Error::Device("the volume is not shared".into()))),
        }
    }

    /// Gives the claim back, when nothing newer than the volume is left above it.
    fn release(&self) -> Io<'_, ()> {
        self.lower().map_or_else(|| Io::done(Ok(())), |lower| lower.release())
    }
}

/// The reply to a call of a volume.
pub type Io<'a, T> = Reply<'a, Result<T, Error>>;

/// The function that [`Volume::flush_ahead`] calls.
pub type FlushBegunCallback<'a> = Box<dyn FnOnce() + Send + 'a>;

/// The space of a thin volume, in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ThinSpaceUsage {
    /// What its blocks take.
    pub used: u64,
    /// What is left.
    pub available: u64,
    /// Others, too, take from what is left.
    pub shared: bool,
}

/// A volume with everything below it.
pub type Stack = Arc<dyn Volume>;

/// Logical block address, counted in blocks of the volume.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Lba(pub u64);

/// A run of blocks: `lba .. lba + blocks`. Never empty.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Extent {
    /// The first block.
    pub lba: Lba,
    /// How many blocks; at least one.
    pub blocks: u32,
}

impl Extent {
    /// The first address after the run; the highest there is, if it would be beyond that.
    #[must_use]
    pub fn end(self) -> Lba {
        Lba(self.lba.0.saturating_add(u64::from(self.blocks)))
    }
}

/// Size and abilities of a volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Geometry {
    /// Bytes in a logical block: 512 or 4096.
    pub block_size: u32,
    /// Bytes that the storage below writes at once: a power of two, at least `block_size`.
    pub physical_block_size: u32,
    /// How many logical blocks.
    pub blocks: u64,
    /// Writes, discards are refused.
    pub read_only: bool,
    /// A discard gives space back (thin provisioning); otherwise it only writes zeros.
    pub thin: bool,
    /// Unflushed writes can be lost by a power failure (SCSI: WCE).
    pub volatile_cache: bool,
    /// A write of at most so many blocks, whole physical blocks from a whole physical block on,
    /// happens wholly or not at all, whatever happens meanwhile, and no read sees a part of it.
    /// 0: nothing is promised beyond the single block.
    pub atomic_blocks: u32,
    /// All that is written and discarded between two flushes is there after a crash, or nothing of
    /// it, while that is at most so many blocks of 4096 bytes or parts of one, counted for each
    /// write. 0: nothing is promised beyond `atomic_blocks`.
    pub epoch_blocks: u64,
    /// What its blocks are encrypted with can be thrown away: [`Volume::erase_key`].
    pub key_erasable: bool,
    /// What is overwritten is gone: no log and no cache on disk keeps an older copy. (What a file
    /// system or a drive below may keep is not known here.)
    pub in_place: bool,
}

impl Geometry {
    /// A writable thin volume of `blocks` blocks of 512 bytes on 4096-byte physical blocks, with
    /// a volatile cache: the usual case.
    #[must_use]
    pub const fn with_blocks(blocks: u64) -> Self {
        Self {
            block_size: 512,
            physical_block_size: 4096,
            blocks,
            read_only: false,
            thin: true,
            volatile_cache: true,
            atomic_blocks: 0,
            epoch_blocks: 0,
            key_erasable: false,
            in_place: true,
        }
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blocks * u64::from(self.block_size)
    }

    /// That `extent` is inside the volume and not empty.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn check_extent(&self, extent: Extent) -> Result<(), Error> {
        let end = extent.lba.0.checked_add(u64::from(extent.blocks));
        if extent.blocks > 0 && end.is_some_and(|end| end <= self.blocks) {
            Ok(())
        } else {
            Err(Error::OutOfRange(extent))
        }
    }

    /// The blocks that `length` bytes at `lba` replace, if they are whole, inside the volume and
    /// may be written.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::OutOfRange`]; [`Error::Device`] for a part of a block.
    pub fn check_write(&self, lba: Lba, length: usize) -> Result<Extent, Error> {
        let block_size = self.block_size as usize;
        if !length.is_multiple_of(block_size) {
            return Err(Error::Device("a write of a part of a block".into()));
        }
        let blocks = u32::try_from(length / block_size).unwrap_or(u32::MAX);
        let extent = Extent { lba, blocks };
        self.check_discard(extent)?;
        Ok(extent)
    }

    /// That `extent` is inside the volume, not empty, and may be written.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::OutOfRange`].
    pub fn check_discard(&self, extent: Extent) -> Result<(), Error> {
        if self.read_only { Err(Error::ReadOnly) } else { self.check_extent(extent) }
    }
}

/// When a write must be safe.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Durability {
    /// Safe after the next `flush`.
    Volatile,
    /// Safe before `write` returns (SCSI FUA).
    Stable,
}

/// What can go wrong with a call. The volume itself stays usable.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The extent reaches beyond the last block.
    #[error("blocks {}..{} are outside the volume", .0.lba.0, .0.end().0)]
    OutOfRange(Extent),
    /// Nothing was written: the volume is read-only.
    #[error("the volume is read-only")]
    ReadOnly,
    /// These blocks cannot be read, or could not be written.
    #[error("medium error at block {}: {reason}", .extent.lba.0)]
    Medium {
        /// Which blocks.
        extent: Extent,
        /// What the storage below said.
        reason: Arc<str>,
    },
    /// The storage below has no room for a block that was not written before.
    #[error("no space left below the volume")]
    NoSpace,
    /// A buffer or a log is full, and a write has done nothing: try again later. A discard may have been done in
    /// part where the volume says so; repeating it is harmless.
    #[error("busy: {0}")]
    Busy(&'static str),
    /// The write needs more room than the log of the volume has when it is empty. Nothing was done.
    #[error(
        "the log can never take a write of {bytes} bytes, only one of {most} bytes: write less at once, or \
         make the log larger"
    )]
    TooLong {
        /// Bytes of the write, counted in whole slots of 4096.
        bytes: u64,
        /// The largest write in bytes that an empty log takes for certain.
        most: u64,
    },
    /// There is no connection to the storage below. The call was not sent, so nothing was done.
    #[error("the lower volume is not reachable: {0}")]
    Away(Arc<str>),
    /// The storage below does not answer. A write may have been done, as a whole or in part, or not at all.
    #[error("the lower volume does not answer: {0}")]
    Unreachable(Arc<str>),
    /// The device failed as a whole.
    #[error("device failure: {0}")]
    Device(Arc<str>),
    /// Another log has the claim on the volume: the caller is fenced for good.
    #[error("fenced: {0}")]
    Fenced(Arc<str>),
}

impl Error {
    /// Returns true if the same call may succeed later: the storage below is full, away or silent now.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Busy(_) | Self::Away(_) | Self::Unreachable(_))
    }

    /// Converts the error of one step of a call whose earlier steps have been done. The result never says that
    /// nothing was done.
    #[must_use]
    pub fn after_a_part(self) -> Self {
        match self {
            Self::Away(reason) => Self::Unreachable(reason),
            Self::Busy(reason) => Self::Unreachable(reason.into()),
            error => error,
        }
    }
}
