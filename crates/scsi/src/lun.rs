//! Logical unit numbers in the eight-byte form of SAM-5, 4.7.

/// A LUN: the eight bytes of its encoding as a big-endian number.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Lun(pub u64);

impl Lun {
    /// Returns the LUN of a unit number in its usual form: peripheral device addressing below 256,
    /// flat space addressing below 16,384. `None` for 16,384 and above.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        match number {
            0..256 => Some(Self(u64::from(number) << 48)),
            256..16384 => Some(Self(u64::from(0x4000 | number) << 48)),
            _ => None,
        }
    }

    /// Returns the number in a single-level LUN, in peripheral device or flat space addressing.
    /// `None` for other forms and for LUNs of more than one level.
    #[must_use]
    pub fn number(self) -> Option<u16> {
        let first = (self.0 >> 48) as u16;
        let rest = self.0 & 0xffff_ffff_ffff;
        match (first >> 14, rest) {
            (0 | 1, 0) => Some(first & 0x3fff),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lun_forms_give_the_same_number() {
        assert_eq!(Lun::from_number(3), Some(Lun(0x0003_0000_0000_0000)));
        assert_eq!(Lun(0x4003_0000_0000_0000).number(), Some(3));
        assert_eq!(Lun::from_number(300).and_then(Lun::number), Some(300));
        assert_eq!(Lun(0x0003_0001_0000_0000).number(), None);
    }
}
