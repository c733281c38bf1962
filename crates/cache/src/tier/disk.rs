//! The disk of a read tier: writes segments of evicted slots, and reads and checks their blocks.

use std::{io, sync::Arc};

use bytes::Bytes;
use futures_util::future::join_all;
use journal::{
    checksum::crc32c,
    seal::{SealedBlockId, Sealer, Tag, Which},
};
use volume::{Data, Durability, Error, Extent, Lba, Stack};

use crate::slots::{
    pages::{SlotPagePool, scratch_block},
    sectors::{SLOT_BYTES, WHOLE},
};

/// The disk of a read tier, and the encryption of its blocks.
pub(crate) struct TierDisk {
    volume: Stack,
    sealer: Option<Sealer>,
    /// Buffers for encrypted blocks.
    scratch: Arc<SlotPagePool>,
}

/// A full segment that is to be written.
#[derive(Clone)]
pub(crate) struct Full {
    pub(super) number: u64,
    /// Number of the first cell of the segment; a cell holds one slot.
    pub(super) first: u32,
    pub(super) pages: Arc<[Bytes]>,
}

/// The checks by which the content of each cell is verified.
pub(super) enum Checks {
    Sums(Vec<u32>),
    /// Authentication tags, if blocks are sealed.
    Tags(Vec<Tag>),
}

#[derive(Clone, Copy)]
pub(super) enum TierBlockCheck {
    Sum(u32),
    Tag(Tag),
}

/// Adjacent slots that were all in the read tier when this object was made.
pub(crate) struct Stretch {
    pub(super) disk: Arc<TierDisk>,
    pub(super) finds: Vec<Find>,
}

/// The position of a slot on the disk of the read tier, and the checksum of its block.
pub(super) struct Find {
    pub slot: u64,
    pub cell: u32,
    /// The segment of the block, and the position of the block in the segment.
    pub which: Which,
    pub check: TierBlockCheck,
    /// The content of the slot, if the tier has not written it to the disk yet.
    pub page: Option<Bytes>,
}

/// A segment that was written to the disk of the read tier, with the checksums of its blocks.
pub(crate) struct WrittenTierSegment {
    pub(super) number: u64,
    pub(super) first: u32,
    pub(super) checks: Checks,
}

impl TierDisk {
    pub fn new(volume: Stack, sealer: Option<Sealer>) -> io::Result<Self> {
        let pages = if sealer.is_some() { MOST_SEGMENT_SLOTS as u32 } else { 1 };
        Ok(Self { volume, sealer, scratch: SlotPagePool::new(pages)? })
    }

    /// Writes a segment. The caller has removed the former slots of these cells from the index.
    pub async fn write(&self, full: &Full) -> Result<WrittenTierSegment, Error> {
        let mut data = Data::with_parts(full.pages.len());
        let mut checks = match self.sealer {
            None => Checks::Sums(Vec::new()),
            Some(_) => Checks::Tags(Vec::new()),
        };
        for (page, ordinal) in full.pages.iter().zip(0..) {
            match (&self.sealer, &mut checks) {
                (Some(sealer), Checks::Tags(tags)) => {
                    let which = Which(full.number, ordinal);
                    data.push(scratch_block(&self.scratch, |block| {
                        block.copy_from_slice(page);
                        tags.push(sealer.seal(which, ABOUT, block));
                    }));
                }
                (_, Checks::Sums(sums)) => {
                    sums.push(crc32c(page));
                    data.push(page.clone());
                }
                (None, Checks::Tags(_)) => unreachable!("a disk is sealed or not"),
            }
            if ordinal % 16 == 15 {
                // Sealing or checking 16 blocks takes some tens of microseconds. Yield, so that other tasks can run in
                // between.
                tokio::task::yield_now().await;
            }
        }
        self.volume.write(Self::lba(full.first), data, Durability::Volatile).await?;
        Ok(WrittenTierSegment { number: full.number, first: full.first, checks })
    }

    /// Returns the number of disk blocks that can hold segments.
    pub(super) fn blocks(&self) -> u64 {
        self.volume.geometry().blocks.saturating_sub(FIRST_BLOCK)
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.sealer.is_some()
    }

    fn lba(cell: u32) -> Lba {
        Lba(u64::from(cell) + FIRST_BLOCK)
    }
}

impl Stretch {
    /// Reads the blocks of all slots from the read tier. A block that fails its checksum is returned as `None`.
    pub async fn read(&self) -> Result<Vec<Option<Data>>, Error> {
        // Slots that were admitted together are in adjacent cells, and are read with one call.
        let follows = |a: &Find, b: &Find| {
            a.page.is_none() && b.page.is_none() && b.cell.checked_sub(1) == Some(a.cell)
        };
        let runs = self.finds.chunk_by(follows).map(|run| self.read_run(run));
        let mut blocks = Vec::with_capacity(self.finds.len());
        for run in join_all(runs).await {
            blocks.extend(run?);
        }
        Ok(blocks)
    }

    /// Reads slots in adjacent cells of the disk, or one slot that is still in memory.
    async fn read_run(&self, run: &[Find]) -> Result<Vec<Option<Data>>, Error> {
        if let [Find { page: Some(page), .. }] = run {
            return Ok(vec![Some(page.clone().into())]);
        }
        let extent = Extent { lba: TierDisk::lba(run[0].cell), blocks: run.len() as u32 };
        let data = self.disk.volume.read(extent).await?;
        if data.len() != run.len() * SLOT_BYTES {
            return Err(Error::Device("it returned fewer bytes".into()));
        }
        let block = |at| data.slice(at * SLOT_BYTES, SLOT_BYTES);
        Ok(run.iter().enumerate().map(|(at, find)| self.open(find, block(at))).collect())
    }

    fn open(&self, find: &Find, block: Data) -> Option<Data> {
        let block = block.into_bytes();
        match (find.check, &self.disk.sealer) {
            (TierBlockCheck::Sum(sum), _) => (crc32c(&block) == sum).then(|| block.into()),
            (TierBlockCheck::Tag(tag), Some(sealer)) => {
                let opened = sealer.open(find.which, ABOUT, &tag, &block)?;
                Some(Bytes::from(opened as Box<[u8]>).into())
            }
            (TierBlockCheck::Tag(_), None) => None,
        }
    }
}

/// The first block of the segments. The label is in block 0; the blocks in between show whether the disk
/// holds other data.
pub(crate) const FIRST_BLOCK: u64 = 32;
/// Number of slots in a segment, 512 KiB. A flash disk that is overwritten in units of this size has little data to
/// move.
pub(super) const MOST_SEGMENT_SLOTS: u64 = 128;
/// The additional data of every sealed block. It does not name the slot, which only the index knows.
const ABOUT: SealedBlockId = SealedBlockId { slot: 0, mask: WHOLE, serial: 0 };
