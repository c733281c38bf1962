//! The SCSI status of a command (SAM-5, 5.3).

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum ScsiStatus {
    Good = 0x00,
    /// The command has failed, for the reason in the sense data.
    CheckCondition = 0x02,
    /// The command has compared data, and the data meets its condition.
    ConditionMet = 0x04,
    /// The unit has not executed the command, and the initiator should repeat it.
    Busy = 0x08,
    /// A reservation of another nexus excludes this command, so the unit has not executed it.
    ReservationConflict = 0x18,
    /// The unit has no space for another task. The command was not executed, and the initiator
    /// should retry it.
    TaskSetFull = 0x28,
    /// Another nexus has aborted the command (TAS=1).
    TaskAborted = 0x40,
}

impl ScsiStatus {
    /// Returns the SCSI status with the code `byte`; `None` if SAM-5 does not define it.
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
