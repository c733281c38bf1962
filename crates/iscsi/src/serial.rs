//! Sequence numbers that wrap around (RFC 1982): CmdSN, StatSN, DataSN, R2TSN.

/// A 32-bit sequence number that wraps around. Two numbers can be compared if they are less than
/// 2^31 apart.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Serial(pub u32);

impl Serial {
    #[must_use]
    pub fn next(self) -> Self {
        self.add(1)
    }

    /// Returns the serial number `count` steps after this one, modulo 2^32.
    #[allow(clippy::should_implement_trait)] // wraps, and takes a count instead of a serial
    #[must_use]
    pub fn add(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }

    /// Returns how much `self` is ahead of `earlier`, modulo 2^32.
    #[must_use]
    pub fn distance_from(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Returns true if `self` precedes `other`. The two must be less than 2^31 apart.
    #[must_use]
    pub fn is_before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_survives_the_wrap() {
        assert!(Serial(u32::MAX).is_before(Serial(0)));
        assert!(!Serial(0).is_before(Serial(u32::MAX)));
        assert!(!Serial(5).is_before(Serial(5)));
        assert_eq!(Serial(u32::MAX).next(), Serial(0));
        assert_eq!(Serial(1).distance_from(Serial(u32::MAX)), 2);
    }
}
