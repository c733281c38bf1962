//! The offsets of an NVRAM, as described in `docs/formats/nvram.md`.

use journal::BLOCK_BYTES;

/// Returns the number of bytes of stable memory that `slots` slots with their headers need.
#[must_use]
pub const fn length_for(slots: u64) -> u64 {
    data_at(slots as usize) as u64 + slots * BLOCK_BYTES as u64
}

pub(super) const fn entry_at(index: u32) -> usize {
    ENTRIES_AT + index as usize * ENTRY_BYTES
}

pub(super) const fn data_at(slots: usize) -> usize {
    (ENTRIES_AT + slots * ENTRY_BYTES).next_multiple_of(BLOCK_BYTES)
}

/// Returns the maximum number of slots whose headers and data fit into `length` bytes.
pub(super) fn slots_in(length: usize) -> u32 {
    let mut slots = length.saturating_sub(ENTRIES_AT) / (ENTRY_BYTES + BLOCK_BYTES);
    while slots > 0 && data_at(slots) + slots * BLOCK_BYTES > length {
        slots -= 1;
    }
    u32::try_from(slots).unwrap_or(u32::MAX)
}

pub(super) const MAGIC: &[u8] = b"FBYNVRAM";
pub(super) const VERSION_AT: usize = 8;
pub(super) const SLOTS_AT: usize = 12;
pub(super) const INSTANCE_AT: usize = 16;
pub(super) const MARK_AT: usize = 32;
pub(super) const CHECKSUM_AT: usize = 36;
pub(super) const HEADER_BYTES: usize = 40;
/// Two pairs of cells; each cell holds a number and has a cache line of its own.
pub(super) const CELLS_AT: [[usize; 2]; 2] = [[64, 128], [192, 256]];
/// Index in [`CELLS_AT`] of the pair that holds the number of the newest stable segment.
pub(super) const WATERMARK: usize = 0;
/// Index in [`CELLS_AT`] of the pair that holds the number of the newest segment that was begun.
pub(super) const BEGUN: usize = 1;
pub(super) const CELL_CHECKSUM_AT: usize = 8;
pub(super) const CELL_BYTES: usize = 12;
pub(super) const ENTRIES_AT: usize = 4096;
pub(super) const ENTRY_BYTES: usize = 64;
pub(super) const ENTRY_SERIAL_AT: usize = 0;
pub(super) const ENTRY_SLOT_AT: usize = 8;
pub(super) const ENTRY_DATA_CHECKSUM_AT: usize = 16;
pub(super) const ENTRY_MASK_AT: usize = 20;
pub(super) const ENTRY_FLAGS_AT: usize = 21;
pub(super) const ENTRY_TAG_AT: usize = 24;
pub(super) const ENTRY_SALT_AT: usize = 40;
pub(super) const ENTRY_COUNT_AT: usize = 52;
pub(super) const ENTRY_CHECKSUM_AT: usize = 60;
/// Flag of a slot header: the data is sealed.
pub(super) const SEALED: u8 = 1;
/// The maximum number of bits set in a damaged header that still counts as unused. A header in use has two random
/// checksums and a mask: one in 10^13 has so few bits set.
pub(super) const MOST_FLIPPED: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format_page::{rows, tables};

    /// Name, offset and length in bytes of each field of the header of an NVRAM. A test compares
    /// them with docs/formats/nvram.md.
    const FIELDS: &[(&str, usize, usize)] = &[
        ("magic", 0, 8),
        ("version", VERSION_AT, 4),
        ("slots", SLOTS_AT, 4),
        ("instance id", INSTANCE_AT, 16),
        ("mark", MARK_AT, 4),
        ("checksum", CHECKSUM_AT, 4),
        ("first watermark", CELLS_AT[WATERMARK][0], CELL_BYTES),
        ("second watermark", CELLS_AT[WATERMARK][1], CELL_BYTES),
        ("first begun", CELLS_AT[BEGUN][0], CELL_BYTES),
        ("second begun", CELLS_AT[BEGUN][1], CELL_BYTES),
        ("slot headers", ENTRIES_AT, ENTRY_BYTES),
    ];

    const ENTRY_FIELDS: &[(&str, usize, usize)] = &[
        ("serial", ENTRY_SERIAL_AT, 8),
        ("slot", ENTRY_SLOT_AT, 8),
        ("data checksum", ENTRY_DATA_CHECKSUM_AT, 4),
        ("mask", ENTRY_MASK_AT, 1),
        ("flags", ENTRY_FLAGS_AT, 1),
        ("tag", ENTRY_TAG_AT, 16),
        ("salt", ENTRY_SALT_AT, 12),
        ("count", ENTRY_COUNT_AT, 8),
        ("checksum", ENTRY_CHECKSUM_AT, 4),
    ];

    #[test]
    fn the_format_page_matches_the_code() {
        let page = include_str!("../../../../docs/formats/nvram.md");
        assert_eq!(tables(page), [FIELDS, ENTRY_FIELDS].map(rows));
    }
}
