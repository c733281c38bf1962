//! Which command conflicts with a reservation, for both kinds of reservation.

use scsi::{PrimaryCommand, persistent::ReservationType};

use crate::primary::effect::{DeviceCommand, ReservationEffect};

/// What a nexus may not do.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Barred {
    #[default]
    Nothing,
    /// Commands with [`ReservationEffect::Changes`].
    Changing,
    /// Commands with [`ReservationEffect::Reads`] or [`ReservationEffect::Changes`].
    Reading,
}

/// Returns what a reservation of this type bars a nexus from that it does not admit.
pub(super) fn barred(kind: ReservationType) -> Barred {
    if kind.excludes_reading() { Barred::Reading } else { Barred::Changing }
}

impl Barred {
    /// Returns true if the command conflicts.
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
        // SPC-2 does not have these commands. Initiators that look for a path send them.
        Some(
            PrimaryCommand::ReportSupportedOperationCodes { .. }
            | PrimaryCommand::ReportTaskFunctions { .. },
        ) => false,
        _ => command.effect() != ReservationEffect::Harmless,
    }
}
