//! The checks that a block unit adds to [`crate::gate`], which every command passes: the exclusive writer, SANITIZE and
//! the medium.

use scsi::{BlockCommand, Command, PrimaryCommand, Sense};

use super::BlockUnit;
use crate::{Completion, gate::GatedDevice};

impl GatedDevice for BlockUnit {
    type Command = Command;

    fn parse(&self, cdb: &[u8]) -> Result<Command, Sense> {
        Command::parse(cdb)
    }

    fn check_writer(&self, nexus: u64, command: &Command) -> Result<(), Completion> {
        let has_epochs = || self.volume.geometry().epoch_blocks > 0;
        let reads_beside = self.settings.reads_beside_claim;
        match self.writers.bar(nexus, command, reads_beside, has_epochs) {
            Some(failure) => Err(failure.into()),
            None => Ok(()),
        }
    }

    /// After a failed SANITIZE, another SANITIZE is let through, since it may repair the unit (SBC-3,
    /// 4.11.4).
    fn check_work(&self, parsed: &Result<Command, Sense>) -> Result<(), Sense> {
        match self.sanitizer.sense() {
            Some(sense)
                if self.sanitizer.is_running()
                    || !matches!(parsed, Ok(Command::Block(BlockCommand::Sanitize(_)))) =>
            {
                Err(sense)
            }
            _ => Ok(()),
        }
    }

    fn check_medium(&self, command: &Command) -> Result<(), Sense> {
        if self.settings.is_one_of_many && is_for_all(command) {
            return Err(Sense::INVALID_COMMAND_OPERATION_CODE);
        }
        self.medium.check(command)
    }

    /// Returns the generation of the writers' state while the medium is present and no SANITIZE runs or has failed. In
    /// any other state returns `None`, so that every command is checked again.
    fn generation(&self, nexus: u64) -> Option<u64> {
        if self.medium.is_present() && self.sanitizer.is_sound() {
            self.writers.generation(nexus)
        } else {
            None
        }
    }
}

/// Returns true for a command that takes effect for all initiators of the unit, through whichever gateway they come. A
/// unit that is one of several gateways refuses such a command: it cannot enforce the effect at the other gateways.
fn is_for_all(command: &Command) -> bool {
    match command {
        Command::Primary(command) => matches!(
            command,
            PrimaryCommand::PersistentReserveIn(_)
                | PrimaryCommand::PersistentReserveOut(_)
                | PrimaryCommand::Release { .. }
                | PrimaryCommand::Reserve { .. }
        ),
        Command::Block(command) => matches!(
            command,
            BlockCommand::CompareAndWrite(_)
                | BlockCommand::OrWrite(_)
                | BlockCommand::PopulateToken { .. }
                | BlockCommand::Sanitize(_)
                | BlockCommand::WriteAtomic { .. }
                | BlockCommand::WriteUsingToken { .. }
        ),
        Command::Vendor(_) => false,
    }
}
