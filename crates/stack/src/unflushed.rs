//! The newest content of each block that was written and may not be stable, by reference.

use std::collections::BTreeMap;

use volume::{Data, Extent, Lba};

/// The kept content of blocks, in pieces that do not overlap.
#[derive(Debug)]
pub struct Unflushed {
    block_size: usize,
    /// Extents of unflushed writes, indexed by their first block.
    pieces: BTreeMap<u64, UnflushedExtent>,
}

#[derive(Clone, Debug)]
struct UnflushedExtent {
    /// The block after the last block of the piece.
    end: u64,
    content: UnflushedContent,
    /// The number of the acknowledgment, see [`Unflushed::keep`].
    number: u64,
    is_lost: bool,
}

#[derive(Clone, Debug)]
pub enum UnflushedContent {
    /// The data that the blocks hold.
    Data(Data),
    Zeros,
}

impl Unflushed {
    /// Returns an empty record for a volume with blocks of `block_size` bytes.
    pub fn new(block_size: u32) -> Self {
        Self { block_size: block_size as usize, pieces: BTreeMap::new() }
    }

    /// Records the content of `extent`, in place of all older content there. Numbers ascend in the
    /// order of the acknowledgments.
    pub fn keep(&mut self, extent: Extent, content: UnflushedContent, number: u64, is_lost: bool) {
        self.forget(extent);
        let piece = UnflushedExtent { end: extent.end().0, content, number, is_lost };
        self.pieces.insert(extent.lba.0, piece);
    }

    pub fn forget(&mut self, extent: Extent) {
        let (start, end) = (extent.lba.0, extent.end().0);
        if let Some((&first, before)) = self.pieces.range(..start).next_back()
            && before.end > start
        {
            let (head, rest) = before.split(first, start, self.block_size);
            self.pieces.insert(first, head);
            self.pieces.insert(start, rest);
        }
        while let Some((&first, piece)) = self.pieces.range(start..end).next() {
            if piece.end > end {
                let (_, rest) = piece.split(first, end, self.block_size);
                self.pieces.insert(end, rest);
            }
            self.pieces.remove(&first);
        }
    }

    /// Removes the content with numbers up to `number`, which is stable.
    pub fn flushed(&mut self, number: u64) {
        self.pieces.retain(|_, piece| piece.number > number);
    }

    /// Marks all unflushed writes as possibly lost, because the node has restarted.
    pub fn lose_all(&mut self) {
        self.pieces.values_mut().for_each(|piece| piece.is_lost = true);
    }

    /// Marks the content that overlaps `extent` as possibly lost.
    pub fn lose(&mut self, extent: Extent) {
        let (start, end) = (extent.lba.0, extent.end().0);
        let ended_before = |piece: &&mut UnflushedExtent| piece.end > start;
        let overlapping = self.pieces.range_mut(..end).rev().map(|(_, piece)| piece);
        overlapping.take_while(ended_before).for_each(|piece| piece.is_lost = true);
    }

    /// Records that the content of these blocks was sent to the node again.
    pub fn sent_again(&mut self, extent: Extent) {
        let (start, end) = (extent.lba.0, extent.end().0);
        for (_, piece) in self.pieces.range_mut(start..end) {
            piece.is_lost &= piece.end > end;
        }
    }

    /// Returns the pieces that the node may have lost.
    pub fn lost(&self) -> Vec<Extent> {
        let lost = self.pieces.iter().filter(|(_, piece)| piece.is_lost);
        lost.map(|(&first, piece)| run(first, piece.end)).collect()
    }

    pub fn within(&self, extent: Extent) -> Vec<(Extent, UnflushedContent)> {
        let (start, end) = (extent.lba.0, extent.end().0);
        let before = self.pieces.range(..start).next_back();
        let pieces = before.into_iter().chain(self.pieces.range(start..end));
        let parts = pieces.filter(|(_, piece)| piece.end > start).map(|(&first, piece)| {
            let part = run(first.max(start), piece.end.min(end));
            (part, piece.content.slice(first, part, self.block_size))
        });
        parts.collect()
    }
}

impl UnflushedExtent {
    /// Splits the piece at block `at`, which is inside the piece.
    fn split(&self, first: u64, at: u64, block_size: usize) -> (Self, Self) {
        let part = |start, end| Self {
            end,
            content: self.content.slice(first, run(start, end), block_size),
            ..*self
        };
        (part(first, at), part(at, self.end))
    }
}

