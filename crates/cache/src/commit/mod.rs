//! Level 1 destage: writes queued data to the log disk, with many writes in one segment (group commit).
//!
//! One segment is written at a time. Writes that arrive meanwhile go together into the next one. The driver
//! task that writes segments is spawned when an entry is queued, and ends when the queue is empty. The driver
//! runs after the task of the connection that has spawned it, so all commands of one batch share a segment,
//! and an aborted command cannot stop it. This costs one task each time that an idle log becomes busy: about
//! a microsecond, compared to some eighty for the disk.

pub(crate) mod segment_builder;

use std::{
    future::Future,
    mem::{Discriminant, discriminant},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::{Instant, sleep};
use volume::{ConditionChange, Data, Durability, Error, Lba};

use crate::{
    commit::segment_builder::Batch,
    core::CacheCore,
    nvram::NvramBuffer,
    rules::AcknowledgedAt,
    slots::pages::scratch_block,
    state::{CacheState, SPLIT_QUIET},
};

impl CacheCore {
    /// Starts the task that writes segments to the log, if an entry waits and the task is not running.
    pub fn start_commit(self: &Arc<Self>, state: &mut CacheState) {
        if !state.queue.is_writing && !state.queue.is_frozen && !state.queue.is_settled() {
            state.queue.is_writing = true;
            tokio::spawn(write_segments(Arc::clone(self)));
        }
    }

    /// Returns true if a write without FUA is acknowledged before it is in the log.
    pub fn acknowledges_early(&self, state: &CacheState) -> bool {
        match self.rules.acknowledged_at {
            AcknowledgedAt::Memory => true,
            AcknowledgedAt::Nvram => state.nvram.as_ref().is_some_and(NvramBuffer::is_sound),
            AcknowledgedAt::Log | AcknowledgedAt::Lower => false,
        }
    }

    /// Waits until every write up to `serial` is in the log, stable.
    pub fn committed(&self, serial: u64) -> Committed<'_> {
        Committed { shared: self, serial, waiter: None }
    }

    /// Seals the data blocks of a segment, if the log is sealed.
    fn seal(&self, batch: &mut Batch) {
        let Some((seals, salt)) = self.log.seals.as_ref().zip(batch.header.salt) else { return };
        let sealer = seals.sealer(batch.header.number, salt);
        batch.seal(&sealer, |fill| scratch_block(&self.log.scratch, fill));
    }

    /// Waits until everything that is queued now is stable in the log. In the mode in which only a flush ends
    /// an epoch, also ends the epoch.
    pub async fn settle(self: &Arc<Self>) -> Result<(), Error> {
        let serial = if self.rules.epochs_end_by_flush {
            self.end_epoch()
        } else {
            self.state.lock().commits.serial
        };
        self.committed(serial).await
    }

    /// Waits until every segment that was in the log at this call is on the log disks. Does nothing for a log
    /// without NVRAMs in front of it, because its segments are on disk already.
    ///
    /// # Errors
    /// The flush of the log has failed, or [`Self::vouch`] has. The NVRAMs still hold the segments.
    pub async fn log_on_disk(self: &Arc<Self>) -> Result<(), Error> {
        if self.settings.log_buffer.is_none() {
            return Ok(());
        }
        let asked = self.state.lock().commits.durable;
        // One flush of the log disk runs at a time. All callers that arrive during a flush share the next one.
        let _turn = self.log.flush_turn.lock().await;
        let reached = {
            let state = self.state.lock();
            if state.commits.logged >= asked {
                return Ok(());
            }
            state.commits.durable
        };
        self.log.volume.flush().await?;
        self.vouch().await?;
        {
            let mut state = self.state.lock();
            state.commits.logged = state.commits.logged.max(reached);
        }
        self.confirm();
        Ok(())
    }

    /// Ends the epoch with the writes that are queued now. Wait for the returned serial: when it is durable,
    /// the log holds the end of the epoch.
    pub fn end_epoch(self: &Arc<Self>) -> u64 {
        let mut state = self.state.lock();
        let serial = state.end_epoch();
        let change = state.log.epochs_split.turn_after(false, SPLIT_QUIET);
        self.start_commit(&mut state);
        drop(state);
        if let Some(ConditionChange::Ends(lasted)) = change {
            tracing::info!(
                lasted_s = lasted.as_secs(),
                "the writes between two flushes fit into the log again: no epoch is split"
            );
        }
        serial
    }
}

async fn write_segments(shared: Arc<CacheCore>) {
    loop {
        let batch = {
            let mut state = shared.state.lock();
            let batch = state.take_batch(&shared.log.identity, shared.rules.epochs_end_by_flush);
            if batch.is_none() {
                state.queue.is_writing = false;
            }
            batch
        };
        let Some(mut batch) = batch else {
            shared.signals.changed.notify_waiters();
            return;
        };
        shared.seal(&mut batch);
        if !write_segment(&shared, &batch).await {
            return;
        }
        shared.counters.log.commits.add(1);
        shared.counters.log.committed_slots.add(batch.slots() as u64);
        let published = {
            let mut state = shared.state.lock();
            let published = state.publish(&batch, shared.rules.epochs_end_by_flush, Instant::now);
            // Record the authentication tags of the blocks of this segment before any read can look for its content.
            if let Some(seals) = &shared.log.seals {
                seals.note(published.start, &batch.header);
            }
            published
        };
        // Raise the confirmed numbers before the cache acknowledges a write that relies on this segment.
        shared.confirm();
        // Drop pages and call wakers without the lock.
        let header = batch.header;
        drop(batch.pages);
        shared.counters.destage.absorbed_slots.add(published.absorbed);
        published.wakers.into_iter().for_each(Waker::wake);
        shared.signals.changed.notify_waiters();
        shared.index_segment(published.start, &header);
        if published.first_dirty {
            shared.signals.wake_destage.notify_one();
        }
    }
}

