//! The names of a logical unit.

/// The names that a unit reports. They stay the same across restarts and differ from those of every other
/// unit: hosts recognize a disk by them, and refuse a disk whose names have changed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UnitIdentity {
    /// T10 vendor identification, at most 8 printable ASCII characters.
    pub vendor: String,
    /// Product identification, at most 16 printable ASCII characters.
    pub product: String,
    /// Product revision level, at most 4 printable ASCII characters.
    pub revision: String,
    /// Unit serial number: printable ASCII. Hosts see at most the first 240 characters.
    pub serial: String,
    /// NAA designator of 16 bytes; the first four bits are 6 (SPC-4, 7.8.6.6.5).
    pub naa: [u8; 16],
    /// iSCSI name of the target that the unit belongs to.
    pub target_name: Option<String>,
}

impl UnitIdentity {
    /// Returns the names of a unit with this serial number, from which the NAA designator is computed.
    #[must_use]
    pub fn new(serial: &str) -> Self {
        Self {
            vendor: "FOREBAY".into(),
            product: "VOLUME".into(),
            revision: REVISION.into(),
            serial: serial.into(),
            naa: naa(serial),
            target_name: None,
        }
    }

    /// Adds the target that the unit belongs to.
    #[must_use]
    pub fn with_target(mut self, name: &str) -> Self {
        self.target_name = Some(name.into());
        self
    }
}

/// Returns a designator of type NAA 6 with a locally administered company id and 100 bits of a hash of the
/// serial number. In the company id 02-46-42, the second bit says that it is not registered.
fn naa(serial: &str) -> [u8; 16] {
    let prefix = 0x6_024642 << 100;
    (prefix | fnv1a(serial.as_bytes()) >> 28).to_be_bytes()
}

/// FNV-1a with 128 bits. The hash is not secret, but spreads well, and it never changes.
fn fnv1a(bytes: &[u8]) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(OFFSET, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

/// The program's version, major and minor, since the field has four characters.
const REVISION: &str =
    concat!(env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_designator_follows_from_the_serial_number_for_ever() {
        // Hosts recognize a disk by this value, so an upgrade must not change it. The hash of "a" is
        // d228cb696f1a8caf78912b704e4a8964 in FNV's own test vectors.
        let expected = [
            0x60, 0x24, 0x64, 0x2d, 0x22, 0x8c, 0xb6, 0x96, 0xf1, 0xa8, 0xca, 0xf7, 0x89, 0x12,
            0xb7, 0x04,
        ];
        assert_eq!(UnitIdentity::new("a").naa, expected);
        assert_ne!(UnitIdentity::new("b").naa, expected);
    }
}
