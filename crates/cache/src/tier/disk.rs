//! The disk of a tier: segments written, blocks read and checked.

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

/// The disk of a tier, and what its blocks are encrypted with.
pub(crate) struct TierDisk {
    volume: Stack,
    sealer: Option<Sealer>,
    /// For blocks that are sealed.
    scratch: Arc<SlotPagePool>,
}

/// A segment on its way to the disk.
#[derive(Clone)]
pub(crate) struct Full {
    pub(super) number: u64,
    /// Its first cell.
    pub(super) first: u32,
    pub(super) pages: Arc<[Bytes]>,
}

/// By which the block of a cell is known.
pub(super) enum Checks {
    /// CRC32C.
    Sums(Vec<u32>),
    /// Authentication tags, where blocks are sealed.
    Tags(Vec<Tag>),
}

#[derive(Clone, Copy)]
pub(super) enum TierBlockCheck {
    Sum(u32),
    Tag(Tag),
}

/// Neighbouring slots, all of them here when it was made.
pub(crate) struct Stretch {
    pub(super) disk: Arc<TierDisk>,
    pub(super) finds: Vec<Find>,
}

/// Where a slot was found.
pub(super) struct Find {
    pub slot: u64,
    pub cell: u32,
    /// The segment that its block came with, and which of its blocks it is.
    pub which: Which,
    pub check: TierBlockCheck,
    /// It is not on the disk yet.
    pub page: Option<Bytes>,
}

/// A segment that is on the disk.
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

    /// Writes a segment. What it replaces has left the index before.
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
                // So many take some tens of microseconds.
                tokio::task::yield_now().await;
            }
        }
        self.volume.write(Self::lba(full.first), data, Durability::Volatile).await?;
        Ok(WrittenTierSegment { number: full.number, first: full.first, checks })
    }

    /// How many blocks there are for segments.
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
    /// The blocks of all its slots; none for those that are not what was written.
    pub async fn read(&self) -> Result<Vec<Option<Data>>, Error> {
        // What came together lies together.
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

    /// Those of slots that lie side by side, or of one in memory.
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

/// Where segments begin: what is before is the label, and room to see what else may be on a disk.
pub(crate) const FIRST_BLOCK: u64 = 32;
/// Slots in a segment, 512 KiB: one write, after which flash has nothing to move when it is written over.
pub(super) const MOST_SEGMENT_SLOTS: u64 = 128;
/// What a block is about is in the index, not with it.
const ABOUT: SealedBlockId = SealedBlockId { slot: 0, mask: WHOLE, serial: 0 };
