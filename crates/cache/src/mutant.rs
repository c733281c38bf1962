//! Deliberate faults (mutants). A test switches one on and must detect it. They exist only with the feature
//! `mutation`.

/// A fault that a test can switch on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mutant {
    /// Fault to detect: destage sends pages from memory, although they may be newer than the content in the log.
    DestageUnlogged,
    /// Fault to detect: a destage round ignores locks that bypassing calls hold on slots.
    RoundIgnoresClaims,
    /// Fault to detect: a bypassing call does not wait for older content that is on its way to the log or to the lower
    /// volume.
    BypassDoesNotWait,
    /// Fault to detect: a bypassing write that covers a part of a slot does not first destage the dirty sectors of the
    /// other part.
    BypassDropsTheRest,
    /// Fault to detect: the lower volume is not flushed after a bypassing discard.
    BypassNotFlushed,
    /// Fault to detect: the flush after a bypassing discard succeeds although the flush of another call has lost
    /// something since.
    BypassIgnoresLosses,
    /// Fault to detect: no record voids the older log content of slots that a bypassing write or discard has changed.
    BypassNotRecorded,
    /// Fault to detect: the log record that voids older content is written before the bypassing write is stable in the
    /// lower volume.
    BypassRecordedFirst,
    /// Fault to detect: a bypassing write is acknowledged before the log record that voids older content is stable.
    BypassAnsweredEarly,
    /// Fault to detect: a bypassing write may get into the same epoch of the lower volume as the writes of a destage
    /// round.
    BypassTakesNoTurn,
    /// Fault to detect: long discards bypass the log although the order is strict.
    DiscardOvertakes,
    /// Fault to detect: a requested drain returns when the log has everything, and does not wait for the lower volume.
    DrainDoesNotWait,
    /// Fault to detect: a read returns data that is not stable yet.
    ReadTellsEarly,
    /// Fault to detect: the read tier keeps its copies of overwritten blocks.
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
