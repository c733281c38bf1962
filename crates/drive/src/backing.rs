//! The interface of a store to the check of capabilities and to the logical unit.

use bytes::Bytes;
use object::{Command, ObjectAddress, ObjectError, ObjectStore, ObjectType, Timestamp};
use volume::Reply;

/// An object store with the facts and records that the check of capabilities needs.
pub trait DriveBacking: ObjectStore {
    /// Returns the facts about an object that a capability is checked against. The facts are mostly
    /// in memory.
    fn guard_facts(&self, object: ObjectAddress) -> Reply<'_, Result<GuardFacts, ObjectError>>;

    /// Returns a small record of the drive; `None` if it was never written.
    fn record(&self, key: &str) -> Reply<'_, Result<Option<Bytes>, ObjectError>>;

    /// Writes a record, which is stable when the call ends.
    fn put_record(&self, key: &str, value: Bytes) -> Reply<'_, Result<(), ObjectError>>;

    /// Returns a number that increases each time the drive starts.
    fn boot_epoch(&self) -> u16;

    /// Checks, before data is solicited, that the drive and its quotas have room for a command.
    ///
    /// # Errors
    /// [`ObjectError::Quota`].
    fn check_room(&self, _command: &Command) -> Result<(), ObjectError> {
        Ok(())
    }
}

/// The facts about an object that a capability is checked against.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GuardFacts {
    pub object_type: ObjectType,
    pub created: Timestamp,
    /// The policy access tag in force for the object: its own, or that of its partition.
    pub policy_tag: u32,
}
