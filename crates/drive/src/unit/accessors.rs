//! The parts of an object storage device.

use osd::ServiceAction;
use unit::PrimaryUnit;

use super::{ObjectUnit, description::TOKEN_BYTES};
use crate::{backing::DriveBacking, security::Security};

impl<S: DriveBacking> ObjectUnit<S> {
    /// Returns the check of commands, with the numbers of refused ones.
    #[must_use]
    pub fn security(&self) -> &Security {
        &self.drive.security
    }

    #[must_use]
    pub fn store(&self) -> &S {
        &self.drive.store
    }

    #[must_use]
    pub fn primary(&self) -> &PrimaryUnit {
        &self.primary
    }

    /// Returns the service actions of the commands that were begun since the start, with their
    /// numbers.
    pub fn performed(&self) -> impl Iterator<Item = (ServiceAction, u64)> + '_ {
        self.performed.counted()
    }

    /// Returns the security token of a nexus.
    pub(super) fn token(&self, nexus: u64) -> [u8; TOKEN_BYTES] {
        self.tokens.lock().get(&nexus).copied().unwrap_or_default()
    }
}
