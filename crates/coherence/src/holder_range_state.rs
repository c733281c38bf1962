//! The state of one range at a gateway: its token, its uses, and the progress of its release.

use std::collections::VecDeque;

use crate::{
    message::CoherenceRequest,
    token::{CoherenceRange, CoherenceToken, Grant, Millis},
};

/// Identifies a use of a range that waits for a token, or that has begun after such a wait.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct CoherenceTicket(pub u64);

/// The work that the caller has to do before a range is released. It destages the dirty data, flushes it at the node,
/// and makes sure that the log does not replay any of it after a crash. (This must be stable as well: otherwise a
/// replay would overwrite newer writes of other gateways.) Then it drops the cached data of the range, unless `keeps`
/// is set.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Cleaning {
    pub range: CoherenceRange,
    /// True if dirty data of the range may exist, and must be destaged.
    pub writes_back: bool,
    /// True if clean cached data of the range stays valid.
    pub keeps: bool,
}

/// The state of one range at a gateway: its token, its uses and the progress of its release.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) struct HolderRangeState {
    pub(crate) held: Option<(CoherenceToken, Grant)>,
    pub(crate) uses: u32,
    pub(crate) stop: CoherenceReleaseStep,
    /// The token that is requested, with the number of the request.
    pub(crate) wanted: Option<(CoherenceToken, u64)>,
    /// The highest grant that was recalled before it arrived. This grant and earlier ones are not accepted when they
    /// arrive.
    pub(crate) refused: Grant,
    pub(crate) waiting: VecDeque<(CoherenceTicket, CoherenceToken)>,
    pub(crate) used: Millis,
}

/// How far the release of a range's token has come.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) enum CoherenceReleaseStep {
    /// The range is not being released, and may be used.
    No,
    /// The release waits until the reads and writes in progress have ended.
    Ending { keeps: bool },
    /// The release waits until the caller has cleaned the range.
    Cleaning { keeps: bool },
    /// The release was sent, and waits for the answer of the node.
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

    /// Returns true if the node has confirmed `token` or a greater one and the range is not being released.
    pub(crate) fn may_use(&self, token: CoherenceToken) -> bool {
        let is_confirmed = self.held.is_some_and(|(_, grant)| grant != UNCONFIRMED);
        self.stop == CoherenceReleaseStep::No && is_confirmed && self.has(token)
    }

    pub(crate) fn has(&self, token: CoherenceToken) -> bool {
        self.held.is_some_and(|(held, _)| held >= token)
    }

    pub(crate) fn is_unused(&self) -> bool {
        self.stop == CoherenceReleaseStep::No && self.uses == 0
    }

    /// Returns the Acquire and Release requests for this range that the node has not answered.
    pub(crate) fn unanswered(
        &self,
        life: u64,
        range: CoherenceRange,
    ) -> impl Iterator<Item = CoherenceRequest> + use<> {
        let release = match (self.stop, self.held) {
            (CoherenceReleaseStep::Releasing { keeps }, Some((_, grant))) => {
                Some(CoherenceRequest::Release { life, range, grant, keeps })
            }
            _ => None,
        };
        let refused = (self.refused != UNCONFIRMED).then_some(CoherenceRequest::Release {
            life,
            range,
            grant: self.refused,
            keeps: false,
        });
        let acquire = self.wanted.map(|(token, number)| CoherenceRequest::Acquire {
            life,
            range,
            token,
            number,
        });
        release.into_iter().chain(refused).chain(acquire)
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

/// The grant of a range that the gateway held before it started: valid only after the node has confirmed it.
pub(crate) const UNCONFIRMED: Grant = Grant(0);
