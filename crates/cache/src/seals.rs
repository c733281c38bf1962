//! Seals and opens the blocks of the log while a cache runs. Holds the keys of all openings whose segments
//! are in the log, and the tag of each block.

use std::sync::Arc;

use journal::{
    identity::InstanceId,
    seal::{LogKey, Salt, SealedBlockId, Sealer, Tag, Which},
    segment::{LogRecordKind, SegmentHeader},
};
use parking_lot::Mutex;

use crate::slots::{pages::PAGE_BYTES, table::LogAddress};

pub(crate) struct Seals {
    key: LogKey,
    instance: InstanceId,
    book: Mutex<Book>,
}

struct Book {
    /// One entry for each time that the log was opened, oldest first: the number of the first segment written since
    /// that opening, and the cipher for the blocks from that segment on.
    openings: Vec<(u64, Arc<Sealer>)>,
    /// The random salt that was drawn when the log was last opened, and from which the newest cipher is derived.
    salt: Salt,
    /// The authentication tag of each block of the log. The tags take memory of 0.4 % of the size of the log.
    tags: Vec<Tag>,
    /// For each block of the log, its position among the data blocks of its segment, counted from 1.
    ordinals: Vec<u8>,
}

impl Seals {
    /// Creates the tables for a log of `blocks` blocks, without any tags.
    pub fn new(key: LogKey, instance: InstanceId, blocks: usize) -> Self {
        let (openings, salt) = (Vec::new(), [0; 12]);
        let (tags, ordinals) = (vec![[0; 16]; blocks], vec![0; blocks]);
        let book = Mutex::new(Book { openings, salt, tags, ordinals });
        Self { key, instance, book }
    }

    /// Records the tags of a segment that begins in block `start` and is newer than all recorded ones.
    pub fn note(&self, start: u32, header: &SegmentHeader) {
        let Some(salt) = header.salt else { return };
        self.sealer(header.number, salt);
        let mut book = self.book.lock();
        let data = header.records.iter().filter(|record| record.kind == LogRecordKind::Data);
        for (record, ordinal) in data.zip(1..=u8::MAX) {
            let block = start as usize + usize::from(ordinal);
            if block >= book.tags.len() {
                book.tags.resize(block + 1, [0; 16]);
                book.ordinals.resize(block + 1, 0);
            }
            book.tags[block] = record.tag;
            book.ordinals[block] = ordinal;
        }
    }

    /// Returns the sealer of segment `number` and of the segments that follow it in the same opening, which
    /// drew `salt`.
    pub fn sealer(&self, number: u64, salt: Salt) -> Arc<Sealer> {
        let mut book = self.book.lock();
        if book.openings.is_empty() || book.salt != salt {
            let sealer = self.key.for_segments(&self.instance.0, &salt);
            book.openings.push((number, Arc::new(sealer)));
            book.salt = salt;
        }
        let (_, newest) = book.openings.last().expect("one was added if there was none");
        Arc::clone(newest)
    }

    /// Returns the content of the block at `place`; `None` if the block is not the one that was sealed for
    /// this place. The block is not overwritten while `place` is the address of its slot.
    pub fn open(
        &self,
        slot: u64,
        place: &LogAddress,
        block: &[u8],
    ) -> Option<Box<[u8; PAGE_BYTES]>> {
        let (sealer, tag, ordinal) = {
            let book = self.book.lock();
            let after = book.openings.partition_point(|(first, _)| *first <= place.segment);
            let (_, sealer) = book.openings.get(after.checked_sub(1)?)?;
            let at = place.block as usize;
            (Arc::clone(sealer), *book.tags.get(at)?, *book.ordinals.get(at)?)
        };
        let which = Which(place.segment, ordinal.into());
        sealer.open(which, SealedBlockId { slot, mask: place.mask, serial: 0 }, &tag, block)
    }
}

#[cfg(test)]
mod tests {
    use journal::segment::LogRecord;

    use super::*;
    use crate::slots::sectors::WHOLE;

    fn header(number: u64, salt: Salt, tag: Tag) -> SegmentHeader {
        let (kind, mask) = (LogRecordKind::Data, WHOLE);
        let record = LogRecord { slot: 7, count: 1, kind, mask, checksum: 0, tag, serial: 1 };
        SegmentHeader {
            instance: InstanceId([1; 16]),
            generation: 1,
            number,
            complete: 1,
            ends_epoch: true,
            voids_open: false,
            salt: Some(salt),
            noted: false,
            records: vec![record],
        }
    }

    #[test]
    fn a_block_opens_only_at_its_own_position_with_its_own_key() {
        let seals = Seals::new(LogKey::new(&[5; 64]), InstanceId([1; 16]), 16);
        let content = [3; PAGE_BYTES];
        let mut blocks = Vec::new();
        for (number, salt) in [(4, [1; 12]), (5, [1; 12]), (6, [2; 12])] {
            let sealer = seals.sealer(number, salt);
            let mut block = content;
            let about = SealedBlockId { slot: 7, mask: WHOLE, serial: 0 };
            let tag = sealer.seal(Which(number, 1), about, &mut block);
            assert!(!block.windows(8).any(|bytes| bytes == [3; 8]));
            seals.note(2 * number as u32, &header(number, salt, tag));
            blocks.push(block);
        }
        assert!(blocks[0] != blocks[1] && blocks[1] != blocks[2]);
        let place = |segment: u64| LogAddress {
            segment,
            block: 2 * segment as u32 + 1,
            checksum: 0,
            mask: WHOLE,
            kind: LogRecordKind::Data,
        };
        for (block, number) in blocks.iter().zip(4..) {
            let opened = seals.open(7, &place(number), block);
            assert_eq!(opened.as_deref(), Some(&content));
            assert!(seals.open(8, &place(number), block).is_none(), "of another slot");
            let part = LogAddress { mask: 1, ..place(number) };
            assert!(seals.open(7, &part, block).is_none(), "of other sectors");
            let mut forged = *block;
            forged[100] ^= 1;
            assert!(seals.open(7, &place(number), &forged).is_none(), "changed");
            assert!(seals.open(7, &place(9 - number), block).is_none(), "of another segment");
        }
        let other = Seals::new(LogKey::new(&[6; 64]), InstanceId([1; 16]), 16);
        other.note(8, &header(4, [1; 12], [0; 16]));
        assert!(other.open(7, &place(4), &blocks[0]).is_none(), "with another key");
    }
}
