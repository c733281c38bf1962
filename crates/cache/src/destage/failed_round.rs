//! Failed destage rounds: the event that reports a failure, and the pause before the next attempt.

use std::{collections::HashSet, mem::Discriminant, time::Duration};

use volume::Error;

use crate::{core::CacheCore, slots::table::LogAddress};

pub(crate) struct RoundFailure {
    pub error: Error,
    /// True if the lower volume failed to make stable what the round had sent.
    pub at_flush: bool,
    /// True if everything of the epoch that could be read from the log was sent, and is stable in the lower volume.
    pub is_sent: bool,
}

impl RoundFailure {
    /// Returns true if the lower volume was reset after the round had written to it, or if its device fails.
    fn is_reset(&self) -> bool {
        self.at_flush && matches!(self.error, Error::Device(_))
    }
}

impl From<Error> for RoundFailure {
    fn from(error: Error) -> Self {
        Self { error, at_flush: false, is_sent: false }
    }
}

/// The failures of rounds since the last round that succeeded, and the last pause between two attempts.
#[derive(Default)]
pub(crate) struct FailedRounds {
    /// The pause before the latest attempt.
    delay: Option<Duration>,
    /// The kinds of errors that events have reported since the last round that succeeded.
    told: Vec<Discriminant<Error>>,
    /// True if the flush of the last round failed with [`Error::Device`].
    was_reset: bool,
    /// Slot and segment of each place that an event has named as unreadable since the last round that succeeded.
    named: HashSet<(u64, u64)>,
}

/// The event that reports a failed destage round.
#[derive(Debug, Eq, PartialEq)]
enum RoundFailureEvent {
    /// The far volume was reset before the flush: the round is sent again, and nothing is lost.
    SentAgain,
    /// The destage round failed in a way in which no round has failed since the last one that succeeded.
    Failed,
    /// The destage round failed in a way in which a round has failed before, and an event has reported that failure.
    StillFails,
}

impl FailedRounds {
    /// Records a failed round. Returns the event to report and the pause before the next attempt.
    fn note(&mut self, failed: &RoundFailure) -> (RoundFailureEvent, Duration) {
        let is_reset = failed.is_reset();
        let was_reset = std::mem::replace(&mut self.was_reset, is_reset);
        // A remote volume reports a reset once, to the first flush after the reset, so a repeated round should succeed.
        if is_reset && !was_reset {
            self.delay = Some(FIRST_DELAY);
            return (RoundFailureEvent::SentAgain, FIRST_DELAY);
        }
        // Count all errors that may pass as one kind: a far volume that does not answer fails calls with one
        // error before they were sent and with another one after that.
        let passing = Error::Busy("");
        let kind = if failed.error.may_pass() { &passing } else { &failed.error };
        let kind = std::mem::discriminant(kind);
        let is_known = self.told.contains(&kind);
        if !is_known {
            self.told.push(kind);
        }
        let delay = self.delay.map_or(FIRST_DELAY, |delay| (delay * 2).min(LAST_DELAY));
        self.delay = Some(delay);
        (if is_known { RoundFailureEvent::StillFails } else { RoundFailureEvent::Failed }, delay)
    }

    /// Returns the unreadable places that were not named before, and records that they are named now.
    pub fn unnamed(&mut self, unreadable: &[(u64, LogAddress)]) -> Vec<(u64, LogAddress)> {
        let mut unnamed = unreadable.to_vec();
        unnamed.retain(|(slot, place)| self.named.insert((*slot, place.segment)));
        unnamed
    }

    /// Records that a round has succeeded. Returns true if an event had reported a failure.
    pub fn end(&mut self) -> bool {
        !std::mem::take(self).told.is_empty()
    }
}

/// Reports a failed round, each kind of failure once. Returns the pause before the next attempt.
pub(crate) fn tell(
    shared: &CacheCore,
    trouble: &mut FailedRounds,
    failed: RoundFailure,
) -> Duration {
    let (word, delay) = trouble.note(&failed);
    let is_broken = failed.is_reset() && word != RoundFailureEvent::SentAgain;
    let error = failed.error;
    match word {
        RoundFailureEvent::SentAgain => {
            // The error says that the far volume may have lost writes of any initiator. The writes of this cache
            // are still in its log.
            tracing::debug!(%error, "the flush of a round failed");
            tracing::info!(
                "the far volume did not make a destage round stable: the whole round is sent \
                 again, and no data is lost"
            );
        }
        RoundFailureEvent::Failed => {
            tracing::warn!(
                %error,
                remedy = "nothing has to be done unless it lasts: `forebay status` shows the reason; \
                 remove it at the node or the link",
                "destage has failed: the round is repeated until it succeeds"
            );
        }
        RoundFailureEvent::StillFails => tracing::debug!(%error, "destage still fails"),
    }
    if is_broken {
        shared.note_round::<()>(&Err(error));
    }
    delay
}

/// First pause after the lower volume has failed a destage round. The pause doubles up to [`LAST_DELAY`].
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// Longest pause between two attempts of a destage round.
const LAST_DELAY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lasting_failure_is_reported_once_and_a_single_reset_is_not_reported() {
        let mut trouble = FailedRounds::default();
        let away = RoundFailure::from(Error::Unreachable("the link is down".into()));
        let reset = RoundFailure {
            error: Error::Device("it has restarted".into()),
            at_flush: true,
            is_sent: false,
        };
        assert_eq!(trouble.note(&away), (RoundFailureEvent::Failed, FIRST_DELAY));
        for _ in 0..100 {
            assert_eq!(trouble.note(&away).0, RoundFailureEvent::StillFails);
        }
        assert_eq!(trouble.note(&away).1, LAST_DELAY);
        let unsent = RoundFailure::from(Error::Away("the link is down".into()));
        assert_eq!(
            trouble.note(&unsent).0,
            RoundFailureEvent::StillFails,
            "it is away all the same"
        );
        assert_eq!(
            trouble.note(&reset),
            (RoundFailureEvent::SentAgain, FIRST_DELAY),
            "and it costs no 5 s"
        );
        assert!(trouble.end(), "the end of the failure is reported");
        assert_eq!(trouble.note(&reset), (RoundFailureEvent::SentAgain, FIRST_DELAY));
        assert_eq!(
            trouble.note(&reset).0,
            RoundFailureEvent::Failed,
            "a device that fails again is broken"
        );
        assert_eq!(trouble.note(&reset).0, RoundFailureEvent::StillFails);
        assert!(trouble.end() && !trouble.end());
        let log = RoundFailure::from(Error::Device("the log disk is broken".into()));
        assert_eq!(
            trouble.note(&log).0,
            RoundFailureEvent::Failed,
            "it is not the far volume that fails"
        );
    }
}
