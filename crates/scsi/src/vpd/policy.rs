//! Page 87h: mode page policy (SPC-4, 7.8.9).

use super::page::framed;

/// Reports that all nexuses share every mode page and subpage, and that every unit has its own.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SharedModePages;

impl SharedModePages {
    pub const PAGE: u8 = 0x87;

    /// Encodes the page with its header, 8 bytes.
    #[must_use]
    pub fn to_bytes(self) -> Vec<u8> {
        // POLICY PAGE CODE and POLICY SUBPAGE CODE stand for all pages and subpages; MLUS=0, policy
        // 00b.
        framed(Self::PAGE, &[0x3f, 0xff, 0, 0])
    }
}
