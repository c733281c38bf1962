//! The result of the checks that a unit makes before a session requests the write data of a
//! command.

use std::{any::Any, sync::Arc};

use crate::Command;

/// A parsed command that passed the checks a unit makes before its write data is requested. The
/// iSCSI session keeps this value with the task and gives it back to the unit together with the
/// data. The unit then need not parse the CDB again, nor repeat checks whose outcome cannot have
/// changed.
#[derive(Clone, Debug)]
pub struct AdmittedCommand {
    pub command: ParsedCommand,
    /// The generation of the unit's state (reservations, claim, medium) when the checks were made.
    /// `None` if the unit has to repeat the checks in any case.
    pub generation: Option<u64>,
}

/// A parsed command of any device type.
#[derive(Clone, Debug)]
pub enum ParsedCommand {
    /// A command of a block device, or of any device type (SPC).
    Known(Command),
    /// A command of another device type, which only the unit that parsed it can interpret.
    Other(Arc<dyn Any + Send + Sync>),
}
