//! Request nonces: they make each command unique (OSD-2, 4.11.6).

use object::Timestamp;

/// Length of a REQUEST NONCE in bytes.
pub const NONCE_BYTES: usize = 12;

/// The time at which an initiator signed a command, by the drive's clock, and a random number. The
/// drive refuses a nonce that it has seen, and a nonce whose time is too far from its own.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Nonce {
    pub time: Timestamp,
    pub random: [u8; 6],
}

impl Nonce {
    #[must_use]
    pub fn from_bytes(bytes: &[u8; NONCE_BYTES]) -> Self {
        let [a, b, c, d, e, f, random @ ..] = *bytes;
        Self { time: Timestamp::from_bytes([a, b, c, d, e, f]), random }
    }

    #[must_use]
    pub fn to_bytes(self) -> [u8; NONCE_BYTES] {
        let [a, b, c, d, e, f] = self.time.to_bytes();
        let [g, h, i, j, k, l] = self.random;
        [a, b, c, d, e, f, g, h, i, j, k, l]
    }
}
