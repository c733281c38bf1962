//! Page 80h: unit serial number (SPC-4, 7.8.18).

use super::page::{framed, unframed};

/// The serial number: printable ASCII. Initiators compare it after a reconnect.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UnitSerialNumber(pub String);

impl UnitSerialNumber {
    /// The page's code.
    pub const PAGE: u8 = 0x80;

    /// The page, header included.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        framed(Self::PAGE, self.0.as_bytes())
    }

    /// Reads the page; spaces around the number are dropped, other bytes than ASCII replaced.
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
    fn spaces_around_do_not_count() {
        assert_eq!(
            UnitSerialNumber::from_bytes(b"\x00\x80\x00\x06  ab12"),
            Some(UnitSerialNumber("ab12".into()))
        );
        let own = UnitSerialNumber("f0".into());
        assert_eq!(UnitSerialNumber::from_bytes(&own.to_bytes()), Some(own));
    }
}
