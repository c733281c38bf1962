//! The effect of a command on a unit, as reservations classify it.
//!
//! SPC-4, table 66, and SBC-3, table 13, have five columns of "allowed" and "conflict", but only three different rows.
//! For a registered nexus only the type of the reservation decides.

use scsi::{Command, ParsedCommand, PrimaryCommand};

/// The three classes of commands that the tables of SPC-4 and SBC-3 distinguish.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReservationEffect {
    /// Allowed whatever is reserved: the command reports on the unit and not on its contents, or it has rules of its
    /// own (PERSISTENT RESERVE OUT).
    Harmless,
    /// Conflicts with exclusive access: the command reads the contents of the unit, or its settings.
    Reads,
    /// Conflicts with any reservation: the command changes the contents of the unit, or its settings.
    Changes,
}

/// A command of any device type, seen by the parts of a unit that all device types share.
pub trait DeviceCommand: Sized {
    /// Returns the command if it is one of SPC, which units of every device type may have.
    fn primary(&self) -> Option<&PrimaryCommand>;

    /// Returns how this command conflicts with a reservation of another nexus.
    fn effect(&self) -> ReservationEffect;

    /// Converts the command into the form in which a session keeps it until its data has come.
    fn to_parsed(&self) -> ParsedCommand;

    /// Returns the command that [`Self::to_parsed`] has converted. Returns `None` for a command of another device type.
    fn from_parsed(parsed: &ParsedCommand) -> Option<Self>;
}

impl DeviceCommand for PrimaryCommand {
    fn primary(&self) -> Option<&PrimaryCommand> {
        Some(self)
    }

    /// Classifies the command by SPC-4, table 66.
    fn effect(&self) -> ReservationEffect {
        match self {
            Self::Inquiry { .. }
            | Self::LogSense(_)
            | Self::PersistentReserveIn(_)
            | Self::PersistentReserveOut(_)
            | Self::Release { .. }
            | Self::ReportIdentifying { .. }
            | Self::ReportLuns { .. }
            | Self::ReportTargetPortGroups(_)
            | Self::ReportTimestamp { .. }
            | Self::RequestSense { .. }
            | Self::Reserve { .. }
            | Self::TestUnitReady => ReservationEffect::Harmless,
            // REPORT CAPABILITIES reports ALLOW COMMANDS 011b, so MODE SENSE and similar commands pass a write
            // exclusive reservation.
            Self::ModeSense(_)
            | Self::ReceiveCopyResults { .. }
            | Self::ReportSupportedOperationCodes { .. }
            | Self::ReportTaskFunctions { .. } => ReservationEffect::Reads,
            Self::CopyOperationAbort { .. }
            | Self::ExtendedCopy { .. }
            | Self::LogSelect(_)
            | Self::ModeSelect(_)
            | Self::SetIdentifying { .. }
            | Self::SetTargetPortGroups { .. }
            | Self::SetTimestamp { .. } => ReservationEffect::Changes,
        }
    }

    fn to_parsed(&self) -> ParsedCommand {
        ParsedCommand::Known(Command::Primary(*self))
    }

    fn from_parsed(parsed: &ParsedCommand) -> Option<Self> {
        match parsed {
            ParsedCommand::Known(Command::Primary(command)) => Some(*command),
            _ => None,
        }
    }
}
