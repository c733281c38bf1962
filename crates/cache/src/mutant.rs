//! Deliberate faults (mutants). A test switches one on and must detect it. They exist only with the feature
//! `mutation`.

/// A fault that a test can switch on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mutant {
    /// Destage sends pages from memory, although they may be newer than the content in the log.
    DestageUnlogged,
    /// A destage round ignores locks that bypassing calls hold on slots.
    RoundIgnoresClaims,
    /// A bypassing call does not wait for older content that is on its way to the log or to the lower volume.
    BypassDoesNotWait,
    /// A bypassing write that covers a part of a slot does not first destage the dirty sectors of the other part.
    BypassDropsTheRest,
    /// The lower volume is not flushed after a bypassing discard.
    BypassNotFlushed,
    /// The flush after a bypassing discard succeeds although the flush of another call has lost something
    /// since.
    BypassIgnoresLosses,
    /// No record voids the older log content of slots that a bypassing write or discard has changed.
    BypassNotRecorded,
    /// The log record that voids older content is written before the bypassing write is stable in the lower
    /// volume.
    BypassRecordedFirst,
    /// A bypassing write is acknowledged before the log record that voids older content is stable.
    BypassAnsweredEarly,
    /// A bypassing write may get into the same epoch of the lower volume as the writes of a destage round.
    BypassTakesNoTurn,
    /// Long discards bypass the log although the order is strict.
    DiscardOvertakes,
    /// A requested drain returns when the log has everything, and does not wait for the lower volume.
    DrainDoesNotWait,
    /// A deliberate fault: a read returns data that is not stable yet.
    ReadTellsEarly,
    /// A deliberate fault: the read tier keeps its copies of overwritten blocks.
    #[cfg(feature = "mutation")]
    TierKeepsOverwritten,
}

/// The deliberate fault that is switched on, if any.
#[derive(Default)]
pub(crate) struct Mutation {
    #[cfg(feature = "mutation")]
    mutant: parking_lot::Mutex<Option<Mutant>>,
}

impl Mutation {
    /// Switches on this deliberate fault, and switches off any other.
    #[cfg(feature = "mutation")]
    pub fn begin(&self, mutant: Mutant) {
        *self.mutant.lock() = Some(mutant);
    }

    #[cfg(feature = "mutation")]
    pub fn is(&self, mutant: Mutant) -> bool {
        *self.mutant.lock() == Some(mutant)
    }

    /// Returns false: without the feature `mutation` no deliberate faults exist.
    #[cfg(not(feature = "mutation"))]
    pub const fn is(&self, _: Mutant) -> bool {
        false
    }
}
