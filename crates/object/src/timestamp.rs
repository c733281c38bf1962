//! Times of OSD: milliseconds since 1970-01-01 UTC in six bytes (OSD-2, 4.8).

/// Milliseconds since 1970-01-01 UTC, at most 2^48 − 1 (the year 10,889).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Timestamp(u64);

impl Timestamp {
    pub const ZERO: Self = Self(0);
    pub const MAX: Self = Self((1 << 48) - 1);

    /// Returns the time; milliseconds that need more than 48 bits become [`Self::MAX`].
    #[must_use]
    pub const fn from_ms(ms: u64) -> Self {
        if ms > Self::MAX.0 { Self::MAX } else { Self(ms) }
    }

    #[must_use]
    pub const fn as_ms(self) -> u64 {
        self.0
    }

    #[must_use]
    pub const fn from_bytes(bytes: [u8; 6]) -> Self {
        let [a, b, c, d, e, f] = bytes;
        Self(u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
    }

    #[must_use]
    pub const fn to_bytes(self) -> [u8; 6] {
        let [_, _, a, b, c, d, e, f] = self.0.to_be_bytes();
        [a, b, c, d, e, f]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_bytes_hold_every_timestamp() {
        for ms in [0, 1, 0x0194_1f29_7c00, (1 << 48) - 1] {
            let time = Timestamp::from_ms(ms);
            assert_eq!(time.as_ms(), ms);
            assert_eq!(Timestamp::from_bytes(time.to_bytes()), time);
        }
        assert_eq!(Timestamp::from_ms(u64::MAX), Timestamp::MAX);
    }
}
