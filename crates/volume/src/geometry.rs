//! The geometry of a volume: its size and abilities, and the checks of calls against them.

use crate::{Error, Extent, Lba};

/// Size and abilities of a volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Geometry {
    /// Bytes in a logical block: 512 or 4096.
    pub block_size: u32,
    /// Bytes that the storage below writes at once: a power of two, at least `block_size`.
    pub physical_block_size: u32,
    /// Number of logical blocks of the volume.
    pub blocks: u64,
    /// True if writes and discards are refused.
    pub read_only: bool,
    /// True if a discard frees space (thin provisioning); false if it only writes zeros.
    pub thin: bool,
    /// True if unflushed writes can be lost by a power failure (SCSI: WCE).
    pub volatile_cache: bool,
    /// Maximum blocks of an atomic write. A write of whole physical blocks, aligned to a physical
    /// block and no longer than this, happens completely or not at all, also in a crash, and no
    /// read sees a part of it. 0: only a single block is atomic.
    pub atomic_blocks: u32,
    /// Maximum size of an atomic epoch, which is the set of all writes and discards between two flushes. After a crash,
    /// either all changes of an epoch are there or none of them, if they have at most this many blocks of 4096 bytes.
    /// Partial blocks count as whole ones, and each write is counted separately. 0: nothing is guaranteed beyond
    /// `atomic_blocks`.
    pub epoch_blocks: u64,
    /// True if the key with which the blocks are encrypted can be destroyed: see [`ErasableKey`](crate::ErasableKey).
    pub key_erasable: bool,
    /// True if a write replaces the old data: no log and no cache on disk keeps an older copy. (A file system or drive
    /// below may still keep one; the volume cannot know that.)
    pub in_place: bool,
}

impl Geometry {
    /// Returns the geometry of a writable thin volume of `blocks` blocks of 512 bytes on physical
    /// blocks of 4096 bytes, with a volatile cache: the usual case.
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

    /// Returns the size of the volume in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blocks * u64::from(self.block_size)
    }

    /// Checks that `extent` is inside the volume and not empty.
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

    /// Returns the blocks that `length` bytes at `lba` replace. Checks that they are whole blocks
    /// inside of a writable volume.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::OutOfRange`]; [`Error::Device`] for a part of a block.
    pub fn check_write(&self, lba: Lba, length: usize) -> Result<Extent, Error> {
        let block_size = self.block_size as usize;
        if !length.is_multiple_of(block_size) {
            return Err(Error::Device("the write does not consist of whole blocks".into()));
        }
        let blocks = u32::try_from(length / block_size).unwrap_or(u32::MAX);
        let extent = Extent { lba, blocks };
        self.check_discard(extent)?;
        Ok(extent)
    }

    /// Checks that `extent` is inside of the volume and not empty, and that the volume is writable.
    ///
    /// # Errors
    /// [`Error::ReadOnly`], [`Error::OutOfRange`].
    pub fn check_discard(&self, extent: Extent) -> Result<(), Error> {
        if self.read_only { Err(Error::ReadOnly) } else { self.check_extent(extent) }
    }
}

/// The point in time at which a write must be stable.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Durability {
    /// The data is stable after the next `flush`.
    Volatile,
    /// Stable before `write` returns (SCSI FUA).
    Stable,
}
