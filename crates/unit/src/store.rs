//! What a unit keeps over a restart beside its blocks.

use std::{future::Future, io, pin::Pin};

/// A place for records of one unit, each small and replaced as a whole.
pub trait UnitStore: Send + Sync + 'static {
    /// What was saved last; `None` if nothing ever was.
    ///
    /// # Errors
    /// The record cannot be read, or what was read is not what was saved. Then the unit must not be
    /// served: a reservation that is forgotten lets two hosts write to one disk.
    fn load(&self, record: UnitRecordKind) -> io::Result<Option<Vec<u8>>>;

    /// Replaces a record, whole or not at all; it is stable when the call returns. Of two calls for
    /// one record the later one counts, also when the earlier one's future was dropped.
    fn save(&self, record: UnitRecordKind, bytes: Vec<u8>) -> Saving<'_>;
}

/// A save on its way.
pub type Saving<'a> = Pin<Box<dyn Future<Output = io::Result<()>> + Send + 'a>>;

/// What there is to keep.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum UnitRecordKind {
    /// Who claimed the unit last.
    Claim,
    /// Identifying information.
    Identifying,
    /// Mode parameters that MODE SELECT saved.
    Modes,
    /// Registrations and the persistent reservation, while APTPL is set.
    Reservations,
    /// The gateways that share the unit.
    Sharing,
    /// A sanitize that has begun and did not end well yet.
    Sanitize,
}

impl UnitRecordKind {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Claim,
        Self::Identifying,
        Self::Modes,
        Self::Reservations,
        Self::Sanitize,
        Self::Sharing,
    ];

    /// A word of lower-case letters, for a file's name.
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

/// A record that is there and says nothing that we wrote.
pub(crate) fn damaged(record: UnitRecordKind) -> io::Error {
    let message = format!("the record of {} is damaged", record.name());
    io::Error::new(io::ErrorKind::InvalidData, message)
}
