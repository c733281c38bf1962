//! The content of a block, from which a reader can tell the number of the block and the write that wrote it.

use bytes::{Bytes, BytesMut};
use sim::Rng;
use volume::Data;

/// Makes the content of blocks: random bytes, which are equal in all blocks, and at the start of every 4 KiB the number
/// of the block and the number of the write. A comparison detects a block at a wrong address, an old block and a torn
/// block.
pub(super) struct CommandBlockPattern {
    noise: Bytes,
    seed: u64,
}

const PAGE: usize = 4096;
/// Length of the stamp at the start of every 4 KiB: block number, number of the write, and seed, 8
/// bytes each.
const STAMP: usize = 24;

impl CommandBlockPattern {
    pub(super) fn new(seed: u64, block: u32) -> Self {
        let mut noise = BytesMut::zeroed(block as usize);
        Rng::new(seed).fill(&mut noise);
        Self { noise: noise.freeze(), seed }
    }

    fn stamp(&self, slot: u64, round: u32) -> [u8; STAMP] {
        let mut stamp = [0; STAMP];
        for (at, word) in [slot, round.into(), self.seed].into_iter().enumerate() {
            stamp[8 * at..][..8].copy_from_slice(&word.to_le_bytes());
        }
        stamp
    }

    pub(super) fn make(&self, slot: u64, round: u32) -> Bytes {
        let stamp = self.stamp(slot, round);
        let mut block = BytesMut::from(&self.noise[..]);
        block.chunks_mut(PAGE).for_each(|page| page[..STAMP].copy_from_slice(&stamp));
        block.freeze()
    }

    pub(super) fn is(&self, slot: u64, round: u32, data: &Data) -> bool {
        data.len() == self.noise.len() && data.clone().into_bytes() == self.make(slot, round)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_of_a_block_identifies_its_number_and_version() {
        let content = CommandBlockPattern::new(7, 8192);
        let block = Data::from(content.make(3, 2));
        assert!(content.is(3, 2, &block));
        assert!(!content.is(4, 2, &block) && !content.is(3, 1, &block));
        assert!(!CommandBlockPattern::new(8, 8192).is(3, 2, &block));
        // Make a torn block, whose second half is from another write.
        let mut torn = content.make(3, 2)[..PAGE].to_vec();
        torn.extend_from_slice(&content.make(3, 1)[PAGE..]);
        assert!(!content.is(3, 2, &Data::from(torn)));
    }
}
