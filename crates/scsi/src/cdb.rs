//! The bytes of a command descriptor block (CDB). The parsers are in `command.rs` and in the
//! command families.

use std::ops::Deref;

use smallvec::SmallVec;

/// A command descriptor block of 6 to 260 bytes (SPC-4, 4.2).
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Cdb(SmallVec<[u8; 16]>);

impl Cdb {
    /// Copies the bytes of a CDB without checking them; [`crate::Command::parse`] interprets them.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        Self(SmallVec::from_slice(bytes))
    }
}

impl Deref for Cdb {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}
