//! Which command conflicts with a reservation: one table for both kinds of reservation.
//!
//! SPC-4, table 66, and SBC-3, table 13, have five columns of "allowed" and "conflict", but only
//! three different rows. What is for a registered nexus only the holder's type decides.

use scsi::{Command, persistent::ReservationType};

/// The three rows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Effect {
    /// Allowed whatever is reserved: it tells of the unit, not of its blocks, or has rules of its
    /// own (PERSISTENT RESERVE OUT).
    Harmless,
    /// Conflicts with exclusive access: it reads blocks, or how the unit is set up.
    Reads,
    /// Conflicts with any reservation: it changes blocks, or how the unit is set up.
    Changes,
}

/// What a nexus may not do.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Barred {
    #[default]
    Nothing,
    /// What [`Effect::Changes`].
    Changing,
    /// What [`Effect::Reads`] or [`Effect::Changes`].
    Reading,
}

/// The row of a command.
pub(super) fn effect(command: &Command) -> Effect {
    match command {
        Command::ClaimIn { .. }
        | Command::TokenIn { .. }
        | Command::Inquiry { .. }
        | Command::LogSense(_)
        | Command::PersistentReserveIn(_)
        | Command::PersistentReserveOut(_)
        | Command::PreventAllow { prevent: false }
        | Command::ReadCapacity10
        | Command::ReadCapacity16 { .. }
        | Command::Release { .. }
        | Command::ReportIdentifying { .. }
        | Command::ReportLuns { .. }
        | Command::ReportTargetPortGroups(_)
        | Command::ReportTimestamp { .. }
        | Command::RequestSense { .. }
        | Command::Reserve { .. }
        | Command::TestUnitReady => Effect::Harmless,
        // ALLOW COMMANDS is 011b, so MODE SENSE and its like pass a write exclusive reservation.
        Command::GetLbaStatus { .. }
        | Command::ModeSense(_)
        | Command::PopulateToken { .. }
        | Command::PreFetch { .. }
        | Command::Read(_)
        | Command::ReadDefectData(_)
        | Command::ReceiveCopyResults { .. }
        | Command::ReportSupportedOperationCodes { .. }
        | Command::ReportTaskFunctions { .. }
        | Command::Verify { .. } => Effect::Reads,
        Command::ClaimOut { .. }
        | Command::TokenOut { .. }
        | Command::CompareAndWrite(_)
        | Command::CopyOperationAbort { .. }
        | Command::ExtendedCopy { .. }
        | Command::LogSelect(_)
        | Command::ModeSelect(_)
        | Command::OrWrite(_)
        | Command::PreventAllow { prevent: true }
        | Command::RollBack
        | Command::Sanitize(_)
        | Command::SetIdentifying { .. }
        | Command::SetTargetPortGroups { .. }
        | Command::SetTimestamp { .. }
        | Command::SynchronizeCache { .. }
        | Command::Unmap { .. }
        | Command::Write(_)
        | Command::WriteAndVerify { .. }
        | Command::WriteAtomic { .. }
        | Command::WriteSame { .. }
        | Command::WriteUsingToken { .. } => Effect::Changes,
        Command::StartStop(start_stop) => {
            if start_stop.start && start_stop.power_condition == 0 {
                Effect::Harmless
            } else {
                Effect::Changes
            }
        }
    }
}

/// What a reservation of this type bars a nexus from that it does not admit.
pub(super) fn barred(kind: ReservationType) -> Barred {
    if kind.excludes_reading() { Barred::Reading } else { Barred::Changing }
}

impl Barred {
    /// Does the command conflict?
    pub(super) fn from(self, command: &Command) -> bool {
        match self {
            Self::Nothing => false,
            Self::Changing => effect(command) == Effect::Changes,
            Self::Reading => effect(command) != Effect::Harmless,
        }
    }
}

/// Does the command conflict with the RESERVE of another nexus (SPC-2, table 9)? RESERVE and
/// RELEASE have rules of their own.
pub(super) fn barred_by_reserve(command: &Command) -> bool {
    match command {
        Command::PersistentReserveIn(_)
        | Command::PersistentReserveOut(_)
        | Command::TestUnitReady => true,
        // Not of SPC-2: told to whoever looks for a path.
        Command::ReportSupportedOperationCodes { .. } | Command::ReportTaskFunctions { .. } => {
            false
        }
        other => effect(other) != Effect::Harmless,
    }
}
