//! Faults on purpose, for the tests that have to notice them. Without the feature `mutation` there
//! are none.

/// One thing that is done wrong.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mutant {
    /// Destage takes pages as they are, though they may be newer than what the log holds.
    DestageUnlogged,
    /// A round does not ask whether a call that goes past the log has claimed a slot.
    RoundIgnoresClaims,
    /// What goes past the log does not wait for older content that is on its way to the log or down.
    BypassDoesNotWait,
    /// Dirty sectors of a slot do not go down before a write past the log that covers the slot in part.
    BypassDropsTheRest,
    /// A discard past the log is not flushed.
    BypassNotFlushed,
    /// A flush behind a discard past the log succeeds though another's has lost something since.
    BypassIgnoresLosses,
    /// Nothing in the log voids what is older than a write or discard that went past it.
    BypassNotRecorded,
    /// The record that voids it is there before what it tells of is stable in the lower volume.
    BypassRecordedFirst,
    /// The host is told before that record is stable.
    BypassAnsweredEarly,
    /// What goes past the log shares an epoch of the lower volume with a round.
    BypassTakesNoTurn,
    /// Long discards overtake the log where nothing may.
    DiscardOvertakes,
    /// A drain that is asked for returns when the log has everything.
    DrainDoesNotWait,
    /// A read is answered with what is not stable yet.
    ReadTellsEarly,
    /// The read tier keeps what it has of blocks that are written.
    #[cfg(feature = "mutation")]
    TierKeepsOverwritten,
}

/// What is done wrong now, if anything.
#[derive(Default)]
pub(crate) struct Mutation {
    #[cfg(feature = "mutation")]
    mutant: parking_lot::Mutex<Option<Mutant>>,
}

impl Mutation {
    /// Begins to do something wrong.
    #[cfg(feature = "mutation")]
    pub fn begin(&self, mutant: Mutant) {
        *self.mutant.lock() = Some(mutant);
    }

    /// Whether this is done wrong.
    #[cfg(feature = "mutation")]
    pub fn is(&self, mutant: Mutant) -> bool {
        *self.mutant.lock() == Some(mutant)
    }

    /// Nothing is.
    #[cfg(not(feature = "mutation"))]
    pub const fn is(&self, _: Mutant) -> bool {
        false
    }
}