impl UnflushedContent {
    /// Returns the part `extent` of content that begins at block `first`.
    fn slice(&self, first: u64, extent: Extent, block_size: usize) -> Self {
        match self {
            Self::Data(data) => {
                let start = (extent.lba.0 - first) as usize * block_size;
                Self::Data(data.slice(start, extent.blocks as usize * block_size))
            }
            Self::Zeros => Self::Zeros,
        }
    }
}

/// Returns the extent `start..end`. It fits into 32 bits, because a piece is not longer than one
/// call.
fn run(start: u64, end: u64) -> Extent {
    Extent { lba: Lba(start), blocks: (end - start) as u32 }
}

#[cfg(test)]
mod tests {
    use sim::Rng;

    use super::*;

    const BLOCKS: u64 = 24;

    fn extent(rng: &mut Rng) -> Extent {
        let start = rng.below(BLOCKS);
        run(start, start + 1 + rng.below((BLOCKS - start).min(8)))
    }

    fn dump(unflushed: &Unflushed) -> Vec<Option<(u8, bool)>> {
        let lost = unflushed.lost();
        let is_lost = |block| lost.iter().any(|e| (e.lba.0..e.end().0).contains(&block));
        let mut blocks = vec![None; BLOCKS as usize];
        for (part, content) in unflushed.within(run(0, BLOCKS)) {
            for (n, block) in (part.lba.0..part.end().0).enumerate() {
                let byte = match &content {
                    UnflushedContent::Data(data) => data.slice(n, 1).into_bytes()[0],
                    UnflushedContent::Zeros => 0,
                };
                assert_eq!(blocks[block as usize].replace((byte, is_lost(block))), None);
            }
        }
        blocks
    }

    #[test]
    fn each_block_has_its_newest_content() {
        for seed in 0..300 {
            let mut rng = Rng::new(seed);
            let mut unflushed = Unflushed::new(1);
            let mut model = vec![None; BLOCKS as usize];
            for number in 1..60_u64 {
                let at = extent(&mut rng);
                let blocks = &mut model[at.lba.0 as usize..at.end().0 as usize];
                match rng.below(8) {
                    0 => {
                        unflushed.forget(at);
                        blocks.fill(None);
                    }
                    1 => {
                        let upto = number.saturating_sub(rng.below(6));
                        unflushed.flushed(upto);
                        model.iter_mut().for_each(|m| *m = m.filter(|(n, _)| *n > upto));
                    }
                    2 => {
                        unflushed.keep(at, UnflushedContent::Zeros, number, false);
                        blocks.fill(Some((number, 0)));
                    }
                    _ => {
                        let bytes: Vec<u8> = (0..at.blocks).map(|_| rng.below(256) as u8).collect();
                        let news = bytes.iter().map(|byte| Some((number, *byte)));
                        blocks.iter_mut().zip(news).for_each(|(block, new)| *block = new);
                        unflushed.keep(at, UnflushedContent::Data(bytes.into()), number, false);
                    }
                }
                let expected: Vec<_> =
                    model.iter().map(|m| m.map(|(_, byte)| (byte, false))).collect();
                assert_eq!(dump(&unflushed), expected, "seed {seed}, step {number}");
            }
        }
    }

    #[test]
    fn lost_blocks_are_reported_until_they_were_sent_again() {
        let mut unflushed = Unflushed::new(1);
        unflushed.keep(run(0, 4), UnflushedContent::Data(vec![1; 4].into()), 1, false);
        unflushed.keep(run(6, 8), UnflushedContent::Zeros, 2, false);
        assert_eq!(unflushed.lost(), []);
        unflushed.lose(run(3, 6));
        assert_eq!(unflushed.lost(), [run(0, 4)]);
        unflushed.lose_all();
        // Newer content is not marked as lost. The remaining parts of older content keep their mark.
        unflushed.keep(run(1, 2), UnflushedContent::Data(vec![3].into()), 3, false);
        assert_eq!(unflushed.lost(), [run(0, 1), run(2, 4), run(6, 8)]);
        unflushed.sent_again(run(0, 3));
        assert_eq!(unflushed.lost(), [run(2, 4), run(6, 8)]);
        unflushed.sent_again(run(2, 4));
        unflushed.flushed(2);
        assert_eq!(unflushed.lost(), []);
        assert_eq!(unflushed.within(run(0, 8)).len(), 1);
    }
}
