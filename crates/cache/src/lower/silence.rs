//! Wraps the lower volume and measures how long it has not answered.
//!
//! A call that is lost on a broken link ends only when a layer below times out, which may take longer than
//! hosts wait. The cache uses the measured time to refuse calls earlier, with BUSY.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;
use volume::{
    Allocation, Data, Durability, EpochRollback, Error, Extensions, Extent, FlushBegunCallback,
    Geometry, Holding, Io, Lba, OrderedFlush, Provisioning, Stack, ThinSpaceUsage, TimeHistogram,
    Volume,
};

use crate::statistics::AllTimes;

/// Passes every call to the lower volume, and records the time of the last answer.
pub(crate) struct SilenceWatch {
    lower: Stack,
    times: Arc<AllTimes>,
    silence: Mutex<Silence>,
    /// The error with which the lower volume has refused the claim, once it has done so.
    fenced: OnceLock<Error>,
}

struct Silence {
    /// Number of calls that the lower volume has not answered yet.
    asked: usize,
    /// The time of the last answer, or that of the first unanswered call if this is later.
    since: Instant,
    /// The start of the present outage: `since` as it was when the first call of a series failed with an error
    /// that may pass by itself. `None` after any other answer.
    outage: Option<Instant>,
}

impl Silence {
    /// Notes an answer. A call that fails after a long wait has shown nothing but the outage, so the outage
    /// began before that wait.
    fn note<T>(&mut self, answer: &Result<T, Error>, now: Instant) {
        let is_away = matches!(answer, Err(error) if error.may_pass());
        self.outage = is_away.then(|| self.outage.unwrap_or(self.since));
        self.since = now;
    }
}

impl SilenceWatch {
    pub fn new(lower: Stack, times: Arc<AllTimes>) -> Self {
        let silence = Mutex::new(Silence { asked: 0, since: Instant::now(), outage: None });
        Self { lower, times, silence, fenced: OnceLock::new() }
    }

    /// Returns true if calls are waiting and the lower volume has answered none for [`LONGEST_SILENCE`].
    pub fn is_silent(&self) -> bool {
        self.silence().is_some()
    }

    /// Returns the time since the last answer if calls are waiting and it is [`LONGEST_SILENCE`] or more.
    pub fn silence(&self) -> Option<Duration> {
        let silence = self.silence.lock();
        let elapsed = silence.since.elapsed();
        (silence.asked > 0 && elapsed >= LONGEST_SILENCE).then_some(elapsed)
    }

    /// Returns the start of the present outage, if the last answer was an error that may pass by itself.
    pub fn outage(&self) -> Option<Instant> {
        self.silence.lock().outage
    }

    /// Returns the error for good once this cache is fenced: the lower volume may have newer data than the
    /// cache, for reads as well as for writes.
    pub fn check(&self) -> Result<(), Error> {
        self.fenced.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Returns whether the lower volume has granted this cache the exclusive right to write it (claim).
    pub fn holding(&self) -> Holding {
        self.lower.extensions().holding()
    }

    /// Fails all later calls if the lower volume has refused the claim, since another log may now write the volume.
    pub fn look_at_claim(&self) {
        if let Holding::Refused(reason) = self.holding() {
            self.fence(&Error::Fenced(reason));
        }
    }

    pub fn fence(&self, error: &Error) {
        if self.fenced.set(error.clone()).is_ok() {
            tracing::error!(
                %error,
                remedy = "keep the log; `forebay claim show` at the node names the owner of the \
                 volume; see docs/reference/claims.md#refused-logs",
                "the cache is fenced and refuses all calls; dirty data stays in its log"
            );
        }
    }

    async fn ask<T>(&self, call: Io<'_, T>, times: &TimeHistogram) -> Result<T, Error> {
        let asked = WatchedCall::begin(self);
        let begun = Instant::now();
        let answer = call.await;
        let now = Instant::now();
        times.add(now - begun, 1);
        asked.watch.silence.lock().note(&answer, now);
        if let Err(error @ Error::Fenced(_)) = &answer {
            self.fence(error);
        }
        answer
    }
}

/// A call in progress. If it is dropped early, it does not count as answered.
struct WatchedCall<'a> {
    watch: &'a SilenceWatch,
}

impl<'a> WatchedCall<'a> {
    fn begin(watch: &'a SilenceWatch) -> Self {
        let mut silence = watch.silence.lock();
        if silence.asked == 0 {
            silence.since = Instant::now();
        }
        silence.asked += 1;
        Self { watch }
    }
}

impl Drop for WatchedCall<'_> {
    fn drop(&mut self) {
        self.watch.silence.lock().asked -= 1;
    }
}

impl Volume for SilenceWatch {
    fn geometry(&self) -> Geometry {
        self.lower.geometry()
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        Io::new(self.ask(self.lower.read(extent), &self.times.lower_reads))
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        Io::new(self.ask(self.lower.write(lba, data, durability), &self.times.lower_writes))
    }

    fn flush(&self) -> Io<'_, ()> {
        Io::new(self.ask(self.lower.flush(), &self.times.lower_flushes))
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        Io::new(self.ask(self.lower.discard(extent), &self.times.lower_discards))
    }

    fn admit(&self, bytes: usize) -> Result<(), Error> {
        self.lower.admit(bytes)
    }

    fn extensions(&self) -> Extensions<'_> {
        let below = self.lower.extensions();
        Extensions {
            provisioning: below.provisioning.and(Some(self)),
            rollback: below.rollback.and(Some(self)),
            ordered_flush: below.ordered_flush.and(Some(self)),
            ..below
        }
    }
}

impl Provisioning for SilenceWatch {
    fn allocation(&self, extent: Extent) -> Io<'_, Allocation> {
        Io::new(self.ask(self.lower.extensions().allocation(extent), &self.times.lower_others))
    }

    fn usage(&self) -> Option<ThinSpaceUsage> {
        self.lower.extensions().usage()
    }
}

impl EpochRollback for SilenceWatch {
    fn roll_back(&self) -> Io<'_, ()> {
        Io::new(self.ask(self.lower.extensions().roll_back(), &self.times.lower_others))
    }
}

impl OrderedFlush for SilenceWatch {
    fn flush_ahead<'a>(&'a self, begun: FlushBegunCallback<'a>) -> Io<'a, ()> {
        Io::new(self.ask(volume::flush_ahead(&*self.lower, begun), &self.times.lower_flushes))
    }
}

/// Far longer than a working link and disk need for an answer, and far shorter than the 30 s after which
/// hosts abort a command.
const LONGEST_SILENCE: Duration = Duration::from_millis(1500);

#[cfg(test)]
mod tests {
    use sim::AbilityProbe;

    use super::*;

    #[tokio::test]
    async fn every_optional_call_is_passed_to_the_lower_volume() {
        let lower = Arc::new(AbilityProbe::new(Geometry::with_blocks(64)));
        let watch = SilenceWatch::new(lower.clone(), Arc::default());
        let arrived = lower.calls_through(&watch).await;
        let all = [
            "flush_ahead",
            "roll_back",
            "read_flushed",
            "allocation",
            "usage",
            "erase_key",
            "admit",
            "examine",
            "divergent",
            "make_equal",
            "refresh",
            "claim",
            "holding",
            "release",
            "send_requests",
            "receive_answers",
            "most_calls",
        ];
        assert_eq!(arrived, all);
    }
}
