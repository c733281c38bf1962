//! The division of a log disk into superblocks, the ring of segments and the index.

use crate::{MAX_SEALED_SLOTS, MAX_SEGMENT_SLOTS};

/// Returns the maximum number of slots that a segment may have. The header of a sealed segment has room for fewer.
pub const fn most_segment_slots(sealed: bool) -> u32 {
    if sealed { MAX_SEALED_SLOTS } else { MAX_SEGMENT_SLOTS }
}

/// Returns the number of blocks in the smallest ring. Six full segments leave room for data in addition to the reserve
/// and the unused end of the ring.
pub(crate) const fn least_ring(segment_slots: u32) -> u64 {
    6 * (segment_slots as u64 + 1)
}

pub const fn least_blocks(segment_slots: u32) -> u64 {
    FIRST_BLOCK as u64 + least_ring(segment_slots) + LEAST_FRAMES
}

/// Returns the size of the index of a log with `log_blocks` blocks: the blocks in one frame, and the blocks
/// in all frames.
///
/// In the index a record takes 24 bytes and a segment 32 more, which is 0.6 % of a segment of any length.
/// With the unused ends of frames, also of the smallest, it is less than 1 %.
///
/// A frame has 1/131072 of the log, at least one block and at most 64 KiB. After a crash, recovery reads the
/// segments that are not in a frame yet in full: at most as many as one frame describes, which is a small
/// part of a large log.
pub fn index_shape(log_blocks: u64, segment_slots: u32) -> (u32, u32) {
    let frame = (log_blocks >> 17).clamp(1, u64::from(MOST_FRAME_BLOCKS));
    let surplus = log_blocks - least_blocks(segment_slots);
    let frames = (LEAST_FRAMES + surplus / 100).div_ceil(frame);
    (frame as u32, (frames * frame) as u32)
}

/// The first block after the two superblocks, where the ring begins.
pub const FIRST_BLOCK: u32 = 2;
/// Number of blocks in the largest frame of an index: 64 KiB, enough for about 10 MB of full
/// segments.
pub(crate) const MOST_FRAME_BLOCKS: u32 = 16;
/// Number of frames in the smallest index. Each frame takes one block there.
const LEAST_FRAMES: u64 = 4;
