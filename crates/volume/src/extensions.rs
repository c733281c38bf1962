//! The optional abilities of a volume: a trait for each of them, and the list of those that a volume has.

use std::time::Duration;

use bytes::Bytes;

use crate::{Allocation, Claim, Data, Error, Extent, Holding, Io};

/// The optional abilities of a volume together with those of the volumes below it: see
/// [`Volume::extensions`](crate::Volume::extensions).
///
/// A field is `None` if the volume does not have the ability. Each method makes the call of the same name if the volume
/// has the ability, and otherwise returns the answer of a volume without it.
#[derive(Clone, Copy, Default)]
pub struct Extensions<'a> {
    /// Set if the volume can report which of its blocks take space.
    pub provisioning: Option<&'a dyn Provisioning>,
    /// Set if the volume can change its size while it is in use.
    pub resizable: Option<&'a dyn Resizable>,
    /// Set if the volume can discard everything that was written since the last flush.
    pub rollback: Option<&'a dyn EpochRollback>,
    /// Set if the volume can read blocks as they were at the last flush.
    pub flushed_reads: Option<&'a dyn FlushedReads>,
    /// Guarantees the order of a flush and later writes. If `None`, a caller must wait for the answer to a flush before
    /// it sends writes that must not be stable before the flush.
    pub ordered_flush: Option<&'a dyn OrderedFlush>,
    /// Set if the volume encrypts its blocks with a key that it can destroy.
    pub key: Option<&'a dyn ErasableKey>,
    /// Set if the volume keeps several copies of each block.
    pub copies: Option<&'a dyn RedundantCopies>,
    /// Set if one writer can claim the exclusive right to write the volume.
    pub writer: Option<&'a dyn ExclusiveWriter>,
    /// Set if the volume is shared and grants coherence tokens to its writers.
    pub coherence: Option<&'a dyn CoherenceChannel>,
    /// The maximum number of calls that the volume performs at once; further calls wait. `None`: it has no limit of its
    /// own.
    pub most_calls: Option<usize>,
}

