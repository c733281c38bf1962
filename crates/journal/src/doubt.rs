//! Repairs a mirrored log whose copies differ after a crash. Checksums decide which copy is right. Each
//! superblock, index frame and segment is checked in all copies and repaired. After that, the rest of the
//! copies is made equal.

use volume::{Data, Error, Extent, Lba, Stack, examine};

use crate::checksum::crc32c;
use crate::{
    BLOCK_BYTES,
    index::IndexFrame,
    segment::{LogRecordKind, SegmentHeader},
    shape::FIRST_BLOCK,
    superblock::Superblock,
};

/// The segment blocks that differ between the copies of a mirrored log, and the content that each
/// should have.
pub struct Doubt {
    extents: Vec<Extent>,
    blocks: Vec<(u64, ExpectedLogBlock)>,
}

enum ExpectedLogBlock {
    /// The block holds the header of the segment with this number.
    Header(u64),
    /// The block holds data with this checksum.
    Data(u32),
}

impl Doubt {
    /// Asks the mirrored log in which extents its two copies differ.
    pub fn new(log: &Stack) -> Self {
        Self { extents: log.extensions().divergent(), blocks: Vec::new() }
    }

    /// Returns true if no copies of the log differ.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Forgets the blocks noted so far. Call this before the log is scanned again.
    pub fn restart(&mut self) {
        self.blocks.clear();
    }

    /// Notes the blocks of a segment whose copies differ. The segment begins in block `start`.
    pub fn note(&mut self, start: u32, header: &SegmentHeader) {
        if self.extents.is_empty() {
            return;
        }
        let data = header.records.iter().filter(|record| record.kind == LogRecordKind::Data);
        let data = data.map(|record| ExpectedLogBlock::Data(record.checksum));
        let expected = std::iter::once(ExpectedLogBlock::Header(header.number)).chain(data);
        for (block, expected) in (u64::from(start)..).zip(expected) {
            if contains(&self.extents, block) {
                self.blocks.push((block, expected));
            }
        }
    }

    /// Finds the right copy of each noted block, and overwrites the other copies with it. Then makes the
    /// copies of the whole log equal.
    pub async fn settle(self, log: &Stack, superblock: &Superblock) -> Result<(), Error> {
        let slots = superblock.identity.geometry.bytes().div_ceil(BLOCK_BYTES as u64);
        let limit = superblock.segment_slots;
        for (block, expected) in &self.blocks {
            let is_right = |data: &Data| {
                let bytes = data.clone().into_bytes();
                match *expected {
                    ExpectedLogBlock::Header(number) => {
                        bytes.len() == BLOCK_BYTES
                            && SegmentHeader::decode(&bytes, superblock.instance, slots, limit)
                                .is_some_and(|header| header.number == number)
                    }
                    ExpectedLogBlock::Data(checksum) => crc32c(&bytes) == checksum,
                }
            };
            // If no copy is right, leave the block: the next reader of it gets the error.
            examine(&**log, Extent { lba: Lba(*block), blocks: 1 }, &is_right).await?;
        }
        log.extensions().make_equal().await
    }
}

/// Repairs superblocks that differ between the copies of a mirrored log.
pub(crate) async fn judge_superblocks(log: &Stack) -> Result<(), Error> {
    let extents = log.extensions().divergent();
    for block in (0..u64::from(FIRST_BLOCK)).filter(|&block| contains(&extents, block)) {
        let is_right = |data: &Data| Superblock::decode(&data.clone().into_bytes()).is_ok();
        examine(&**log, Extent { lba: Lba(block), blocks: 1 }, &is_right).await?;
    }
    Ok(())
}

/// Repairs frames of the index whose copies differ.
pub async fn judge_frames(log: &Stack, superblock: &Superblock) -> Result<(), Error> {
    let extents = log.extensions().divergent();
    if extents.is_empty() {
        return Ok(());
    }
    for place in 0..superblock.frames() {
        let (first, blocks) = (superblock.frame_block(place), superblock.frame_blocks);
        if !(first..first + u64::from(blocks)).any(|block| contains(&extents, block)) {
            continue;
        }
        let is_right = |data: &Data| {
            IndexFrame::decode(&data.clone().into_bytes(), superblock.instance)
                .is_some_and(|(_, stamp)| stamp.number % superblock.frames() == place)
        };
        examine(&**log, Extent { lba: Lba(first), blocks }, &is_right).await?;
    }
    Ok(())
}

fn contains(extents: &[Extent], block: u64) -> bool {
    let after = extents.partition_point(|extent| extent.lba.0 <= block);
    after.checked_sub(1).is_some_and(|at| block < extents[at].end().0)
}
