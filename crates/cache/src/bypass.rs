//! Calls that bypass the log: writes when the log is full or not used, and discards that are too large for
//! it.
//!
//! These steps, in this order, keep acknowledged data safe:
//!
//! 1. Lock the slots. After running commits and destage writes of them have ended, no new ones begin.
//! 2. Change the lower volume, and make the change stable.
//! 3. Write a record into the log that voids older records of these slots.
//! 4. Remove the slots from the slot table and from the read tier.
//! 5. Acknowledge.
//!
//! A crash before step 3 leaves the older content or the newer one, and the write was not acknowledged.
//!
//! All of this runs in a task of its own: a command that is aborted in the middle must not leave a write to
//! the lower volume in flight that overtakes a newer one later.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use journal::segment::LogRecordKind;
use tokio::{
    sync::{OwnedRwLockReadGuard, oneshot},
    time::timeout,
};
use volume::{Data, Durability, Error, Extent, Volume};

use crate::{
    core::CacheCore,
    mutant::Mutant,
    slots::{
        sectors::{SECTOR_BYTES, SECTORS, SLOT_BYTES, WHOLE, mask, runs},
        table::Came,
    },
    state::CacheState,
};

enum BypassChange {
    Write { sector: u64, data: Data },
    Discard,
}

/// The locks of one bypassing call on its slots. Until this is dropped, writes to these slots wait, and
/// destage does not send them.
struct HeldSlots {
    shared: Arc<CacheCore>,
    id: u64,
    first: u64,
    end: u64,
    /// True if the log may hold older records of these slots. The call must then write a record that voids them;
    /// `CommitQueue::tombstones` counts this record.
    tombstone: bool,
}

impl HeldSlots {
    /// Returns `index` if that entry of the slot table belongs to a slot which this bypassing call has locked.
    fn holds(&self, state: &CacheState, index: u32) -> Option<u32> {
        let claimed = self.first..self.end;
        let used = state.table.is_used(index);
        (used && claimed.contains(&state.table.entry(index).slot)).then_some(index)
    }
}

/// A shared lock on `epoch_turn`: no destage round begins while it is held. `None` if the lower volume has no
/// atomic epochs.
type LowerVolumeTurn = Option<OwnedRwLockReadGuard<()>>;

impl Drop for HeldSlots {
    fn drop(&mut self) {
        self.shared.state.lock().slot_locks.remove(self.id);
        self.shared.signals.changed.notify_waiters();
    }
}

impl CacheCore {
    /// Writes sectors directly to the lower volume. The data is stable there when this returns.
    pub async fn write_bypassing(self: &Arc<Self>, sector: u64, data: Data) -> Result<(), Error> {
        self.counters.traffic.bypassed.add(1);
        let sectors = (data.len() / SECTOR_BYTES) as u64;
        let first = sector / u64::from(SECTORS);
        let end = (sector + sectors).div_ceil(u64::from(SECTORS));
        self.change_bypassing(first, end, BypassChange::Write { sector, data }).await
    }

    /// Discards whole slots of the lower volume directly. The discard is stable when this returns.
    pub async fn discard_bypassing(self: &Arc<Self>, first: u64, end: u64) -> Result<(), Error> {
        self.change_bypassing(first, end, BypassChange::Discard).await
    }

    async fn change_bypassing(
        self: &Arc<Self>,
        first: u64,
        end: u64,
        change: BypassChange,
    ) -> Result<(), Error> {
        // Commit earlier acknowledged writes first: otherwise a failure could lose them and keep this later
        // one. This is skipped while the log disk fails: then the write can only be done out of order, or not
        // at all.
        if self.rules.is_early() && self.state.lock().log_error().is_none() {
            self.settle().await?;
        }
        // Lock the slots before spawning the task. A call that is aborted before it has the lock has done
        // nothing. A call that is aborted later is still ordered before all calls that begin after it.
        let (claim, turn) = self.claim(first, end).await?;
        let (sender, receiver) = oneshot::channel();
        tokio::spawn(run(claim, turn, change, sender));
        let given_up = || Error::Device("the cache was closed during the call".into());
        receiver.await.unwrap_or_else(|_| Err(given_up()))
    }

