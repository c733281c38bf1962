//! Page B0h: block limits (SBC-3, 6.6.4).

use super::page::{framed, unframed};
use crate::field::{u8_at, u16_at, u32_at, u64_at};

/// Limits of one command. Zero in a field means that the unit reports no limit, unless the field
/// says otherwise.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct BlockLimitsPage {
    /// WSNZ: the unit refuses WRITE SAME of zero blocks, which would mean all blocks up to the end.
    pub write_same_nonzero: bool,
    /// MAXIMUM COMPARE AND WRITE LENGTH in blocks; zero: the unit does not support the command.
    pub compare_and_write_blocks: u8,
    /// OPTIMAL TRANSFER LENGTH GRANULARITY in blocks.
    pub granularity_blocks: u16,
    /// MAXIMUM TRANSFER LENGTH of the unit, in blocks.
    pub maximum_blocks: u32,
    /// OPTIMAL TRANSFER LENGTH of the unit, in blocks.
    pub optimal_blocks: u32,
    /// MAXIMUM UNMAP LBA COUNT in blocks. Zero: the unit does not support UNMAP; all ones: no
    /// limit.
    pub unmap_blocks: u32,
    /// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT of an UNMAP command.
    pub unmap_descriptors: u32,
    /// OPTIMAL UNMAP GRANULARITY of the unit, in blocks.
    pub unmap_granularity_blocks: u32,
    /// UNMAP GRANULARITY ALIGNMENT: the first block of a granule; `None` if that is unknown.
    pub unmap_alignment: Option<u32>,
    /// MAXIMUM WRITE SAME LENGTH of the unit, in blocks.
    pub write_same_blocks: u64,
    /// MAXIMUM ATOMIC TRANSFER LENGTH in blocks; zero: the unit does not support WRITE ATOMIC. The
    /// page reports no atomic boundaries.
    pub atomic_blocks: u32,
    /// ATOMIC ALIGNMENT and ATOMIC TRANSFER LENGTH GRANULARITY in blocks; both fields have the same
    /// value.
    pub atomic_granularity_blocks: u32,
}

impl BlockLimitsPage {
    pub const PAGE: u8 = 0xb0;

    /// Encodes VPD page B0h (block limits): 64 bytes with its header.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut rest = [0; 60];
        rest[0] = u8::from(self.write_same_nonzero);
        rest[1] = self.compare_and_write_blocks;
        rest[2..4].copy_from_slice(&self.granularity_blocks.to_be_bytes());
        rest[4..8].copy_from_slice(&self.maximum_blocks.to_be_bytes());
        rest[8..12].copy_from_slice(&self.optimal_blocks.to_be_bytes());
        rest[16..20].copy_from_slice(&self.unmap_blocks.to_be_bytes());
        rest[20..24].copy_from_slice(&self.unmap_descriptors.to_be_bytes());
        rest[24..28].copy_from_slice(&self.unmap_granularity_blocks.to_be_bytes());
        let alignment =
            self.unmap_alignment.map_or(0, |block| ALIGNMENT_VALID | block & !ALIGNMENT_VALID);
        rest[28..32].copy_from_slice(&alignment.to_be_bytes());
        rest[32..40].copy_from_slice(&self.write_same_blocks.to_be_bytes());
        rest[40..44].copy_from_slice(&self.atomic_blocks.to_be_bytes());
        rest[44..48].copy_from_slice(&self.atomic_granularity_blocks.to_be_bytes());
        rest[48..52].copy_from_slice(&self.atomic_granularity_blocks.to_be_bytes());
        framed(Self::PAGE, &rest)
    }

    /// Parses page B0h. Returns `None` for another page. If the alignment and the granularity of
    /// atomic writes differ, `atomic_granularity_blocks` is the larger one.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let rest = unframed(Self::PAGE, bytes)?;
        let long = |at| u32_at(rest, at).unwrap_or(0);
        let alignment = long(28);
        Some(Self {
            write_same_nonzero: u8_at(rest, 0).unwrap_or(0) & 0x01 != 0,
            compare_and_write_blocks: u8_at(rest, 1).unwrap_or(0),
            granularity_blocks: u16_at(rest, 2).unwrap_or(0),
            maximum_blocks: long(4),
            optimal_blocks: long(8),
            unmap_blocks: long(16),
            unmap_descriptors: long(20),
            unmap_granularity_blocks: long(24),
            unmap_alignment: (alignment & ALIGNMENT_VALID != 0)
                .then_some(alignment & !ALIGNMENT_VALID),
            write_same_blocks: u64_at(rest, 32).unwrap_or(0),
            atomic_blocks: long(40),
            atomic_granularity_blocks: long(48).max(long(44)),
        })
    }
}

/// The bit UGAVALID: the field UNMAP GRANULARITY ALIGNMENT is valid.
const ALIGNMENT_VALID: u32 = 1 << 31;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fields_are_at_the_offsets_that_linux_reads() {
        let page = BlockLimitsPage {
            maximum_blocks: 1,
            unmap_blocks: 2,
            unmap_descriptors: 3,
            unmap_granularity_blocks: 4,
            unmap_alignment: Some(5),
            write_same_blocks: 6,
            atomic_blocks: 7,
            atomic_granularity_blocks: 8,
            ..Default::default()
        };
        let bytes = page.to_bytes();
        assert_eq!((bytes.len(), bytes[3]), (64, 0x3c));
        assert_eq!((bytes[11], bytes[23], bytes[27], bytes[31]), (1, 2, 3, 4));
        assert_eq!((bytes[32], bytes[35], bytes[43]), (0x80, 5, 6));
        assert_eq!((bytes[47], bytes[51], bytes[55]), (7, 8, 8));
    }

    #[test]
    fn the_short_page_of_sbc_2_reads_too() {
        let mut bytes = BlockLimitsPage { maximum_blocks: 9, ..Default::default() }.to_bytes();
        bytes.truncate(16);
        bytes[3] = 12;
        assert_eq!(BlockLimitsPage::from_bytes(&bytes).unwrap().maximum_blocks, 9);
    }

    proptest! {
        #[test]
        fn hostile_pages_do_no_harm(mut bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Some(page) = bytes.get_mut(1) {
                *page = 0xb0;
            }
            if let Some(page) = BlockLimitsPage::from_bytes(&bytes) {
                prop_assert_eq!(BlockLimitsPage::from_bytes(&page.to_bytes()), Some(page));
            }
        }
    }
}
