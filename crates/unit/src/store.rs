//! The records of a unit that survive a restart, in addition to its blocks.

use std::{future::Future, io, pin::Pin};

/// Stores the records of one unit. Each record is small and is replaced as a whole.
pub trait UnitStore: Send + Sync + 'static {
    /// Returns the record that was saved last; `None` if none was ever saved.
    ///
    /// # Errors
    /// The record cannot be read, or is damaged. Then the unit must not be served: if a reservation is lost,
    /// two hosts can write to one disk.
    fn load(&self, record: UnitRecordKind) -> io::Result<Option<Vec<u8>>>;

    /// Replaces a record atomically. The record is stable when the future completes. If there are two calls
    /// for one record, the later one prevails, even if the future of the earlier one was dropped.
    fn save(&self, record: UnitRecordKind, bytes: Vec<u8>) -> Saving<'_>;
}

pub type Saving<'a> = Pin<Box<dyn Future<Output = io::Result<()>> + Send + 'a>>;

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum UnitRecordKind {
    /// The claim (exclusive right to write the unit) that was granted last.
    Claim,
    Identifying,
    /// Mode parameters that MODE SELECT saved.
    Modes,
    /// Registrations and the persistent reservation, while APTPL is set.
    Reservations,
    /// The gateways that share the unit.
    Sharing,
    /// A SANITIZE that has begun and has not succeeded.
    Sanitize,
}

impl UnitRecordKind {
    pub const ALL: [Self; 6] = [
        Self::Claim,
        Self::Identifying,
        Self::Modes,
        Self::Reservations,
        Self::Sanitize,
        Self::Sharing,
    ];

    /// Returns a word of lower-case letters, for use in a file name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Identifying => "identifying",
            Self::Modes => "modes",
            Self::Reservations => "reservations",
            Self::Sanitize => "sanitize",
            Self::Sharing => "sharing",
        }
    }
}

/// Returns the error for a record that no unit can have written.
pub(crate) fn damaged(record: UnitRecordKind) -> io::Error {
    let message = format!("the record of {} is damaged", record.name());
    io::Error::new(io::ErrorKind::InvalidData, message)
}
