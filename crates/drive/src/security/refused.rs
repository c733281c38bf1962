//! The reasons for which commands are refused, and counters of them.

use std::sync::atomic::{AtomicU64, Ordering};

use object::ObjectError;
use osd::Refusal;

macro_rules! reasons {
    ($($name:ident = $text:literal,)*) => {
        /// The reasons for which the check of a capability refuses a command.
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        pub enum RefusedReason {
            $($name,)*
        }

        impl RefusedReason {
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the name of the reason in `forebay status --json`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

reasons! {
    Capability = "capability",
    Method = "method",
    Key = "key",
    Integrity = "integrity",
    DataIntegrity = "data_integrity",
    NonceRepeated = "nonce_repeated",
    NonceTime = "nonce_time",
    Expired = "expired",
    Object = "object",
    Range = "range",
    Permissions = "permissions",
    CreatedTime = "created_time",
    PolicyTag = "policy_tag",
    BootEpoch = "boot_epoch",
    Audit = "audit",
    FrozenKey = "frozen_key",
    Lists = "lists",
}

/// A command that the check of its capability refused, or could not check.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Refused {
    Capability(RefusedReason, Refusal),
    /// The store failed, or the object does not exist.
    Store(ObjectError),
}

impl Refused {
    /// Returns a refusal with INVALID FIELD IN CDB that points to a byte of the CDB.
    #[must_use]
    pub const fn at(reason: RefusedReason, byte: usize) -> Self {
        Self::Capability(reason, Refusal::Field(byte as u16))
    }
}

impl From<ObjectError> for Refused {
    fn from(error: ObjectError) -> Self {
        Self::Store(error)
    }
}

/// Number of refused commands for each reason.
#[derive(Debug, Default)]
pub struct RefusedCounters([AtomicU64; RefusedReason::ALL.len()]);

impl RefusedCounters {
    pub fn count(&self, refused: &Refused) {
        if let Refused::Capability(reason, _) = refused {
            self.0[*reason as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the reasons that have occurred, and how often.
    pub fn counted(&self) -> impl Iterator<Item = (RefusedReason, u64)> + '_ {
        let counts = RefusedReason::ALL
            .iter()
            .map(|reason| (*reason, self.0[*reason as usize].load(Ordering::Relaxed)));
        counts.filter(|(_, count)| *count > 0)
    }
}