    /// Locks the slots `first .. end` when no other call has them locked, and reserves room in the log for
    /// the record that voids older records. Also keeps destage rounds from beginning, if the lower volume has
    /// atomic epochs. If the log has no room for the record, or a round is running, waits at most `LOOKS` ×
    /// `LOOK_EVERY`.
    async fn claim(
        self: &Arc<Self>,
        first: u64,
        end: u64,
    ) -> Result<(HeldSlots, LowerVolumeTurn), Error> {
        let full = || Error::Busy("the log is full, or a round of destage takes long");
        let mut check = |state: &mut CacheState| {
            if let Some(error) = self.refusal(state) {
                return Some(Err(error));
            }
            let claimed = state.slot_locks.overlap(first, end);
            let tombstone = state.may_be_logged(first, end);
            if let Some(error) = state.log_error().filter(|_| tombstone) {
                return Some(Err(error));
            }
            if claimed || (tombstone && !state.room_for_tombstone()) {
                return self.is_away(state).then(|| Err(full()));
            }
            state.queue.tombstones += usize::from(tombstone);
            Some(Ok((state.slot_locks.insert(first, end), tombstone)))
        };
        let mut claimed = Err(full());
        for _ in 0..LOOKS {
            // Wake at intervals: no notification comes when the lower volume stops answering.
            if let Ok(answer) = timeout(LOOK_EVERY, self.claim_in_turn(&mut check)).await {
                claimed = answer;
                break;
            }
        }
        let ((id, tombstone), turn) = claimed.map_err(|error| self.refuse(error))?;
        Ok((HeldSlots { shared: Arc::clone(self), id, first, end, tombstone }, turn))
    }

    /// Waits until `check` returns an answer. No destage round begins during a check. Between two checks rounds may
    /// begin, since the log may have no room until a round has run.
    async fn claim_in_turn<T>(
        &self,
        check: &mut impl FnMut(&mut CacheState) -> Option<Result<T, Error>>,
    ) -> Result<(T, LowerVolumeTurn), Error> {
        loop {
            let mut changed = pin!(self.signals.changed.notified());
            changed.as_mut().enable();
            let takes_turn = self.is_atomic_below() && !self.mutation.is(Mutant::BypassTakesNoTurn);
            let turn = match takes_turn {
                true => Some(self.turn().await),
                false => None,
            };
            if let Some(answer) = check(&mut self.state.lock()) {
                return answer.map(|claimed| (claimed, turn));
            }
            drop(turn);
            changed.await;
        }
    }

    /// Waits until no destage round is running. No round begins until the returned guard is dropped.
    async fn turn(&self) -> OwnedRwLockReadGuard<()> {
        let _waiting = WaitingBypass::begin(&self.lower.waits_for_turn);
        Arc::clone(&self.lower.epoch_turn).read_owned().await
    }

    /// Changes the lower volume. If a write covers a slot only in part, also writes the other dirty sectors
    /// of this slot, since the log is about to void the whole slot.
    async fn change_lower(
        self: &Arc<Self>,
        claim: &HeldSlots,
        change: &BypassChange,
    ) -> Result<(), Error> {
        self.log_on_disk().await?;
        match change {
            BypassChange::Discard => {
                let sectors = self.lower.end_of(claim.first);
                let (first, end) = (claim.first * 8, (claim.end * 8).min(sectors));
                let blocks = (end - first) / self.lower.sectors_per_block();
                let blocks = u32::try_from(blocks).expect("it came as one extent");
                let extent = Extent { lba: self.lower.lba(first), blocks };
                let losses = self.lower.known_losses();
                self.lower.volume.discard(extent).await?;
                if self.mutation.is(Mutant::BypassNotFlushed) {
                    return Ok(());
                }
                match self.flush_lower(losses).await {
                    // A remote volume returns this error to the first flush after its reset. The reset may
                    // have come before or after the discard, so repeat the discard.
                    Err(Error::Device(_)) => {
                        let losses = self.lower.known_losses();
                        self.lower.volume.discard(extent).await.map_err(Error::after_a_part)?;
                        self.flush_lower(losses).await.map_err(Error::after_a_part)
                    }
                    flushed => flushed.map_err(Error::after_a_part),
                }
            }
            BypassChange::Write { sector, data } => {
                let sectors = (data.len() / SECTOR_BYTES) as u64;
                let mut edges = vec![claim.first];
                if claim.end - claim.first > 1 {
                    edges.push(claim.end - 1);
                }
                for slot in edges {
                    let start = sector.saturating_sub(slot * 8).min(8) as u32;
                    let stop = (sector + sectors - slot * 8).min(8) as u32;
                    self.write_rest(slot, !mask(start, stop - start)).await?;
                }
                self.lower
                    .volume
                    .write(self.lower.lba(*sector), data.clone(), Durability::Stable)
                    .await
            }
        }
    }

