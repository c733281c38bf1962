//! Parameter data of REPORT TIMESTAMP and parameter list of SET TIMESTAMP (SPC-4, 6.38 and 6.46).

use crate::Sense;

/// The time of the unit's clock, as REPORT TIMESTAMP returns it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Timestamp {
    pub origin: TimestampOrigin,
    /// Milliseconds since the start of 1970 in UTC; 48 bits.
    pub milliseconds: u64,
}

/// TIMESTAMP ORIGIN: how the clock of the device was set (SPC-4, table 49).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum TimestampOrigin {
    /// An initiator set the clock with SET TIMESTAMP.
    Initiator = 0b010,
    /// The clock was set in another way, for example from the clock of the machine.
    Elsewhere = 0b011,
}

impl Timestamp {
    /// Encodes the parameter data of REPORT TIMESTAMP.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        (bytes[1], bytes[2]) = (10, self.origin as u8);
        bytes[4..10].copy_from_slice(&self.milliseconds.to_be_bytes()[2..]);
        bytes
    }

    /// Returns the milliseconds in the parameter list of SET TIMESTAMP.
    ///
    /// # Errors
    /// 5/1A/00 for fewer than twelve bytes.
    pub fn parse_list(bytes: &[u8]) -> Result<u64, Sense> {
        let list: &[u8; 12] = bytes.first_chunk().ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        Ok(list[4..10].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    }

    /// Encodes the parameter list of SET TIMESTAMP.
    #[must_use]
    pub fn list(milliseconds: u64) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[4..10].copy_from_slice(&milliseconds.to_be_bytes()[2..]);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_byte_by_byte() {
        let milliseconds = 0x0102_0304_0506;
        let told = Timestamp { origin: TimestampOrigin::Elsewhere, milliseconds };
        assert_eq!(told.to_bytes(), [0, 10, 3, 0, 1, 2, 3, 4, 5, 6, 0, 0]);
        let list = Timestamp::list(milliseconds);
        assert_eq!(list, [0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 0, 0]);
        assert_eq!(Timestamp::parse_list(&list), Ok(milliseconds));
        let cut = Timestamp::parse_list(&list[..11]);
        assert_eq!(cut, Err(Sense::PARAMETER_LIST_LENGTH_ERROR));
    }
}
