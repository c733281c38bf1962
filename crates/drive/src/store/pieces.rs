//! Cuts the new data of an object into whole blocks and parts of blocks.

use volume::Data;

use super::disk::BLOCK;

/// New bytes for one range of an object.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) start: u64,
    pub(crate) data: Data,
}

/// New content for blocks of an object.
#[derive(Clone, Debug)]
pub(crate) enum BlockPiece {
    /// Whole blocks from `first` on.
    Whole { first: u64, data: Data },
    /// Parts of one block, each with its offset in the block. A later part wins where parts overlap.
    Parts { block: u64, parts: Vec<(usize, Data)> },
}

impl BlockPiece {
    pub(crate) fn first(&self) -> u64 {
        match self {
            Self::Whole { first, .. } => *first,
            Self::Parts { block, .. } => *block,
        }
    }

    pub(crate) fn count(&self) -> u64 {
        match self {
            Self::Whole { data, .. } => data.len() as u64 / BLOCK,
            Self::Parts { .. } => 1,
        }
    }
}

/// Cuts `segments` into pieces in ascending order, without overlap. Where segments overlap, the later one wins.
pub(crate) fn cut(segments: &[Segment]) -> Vec<BlockPiece> {
    let mut pieces = Vec::new();
    segments.iter().for_each(|segment| cut_one(segment, &mut pieces));
    if segments.len() > 1 {
        // The sort is stable, so the pieces of one block keep their order.
        pieces.sort_by_key(BlockPiece::first);
        let overlaps = |pair: &[BlockPiece]| pair[0].first() + pair[0].count() > pair[1].first();
        if pieces.windows(2).any(overlaps) {
            pieces = merge(segments);
        }
    }
    pieces
}

fn cut_one(segment: &Segment, pieces: &mut Vec<BlockPiece>) {
    let (mut at, mut done) = (segment.start, 0);
    let length = segment.data.len();
    while done < length {
        let (block, offset) = (at / BLOCK, (at % BLOCK) as usize);
        let left = length - done;
        let n = if offset == 0 && left >= BLOCK as usize {
            let n = left / BLOCK as usize * BLOCK as usize;
            pieces.push(BlockPiece::Whole { first: block, data: segment.data.slice(done, n) });
            n
        } else {
            let n = left.min(BLOCK as usize - offset);
            let parts = vec![(offset, segment.data.slice(done, n))];
            pieces.push(BlockPiece::Parts { block, parts });
            n
        };
        done += n;
        at += n as u64;
    }
}

/// Cuts overlapping segments block by block.
fn merge(segments: &[Segment]) -> Vec<BlockPiece> {
    let mut blocks = std::collections::BTreeMap::<u64, Vec<(usize, Data)>>::new();
    for segment in segments {
        let mut pieces = Vec::new();
        cut_one(segment, &mut pieces);
        for piece in pieces {
            match piece {
                BlockPiece::Whole { first, data } => {
                    for n in 0..data.len() / BLOCK as usize {
                        let part = data.slice(n * BLOCK as usize, BLOCK as usize);
                        blocks.insert(first + n as u64, vec![(0, part)]);
                    }
                }
                BlockPiece::Parts { block, parts } => {
                    blocks.entry(block).or_default().extend(parts)
                }
            }
        }
    }
    blocks.into_iter().map(|(block, parts)| BlockPiece::Parts { block, parts }).collect()
}

/// Returns true if one of the parts gives every byte of the block below `end`.
pub(crate) fn covers(parts: &[(usize, Data)], end: usize) -> bool {
    parts.iter().any(|(offset, data)| *offset == 0 && data.len() >= end)
}

/// Returns the content of a block: `old`, or zeros if it is `None`, with `parts` written over it.
pub(crate) fn overlay(old: Option<Data>, parts: &[(usize, Data)]) -> Data {
    let mut bytes = vec![0; BLOCK as usize];
    if let Some(old) = old {
        old.copy_to_slice(&mut bytes);
    }
    for (offset, part) in parts {
        part.copy_to_slice(&mut bytes[*offset..offset + part.len()]);
    }
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(start: u64, byte: u8, length: usize) -> Segment {
        Segment { start, data: vec![byte; length].into() }
    }

    #[test]
    fn a_segment_becomes_a_head_whole_blocks_and_a_tail() {
        let pieces = cut(&[segment(4000, 1, 96 + 8192 + 5)]);
        assert_eq!(pieces.iter().map(BlockPiece::first).collect::<Vec<_>>(), [0, 1, 3]);
        assert_eq!(pieces.iter().map(BlockPiece::count).collect::<Vec<_>>(), [1, 2, 1]);
        assert!(matches!(&pieces[1], BlockPiece::Whole { data, .. } if data.len() == 8192));
    }

    #[test]
    fn overlapping_segments_take_effect_in_their_order() {
        let pieces = cut(&[segment(0, 1, 8192), segment(10, 2, 20), segment(4096, 3, 4096)]);
        let [BlockPiece::Parts { block: 0, parts }, BlockPiece::Parts { block: 1, parts: second }] =
            &pieces[..]
        else {
            panic!("{pieces:?}");
        };
        let bytes = overlay(None, parts).into_bytes();
        assert_eq!((bytes[9], bytes[10], bytes[29], bytes[30]), (1, 2, 2, 1));
        assert_eq!(overlay(None, second).into_bytes()[0], 3);
    }
}
