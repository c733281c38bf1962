//! The SCSI status of a command (SAM-5, 5.3).

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum ScsiStatus {
    Good = 0x00,
    /// The command failed; the sense data that comes with this status says why.
    CheckCondition = 0x02,
    /// The command compared data and found the condition that it asked for.
    ConditionMet = 0x04,
    /// The command was not executed; the initiator should retry it.
    Busy = 0x08,
    /// Another nexus holds a reservation that excludes this command.
    ReservationConflict = 0x18,
    /// The unit has no space for another task. The command was not executed, and the initiator
    /// should retry it.
    TaskSetFull = 0x28,
    /// Another nexus aborted the task (TAS=1).
    TaskAborted = 0x40,
}

impl ScsiStatus {
    /// Returns the status with this number; `None` if SAM-5 defines no such status.
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
