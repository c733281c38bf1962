//! Decides which commands a reservation excludes, for persistent reservations and for RESERVE.

use scsi::{PrimaryCommand, persistent::ReservationType};

use crate::primary::effect::{DeviceCommand, ReservationEffect};

/// The commands that are refused because another nexus has a reservation.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Barred {
    #[default]
    Nothing,
    /// Commands that change data are refused ([`ReservationEffect::Changes`]).
    Changing,
    /// Refuses commands with [`ReservationEffect::Reads`] or [`ReservationEffect::Changes`].
    Reading,
}

/// Returns the commands that a persistent reservation of this type refuses to a nexus that it does not admit.
pub(super) fn barred(kind: ReservationType) -> Barred {
    if kind.excludes_reading() { Barred::Reading } else { Barred::Changing }
}

impl Barred {
    /// Returns true if the command is refused.
    pub(super) fn from(self, command: &impl DeviceCommand) -> bool {
        match self {
            Self::Nothing => false,
            Self::Changing => command.effect() == ReservationEffect::Changes,
            Self::Reading => command.effect() != ReservationEffect::Harmless,
        }
    }
}

/// Returns true if the command conflicts with the RESERVE of another nexus (SPC-2, table 9). RESERVE and
/// RELEASE have rules of their own.
pub(super) fn barred_by_reserve(command: &impl DeviceCommand) -> bool {
    match command.primary() {
        Some(
            PrimaryCommand::PersistentReserveIn(_)
            | PrimaryCommand::PersistentReserveOut(_)
            | PrimaryCommand::TestUnitReady,
        ) => true,
        // Admit these two commands, which SPC-2 does not have: initiators send them to find a path.
        Some(
            PrimaryCommand::ReportSupportedOperationCodes { .. }
            | PrimaryCommand::ReportTaskFunctions { .. },
        ) => false,
        _ => command.effect() != ReservationEffect::Harmless,
    }
}
