//! Determines how each command of a block device conflicts with reservations.

use scsi::{BlockCommand, Command, ParsedCommand, PrimaryCommand, VendorCommand};

use crate::primary::{DeviceCommand, ReservationEffect};

impl DeviceCommand for Command {
    fn primary(&self) -> Option<&PrimaryCommand> {
        match self {
            Self::Primary(command) => Some(command),
            Self::Block(_) | Self::Vendor(_) => None,
        }
    }

    fn effect(&self) -> ReservationEffect {
        match self {
            Self::Primary(command) => command.effect(),
            Self::Block(command) => effect_of(command),
            Self::Vendor(VendorCommand::ClaimIn { .. } | VendorCommand::TokenIn { .. }) => {
                ReservationEffect::Harmless
            }
            Self::Vendor(
                VendorCommand::ClaimOut { .. }
                | VendorCommand::TokenOut { .. }
                | VendorCommand::RollBack,
            ) => ReservationEffect::Changes,
        }
    }

    fn to_parsed(&self) -> ParsedCommand {
        ParsedCommand::Known(*self)
    }

    fn from_parsed(parsed: &ParsedCommand) -> Option<Self> {
        match parsed {
            ParsedCommand::Known(command) => Some(*command),
            ParsedCommand::Other(_) => None,
        }
    }
}

/// Classifies the command by SBC-3, table 13.
fn effect_of(command: &BlockCommand) -> ReservationEffect {
    match command {
        BlockCommand::PreventAllow { prevent: false }
        | BlockCommand::ReadCapacity10
        | BlockCommand::ReadCapacity16 { .. } => ReservationEffect::Harmless,
        BlockCommand::GetLbaStatus { .. }
        | BlockCommand::PopulateToken { .. }
        | BlockCommand::PreFetch { .. }
        | BlockCommand::Read(_)
        | BlockCommand::ReadDefectData(_)
        | BlockCommand::Verify { .. } => ReservationEffect::Reads,
        BlockCommand::CompareAndWrite(_)
        | BlockCommand::OrWrite(_)
        | BlockCommand::PreventAllow { prevent: true }
        | BlockCommand::Sanitize(_)
        | BlockCommand::SynchronizeCache { .. }
        | BlockCommand::Unmap { .. }
        | BlockCommand::Write(_)
        | BlockCommand::WriteAndVerify { .. }
        | BlockCommand::WriteAtomic { .. }
        | BlockCommand::WriteSame { .. }
        | BlockCommand::WriteUsingToken { .. } => ReservationEffect::Changes,
        BlockCommand::StartStop(start_stop) => {
            if start_stop.start && start_stop.power_condition == 0 {
                ReservationEffect::Harmless
            } else {
                ReservationEffect::Changes
            }
        }
    }
}
