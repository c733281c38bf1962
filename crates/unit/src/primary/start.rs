//! Performs the commands that units of every device type may have.

use scsi::{PersistentReserveOut, PrimaryCommand, Sense};
use volume::Data;

use super::{
    PrimaryUnit,
    device::DeviceType,
    log_pages::log_select,
    order::TaskTurn,
    reply::{check_list_length, taking},
    reserve::set_target_port_groups,
};
use crate::{Completion, Nexus, UnitReply};

pub struct PrimaryCommandInput<'a> {
    /// The nexus that the task came through.
    pub nexus: Nexus,
    pub data: Data,
    /// The task's turn, which ends with the command.
    pub turn: TaskTurn<'a>,
}

impl PrimaryUnit {
    /// Performs a command up to its first wait. MODE SENSE and MODE SELECT end as unknown commands here: a
    /// device type that has mode parameters performs them by [`Self::mode_sense`] and [`Self::mode_select`].
    /// Third-party copy, which only block devices have, ends as an unknown command as well.
    ///
    /// # Errors
    /// The completion of a command that ends at once, GOOD or not.
    pub fn start<'a>(
        &'a self,
        device: &impl DeviceType,
        command: &PrimaryCommand,
        input: PrimaryCommandInput<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        let PrimaryCommandInput { nexus, data, turn } = input;
        match *command {
            PrimaryCommand::Reserve { .. } => {
                self.reservations.reserve(&nexus)?;
                Err(taking(0))
            }
            PrimaryCommand::Release { .. } => {
                self.reservations.release(&nexus)?;
                Err(taking(0))
            }
            PrimaryCommand::PersistentReserveOut(asked) => {
                self.persistent_reserve_out(nexus, asked, &data, turn)
            }
            PrimaryCommand::LogSelect(select) => {
                Err(log_select(&select, &device.log_pages(), &data)?)
            }
            PrimaryCommand::SetTargetPortGroups { parameter_list_length } => {
                Err(set_target_port_groups(parameter_list_length, &data)?)
            }
            PrimaryCommand::SetTimestamp { parameter_list_length } => {
                Err(self.set_timestamp(&nexus, parameter_list_length, &data)?)
            }
            PrimaryCommand::SetIdentifying { kind, parameter_list_length } => {
                self.set_identifying(&nexus, kind, parameter_list_length, &data, turn)
            }
            _ => Err(self.describe(device, &nexus, command)?),
        }
    }
}

/// Checks the length of a parameter list before it is solicited.
///
/// # Errors
/// 5/1A/00 for a list that is too long to be held in memory.
pub fn check_parameter_list(command: &PrimaryCommand) -> Result<(), Sense> {
    match *command {
        PrimaryCommand::PersistentReserveOut(PersistentReserveOut {
            parameter_list_length,
            ..
        })
        | PrimaryCommand::SetTargetPortGroups { parameter_list_length }
        | PrimaryCommand::SetTimestamp { parameter_list_length } => {
            check_list_length(parameter_list_length)
        }
        _ => Ok(()),
    }
}
