//! How a command ended (SAM-5, 5.3).

/// The status byte.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum ScsiStatus {
    /// Done as asked.
    Good = 0x00,
    /// Something is to be told: sense data comes with it.
    CheckCondition = 0x02,
    /// COMPARE of some commands succeeded.
    ConditionMet = 0x04,
    /// Try again: nothing was done.
    Busy = 0x08,
    /// Another nexus holds a reservation.
    ReservationConflict = 0x18,
    /// Too many tasks, or no room for this one: nothing was done, try again.
    TaskSetFull = 0x28,
    /// The task ended because another nexus cleared it (TAS=1).
    TaskAborted = 0x40,
}

impl ScsiStatus {
    /// The status for a byte from the wire, if the byte is one SAM-5 names.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0x00 => Self::Good,
            0x02 => Self::CheckCondition,
            0x04 => Self::ConditionMet,
            0x08 => Self::Busy,
            0x18 => Self::ReservationConflict,
            0x28 => Self::TaskSetFull,
            0x40 => Self::TaskAborted,
            _ => return None,
        })
    }
}
