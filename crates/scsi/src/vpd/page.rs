//! The header of VPD pages, and page 00h, which lists the supported pages.

use crate::field::{body, u8_at, u16_at};

/// Encodes a VPD page of a block device: a header of four bytes, followed by `rest`.
///
/// # Panics
/// If `rest` is longer than 65,535 bytes.
pub(super) fn framed(page: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).expect("a page is shorter than 64 KiB");
    let [high, low] = length.to_be_bytes();
    let mut bytes = Vec::with_capacity(4 + rest.len());
    bytes.extend_from_slice(&[0, page, high, low]);
    bytes.extend_from_slice(rest);
    bytes
}

/// Returns the bytes after the header of a VPD page, which may be truncated. Returns `None` if
/// `bytes` is another page.
pub(super) fn unframed(page: u8, bytes: &[u8]) -> Option<&[u8]> {
    let length = usize::from(u16_at(bytes, 2)?);
    (u8_at(bytes, 1)? == page).then(|| body(bytes, 4, length))
}

/// Page 00h: the codes of the supported VPD pages, ascending.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct SupportedPages(pub Vec<u8>);

impl SupportedPages {
    pub const PAGE: u8 = 0x00;

    /// Encodes VPD page 00h (supported pages) with its header.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        framed(Self::PAGE, &self.0)
    }

    /// Parses VPD page 00h. Returns `None` if `bytes` are another page or the header is incomplete.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self(unframed(Self::PAGE, bytes)?.to_vec()))
    }

    /// Returns true if the unit supports the VPD page with the code `page`.
    #[must_use]
    pub fn has(&self, page: u8) -> bool {
        self.0.contains(&page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_page_list_is_decoded_as_far_as_it_goes() {
        let pages = SupportedPages(vec![0x00, 0x80, 0x83]);
        let bytes = pages.to_bytes();
        assert_eq!(bytes, [0, 0, 0, 3, 0x00, 0x80, 0x83]);
        assert_eq!(SupportedPages::from_bytes(&bytes), Some(pages));
        assert!(!SupportedPages::from_bytes(&bytes[..6]).unwrap().has(0x83));
        assert_eq!(SupportedPages::from_bytes(&[0, 0x80, 0, 0]), None);
        assert_eq!(SupportedPages::from_bytes(&[0, 0, 0]), None);
    }
}
