//! Command descriptor blocks: the bytes of a command, and what they mean.

use std::ops::Deref;

use smallvec::SmallVec;

/// The bytes of a command descriptor block: 6 to 260 of them (SPC-4, 4.2).
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Cdb(SmallVec<[u8; 16]>);

impl Cdb {
    /// Takes the bytes as they came. What they mean is for a parser to say.
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
