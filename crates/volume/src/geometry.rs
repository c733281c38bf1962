//! Size and abilities of a volume, and which calls they allow.

use crate::{Error, Extent, Lba};

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
    /// What its blocks are encrypted with can be thrown away: [`ErasableKey`](crate::ErasableKey).
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
