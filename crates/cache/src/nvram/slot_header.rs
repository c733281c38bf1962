//! The slot headers of an NVRAM: whether a slot is in use or free, and the treatment of flipped bits and torn
//! writes.

use super::{
    StableMemory,
    layout::{ENTRY_BYTES, ENTRY_CHECKSUM_AT, MOST_FLIPPED, entry_at},
};
use journal::{bytes::u32_at, checksum::crc32c};

/// A slot header of the NVRAM, as it was found when the cache was opened.
pub(super) enum SlotHeader {
    /// The header is all zeros.
    Free,
    /// The slot was free: some zero bits of its header have flipped.
    Flipped,
    Whole([u8; ENTRY_BYTES]),
    /// One bit of the header had flipped. The array is the repaired header.
    Mended([u8; ENTRY_BYTES]),
    /// The header was being written at a crash, or is damaged beyond repair.
    Torn,
}

impl SlotHeader {
    pub(super) fn read(memory: &dyn StableMemory, index: u32) -> Self {
        let mut entry = [0; ENTRY_BYTES];
        memory.read(entry_at(index), &mut entry);
        let set: u32 = entry.iter().map(|byte| byte.count_ones()).sum();
        match set {
            0 => Self::Free,
            _ if is_whole(&entry) => Self::Whole(entry),
            set if set <= MOST_FLIPPED => Self::Flipped,
            _ => mended(entry).map_or(Self::Torn, Self::Mended),
        }
    }
}

/// Slots whose headers are neither whole nor all zeros.
#[derive(Default)]
pub(super) struct Damage {
    /// Slots that were free: so few bits of the header are set that they are flipped zeros.
    pub(super) unused: Vec<u32>,
    /// Slots with one flipped bit in the header, each with the repaired header.
    pub(super) mended: Vec<(u32, [u8; ENTRY_BYTES])>,
    /// Slots whose header was being written at the crash, or is damaged beyond repair.
    pub(super) torn: Vec<u32>,
}

pub(super) fn is_whole(entry: &[u8; ENTRY_BYTES]) -> bool {
    u32_at(entry, ENTRY_CHECKSUM_AT) == crc32c(&entry[..ENTRY_CHECKSUM_AT])
}

/// Returns the header with one bit flipped back, if that makes it whole. Only one bit can: CRC32C has Hamming
/// distance 6 at this length.
pub(super) fn mended(mut entry: [u8; ENTRY_BYTES]) -> Option<[u8; ENTRY_BYTES]> {
    (0..ENTRY_BYTES * 8).find_map(|bit| {
        entry[bit / 8] ^= 1 << (bit % 8);
        let found = is_whole(&entry).then_some(entry);
        entry[bit / 8] ^= 1 << (bit % 8);
        found
    })
}