/// Writes one segment, and repeats that until it succeeds: accepted data is kept while the process lives,
/// although its writers get the error. Returns false if the segment must not be written any more.
async fn write_segment(shared: &Arc<CacheCore>, batch: &Batch) -> bool {
    let mut delay = FIRST_DELAY;
    let mut reported = Reported::default();
    loop {
        let error = match try_write(shared, batch).await {
            Ok(()) => {
                if reported.is_any() {
                    tracing::warn!(segment = batch.header.number, "the log accepts writes again");
                }
                return true;
            }
            Err(error) => error,
        };
        let is_first = reported.is_first(&error);
        // The partner has taken over the log. It either has this segment already, or must not get it any more.
        if shared.pair.is_some()
            && let Err(fenced) = shared.lower.volume.check()
        {
            let wakers = shared.state.lock().commits.fail_for_good(fenced);
            wakers.into_iter().for_each(Waker::wake);
            shared.signals.changed.notify_waiters();
            return false;
        }
        let segment = batch.header.number;
        if let Error::Busy(why) = &error {
            if is_first {
                tracing::warn!(
                    why,
                    segment,
                    remedy = "nothing has to be done unless it lasts: `forebay status` shows the log, \
                     and of a pair both gateways",
                    "no write is acknowledged until the log accepts writes again"
                );
            }
            delay = FIRST_DELAY;
        } else {
            if is_first {
                tracing::error!(
                    %error, segment,
                    remedy = "nothing has to be done unless it lasts: then check the disk of the log; \
                     `forebay status` shows `log_error` until it works",
                    "the log disk fails: the write is repeated until it succeeds"
                );
            }
            shared.counters.log.errors.add(1);
        }
        let wakers = shared.state.lock().commits.fail(error);
        wakers.into_iter().for_each(Waker::wake);
        shared.signals.changed.notify_waiters();
        sleep(delay).await;
        delay = (delay * 2).min(LAST_DELAY);
    }
}

/// The kinds of errors that events have reported while one segment could not be written. A disk that stays
/// broken causes one event, not one for each try.
#[derive(Default)]
struct Reported(Vec<Discriminant<Error>>);

impl Reported {
    /// Returns true for the first error of its kind, which is to be logged, and remembers the kind.
    fn is_first(&mut self, error: &Error) -> bool {
        let kind = discriminant(error);
        let is_first = !self.0.contains(&kind);
        if is_first {
            self.0.push(kind);
        }
        is_first
    }

    fn is_any(&self) -> bool {
        !self.0.is_empty()
    }
}

async fn try_write(shared: &Arc<CacheCore>, batch: &Batch) -> Result<(), Error> {
    let fits = {
        let state = shared.state.lock();
        state.log.ring.fits(batch.pages.len() as u32 + 1).then(|| state.log.ring.position())
    };
    let Some(start) = fits else { return Err(Error::Busy("the log is full")) };
    let header = scratch_block(&shared.log.scratch, |block| batch.header.encode(block));
    let mut data = Data::from(header);
    batch.blocks().iter().for_each(|block| data.push(block.clone()));
    shared.log.volume.write(Lba(u64::from(start)), data, Durability::Stable).await?;
    shared.vouch().await
}

/// Waits for a write to be in the log. See [`CacheCore::committed`].
pub(crate) struct Committed<'a> {
    shared: &'a CacheCore,
    serial: u64,
    waiter: Option<u64>,
}

impl Future for Committed<'_> {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let shared = self.shared;
        let mut state = shared.state.lock();
        // Check first for a lost log: segments are still written to it, but a restart does not find them.
        if let Some(error) = state.risk() {
            return Poll::Ready(Err(error));
        }
        if state.commits.durable >= self.serial {
            return Poll::Ready(Ok(()));
        }
        if let Some(error) = state.commits.failure_of(self.serial) {
            return Poll::Ready(Err(error.clone()));
        }
        let waker = context.waker().clone();
        self.waiter = Some(state.commits.wait(self.serial, self.waiter, waker));
        Poll::Pending
    }
}

impl Drop for Committed<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.waiter {
            self.shared.state.lock().commits.stop_waiting(self.serial, id);
        }
    }
}

/// The pause before a failed write to the log disk is repeated. The pause doubles with each attempt.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// The longest pause before a failed write to the log disk is repeated.
const LAST_DELAY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_failure_of_the_log_disk_is_reported_once() {
        let mut reported = Reported::default();
        assert!(!reported.is_any());
        let device = || Error::Device("no medium".into());
        let first: Vec<bool> =
            [device(), device(), Error::Busy("full"), device(), Error::Busy("full")]
                .iter()
                .map(|error| reported.is_first(error))
                .collect();
        assert_eq!(first, [true, false, true, false, false]);
        assert!(reported.is_any());
    }
}
