//! Page C0h: properties of a Forebay volume for which the standards have no fields.
//! `docs/protocols.md` describes its bytes.

use super::page::{framed, unframed};

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ForebayVolume {
    /// The capacity of an epoch in blocks, with each write rounded up to units of 4096 bytes. Up to
    /// this size, all writes between two SYNCHRONIZE CACHEs are atomic: after a crash, the unit
    /// holds all of them or none. 0 if the unit has no epochs and no ROLL BACK.
    pub epoch_blocks: u64,
    /// True if the unit keeps the order of flushes and writes: it executes a write of the claim's
    /// owner after every SYNCHRONIZE CACHE that the owner sent before, even if the owner did not
    /// wait for the status of the SYNCHRONIZE CACHE.
    pub orders_flushes: bool,
}

impl ForebayVolume {
    /// Code of the VPD page, the first code that vendors may define.
    pub const PAGE: u8 = 0xc0;

    /// Encodes VPD page C0h of Forebay with its header.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut rest = [0; 24];
        rest[..8].copy_from_slice(MAGIC);
        rest[9] = VERSION;
        rest[10] = if self.orders_flushes { ORDERS_FLUSHES } else { 0 };
        rest[16..].copy_from_slice(&self.epoch_blocks.to_be_bytes());
        framed(Self::PAGE, &rest)
    }

    /// Parses page C0h. Returns `None` for another page, and for a page C0h of another vendor or
    /// version.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let rest: &[u8; 24] = unframed(Self::PAGE, bytes)?.first_chunk()?;
        let ours = rest[..8] == *MAGIC && rest[8..10] == [0, VERSION];
        let epoch_blocks = u64::from_be_bytes(*rest.last_chunk().expect("24 bytes"));
        let orders_flushes = rest[10] & ORDERS_FLUSHES != 0;
        ours.then_some(Self { epoch_blocks, orders_flushes })
    }
}

/// The first bytes of the page, by which it is distinguished from page C0h of other vendors.
const MAGIC: &[u8] = b"FBYVOLUM";
const VERSION: u8 = 1;
/// The flag for `orders_flushes`, in byte 14 of the page.
const ORDERS_FLUSHES: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_decoded_as_encoded_and_other_pages_are_not_accepted() {
        let page = ForebayVolume { epoch_blocks: 0x0102_0304, orders_flushes: true };
        let bytes = page.to_bytes();
        assert_eq!(bytes[14], 1);
        let mut older = bytes.clone();
        older[14] = 0;
        let without = ForebayVolume { orders_flushes: false, ..page };
        assert_eq!(ForebayVolume::from_bytes(&older), Some(without), "an earlier version of ours");
        assert_eq!((&bytes[..4], bytes.len()), (&[0, 0xc0, 0, 24][..], 28));
        assert_eq!(ForebayVolume::from_bytes(&bytes), Some(page));
        for length in 0..bytes.len() {
            assert_eq!(ForebayVolume::from_bytes(&bytes[..length]), None, "{length}");
        }
        for at in [1, 4, 12, 13] {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_eq!(ForebayVolume::from_bytes(&other), None, "{at}");
        }
    }
}
