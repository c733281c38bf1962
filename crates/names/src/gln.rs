//! The global location number, which identifies the node of a volume.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The permanent identity of a node: 128 random bits, written as 32 hexadecimal digits. The paper uses the IP address
/// (STICS, section 4.1); our number stays the same when that changes.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Gln([u8; 16]);

/// A text that is not a global location number.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not a global location number, which has 32 hexadecimal digits")]
pub struct NotAGln;

impl Gln {
    /// Creates a node number (GLN) from 16 random bytes.
    #[must_use]
    pub fn new(random: [u8; 16]) -> Self {
        Self(random)
    }
}

impl fmt::Display for Gln {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Gln {
    type Err = NotAGln;

    fn from_str(text: &str) -> Result<Self, NotAGln> {
        let is_digit = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        if text.len() != 32 || !text.bytes().all(is_digit) {
            return Err(NotAGln);
        }
        u128::from_str_radix(text, 16).map(|bits| Self(bits.to_be_bytes())).map_err(|_| NotAGln)
    }
}

impl Serialize for Gln {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Gln {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_reads_back() {
        let gln = Gln::new([0xab; 16]);
        assert_eq!(gln.to_string().parse(), Ok(gln));
        assert_eq!(
            serde_json::from_str::<Gln>(&serde_json::to_string(&gln).unwrap()).unwrap(),
            gln
        );
    }

    #[test]
    fn text_that_is_not_a_gln_is_refused() {
        for wrong in
            ["", "00", "+0000000000000000000000000000000", &"AB".repeat(16), &"0".repeat(33)]
        {
            assert_eq!(wrong.parse::<Gln>(), Err(NotAGln), "{wrong}");
        }
    }
}
