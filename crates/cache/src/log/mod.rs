//! The log disk: superblock, segments, the ring they lie in, and what recovery reads from them.
//!
//! The bytes are written down in `docs/formats/log-disk.md`.

pub(crate) mod bytes;
pub(crate) mod superblock;
pub(crate) mod segment;
pub(crate) mod ring;
pub(crate) mod recovery;

/// Bytes in a block of the log disk; a slot's data fills one.
pub(crate) const BLOCK_BYTES: usize = 4096;
/// Most slots in one segment (STICS 4.3.1: 128).
pub const MAX_SEGMENT_SLOTS: u32 = 128;
/// Fewest slots that a segment may be limited to.
pub(crate) const MIN_SEGMENT_SLOTS: u32 = 1;
/// The version of the format that this code writes and the only one it reads.
pub(crate) const VERSION: u32 = 1;
