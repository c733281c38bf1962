//! The lease of a gateway: the time for which the gateway may use its shared tokens.

use crate::token::Millis;

/// The lease of a gateway, according to the gateway's own clock.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) struct HolderLease {
    length: Millis,
    /// The time at which the lease ends. Shared tokens may be used until then.
    until: Millis,
    /// True if the lease was valid at the last check.
    was_valid: bool,
}

impl HolderLease {
    /// Creates a lease that lasts for `length` once it has begun, and is not valid before.
    pub(crate) fn new(length: Millis, now: Millis) -> Self {
        Self { length, until: now, was_valid: false }
    }

    pub(crate) fn length(&self) -> Millis {
        self.length
    }

    pub(crate) fn is_valid(&self, now: Millis) -> bool {
        now < self.until
    }

    /// Extends the lease after the answer to a message that was sent at `sent`. Returns true if the lease was
    /// not valid before.
    pub(crate) fn extend(&mut self, sent: Millis, now: Millis) -> bool {
        self.until = self.until.max(sent.saturating_add(self.length - self.margin()));
        let is_valid = self.is_valid(now);
        let was_valid = std::mem::replace(&mut self.was_valid, is_valid);
        is_valid && !was_valid
    }

    /// Returns true if the lease has ended since the last check.
    pub(crate) fn has_ended(&mut self, now: Millis) -> bool {
        let has_ended = self.was_valid && !self.is_valid(now);
        self.was_valid &= !has_ended;
        has_ended
    }

    pub(crate) fn end(&mut self, now: Millis) {
        (self.until, self.was_valid) = (now, false);
    }

    /// Returns the end of the idle time: an exclusive token that was last used at this time or earlier is given
    /// back.
    pub(crate) fn idle_since(&self, now: Millis) -> Millis {
        now.saturating_sub(self.length.saturating_mul(IDLE_LEASES))
    }

    /// Returns the safety margin of a lease: the clocks of gateway and node may differ by this much.
    fn margin(&self) -> Millis {
        self.length.div_ceil(8)
    }
}

/// Number of leases for which an exclusive token is kept without being used.
const IDLE_LEASES: Millis = 2;
