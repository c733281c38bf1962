//! Page 87h: mode page policy (SPC-4, 7.8.9).

use super::page::framed;

/// Says that every mode page and subpage is shared by all nexuses, and each unit has its own.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SharedModePages;

impl SharedModePages {
    /// The page's code.
    pub const PAGE: u8 = 0x87;

    /// The page, header included: 8 bytes.
    #[must_use]
    pub fn to_bytes(self) -> Vec<u8> {
        // All pages, all subpages; MLUS=0, policy 00b.
        framed(Self::PAGE, &[0x3f, 0xff, 0, 0])
    }
}
