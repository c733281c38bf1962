//! Log pages: the pages of Forebay's units, and encoding and parsing of any page.

use crate::field::{body, u8_at, u16_at};

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LogPage {
    /// PAGE CODE of the log page, 0 to 3Fh.
    pub code: u8,
    /// SUBPAGE CODE; 0 for a page without subpage format.
    pub subpage: u8,
    /// The log parameters, ascending by parameter code.
    pub parameters: Vec<LogParameter>,
}

/// A log parameter in binary list format, which initiators can neither set nor save.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LogParameter {
    pub code: u16,
    /// The value of the parameter, at most 255 bytes.
    pub value: Vec<u8>,
}

/// Page 0Ch, Logical Block Provisioning (SBC-3, 6.4.4). The counts are in threshold sets of blocks,
/// see [`crate::vpd::LogicalBlockProvisioning`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ProvisioningCounts {
    /// Parameter 0001h of the page: the available space.
    pub available: u32,
    /// Parameter 0002h of the page: the used space.
    pub used: u32,
    /// True if other units use the same available space.
    pub shared: bool,
}

/// Page 2Fh, Informational Exceptions (SPC-4, 7.3.9): the most recent exception of the unit.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct InformationalExceptions {
    /// ASC (additional sense code) of the exception; 0 without an exception.
    pub asc: u8,
    pub ascq: u8,
}

impl LogPage {
    /// Encodes the page, but only the parameters from code `first` on.
    #[must_use]
    pub fn to_bytes(&self, first: u16) -> Vec<u8> {
        let mut rest = Vec::new();
        for parameter in self.parameters.iter().filter(|p| p.code >= first) {
            rest.extend_from_slice(&parameter.code.to_be_bytes());
            rest.extend_from_slice(&[FORMAT_LIST, parameter.value.len() as u8]);
            rest.extend_from_slice(&parameter.value);
        }
        framed(self.code, self.subpage, &rest)
    }

    /// Parses a log page, up to the first truncated parameter. Returns `None` if the header is
    /// incomplete.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (code, subpage) = (u8_at(bytes, 0)? & 0x3f, u8_at(bytes, 1)?);
        let mut rest = body(bytes, 4, usize::from(u16_at(bytes, 2)?));
        let mut parameters = Vec::new();
        while let [high, low, _, length, after @ ..] = rest {
            let Some((value, after)) = after.split_at_checked(usize::from(*length)) else {
                break;
            };
            let code = u16::from_be_bytes([*high, *low]);
            parameters.push(LogParameter { code, value: value.to_vec() });
            rest = after;
        }
        Some(Self { code, subpage, parameters })
    }
}

impl ProvisioningCounts {
    pub const PAGE: u8 = 0x0c;

    #[must_use]
    pub fn to_page(self) -> LogPage {
        // SCOPE: 01b if the count is that of this unit only; 10b if it includes other units.
        let scope = if self.shared { 2 } else { 1 };
        let count = |code: u16, count: u32| {
            let mut value = count.to_be_bytes().to_vec();
            value.extend_from_slice(&[scope, 0, 0, 0]);
            LogParameter { code, value }
        };
        let parameters = vec![count(0x0001, self.available), count(0x0002, self.used)];
        LogPage { code: Self::PAGE, subpage: 0, parameters }
    }
}

impl InformationalExceptions {
    pub const PAGE: u8 = 0x2f;

    /// Returns page 2Fh without a temperature, since the device has no sensor.
    #[must_use]
    pub fn to_page(self) -> LogPage {
        let value = vec![self.asc, self.ascq, NO_TEMPERATURE, 0];
        LogPage { code: Self::PAGE, subpage: 0, parameters: vec![LogParameter { code: 0, value }] }
    }
}

/// Encodes page 00h, the list of supported pages (SPC-4, 7.3.19). `pages` must ascend and include
/// page 00h.
#[must_use]
pub fn supported_log_pages(pages: &[u8]) -> Vec<u8> {
    framed(0, 0, pages)
}

/// Encodes page 00h, subpage FFh: the list of supported pages and subpages (SPC-4, 7.3.20), which
/// must ascend.
#[must_use]
pub fn supported_log_subpages(pages: &[(u8, u8)]) -> Vec<u8> {
    let rest: Vec<u8> = pages.iter().flat_map(|(page, subpage)| [*page, *subpage]).collect();
    framed(0, 0xff, &rest)
}

fn framed(code: u8, subpage: u8, rest: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(rest.len()).expect("a page is below 64 KiB").to_be_bytes();
    // Bit 7 is DS: the page is not saved. Bit 6 is SPF: the page has a subpage.
    let format = if subpage == 0 { 0x80 } else { 0xc0 };
    let mut bytes = vec![format | code & 0x3f, subpage, high, low];
    bytes.extend_from_slice(rest);
    bytes
}

/// The value of FORMAT AND LINKING for a parameter in binary list format (11b).
const FORMAT_LIST: u8 = 0x03;
/// The value of TEMPERATURE for "not available" (SPC-4, 7.3.9).
const NO_TEMPERATURE: u8 = 0xff;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn provisioning_byte_by_byte() {
        let page = ProvisioningCounts { available: 0x0102, used: 3, shared: true }.to_page();
        let bytes = page.to_bytes(0);
        assert_eq!(bytes[..16], [0x8c, 0, 0, 24, 0, 1, 3, 8, 0, 0, 1, 2, 2, 0, 0, 0]);
        assert_eq!(LogPage::from_bytes(&bytes), Some(page.clone()));
        assert_eq!(page.to_bytes(2)[..8], [0x8c, 0, 0, 12, 0, 2, 3, 8]);
    }

    #[test]
    fn lists_of_log_pages_are_encoded_byte_by_byte() {
        assert_eq!(supported_log_pages(&[0, 0x0c]), [0x80, 0, 0, 2, 0, 0x0c]);
        let subpages = supported_log_subpages(&[(0, 0), (0, 0xff)]);
        assert_eq!(subpages, [0xc0, 0xff, 0, 4, 0, 0, 0, 0xff]);
    }

    proptest! {
        #[test]
        fn hostile_pages_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some(page) = LogPage::from_bytes(&bytes) {
                prop_assert!(page.parameters.len() * 4 <= bytes.len());
            }
        }
    }
}