impl<'a> Extensions<'a> {
    /// See [`Provisioning::allocation`]. Without the ability all blocks count as mapped.
    pub fn allocation(self, extent: Extent) -> Io<'a, Allocation> {
        match self.provisioning {
            Some(provisioning) => provisioning.allocation(extent),
            None => Io::done(Ok(Allocation::mapped(extent.blocks))),
        }
    }

    /// See [`Provisioning::usage`]. Without the ability the usage is not known.
    #[must_use]
    pub fn usage(self) -> Option<ThinSpaceUsage> {
        self.provisioning.and_then(Provisioning::usage)
    }

    /// Calls [`Resizable::refresh`] if the volume can be resized.
    pub fn refresh(self) {
        if let Some(resizable) = self.resizable {
            resizable.refresh();
        }
    }

    /// See [`EpochRollback::roll_back`].
    ///
    /// # Errors
    /// [`Error::Device`] without the ability.
    pub fn roll_back(self) -> Io<'a, ()> {
        match self.rollback {
            Some(rollback) => rollback.roll_back(),
            None => Io::done(Err(Error::Device("the volume has no epochs".into()))),
        }
    }

    /// See [`FlushedReads::read_flushed`].
    ///
    /// # Errors
    /// [`Error::Device`] without the ability.
    pub fn read_flushed(self, extent: Extent) -> Io<'a, Data> {
        match self.flushed_reads {
            Some(reads) => reads.read_flushed(extent),
            None => Io::done(Err(Error::Device("the volume has no epochs".into()))),
        }
    }

    /// See [`ErasableKey::erase_key`].
    ///
    /// # Errors
    /// [`Error::Device`] without the ability.
    pub fn erase_key(self) -> Io<'a, ()> {
        match self.key {
            Some(key) => key.erase_key(),
            None => Io::done(Err(Error::Device("it has no key to erase".into()))),
        }
    }

    /// Returns [`RedundantCopies::divergent`]; nothing if the volume has only one copy of each block.
    #[must_use]
    pub fn divergent(self) -> Vec<Extent> {
        self.copies.map_or_else(Vec::new, RedundantCopies::divergent)
    }

    /// Calls [`RedundantCopies::make_equal`] if the volume has several copies of each block.
    pub fn make_equal(self) -> Io<'a, ()> {
        self.copies.map_or_else(|| Io::done(Ok(())), RedundantCopies::make_equal)
    }

    /// Calls [`ExclusiveWriter::claim`]. A volume without claims answers [`Holding::Unsupported`].
    pub fn claim(self, claim: Claim) -> Io<'a, Holding> {
        match self.writer {
            Some(writer) => writer.claim(claim),
            None => Io::done(Ok(Holding::Unsupported)),
        }
    }

    /// See [`ExclusiveWriter::holding`]. The answer is [`Holding::Unsupported`] without the ability.
    #[must_use]
    pub fn holding(self) -> Holding {
        self.writer.map_or(Holding::Unsupported, ExclusiveWriter::holding)
    }

    /// Calls [`ExclusiveWriter::release`] if the volume supports claims.
    pub fn release(self) -> Io<'a, ()> {
        self.writer.map_or_else(|| Io::done(Ok(())), ExclusiveWriter::release)
    }

    /// See [`CoherenceChannel::send_requests`].
    ///
    /// # Errors
    /// [`Error::Device`] without the ability.
    pub fn send_requests(self, list: Bytes) -> Io<'a, ()> {
        match self.coherence {
            Some(channel) => channel.send_requests(list),
            None => Io::done(Err(Error::Device("the volume is not shared".into()))),
        }
    }

    /// See [`CoherenceChannel::receive_answers`].
    ///
    /// # Errors
    /// [`Error::Device`] without the ability.
    pub fn receive_answers(self, wait: Duration) -> Io<'a, Bytes> {
        match self.coherence {
            Some(channel) => channel.receive_answers(wait),
            None => Io::done(Err(Error::Device("the volume is not shared".into()))),
        }
    }
}

/// A volume that can report which of its blocks take space in the storage below it.
pub trait Provisioning: Send + Sync {
    /// Returns which blocks of `extent` are mapped, from its first block on. The answer may end before the last block.
    /// A block of which nothing is known counts as mapped.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], or an error of the storage below.
    fn allocation(&self, extent: Extent) -> Io<'_, Allocation>;

    /// Returns the space that the blocks take and the free space left for them; `None` if that is not known. Does not
    /// wait for other calls.
    fn usage(&self) -> Option<ThinSpaceUsage>;
}

/// The space of a thin volume, in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ThinSpaceUsage {
    /// Space that the blocks of the volume take.
    pub used: u64,
    /// Free space that new blocks can take.
    pub available: u64,
    /// True if other volumes or files take space from the same pool.
    pub shared: bool,
}

/// A volume whose size can change while it is in use.
pub trait Resizable: Send + Sync {
    /// Checks whether the storage below has changed its size. If so, [`Volume::geometry`](crate::Volume::geometry)
    /// reports the new size from then on. Does not wait for other calls.
    fn refresh(&self);
}

/// A volume that can discard everything that was written since the last flush, where
/// [`Geometry::epoch_blocks`](crate::Geometry::epoch_blocks) is not 0.
pub trait EpochRollback: Send + Sync {
    /// Discards the effects of every write and discard since the last flush, also those of other callers. A write in
    /// progress is either discarded, or takes effect after this call.
    ///
    /// # Errors
    /// [`Error::Device`] where the volume has no epochs now.
    fn roll_back(&self) -> Io<'_, ()>;
}