    /// Sends the dirty sectors of a slot that are in `mask` to the lower volume.
    async fn write_rest(&self, slot: u64, mask: u8) -> Result<(), Error> {
        let (content, place) = {
            let state = self.state.lock();
            let Some(index) = state.table.find(slot) else { return Ok(()) };
            let Some(place) = state.table.entry(index).place else { return Ok(()) };
            (state.table.page(index).cloned().map(Data::from), place)
        };
        let content = match (content, place.kind) {
            (Some(page), _) => page,
            (None, LogRecordKind::Data) => match self.load(slot, place).await? {
                Some(bytes) => bytes,
                // Destage has sent the slot to the lower volume meanwhile, and read this content there: write no copy
                // of it.
                None => return Ok(()),
            },
            (None, _) => Data::zeros(SLOT_BYTES),
        };
        if self.mutation.is(Mutant::BypassDropsTheRest) {
            return Ok(());
        }
        for (first, count) in runs(mask & place.mask & self.lower.whole(slot)) {
            let bytes = content.slice(first as usize * SECTOR_BYTES, count as usize * SECTOR_BYTES);
            let lba = self.lower.lba(slot * 8 + u64::from(first));
            self.lower.volume.write(lba, bytes, Durability::Stable).await?;
        }
        Ok(())
    }

    /// Removes the locked slots from the slot table, in short steps.
    async fn forget(&self, claim: &HeldSlots, clean_only: bool) {
        let indices = self.state.lock().table.indices();
        let by_slot = claim.end - claim.first <= u64::from(indices);
        let mut rest = if by_slot { claim.first..claim.end } else { 0..u64::from(indices) };
        while !rest.is_empty() {
            let step = rest.start..rest.end.min(rest.start + STEP);
            rest.start = step.end;
            {
                let mut state = self.state.lock();
                for number in step {
                    let found = if by_slot {
                        state.table.find(number)
                    } else {
                        claim.holds(&state, number as u32)
                    };
                    if let Some(index) = found {
                        forget_slot(&mut state, index, clean_only);
                    }
                }
            }
            tokio::task::yield_now().await;
        }
        // Remove the slots from the read tier only after they were removed from memory: a page that memory evicts in
        // between may be admitted to the tier.
        self.void_tier(claim.first..claim.end).await;
    }

    /// Keeps the data of a bypassing write in memory.
    fn keep(&self, sector: u64, data: &Data) {
        let end = sector + (data.len() / SECTOR_BYTES) as u64;
        for slot in sector.div_ceil(8)..end / 8 {
            let mut state = self.state.lock();
            let Some(mut page) = self.take_page(&mut state) else { return };
            let at = (slot * 8 - sector) as usize * SECTOR_BYTES;
            data.slice(at, SLOT_BYTES).copy_to_slice(&mut page);
            let index = state.table.find_or_insert(slot);
            state.table.set_page(index, page.freeze(), WHOLE, Came::Wanted);
            // A fetch that began before the slots were unlocked may return older content. Clear its id, so
            // that the slot ignores it.
            state.table.entry_mut(index).fetch = 0;
        }
    }
}

/// Removes a slot from the table. With `clean_only`, dirty content stays.
fn forget_slot(state: &mut CacheState, index: u32, clean_only: bool) {
    let entry = state.table.entry_mut(index);
    if clean_only && entry.place.is_some() {
        entry.fetch = 0;
    } else {
        state.drop_slot(index);
    }
}

/// Runs one call that bypasses the log, such as a write-through write, after its slots were locked.
async fn run(
    mut claim: HeldSlots,
    turn: LowerVolumeTurn,
    change: BypassChange,
    answer: oneshot::Sender<Result<(), Error>>,
) {
    let HeldSlots { first, end, .. } = claim;
    let shared = Arc::clone(&claim.shared);
    // New commits and destage writes of these slots cannot begin while the slots are locked. Wait for those
    // in progress.
    let settled = shared
        .wait_until(|state| {
            let busy =
                state.queue.holds(&state.table, first, end) || state.destage.is_sending(first, end);
            if !busy || shared.mutation.is(Mutant::BypassDoesNotWait) {
                Some(Ok(()))
            } else {
                state.commits.failure.clone().map(|(_, error)| Err(error))
            }
        })
        .await;
    // The log disk fails while older content of these slots waits to be written to it. The lower volume is still
    // unchanged.
    if let Err(error) = settled {
        shared.state.lock().queue.tombstones -= usize::from(claim.tombstone);
        drop(claim);
        let _ = answer.send(Err(error));
        return;
    }
    if shared.mutation.is(Mutant::BypassRecordedFirst) {
        record(&claim, &mut None).await;
        claim.tombstone = false;
    }
    let changed = match &turn {
        // Roll back the writes of an unfinished destage round: they must not become stable together with the bypassing
        // write or discard.
        Some(_) => shared.roll_back_lower().await,
        None => Ok(()),
    };
    let changed = match changed {
        Ok(()) => shared.change_lower(&claim, &change).await,
        failed => failed,
    };
    drop(turn);
    shared.note_lower(&changed);
    if let Err(error) = changed {
        // The lower volume may or may not have changed. Dirty content remains the newest; clean content is
        // removed and read again from the lower volume.
        shared.forget(&claim, true).await;
        shared.state.lock().queue.tombstones -= usize::from(claim.tombstone);
        drop(claim);
        let _ = answer.send(Err(error));
        return;
    }
    let mut answer = Some(answer);
    if let Some(answer) = answer.take_if(|_| shared.mutation.is(Mutant::BypassAnsweredEarly)) {
        let _ = answer.send(Ok(()));
    }
    record(&claim, &mut answer).await;
    shared.forget(&claim, false).await;
    if shared.rules.keeps_bypassed
        && let BypassChange::Write { sector, data } = &change
    {
        shared.keep(*sector, data);
    }
    drop(claim);
    if let Some(answer) = answer.take() {
        let _ = answer.send(Ok(()));
    }
}

