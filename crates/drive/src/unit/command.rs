//! The commands of an object unit: those of SPC, and those of OSD-2.

use std::sync::{Arc, OnceLock};

use osd::{CDB_BYTES, OPERATION_CODE, OsdCdb, ServiceAction};
use scsi::{ParsedCommand, PrimaryCommand, Sense};
use unit::{DeviceCommand, ReservationEffect};

use crate::security::Proof;

/// A parsed command of an object unit.
#[derive(Clone, Debug)]
pub enum UnitCommand {
    Primary(PrimaryCommand),
    Object(Arc<ObjectCommand>),
}

/// A command of OSD-2 with its CDB, and the result of its first check.
#[derive(Debug)]
pub struct ObjectCommand {
    pub cdb: OsdCdb,
    /// The bytes of the CDB, over which the client has made its signature.
    pub bytes: [u8; CDB_BYTES],
    /// The result of the capability's first check, if it was made before the data was requested.
    pub proof: OnceLock<Proof>,
}

impl UnitCommand {
    /// Parses a CDB of SPC or OSD-2.
    ///
    /// # Errors
    /// 5/20/00 for an unknown command and for those of OSD-1; 5/24/00 for a reserved value.
    pub fn parse(cdb: &[u8]) -> Result<Self, Sense> {
        if cdb.first() != Some(&OPERATION_CODE) {
            return PrimaryCommand::parse(cdb).map(Self::Primary);
        }
        let parsed = OsdCdb::parse(cdb).map_err(osd::Refusal::sense)?;
        if !is_served(parsed.service_action()) {
            return Err(Sense::INVALID_COMMAND_OPERATION_CODE);
        }
        let bytes = cdb.try_into().map_err(|_| Sense::invalid_field_in_cdb(7))?;
        Ok(Self::Object(Arc::new(ObjectCommand { cdb: parsed, bytes, proof: OnceLock::new() })))
    }
}

/// Returns true for the service actions that the unit performs. The format of the parameters of SET
/// MASTER KEY is not known to us; the master key is replaced with the drive's key file. Sessions
/// perform task management functions, because a unit cannot end the tasks of others.
pub const fn is_served(action: ServiceAction) -> bool {
    !matches!(action, ServiceAction::SetMasterKey | ServiceAction::PerformTaskManagementFunction)
}

impl DeviceCommand for UnitCommand {
    fn primary(&self) -> Option<&PrimaryCommand> {
        match self {
            Self::Primary(command) => Some(command),
            Self::Object(_) => None,
        }
    }

    fn effect(&self) -> ReservationEffect {
        match self {
            Self::Primary(command) => command.effect(),
            Self::Object(command) if command.cdb.command.only_reads() => {
                // Even a command that only reads can set attributes with its lists.
                match command.cdb.attributes {
                    osd::AttributeParameters::SetOne { .. }
                    | osd::AttributeParameters::Page { set: Some(_), .. }
                    | osd::AttributeParameters::Lists { set: Some(_), .. } => {
                        ReservationEffect::Changes
                    }
                    _ => ReservationEffect::Reads,
                }
            }
            Self::Object(_) => ReservationEffect::Changes,
        }
    }

    fn to_parsed(&self) -> ParsedCommand {
        match self {
            Self::Primary(command) => command.to_parsed(),
            Self::Object(command) => ParsedCommand::Other(Arc::clone(command) as _),
        }
    }

    fn from_parsed(parsed: &ParsedCommand) -> Option<Self> {
        match parsed {
            ParsedCommand::Known(_) => PrimaryCommand::from_parsed(parsed).map(Self::Primary),
            ParsedCommand::Other(command) => {
                let command = Arc::clone(command).downcast::<ObjectCommand>();
                command.ok().map(Self::Object)
            }
        }
    }
}
