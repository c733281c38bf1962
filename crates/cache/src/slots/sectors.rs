//! The eight sectors of a slot, and bit masks of sectors.

pub(crate) const SLOT_BYTES: usize = 4096;
/// Bytes in a sector, the unit in which a slot can be partly valid.
pub(crate) const SECTOR_BYTES: usize = 512;
pub(crate) const SECTORS: u32 = 8;
/// The mask of a whole slot.
pub(crate) const WHOLE: u8 = 0xff;

/// Returns the mask of `count` sectors from `first` on.
pub(crate) fn mask(first: u32, count: u32) -> u8 {
    debug_assert!(first + count <= SECTORS, "inside one slot");
    (((1_u16 << count) - 1) << first) as u8
}

/// Returns the runs of sectors in a mask, each as its first sector and its number of sectors.
pub(crate) fn runs(mask: u8) -> impl Iterator<Item = (u32, u32)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = u32::from(mask) >> at;
        if rest == 0 {
            return None;
        }
        let first = at + rest.trailing_zeros();
        let count = (!(u32::from(mask) >> first)).trailing_zeros();
        at = first + count;
        Some((first, count))
    })
}

/// Copies the sectors whose bits are set in `mask` from one slot to another.
pub(crate) fn copy_sectors(from: &[u8], to: &mut [u8], mask: u8) {
    for (first, count) in runs(mask) {
        let range = first as usize * SECTOR_BYTES..(first + count) as usize * SECTOR_BYTES;
        to[range.clone()].copy_from_slice(&from[range]);
    }
}
