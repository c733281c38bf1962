//! Which command conflicts with a reservation: one table for both kinds of reservation.
//!
//! SPC-4, table 66, and SBC-3, table 13, have five columns of "allowed" and "conflict", but only
//! three different rows. What is for a registered nexus only the holder's type decides.

use scsi::{BlockCommand, Command, PrimaryCommand, VendorCommand, persistent::ReservationType};

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
        Command::Vendor(VendorCommand::ClaimIn { .. })
        | Command::Vendor(VendorCommand::TokenIn { .. })
        | Command::Primary(PrimaryCommand::Inquiry { .. })
        | Command::Primary(PrimaryCommand::LogSense(_))
        | Command::Primary(PrimaryCommand::PersistentReserveIn(_))
        | Command::Primary(PrimaryCommand::PersistentReserveOut(_))
        | Command::Block(BlockCommand::PreventAllow { prevent: false })
        | Command::Block(BlockCommand::ReadCapacity10)
        | Command::Block(BlockCommand::ReadCapacity16 { .. })
        | Command::Primary(PrimaryCommand::Release { .. })
        | Command::Primary(PrimaryCommand::ReportIdentifying { .. })
        | Command::Primary(PrimaryCommand::ReportLuns { .. })
        | Command::Primary(PrimaryCommand::ReportTargetPortGroups(_))
        | Command::Primary(PrimaryCommand::ReportTimestamp { .. })
        | Command::Primary(PrimaryCommand::RequestSense { .. })
        | Command::Primary(PrimaryCommand::Reserve { .. })
        | Command::Primary(PrimaryCommand::TestUnitReady) => Effect::Harmless,
        // ALLOW COMMANDS is 011b, so MODE SENSE and its like pass a write exclusive reservation.
        Command::Block(BlockCommand::GetLbaStatus { .. })
        | Command::Primary(PrimaryCommand::ModeSense(_))
        | Command::Block(BlockCommand::PopulateToken { .. })
        | Command::Block(BlockCommand::PreFetch { .. })
        | Command::Block(BlockCommand::Read(_))
        | Command::Block(BlockCommand::ReadDefectData(_))
        | Command::Primary(PrimaryCommand::ReceiveCopyResults { .. })
        | Command::Primary(PrimaryCommand::ReportSupportedOperationCodes { .. })
        | Command::Primary(PrimaryCommand::ReportTaskFunctions { .. })
        | Command::Block(BlockCommand::Verify { .. }) => Effect::Reads,
        Command::Vendor(VendorCommand::ClaimOut { .. })
        | Command::Vendor(VendorCommand::TokenOut { .. })
        | Command::Block(BlockCommand::CompareAndWrite(_))
        | Command::Primary(PrimaryCommand::CopyOperationAbort { .. })
        | Command::Primary(PrimaryCommand::ExtendedCopy { .. })
        | Command::Primary(PrimaryCommand::LogSelect(_))
        | Command::Primary(PrimaryCommand::ModeSelect(_))
        | Command::Block(BlockCommand::OrWrite(_))
        | Command::Block(BlockCommand::PreventAllow { prevent: true })
        | Command::Vendor(VendorCommand::RollBack)
        | Command::Block(BlockCommand::Sanitize(_))
        | Command::Primary(PrimaryCommand::SetIdentifying { .. })
        | Command::Primary(PrimaryCommand::SetTargetPortGroups { .. })
        | Command::Primary(PrimaryCommand::SetTimestamp { .. })
        | Command::Block(BlockCommand::SynchronizeCache { .. })
        | Command::Block(BlockCommand::Unmap { .. })
        | Command::Block(BlockCommand::Write(_))
        | Command::Block(BlockCommand::WriteAndVerify { .. })
        | Command::Block(BlockCommand::WriteAtomic { .. })
        | Command::Block(BlockCommand::WriteSame { .. })
        | Command::Block(BlockCommand::WriteUsingToken { .. }) => Effect::Changes,
        Command::Block(BlockCommand::StartStop(start_stop)) => {
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
        Command::Primary(PrimaryCommand::PersistentReserveIn(_))
        | Command::Primary(PrimaryCommand::PersistentReserveOut(_))
        | Command::Primary(PrimaryCommand::TestUnitReady) => true,
        // Not of SPC-2: told to whoever looks for a path.
        Command::Primary(PrimaryCommand::ReportSupportedOperationCodes { .. })
        | Command::Primary(PrimaryCommand::ReportTaskFunctions { .. }) => false,
        other => effect(other) != Effect::Harmless,
    }
}
