//! The state of one range at a gateway: its token, its uses, and the progress of its release.

use std::collections::VecDeque;

use crate::token::{CoherenceToken, Grant, Millis};

/// Identifies a use that waits, or that has begun after a wait.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct CoherenceTicket(pub u64);

/// What a gateway knows of one range, and which uses of it there are.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) struct HolderRangeState {
    pub(crate) held: Option<(CoherenceToken, Grant)>,
    /// Number of uses in progress.
    pub(crate) uses: u32,
    pub(crate) stop: CoherenceReleaseStep,
    /// The token that is requested, with the number of the request.
    pub(crate) wanted: Option<(CoherenceToken, u64)>,
    /// A grant that was recalled before it arrived and was released. This grant and earlier ones are not accepted any
    /// more.
    pub(crate) refused: Grant,
    pub(crate) waiting: VecDeque<(CoherenceTicket, CoherenceToken)>,
    pub(crate) used: Millis,
}

/// The progress of a release.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum CoherenceReleaseStep {
    /// The range may be used.
    No,
    /// Uses in progress have to end.
    Ending { keeps: bool },
    /// The caller cleans the range.
    Cleaning { keeps: bool },
    /// The node has to answer the release.
    Releasing { keeps: bool },
}

impl HolderRangeState {
    pub(crate) fn new(now: Millis) -> Self {
        Self {
            held: None,
            uses: 0,
            stop: CoherenceReleaseStep::No,
            wanted: None,
            refused: UNCONFIRMED,
            waiting: VecDeque::new(),
            used: now,
        }
    }

    /// Returns true if the node has confirmed such a token and it is not being released.
    pub(crate) fn may_use(&self, token: CoherenceToken) -> bool {
        let is_confirmed = self.held.is_some_and(|(_, grant)| grant != UNCONFIRMED);
        self.stop == CoherenceReleaseStep::No && is_confirmed && self.has(token)
    }

    pub(crate) fn has(&self, token: CoherenceToken) -> bool {
        self.held.is_some_and(|(held, _)| held >= token)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.held.is_none()
            && self.uses == 0
            && self.stop == CoherenceReleaseStep::No
            && self.wanted.is_none()
            && self.refused == UNCONFIRMED
            && self.waiting.is_empty()
    }
}

/// The grant of a range that the gateway held before it started: the node has to confirm it.
pub(crate) const UNCONFIRMED: Grant = Grant(0);
