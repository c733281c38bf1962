//! Page 86h: extended INQUIRY data (SPC-4, 7.8.7).

use super::page::{framed, unframed};
use crate::field::u8_at;

/// The optional features of a unit. All other fields of the page are zero.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ExtendedInquiry {
    /// HEADSUP: the unit supports head of queue tasks.
    pub head_of_queue: bool,
    /// ORDSUP: the unit supports ordered tasks.
    pub ordered: bool,
    /// SIMPSUP: the unit supports simple tasks.
    pub simple: bool,
    /// V_SUP: the unit has a volatile cache.
    pub volatile_cache: bool,
}

impl ExtendedInquiry {
    pub const PAGE: u8 = 0x86;

    /// Encodes VPD page 86h (extended INQUIRY data): 64 bytes with its header.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut rest = [0; 60];
        rest[1] =
            u8::from(self.head_of_queue) << 2 | u8::from(self.ordered) << 1 | u8::from(self.simple);
        rest[2] = u8::from(self.volatile_cache);
        framed(Self::PAGE, &rest)
    }

    /// Parses VPD page 86h (extended INQUIRY data). Returns `None` if `bytes` are another page.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let rest = unframed(Self::PAGE, bytes)?;
        let byte = |at| u8_at(rest, at).unwrap_or(0);
        Some(Self {
            head_of_queue: byte(1) & 0x04 != 0,
            ordered: byte(1) & 0x02 != 0,
            simple: byte(1) & 0x01 != 0,
            volatile_cache: byte(2) & 0x01 != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_read_back() {
        let page = ExtendedInquiry { simple: true, volatile_cache: true, ..Default::default() };
        let bytes = page.to_bytes();
        assert_eq!((bytes.len(), bytes[5], bytes[6]), (64, 1, 1));
        assert_eq!(ExtendedInquiry::from_bytes(&bytes), Some(page));
        assert_eq!(ExtendedInquiry::from_bytes(&bytes[..4]), Some(ExtendedInquiry::default()));
    }
}
