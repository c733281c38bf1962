//! The medium of a removable unit: its presence, and the sessions that prevent its removal.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;
use scsi::{BlockCommand, Command, PrimaryCommand, Sense};

/// Whether the removable medium is present, and the sessions that prevent its removal.
#[derive(Debug, Default)]
pub(crate) struct Medium {
    absent: AtomicBool,
    kept_by: Mutex<HashSet<u64>>,
}

impl Medium {
    pub(crate) fn is_present(&self) -> bool {
        !self.absent.load(Ordering::Acquire)
    }

    /// Checks that the medium is there if the command needs it.
    ///
    /// # Errors
    /// NOT READY, MEDIUM NOT PRESENT.
    pub(crate) fn check(&self, command: &Command) -> Result<(), Sense> {
        if !self.is_present() && needs_medium(command) {
            return Err(Sense::MEDIUM_NOT_PRESENT);
        }
        Ok(())
    }

    /// PREVENT ALLOW MEDIUM REMOVAL: notes whether a session prevents the removal.
    pub(crate) fn keep(&self, nexus: u64, keep: bool) {
        let mut kept_by = self.kept_by.lock();
        if keep {
            kept_by.insert(nexus);
        } else {
            kept_by.remove(&nexus);
        }
    }

    /// Forgets all sessions that prevent the removal, as a reset does.
    pub(crate) fn reset(&self) {
        self.kept_by.lock().clear();
    }

    /// Checks that the medium may be ejected or loaded.
    pub(crate) fn check_free(&self) -> Result<(), Sense> {
        let is_free = self.kept_by.lock().is_empty();
        if is_free { Ok(()) } else { Err(Sense::MEDIUM_REMOVAL_PREVENTED) }
    }

    /// Sets whether the medium is present. Returns true if that is a change.
    pub(crate) fn set_present(&self, present: bool) -> bool {
        self.absent.swap(!present, Ordering::AcqRel) == present
    }
}

/// Returns true for a command that accesses blocks. Commands about the unit itself are answered without a
/// medium as well.
fn needs_medium(command: &Command) -> bool {
    match command {
        Command::Primary(command) => matches!(
            command,
            PrimaryCommand::TestUnitReady
                | PrimaryCommand::ExtendedCopy { .. }
                | PrimaryCommand::CopyOperationAbort { .. }
        ),
        Command::Block(command) => {
            !matches!(command, BlockCommand::PreventAllow { .. } | BlockCommand::StartStop(_))
        }
        Command::Vendor(_) => true,
    }
}
