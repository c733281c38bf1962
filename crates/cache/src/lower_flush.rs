//! The health of the lower volume, its flushes, and data that it may have lost between them.

use std::{sync::atomic::Ordering, time::Duration};

use volume::{Error, FlushBegunCallback, Volume};

use crate::{core::CacheCore, mutant::Mutant, state::CacheState};

/// The current failure of the lower volume.
#[derive(Debug, Default)]
pub(crate) struct LowerVolumeTrouble {
    /// How long every call has failed with an error that may pass by itself, or has had no answer.
    pub away: Option<Duration>,
    /// True if `away` is set only because an answer is missing, and no call has failed. During a slow flush this is so.
    pub is_silent: bool,
    /// How long the lower volume has refused destage with an error that does not pass by itself.
    pub refuses: Option<Duration>,
    pub error: Option<String>,
}

impl CacheCore {
    /// Returns true if the lower volume does not answer, as far as is known.
    pub fn is_away(&self, state: &CacheState) -> bool {
        state.lower.error.as_ref().is_some_and(Error::may_pass) || self.lower.volume.is_silent()
    }

    /// Returns whether the lower volume is silent or fails calls at this moment, and since when.
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

    /// Records how a call to the lower volume ended.
    pub fn note_lower<T>(&self, result: &Result<T, Error>) {
        match result {
            Ok(_) => {
                self.state.lock().lower.note_success();
            }
            Err(error) => {
                self.counters.lower.errors.add(1);
                let outage = self.lower.volume.outage();
                self.state.lock().lower.note_error(error, outage);
            }
        }
    }

    /// Records how a call of a destage round ended. An error that does not pass by itself is kept until a
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

    /// Makes stable what the caller has written to the lower volume since it called
    /// [`LowerVolume::known_losses`](crate::core::LowerVolume::known_losses), which returned `losses`. Fails
    /// if data may have been lost since then.
    ///
    /// A remote volume that has lost unflushed writes reports that to one flush only, and the next flush
    /// succeeds. Destage rounds and bypassing writes flush on their own. A failed flush therefore counts as a
    /// loss for all callers that have written before it, not only for the one that got the error.
    pub async fn flush_lower(&self, losses: u64) -> Result<(), Error> {
        let _turn = self.lower.flush_turn.lock().await;
        let flushed = self.lower.volume.flush().await;
        self.check_flushed(flushed, losses)
    }

    /// Flushes like [`Self::flush_lower`], and calls `begun` when later writes are sure to come after the
    /// flush: see [`volume::OrderedFlush`].
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
            return Err(Error::Device(
                "the far volume may have lost writes that were not flushed".into(),
            ));
        }
        Ok(())
    }

    /// Counts a failed flush as a loss for all callers that have written before it.
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

    /// Makes stable what the lower volume held when the cache was opened. Call this before a read. If a
    /// process is killed during a bypassing write, this write may be in the lower volume but not stable. A
    /// host that reads it now relies on it, so it must not be lost later.
    pub async fn make_lower_stable(&self) -> Result<(), Error> {
        // A lower volume with atomic epochs does not need this: there, an unfinished epoch is rolled back. A
        // flush could end an epoch in the middle of a round.
        if self.lower.is_stable.load(Ordering::Acquire) || self.is_atomic_below() {
            return Ok(());
        }
        let _turn = self.lower.flush_turn.lock().await;
        let mut flushed = self.flush_in_turn().await;
        for _ in 1..LOSSES {
            // The volume reports each loss once, so flush again. The loss itself does not matter here: this
            // read returns whatever is there.
            if !matches!(flushed, Err(Error::Device(_))) {
                break;
            }
            flushed = self.flush_in_turn().await;
        }
        flushed?;
        self.lower.is_stable.store(true, Ordering::Release);
        Ok(())
    }

    /// Rolls the lower volume back to its last flush, if writes of an unfinished round may be there.
    pub async fn roll_back_lower(&self) -> Result<(), Error> {
        let _turn = self.lower.flush_turn.lock().await;
        if self.state.lock().lower.is_unflushed {
            let rolled_back = self.lower.volume.extensions().roll_back().await;
            // The loss counter makes the writers since the last flush send their data again.
            self.lower.count_loss();
            self.note_lower(&rolled_back);
            rolled_back?;
            self.state.lock().lower.is_unflushed = false;
        }
        Ok(())
    }
}

/// Number of losses in a row after which the lower volume counts as broken. A restart of the node costs one loss, and
/// takes seconds.
const LOSSES: u32 = 8;
