//! The health of the lower volume, judged by the results of the calls to it.

use tokio::time::Instant;
use volume::Error;

pub(crate) struct LowerState {
    /// The error of the last call to the lower volume, if that call failed.
    pub error: Option<Error>,
    /// The start of the current series of failed calls.
    pub fails_since: Option<Instant>,
    /// The time since which the lower volume has refused destage rounds, and its error. Only a completed
    /// round clears this field, since other calls may succeed meanwhile.
    pub refuses: Option<(Instant, Error)>,
    /// True if the lower volume may hold writes that no flush has made stable.
    pub is_unflushed: bool,
}

impl LowerState {
    /// Starts with `is_unflushed` set: an earlier opening of the cache may have left unflushed writes in
    /// the lower volume.
    pub fn new() -> Self {
        Self { error: None, fails_since: None, refuses: None, is_unflushed: true }
    }

    pub fn note_success(&mut self) {
        (self.error, self.fails_since) = (None, None);
    }

    /// Records that a call has failed. A series of failures continues as long as all of its errors may pass
    /// by themselves, or none of them. A new series begins at `outage`, otherwise now.
    pub fn note_error(&mut self, error: &Error, outage: Option<Instant>) {
        let before = self.error.replace(error.clone());
        let goes_on = before.is_some_and(|before| before.may_pass() == error.may_pass());
        let since = self.fails_since.filter(|_| goes_on);
        self.fails_since = since.or(outage).or_else(|| Some(Instant::now()));
    }

    /// Records that the lower volume has refused a destage round.
    pub fn note_refusal(&mut self, error: &Error) {
        let since = self.refuses.take().map_or_else(Instant::now, |(since, _)| since);
        self.refuses = Some((since, error.clone()));
    }
}
