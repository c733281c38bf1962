//! The log disk of a cache: the volume, its superblock, and the seals of the log's blocks.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use journal::{
    checksum::crc32c, identity::InstanceId, index_memory::LogIndexFrames, recovery::copy_to_mend,
    seal::Salt, superblock::Superblock,
};
use parking_lot::Mutex;
use volume::{Data, Durability, Error, Extent, Lba, Stack};

use crate::{
    seals::Seals,
    slots::{
        pages::{SlotPagePool, scratch_block},
        sectors::SLOT_BYTES,
        table::LogAddress,
    },
};

/// The fields that every segment header carries.
#[derive(Clone, Copy)]
pub(crate) struct SegmentIdentity {
    pub instance: InstanceId,
    pub generation: u64,
    /// The random salt that was drawn when the log was opened; `None` if the log is not encrypted.
    pub salt: Option<Salt>,
    /// True if the NVRAM holds acknowledged writes. The NVRAM then also records the number of each segment before the
    /// segment is written.
    pub noted: bool,
}

/// The log disk with its superblock, the index of its segments and its encryption.
pub(crate) struct CacheLog {
    pub volume: Stack,
    /// The content of the superblock. The lock makes its writers take turns. Lock order: before the lock of
    /// the state.
    pub superblock: tokio::sync::Mutex<Superblock>,
    /// The superblock copy that is written first: the one whose write failed last, since it may be damaged.
    pub first_copy: AtomicU64,
    /// The index of the log. While it is locked, no other lock is taken, and nothing is waited for.
    pub index: Mutex<LogIndexFrames>,
    /// Encrypts and decrypts the blocks of the log; `None` if the log has no key.
    pub seals: Option<Seals>,
    pub identity: SegmentIdentity,
    /// The pages for the headers of segments and for superblocks.
    pub scratch: Arc<SlotPagePool>,
    /// Held during a flush of a log disk that has NVRAMs in front of it: one flush runs at a time.
    pub flush_turn: tokio::sync::Mutex<()>,
    /// Held during a resize of the log: one resize runs at a time.
    pub resize_turn: Arc<tokio::sync::Mutex<()>>,
    /// Serializes rollbacks to the last flush.
    pub rollback_turn: tokio::sync::Mutex<()>,
}

impl CacheLog {
    /// Creates the object for an opened log, whose `superblock` must be on the log disk already.
    pub fn new(
        volume: Stack,
        superblock: Superblock,
        index: LogIndexFrames,
        seals: Option<Seals>,
        identity: SegmentIdentity,
        scratch: Arc<SlotPagePool>,
    ) -> Self {
        Self {
            volume,
            superblock: tokio::sync::Mutex::new(superblock),
            first_copy: 0.into(),
            index: Mutex::new(index),
            seals,
            identity,
            scratch,
            flush_turn: tokio::sync::Mutex::new(()),
            resize_turn: Arc::default(),
            rollback_turn: tokio::sync::Mutex::new(()),
        }
    }

    /// Writes both copies of the superblock, one after the other: if one write is torn, the other copy is
    /// whole.
    pub async fn write_superblock_copies(&self, superblock: &Superblock) -> Result<(), Error> {
        let first = self.first_copy.load(Ordering::Relaxed);
        let written = write_copies_from(first, &self.volume, &self.scratch, superblock).await;
        written.map_err(|(copy, error)| {
            self.first_copy.store(copy, Ordering::Relaxed);
            error
        })
    }

    /// Reads all copies of the data block at `place`, and repairs those with a wrong checksum. Returns `None`
    /// if no copy has the right one.
    pub async fn examine(&self, place: &LogAddress) -> Result<Option<Data>, Error> {
        let extent = Extent { lba: Lba(u64::from(place.block)), blocks: 1 };
        let is_right = |data: &Data| {
            data.len() == SLOT_BYTES && crc32c(&data.clone().into_bytes()) == place.checksum
        };
        volume::examine(&*self.volume, extent, &is_right).await
    }
}

/// Writes both copies of the log's superblock. Overwrites a damaged copy first, so that one copy is always intact.
pub(crate) async fn write_copies(
    log: &Stack,
    scratch: &Arc<SlotPagePool>,
    superblock: &Superblock,
) -> Result<(), Error> {
    let first = copy_to_mend(log).await?;
    write_copies_from(first, log, scratch, superblock).await.map_err(|(_, error)| error)
}

/// Writes the two copies of a superblock. The copy `first`, which may be damaged, is written first: otherwise
/// a power failure during the write of the other copy could leave both damaged. An error names the copy that
/// was not written.
async fn write_copies_from(
    first: u64,
    log: &Stack,
    scratch: &Arc<SlotPagePool>,
    superblock: &Superblock,
) -> Result<(), (u64, Error)> {
    let block = scratch_block(scratch, |block| superblock.encode(block));
    for copy in [first, 1 - first] {
        let written = log.write(Lba(copy), Data::from(block.clone()), Durability::Stable).await;
        written.map_err(|error| (copy, error))?;
    }
    Ok(())
}

/// Number of pages in the scratch pool: one for a segment's header, one for a superblock, and some for dropped writes
/// that still hold theirs for a moment.
pub(crate) const SCRATCH_PAGES: u32 = 8;