/// A volume that can read blocks as of the last flush, where [`Geometry::epoch_blocks`](crate::Geometry::epoch_blocks)
/// is not 0.
pub trait FlushedReads: Send + Sync {
    /// Reads `extent` as of the end of one flush, without the writes and discards after that flush. The flush is the
    /// last one that was answered before this call, or a later one.
    ///
    /// # Errors
    /// [`Error::Device`] where the volume has no epochs: such a volume keeps one version of each block.
    fn read_flushed(&self, extent: Extent) -> Io<'_, Data>;
}

/// A volume that guarantees the order of a flush and later writes, so that a caller need not wait for the answer to
/// the flush.
pub trait OrderedFlush: Send + Sync {
    /// Flushes like [`Volume::flush`](crate::Volume::flush), for a caller that continues to write before the flush is
    /// answered. Calls `begun` when the order is guaranteed: each write and discard called after that takes effect
    /// after the flush, even if the network delays one of them. Never calls `begun` if the volume cannot guarantee
    /// this; the caller then waits for the answer.
    ///
    /// A flush for which `begun` was called is performed at most once, and never after this call has failed: a late
    /// flush would also make later writes stable.
    fn flush_ahead<'a>(&'a self, begun: FlushBegunCallback<'a>) -> Io<'a, ()>;
}

/// Callback of [`OrderedFlush::flush_ahead`]. From this call on, the volume guarantees that later writes follow the
/// flush.
pub type FlushBegunCallback<'a> = Box<dyn FnOnce() + Send + 'a>;

/// A volume that encrypts its blocks, and can destroy the key so that their data becomes unreadable.
pub trait ErasableKey: Send + Sync {
    /// Encrypts with another key from now on, and forgets the former key: no block can be read any more as it was
    /// written. When this returns, the new key is stable and the former key is erased.
    ///
    /// # Errors
    /// The new key is not stable, or the former key may still be found.
    fn erase_key(&self) -> Io<'_, ()>;
}

/// A volume that keeps several copies of each block, which may differ after a crash.
pub trait RedundantCopies: Send + Sync {
    /// Reads every available copy of `extent` and judges each with `is_right`. If one is right, writes it over the
    /// wrong copies and returns it. Returns `None` if no copy is right.
    fn examine<'a>(
        &'a self,
        extent: Extent,
        is_right: &'a (dyn Fn(&Data) -> bool + Sync),
    ) -> Io<'a, Option<Data>>;

    /// Returns the blocks whose copies differ, in ascending order. A plain read of such a block always returns the same
    /// one of the copies. [`Self::examine`], a write or [`Self::make_equal`] makes the copies equal. Does not wait for
    /// other calls.
    fn divergent(&self) -> Vec<Extent>;

    /// Makes all copies of each block in [`Self::divergent`] equal to the copy that plain reads return. Examine all
    /// blocks with valuable data before: this call may overwrite the right copy.
    fn make_equal(&self) -> Io<'_, ()>;
}

/// A volume that one writer can claim, so that no other initiator changes its blocks.
pub trait ExclusiveWriter: Send + Sync {
    /// Asks to be the only writer. The request is repeated after every reconnection. The caller calls this once, before
    /// its first write.
    fn claim(&self, claim: Claim) -> Io<'_, Holding>;

    /// Returns whether the requested claim is granted. Does not wait for other calls.
    fn holding(&self) -> Holding;

    /// Releases the claim. The caller must hold no data that is newer than the volume.
    fn release(&self) -> Io<'_, ()>;
}

/// A volume that several gateways may change, under coherence tokens that its node grants.
pub trait CoherenceChannel: Send + Sync {
    /// Sends requests for tokens. `list` is a list of requests as the crate `coherence` encodes it. The requests may
    /// be lost when the call fails, and also when it succeeds.
    fn send_requests(&self, list: Bytes) -> Io<'_, ()>;

    /// Waits until there is an answer, for at most `wait`. Returns a list of answers as the crate `coherence` encodes
    /// it.
    fn receive_answers(&self, wait: Duration) -> Io<'_, Bytes>;
}
