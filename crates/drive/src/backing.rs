//! The interface through which the check of capabilities and the logical unit use the store of objects.

use bytes::Bytes;
use object::{Command, ObjectAddress, ObjectError, ObjectStore};
use osd::ServiceAction;
use volume::Reply;

use crate::store::{DriveStore, GuardFacts};

/// An object store that also has the facts and records which the check of capabilities needs.
pub trait DriveBacking: ObjectStore {
    /// Returns the type, the creation time and the policy access tag of an object, against which a capability is
    /// checked. Most calls find them in memory.
    fn guard_facts(&self, object: ObjectAddress) -> Reply<'_, Result<GuardFacts, ObjectError>>;

    /// Returns a small named value that the drive keeps for itself; `None` if it was never written.
    fn record(&self, key: &str) -> Reply<'_, Result<Option<Bytes>, ObjectError>>;

    /// Writes a small named value that the drive keeps for itself. The value is stable when the call ends.
    fn put_record(&self, key: &str, value: Bytes) -> Reply<'_, Result<(), ObjectError>>;

    /// Returns the boot epoch, a number that increases each time the drive starts.
    fn boot_epoch(&self) -> u16;

    /// Returns true if a capability that is restricted to this boot epoch is valid.
    fn accepts_boot_epoch(&self, boot_epoch: u16) -> bool {
        boot_epoch == self.boot_epoch()
    }

    /// Checks, before data is solicited, that the drive and its quotas have room for a command.
    ///
    /// # Errors
    /// [`ObjectError::Quota`].
    fn check_room(&self, _command: &Command) -> Reply<'_, Result<(), ObjectError>> {
        Reply::done(Ok(()))
    }

    /// Returns true if the store performs commands with this service action. The unit refuses all
    /// others as unknown, and does not report them as supported.
    fn serves(&self, _action: ServiceAction) -> bool {
        true
    }
}

impl DriveBacking for DriveStore {
    fn guard_facts(&self, object: ObjectAddress) -> Reply<'_, Result<GuardFacts, ObjectError>> {
        Self::guard_facts(self, object)
    }

    fn record(&self, key: &str) -> Reply<'_, Result<Option<Bytes>, ObjectError>> {
        Self::record(self, key)
    }

    fn put_record(&self, key: &str, value: Bytes) -> Reply<'_, Result<(), ObjectError>> {
        Self::put_record(self, key, value)
    }

    fn boot_epoch(&self) -> u16 {
        Self::boot_epoch(self)
    }

    fn accepts_boot_epoch(&self, boot_epoch: u16) -> bool {
        Self::accepts_boot_epoch(self, boot_epoch)
    }

    fn check_room(&self, command: &Command) -> Reply<'_, Result<(), ObjectError>> {
        self.admit(*command)
    }

    fn serves(&self, action: ServiceAction) -> bool {
        action != ServiceAction::ObjectStructureCheck
    }
}
