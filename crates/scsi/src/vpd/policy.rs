//! Page 87h: mode page policy (SPC-4, 7.8.9).

use super::page::framed;

/// The mode page policy of our units: all nexuses share one copy of every mode page and subpage,
/// and every unit has its own copy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SharedModePages;

impl SharedModePages {
    pub const PAGE: u8 = 0x87;

    /// Encodes VPD page 87h (mode page policy): 8 bytes with its header.
    #[must_use]
    pub fn to_bytes(self) -> Vec<u8> {
        // 3Fh and FFh in POLICY PAGE CODE and POLICY SUBPAGE CODE stand for all pages and subpages.
        // MLUS is 0 and the policy is 00b, shared.
        framed(Self::PAGE, &[0x3f, 0xff, 0, 0])
    }
}
