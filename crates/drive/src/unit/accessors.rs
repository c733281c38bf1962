//! Access to the parts of an object unit, for the status report and for tests.

use osd::ServiceAction;
use unit::PrimaryUnit;

use super::{
    ObjectUnit,
    description::{Description, TOKEN_BYTES},
};
use crate::{backing::DriveBacking, security::Security};

impl<S: DriveBacking> ObjectUnit<S> {
    /// Returns the check of capabilities, which also counts refused commands.
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

    /// Returns how often commands of each service action were begun since the start. Actions that did not occur are
    /// left out.
    pub fn performed(&self) -> impl Iterator<Item = (ServiceAction, u64)> + '_ {
        self.performed.counted()
    }

    /// Returns the security token of a nexus, which the proof of the method CAPKEY covers.
    pub(super) fn token(&self, nexus: u64) -> [u8; TOKEN_BYTES] {
        self.tokens.lock().get(&nexus).copied().unwrap_or_default()
    }

    /// Returns what the unit reports about itself in a session.
    pub(super) fn description(&self, nexus: u64) -> Description<'_> {
        let settings = self.security().settings();
        Description {
            primary: &self.primary,
            system: settings.system,
            least: settings.least,
            token: self.token(nexus),
            serves: Box::new(|action| self.store().serves(action)),
        }
    }
}
