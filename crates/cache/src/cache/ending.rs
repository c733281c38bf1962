//! The end of a cache: a clean stop, or an export of its log to another gateway.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::{Instant, timeout};
use volume::{Error, Holding};

use super::Cache;

impl Cache {
    /// Stops the cache cleanly, within five seconds, or seven if the log is lost: accepts no more writes,
    /// writes all queued data to the log, and records the clean end in the log. Dirty data stays in the log.
    pub async fn stop(&self) -> Result<(), Error> {
        // An exported log may have been copied, so nothing more may be written to it.
        if self.exported.load(Ordering::Acquire) {
            return Ok(());
        }
        self.send_what_a_lost_log_has().await;
        let begun = Instant::now();
        self.come_to_rest().await?;
        self.note_end(begun).await?;
        self.shared.check_log()?;
        let shared = &self.shared;
        let is_empty = {
            let mut state = shared.state.lock();
            // Blank the NVRAM only if no data is dirty. If data is dirty, the NVRAM must still name the log
            // that has this data.
            if state.table.dirty() == 0
                && state.queue.is_settled()
                && let Some(nvram) = &mut state.nvram
            {
                nvram.retire();
            }
            state.table.dirty() == 0 && state.log.ring.segments() == 0 && state.queue.is_settled()
        };
        if is_empty && matches!(shared.lower.volume.holding(), Holding::Held | Holding::Reserved) {
            // If the lower volume does not answer, it keeps the claim. It then admits this log again, but
            // another log only after the operator has decided so.
            let released = timeout(RELEASE_TIME, shared.give_claim_back()).await;
            tracing::debug!(?released, "gave the claim back");
        }
        Ok(())
    }

    /// If the log is lost, waits up to two seconds until destage has sent everything, since the next start
    /// will not find this log.
    async fn send_what_a_lost_log_has(&self) {
        if !self.has_lost_log() {
            return;
        }
        let sent = self.shared.wait_until(|state| {
            let is_sent = state.room.reserved.live == 0
                && state.queue.is_settled()
                && state.table.dirty() == 0;
            is_sent.then_some(())
        });
        let _ = timeout(LAST_SEND_TIME, sent).await;
    }

    /// Stops the cache cleanly so that another gateway can open the log: all acknowledged writes are in the
    /// log, and it is not written to again. From now on hosts get `Fenced`, even if the export fails; it may
    /// then be repeated. The claim stays for the gateway that opens the log.
    pub async fn export(&self) -> Result<(), Error> {
        let told = Error::Fenced("the log was exported for another gateway".into());
        self.shared.lower.volume.fence(&told);
        if self.exported.load(Ordering::Acquire) {
            return Ok(());
        }
        // Wait for all calls in progress: a call that ended after the export would still write to the log.
        let begun = Instant::now();
        if !self.come_to_rest().await? {
            return Err(Error::Busy("the far volume has not answered all calls"));
        }
        self.note_end(begun).await?;
        if let Some(nvram) = &mut self.shared.state.lock().nvram {
            nvram.retire();
        }
        self.exported.store(true, Ordering::Release);
        Ok(())
    }

    /// Accepts no more calls, and waits until all queued data is in the log. Returns true if the calls to the
    /// lower volume that were in flight have ended too.
    async fn come_to_rest(&self) -> Result<bool, Error> {
        let shared = &self.shared;
        shared.state.lock().destage.is_stopping = true;
        shared.signals.wake_destage.notify_one();
        shared.signals.changed.notify_waiters();
        let settled = shared.wait_until(|state| {
            let written = state.room.reserved.live == 0 && state.queue.is_settled();
            let quiet = written && state.slot_locks.is_empty() && state.destage.round.is_none();
            quiet.then_some(())
        });
        let is_quiet = timeout(STOP_TIME, settled).await.is_ok();
        shared.state.lock().queue.is_closed = true;
        // Wake the writes that wait for room in the log: each then fails, because the cache is closed.
        shared.signals.changed.notify_waiters();
        if !is_quiet && !shared.state.lock().queue.is_settled() {
            return Err(Error::Device(
                "the log disk does not accept the writes that wait for it".into(),
            ));
        }
        Ok(is_quiet)
    }

    /// Records in the superblock that the log ends cleanly. `begun` is the time at which
    /// [`Self::come_to_rest`] was called: if that took less than `STOP_TIME`, this write may take the
    /// remaining time in addition.
    async fn note_end(&self, begun: Instant) -> Result<(), Error> {
        let last = |superblock: &mut journal::superblock::Superblock| superblock.clean = true;
        let within = NOTE_TIME + STOP_TIME.saturating_sub(begun.elapsed());
        let written = timeout(within, self.shared.write_superblock(last)).await;
        written.unwrap_or_else(|_| Err(Error::Device("the log disk does not answer".into())))
    }

    /// Returns true after the cache was stopped or exported. The NVRAM may be blank from then on.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.state.lock().queue.is_closed
    }
}

/// How long a stop waits for the log disk and for calls to the lower volume that are in flight. With
/// [`NOTE_TIME`] and [`RELEASE_TIME`] this is less than the five seconds that a stop may take.
const STOP_TIME: Duration = Duration::from_secs(2);
/// How long a stop waits for the write of the clean end to the log. In a pair whose partner stops at the same
/// time, that write waits until the gateway has declared the partner dead (`dead_after`, 1 s or more); 2.4 s
/// cover 2 s.
const NOTE_TIME: Duration = Duration::from_millis(2400);
/// Maximum time that a stop waits for the lower volume to release the exclusive right to write it (claim).
const RELEASE_TIME: Duration = Duration::from_millis(500);
/// How long a stop waits for destage of a lost log: as long as for each of the other steps.
const LAST_SEND_TIME: Duration = Duration::from_secs(2);
