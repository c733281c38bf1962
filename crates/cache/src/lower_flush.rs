//! The volume below: whether it answers, its flushes, and what it has lost between them.

use std::{sync::atomic::Ordering, time::Duration};

use volume::{Error, FlushBegunCallback, Volume};

use crate::{core::CacheCore, mutant::Mutant, state::CacheState};

/// The present failure of the lower volume.
#[derive(Debug, Default)]
pub(crate) struct LowerVolumeTrouble {
    /// How long every call has failed with an error that may pass by itself, or has had no answer.
    pub away: Option<Duration>,
    /// `away` is set only because an answer is missing: no call has failed. A slow flush looks like this.
    pub is_silent: bool,
    /// How long the lower volume has refused destage with an error that does not pass by itself.
    pub refuses: Option<Duration>,
    /// The text of the error.
    pub error: Option<String>,
}

impl CacheCore {
    /// Returns true if the lower volume does not answer, as far as is known.
    pub fn is_away(&self, state: &CacheState) -> bool {
        state.lower.error.as_ref().is_some_and(Error::may_pass) || self.lower.volume.is_silent()
    }

    /// Returns how the lower volume fails now.
    pub fn trouble_below(&self, state: &CacheState) -> LowerVolumeTrouble {
        let silence = self.lower.volume.silence();
        let failing = state.lower.fails_since.map(|since| since.elapsed());
        let passing = state.lower.error.as_ref().filter(|error| error.may_pass());
        let away = match (passing, failing) {
            (Some(_), Some(failing)) => Some(failing.max(silence.unwrap_or_default())),
            _ => silence,
        };
        let refuses = state.lower.refuses.as_ref();
        let error = passing.or(refuses.map(|(_, error)| error)).or(state.lower.error.as_ref());
        let no_answer = || away.map(|_| "no answer".to_owned());
        LowerVolumeTrouble {
            away,
            is_silent: away.is_some() && passing.is_none(),
            refuses: refuses.map(|(since, _)| since.elapsed()),
            error: error.map(ToString::to_string).or_else(no_answer),
        }
    }

    /// Notes how a call to the lower volume ended.
    pub fn note_lower<T>(&self, result: &Result<T, Error>) {
        match result {
            Ok(_) => {
                self.state.lock().lower.note_success();
            }
            Err(error) => {
                self.counters.lower.errors.add(1);
                self.state.lock().lower.note_error(error);
            }
        }
    }

    /// Notes how a call of a destage round ended. An error that does not pass by itself stays noted until a
    /// round completes.
    pub fn note_round<T>(&self, result: &Result<T, Error>) {
        self.note_lower(result);
        if let Err(error) = result
            && !error.may_pass()
            && !matches!(error, Error::Fenced(_))
        {
            self.state.lock().lower.note_refusal(error);
        }
    }

    /// Makes stable what the caller has written to the lower volume since `losses` was noted.
    ///
    /// A remote volume that lost unflushed writes tells one flush, and the next succeeds. The
    /// round and every bypassed write flush on their own; so that none takes another's bad news
    /// away, a failed flush counts against all who have written before it.
    pub async fn flush_lower(&self, losses: u64) -> Result<(), Error> {
        let _turn = self.lower.flush_turn.lock().await;
        let flushed = self.lower.volume.flush().await;
        self.check_flushed(flushed, losses)
    }

    /// Does the same, and calls `begun` when later writes come after the flush: see [`volume::OrderedFlush`].
    pub async fn flush_lower_ahead(
        &self,
        losses: u64,
        begun: FlushBegunCallback<'_>,
    ) -> Result<(), Error> {
        let _turn = self.lower.flush_turn.lock().await;
        let flushed = volume::flush_ahead(&self.lower.volume, begun).await;
        self.check_flushed(flushed, losses)
    }

    fn check_flushed(&self, flushed: Result<(), Error>, losses: u64) -> Result<(), Error> {
        self.note_flushed(&flushed);
        flushed?;
        if self.lower.known_losses() != losses && !self.mutation.is(Mutant::BypassIgnoresLosses) {
            return Err(Error::Device("the lower volume may have lost what was written".into()));
        }
        Ok(())
    }

    /// Counts a flush that failed against all who have written before it.
    fn note_flushed(&self, flushed: &Result<(), Error>) {
        if flushed.is_err() {
            self.lower.count_loss();
        }
    }

    /// Flushes the lower volume for the call that holds `flush_turn`.
    async fn flush_in_turn(&self) -> Result<(), Error> {
        let flushed = self.lower.volume.flush().await;
        self.note_flushed(&flushed);
        flushed
    }

    /// Before the first read: makes stable what was there already. A write that went past the log
    /// may be under way when its process is killed. It was not acknowledged, but who reads it now
    /// takes it for kept.
    pub async fn make_lower_stable(&self) -> Result<(), Error> {
        // An epoch of a volume that has them is given up instead, and may be under way now.
        if self.lower.is_stable.load(Ordering::Acquire) || self.is_atomic_below() {
            return Ok(());
        }
        let _turn = self.lower.flush_turn.lock().await;
        let mut flushed = self.flush_in_turn().await;
        for _ in 1..LOSSES {
            // It tells once of each time that it has lost something. Nor is it of importance what others
            // have lost meanwhile: whatever is there is read.
            if !matches!(flushed, Err(Error::Device(_))) {
                break;
            }
            flushed = self.flush_in_turn().await;
        }
        flushed?;
        self.lower.is_stable.store(true, Ordering::Release);
        Ok(())
    }

    /// Has the lower volume give up what a round has left there that did not come to its flush.
    pub async fn roll_back_lower(&self) -> Result<(), Error> {
        let _turn = self.lower.flush_turn.lock().await;
        if self.state.lock().lower.is_unflushed {
            let rolled_back = self.lower.volume.extensions().roll_back().await;
            // Whoever has sent something since the last flush has to send it again.
            self.lower.count_loss();
            self.note_lower(&rolled_back);
            rolled_back?;
            self.state.lock().lower.is_unflushed = false;
        }
        Ok(())
    }
}

/// Losses in a row after which a lower volume is broken rather than started anew: one is what a restart
/// costs, and each takes it seconds.
const LOSSES: u32 = 8;
