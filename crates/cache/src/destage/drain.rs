//! Drains the log up to some segment, without waiting for idle periods.

use volume::Error;

use crate::{core::CacheCore, mutant::Mutant};

impl CacheCore {
    /// Waits until the segments up to `number` have been destaged. Returns [`Error::Busy`] at once if destage
    /// is held, or when the cache stops.
    pub async fn drain_to(&self, number: u64) -> Result<(), Error> {
        let _draining = Draining::begin(self);
        self.wait_until(|state| {
            if !state.log.ring.reaches_back_to(number) || self.mutation.is(Mutant::DrainDoesNotWait)
            {
                return Some(Ok(()));
            }
            let stopping = state.destage.is_stopping.then_some("the cache is stopping");
            stopping.or(state.destage.orders.hold()).map(|why| Err(Error::Busy(why)))
        })
        .await
    }
}

/// A drain in progress. Until this is dropped, destage does not wait for idle periods.
struct Draining<'a>(&'a CacheCore);

impl<'a> Draining<'a> {
    fn begin(shared: &'a CacheCore) -> Self {
        shared.state.lock().destage.draining += 1;
        shared.signals.wake_destage.notify_one();
        Self(shared)
    }
}

impl Drop for Draining<'_> {
    fn drop(&mut self) {
        self.0.state.lock().destage.draining -= 1;
    }
}