/// Writes a record that voids the log content of the locked slots, if the log may have some.
async fn record(claim: &HeldSlots, answer: &mut Option<oneshot::Sender<Result<(), Error>>>) {
    let shared = &claim.shared;
    if !claim.tombstone {
        return;
    }
    if shared.mutation.is(Mutant::BypassNotRecorded) {
        shared.state.lock().queue.tombstones -= 1;
        return;
    }
    let count = (claim.end - claim.first).min(u64::from(u32::MAX)) as u32;
    let serial = {
        let mut state = shared.state.lock();
        let serial = state.queue_tombstone(claim.first, count);
        shared.start_commit(&mut state);
        serial
    };
    while let Err(error) = shared.committed(serial).await {
        // The host gets the error now. The slots stay locked until the record is stable, since the failed
        // write may have put it into the log. The lower volume is changed already, so the error must not mean
        // "nothing was done".
        if let Some(answer) = answer.take() {
            let _ = answer.send(Err(error.after_a_part()));
        }
        shared.wait_until(|state| (state.commits.durable >= serial).then_some(())).await;
    }
}

/// Number of slots that are looked at in one go under the lock: some tens of microseconds.
const STEP: u64 = 1024;
/// A call that waits for locks or for room checks at this interval whether the lower volume still answers.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A call is refused after this many intervals of [`LOOK_EVERY`]: five seconds, well below the 30 s after
/// which hosts abort a command.
const LOOKS: u32 = 10;

/// Counts a call that waits for room to bypass the log. Dropping this object ends the count.
struct WaitingBypass<'a>(&'a AtomicUsize);

impl<'a> WaitingBypass<'a> {
    fn begin(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::SeqCst);
        Self(waiting)
    }
}

impl Drop for WaitingBypass<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use volume::{FaultCallKind, FaultRule, FaultVolume, Geometry, Lba, MemVolume, Stack, Symptom};

    use super::*;
    use crate::{Cache, LogVolumeIdentity, Parts, Settings};

    /// The record is written to the log after the lower volume was changed. If the log then fails with BUSY
    /// or `Away`, these errors would tell the host that nothing was changed.
    #[tokio::test(start_paused = true)]
    async fn a_log_error_after_a_discard_never_claims_that_nothing_was_changed() {
        for error in [Error::Away("the link is down".into()), Error::Busy("the disk is busy")] {
            let lower: Stack = Arc::new(MemVolume::new(Geometry::with_blocks(32768)));
            let geometry = Geometry { block_size: 4096, ..Geometry::with_blocks(2000) };
            let log = FaultVolume::new(Arc::new(MemVolume::new(geometry)));
            let faults = Arc::clone(log.faults());
            let identity = LogVolumeIdentity { name: "far".into(), geometry: lower.geometry() };
            let parts = Parts { lower: Arc::clone(&lower), log: Arc::new(log), nvram: None };
            let settings = Settings { dram_bytes: 8 << 20, ..Settings::default() };
            let cache = Cache::open(settings, parts, identity).await.expect("opened");
            let data = Data::from(vec![7; SLOT_BYTES]);
            cache.write(Lba(0), data.clone(), Durability::Volatile).await.expect("in the log");
            lower.write(Lba(0), data, Durability::Stable).await.expect("an older version");
            faults.add(FaultRule::always(FaultCallKind::Write, Symptom::Fails(error)));
            let discarded = cache.shared().discard_bypassing(0, 1).await;
            assert!(matches!(discarded, Err(Error::Unreachable(_))), "{discarded:?}");
            let left = lower.read(Extent { lba: Lba(0), blocks: 8 }).await.expect("read");
            assert_eq!(left, Data::zeros(SLOT_BYTES), "it was done");
        }
    }
}
