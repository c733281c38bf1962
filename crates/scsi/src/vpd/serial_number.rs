//! Page 80h: unit serial number (SPC-4, 7.8.18).

use super::page::{framed, unframed};

/// The serial number of the unit in printable ASCII. After a reconnect, initiators compare it with
/// the number that they have recorded.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UnitSerialNumber(pub String);

impl UnitSerialNumber {
    pub const PAGE: u8 = 0x80;

    /// Encodes VPD page 80h (unit serial number) with its header.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        framed(Self::PAGE, self.0.as_bytes())
    }

    /// Parses page 80h. Removes spaces and NULs around the number, and replaces bytes that are not
    /// UTF-8. Returns `None` for another page.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(unframed(Self::PAGE, bytes)?);
        Some(Self(text.trim_matches([' ', '\0']).to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_spaces_of_a_serial_number_are_ignored() {
        assert_eq!(
            UnitSerialNumber::from_bytes(b"\x00\x80\x00\x06  ab12"),
            Some(UnitSerialNumber("ab12".into()))
        );
        let own = UnitSerialNumber("f0".into());
        assert_eq!(UnitSerialNumber::from_bytes(&own.to_bytes()), Some(own));
    }
}
