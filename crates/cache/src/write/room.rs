//! Reserves room in the log for a whole write before the write changes any block.
//!
//! A write that finds the log full waits here and may be refused here. In both cases it has changed nothing:
//! after BUSY the host finds every block as it was. A write with a reservation is never refused for lack of
//! room: the log keeps blocks for its data and headers until the write has used them or drops the reservation.
//! Between two steps the write still waits for memory pages, for NVRAM slots and for its turn. These become
//! free as the log is written, even if the lower volume does not answer.

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};
use volume::Error;

use crate::{
    core::CacheCore, line::WaitTicket, nvram::NvramBuffer, settings::OversizedEpoch,
    slots::sectors::SLOT_BYTES, state::CacheState,
};

/// The path of a write, decided once for the whole write.
pub(crate) enum WritePath<'a> {
    /// The write goes through the log; the reservation holds log space for it.
    Log(LogReservation<'a>),
    /// The write bypasses the log and goes directly to the lower volume.
    Bypass,
}

/// The room that a call asks for.
#[derive(Clone, Copy)]
pub(crate) struct WantedRoom {
    /// Number of slots that the call writes; at least one.
    pub slots: usize,
    /// Number of bytes of host data that the call holds in memory while it waits.
    pub bytes: usize,
    /// True if the call writes zeros. Zeros take no data blocks of the log, so the size of the log does not limit how
    /// many entries the call adds to the slot table.
    pub is_zeros: bool,
    /// True if the call has already changed some blocks. The call must not end in BUSY then, so it waits longer for
    /// room.
    pub has_begun: bool,
}

/// Reserved room that a write has not used yet. Dropping the reservation returns the unused room.
pub(crate) struct LogReservation<'a> {
    shared: &'a CacheCore,
    slots: usize,
    /// Number of segment headers: one for each step, since each step may end up in a segment of its
    /// own.
    headers: usize,
    is_live: bool,
}

/// The answer to a call that asks for room.
enum RoomAnswer {
    Room,
    Bypass,
    /// The log takes no writes because of a resize or a rollback, which ends within seconds.
    Soon(&'static str),
    /// The log has no room. The text says why.
    Nothing(&'static str),
}

impl CacheCore {
    /// Waits for room in the log for a whole write, or for the decision that the write bypasses the log.
    ///
    /// # Errors
    /// [`Error::Busy`]: the log had no room for `busy_after_ms`, or for [`BETWEEN_STEPS`] if the call has begun;
    /// [`Error::TooLong`]: the write does not fit even into an empty log; or the error of the log disk.
    pub async fn way(self: &Arc<Self>, wanted: WantedRoom) -> Result<WritePath<'_>, Error> {
        let held = {
            let mut state = self.state.lock();
            match self.find_room(&mut state, wanted, None)? {
                RoomAnswer::Room => {
                    return Ok(WritePath::Log(self.reserve(&mut state, wanted.slots)));
                }
                RoomAnswer::Bypass => return Ok(WritePath::Bypass),
                RoomAnswer::Nothing(why) if !self.may_hold(&state, wanted) => {
                    return Err(self.refuse(Error::Busy(why)));
                }
                RoomAnswer::Soon(_) | RoomAnswer::Nothing(_) => {
                    HeldWrite::begin(self, &mut state, wanted)
                }
            }
        };
        let begun = Instant::now();
        loop {
            let mut changed = pin!(self.signals.changed.notified());
            changed.as_mut().enable();
            let (why, patience) = {
                let mut state = self.state.lock();
                match self.find_room(&mut state, wanted, Some(held.ticket))? {
                    RoomAnswer::Room => {
                        return Ok(WritePath::Log(self.reserve(&mut state, wanted.slots)));
                    }
                    RoomAnswer::Bypass => return Ok(WritePath::Bypass),
                    RoomAnswer::Soon(why) | RoomAnswer::Nothing(why) if wanted.has_begun => {
                        (why, BETWEEN_STEPS)
                    }
                    RoomAnswer::Soon(why) => (why, SOON),
                    RoomAnswer::Nothing(why) => {
                        (why, Duration::from_millis(self.settings.busy_after_ms))
                    }
                }
            };
            let (now, until) = (Instant::now(), begun + patience);
            if now >= until {
                return Err(self.refuse(Error::Busy(why)));
            }
            // Wake at intervals: no notification comes when the lower volume stops answering.
            let _ = timeout_at(until.min(now + LOOK_EVERY), changed).await;
        }
    }

    /// Checks whether the cache would accept a write that bypasses the log at this moment.
    pub fn admit_bypass(&self) -> Result<(), Error> {
        let refusal = self.refusal(&self.state.lock());
        refusal.map_or(Ok(()), |error| Err(self.refuse(error)))
    }

    /// Checks that a write of `bytes` bytes would be accepted now, or held until the log has room for it.
    pub fn admit_to_log(self: &Arc<Self>, bytes: usize) -> Result<(), Error> {
        let mut state = self.state.lock();
        // Add a slot: a write that begins in the middle of a slot covers one more.
        let slots = bytes.div_ceil(SLOT_BYTES) + 1;
        let wanted = WantedRoom { slots, bytes, is_zeros: false, has_begun: false };
        match self.find_room(&mut state, wanted, None)? {
            RoomAnswer::Nothing(why) if !self.may_hold(&state, wanted) => {
                Err(self.refuse(Error::Busy(why)))
            }
            _ => Ok(()),
        }
    }

    /// Looks for room for a call. Calls that have waited longer get room first.
    fn find_room(
        self: &Arc<Self>,
        state: &mut CacheState,
        wanted: WantedRoom,
        ticket: Option<WaitTicket>,
    ) -> Result<RoomAnswer, Error> {
        if let Some(error) = self.refusal(state) {
            return match error {
                Error::Busy(why) if wanted.has_begun && !state.destage.is_stopping => {
                    Ok(RoomAnswer::Nothing(why))
                }
                error => Err(self.refuse(error)),
            };
        }
        if state.room.is_rolling_back {
            return Ok(RoomAnswer::Soon("unflushed writes are being rolled back"));
        }
        if state.queue.is_frozen {
            return Ok(RoomAnswer::Soon("the log is being resized"));
        }
        if state.log_error().is_some() {
            return Ok(RoomAnswer::Bypass);
        }
        let cost = self.cost(state, wanted.slots);
        let most = state.log.ring.most_room().saturating_sub(state.log.ring.reserve()) as usize;
        let is_too_long = cost + UNDER_WAY > most;
        if is_too_long && self.is_strict() {
            return Err(self.too_long(state, wanted.slots, most));
        }
        let free = (state.log.ring.room() as usize).checked_sub(state.promised_room() as usize);
        let fits = free.is_some_and(|free| state.room.log_line.is_due(ticket, cost, free));
        if fits && (!wanted.is_zeros || self.has_entries(state, wanted.slots)) {
            return Ok(RoomAnswer::Room);
        }
        if !self.is_strict() {
            // A bypassing write would wait for the lower volume. While that does not answer, wait for room in the
            // log instead.
            return Ok(match self.is_away(state) && !is_too_long {
                true => RoomAnswer::Nothing("the log is full and the far volume does not answer"),
                false => RoomAnswer::Bypass,
            });
        }
        self.ask_for_round(state)
    }

    /// Asks for a destage round. In strict order only a round makes room, since no write may bypass the log.
    fn ask_for_round(self: &Arc<Self>, state: &mut CacheState) -> Result<RoomAnswer, Error> {
        if let Some(why) = state.destage.orders.hold() {
            return Ok(RoomAnswer::Nothing(why));
        }
        let open_only = state.epochs.oldest().is_none() && state.queue.ends.pending == 0;
        if self.rules.epochs_end_by_flush && open_only {
            self.end_too_large(state)?;
        } else if !std::mem::replace(&mut state.destage.is_starving, true) {
            self.signals.wake_destage.notify_one();
        }
        Ok(RoomAnswer::Nothing(match self.is_away(state) {
            true => "the log is full and the far volume does not answer",
            false => "the log is full",
        }))
    }

    /// Handles an epoch that does not fit into the log: refuses the write, or ends the epoch here.
    fn end_too_large(self: &Arc<Self>, state: &mut CacheState) -> Result<(), Error> {
        if self.settings.too_large == OversizedEpoch::Refused {
            self.counters.order.refused_epochs.add(1);
            return Err(Error::Device(
                "the log has no room for the writes since the last flush".into(),
            ));
        }
        self.counters.order.split_epochs.add(1);
        if state.log.epochs_split.turn(true).is_some() {
            tracing::warn!(
                remedy = "nothing has to be done, unless the file must always hold a consistent prefix: \
                 then make the log larger, with `forebay gateway log-resize`",
                "the writes since the last flush do not fit into the log: the epoch is split"
            );
        }
        state.end_epoch();
        self.start_commit(state);
        Ok(())
    }

    /// Returns the number of log blocks that a write of `slots` slots needs: data, one header for each full segment,
    /// and one header for each step.
    fn cost(&self, state: &CacheState, slots: usize) -> usize {
        let longest = state.log.ring.longest_data() as usize;
        slots + slots.div_ceil(longest) + self.steps(state, slots)
    }

    /// Returns the error of a write of `slots` slots to a log that has room for `most` blocks when it is empty.
    fn too_long(&self, state: &CacheState, slots: usize, most: usize) -> Error {
        let per_slot = 1.0
            + 1.0 / f64::from(state.log.ring.longest_data())
            + 1.0 / self.longest_step(state) as f64;
        // `cost` rounds up the numbers of headers twice, so subtract two blocks here. Subtract one slot below,
        // since a write may begin in the middle of a slot.
        let most = (most.saturating_sub(UNDER_WAY + 2) as f64 / per_slot) as usize;
        let [bytes, most] =
            [slots, most.saturating_sub(1)].map(|slots| (slots * SLOT_BYTES) as u64);
        Error::TooLong { bytes, most }
    }

    fn reserve(&self, state: &mut CacheState, slots: usize) -> LogReservation<'_> {
        let headers = self.steps(state, slots);
        state.room.reserved.live += 1;
        state.room.reserved.slots += slots;
        state.room.reserved.headers += headers;
        LogReservation { shared: self, slots, headers, is_live: true }
    }

    fn steps(&self, state: &CacheState, slots: usize) -> usize {
        slots.div_ceil(self.longest_step(state))
    }

    /// Returns the maximum number of slots that one step of a write takes. The limit is a full segment, so that a large
    /// write delays others by no more than that. Another limit is 50 % of the slots that may wait for the log, so that
    /// the next step is copied while the log disk writes this one.
    fn longest_step(&self, state: &CacheState) -> usize {
        let mut limit = self.limits.pending_slots;
        if self.rules.keeps_in_nvram {
            let slots = state.nvram.as_ref().map_or(0, |nvram| nvram.slots() as usize);
            limit = limit.min(slots);
        }
        MAX_STEP.min(limit / 2).max(1)
    }

    /// Returns true if memory has room for the data of one more write that waits for the log. While destage
    /// runs, waiting writes may hold as much memory as the cache has for blocks (`dram_bytes`); while destage
    /// is held or the lower volume does not answer, a quarter of that. One write may always wait, unless
    /// `busy_after_ms` is 0.
    fn may_hold(&self, state: &CacheState, wanted: WantedRoom) -> bool {
        if wanted.has_begun {
            return true;
        }
        let goes_on = !self.is_away(state) && state.destage.orders.hold().is_none();
        let share = self.settings.dram_bytes / if goes_on { 1 } else { HELD_SHARE };
        let held = state.room.held_bytes + wanted.bytes;
        self.settings.busy_after_ms > 0 && (state.room.held_bytes == 0 || held as u64 <= share)
    }

    /// Returns `error`, and counts it in the statistics if it is BUSY.
    pub fn refuse(&self, error: Error) -> Error {
        if matches!(error, Error::Busy(_)) {
            self.counters.traffic.refused_busy.add(1);
        }
        error
    }
}

/// A write that waits for log space, with its data in memory.
struct HeldWrite<'a> {
    shared: &'a CacheCore,
    ticket: WaitTicket,
    bytes: usize,
}

impl<'a> HeldWrite<'a> {
    fn begin(shared: &'a CacheCore, state: &mut CacheState, wanted: WantedRoom) -> Self {
        let cost = shared.cost(state, wanted.slots);
        state.room.held_bytes += wanted.bytes;
        Self { shared, ticket: state.room.log_line.join(cost), bytes: wanted.bytes }
    }
}

impl Drop for HeldWrite<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.room.log_line.leave(self.ticket);
        state.room.held_bytes -= self.bytes;
        let others_wait = !state.room.log_line.is_empty();
        drop(state);
        if others_wait {
            self.shared.signals.changed.notify_waiters();
        }
    }
}

impl LogReservation<'_> {
    /// Returns the number of slots that the next step may place now. Returns `None` if the step has to wait
    /// until the log has taken queued slots, or for its turn behind the steps of other writes.
    pub fn step(&self, state: &CacheState, ticket: Option<WaitTicket>) -> Option<usize> {
        let shared = self.shared;
        let wants = self.next_step(state);
        let mut free = shared.limits.pending_slots.saturating_sub(state.queue.pending_slots());
        if shared.rules.keeps_in_nvram {
            let held = state.nvram.as_ref().map_or(0, NvramBuffer::free);
            free = free.min(held.saturating_sub(state.queue.copying_slots));
        }
        let has_header = self.headers > 0 || state.room_for_tombstone();
        (has_header && state.room.step_line.is_due(ticket, wants, free)).then_some(wants)
    }

    /// Returns the number of slots that the next step wants.
    pub fn next_step(&self, state: &CacheState) -> usize {
        self.slots.min(self.shared.longest_step(state))
    }

    /// Begins a step that places up to `slots` slots, as [`Self::step`] has allowed.
    pub fn begin_step(&mut self, state: &mut CacheState, slots: usize) {
        self.slots -= slots;
        state.room.reserved.slots -= slots;
        // If a step places fewer slots than planned, the write needs more steps than it has reserved headers for.
        // Such a step has no reserved header: `step` has checked that the log has room for one.
        let planned = usize::from(self.headers > 0);
        self.headers -= planned;
        state.room.reserved.headers -= planned;
        state.queue.copying_slots += slots;
        state.queue.copying += 1;
    }

    /// Ends a step that was begun for `begun` slots and has placed the first `placed` of them.
    pub fn end_step(&mut self, state: &mut CacheState, begun: usize, placed: usize) {
        state.queue.copying_slots -= begun;
        state.queue.copying -= 1;
        self.slots += begun - placed;
        state.room.reserved.slots += begun - placed;
        if self.slots == 0 {
            self.give_back(state);
        }
    }

    fn give_back(&mut self, state: &mut CacheState) {
        if std::mem::take(&mut self.is_live) {
            state.room.reserved.live -= 1;
            state.room.reserved.slots -= self.slots;
            state.room.reserved.headers -= self.headers;
        }
    }
}

impl Drop for LogReservation<'_> {
    fn drop(&mut self) {
        if self.is_live {
            let shared = self.shared;
            self.give_back(&mut shared.state.lock());
            shared.signals.changed.notify_waiters();
        }
    }
}

/// Maximum number of slots in a step: a full segment, see [`CacheCore::longest_step`].
pub(crate) const MAX_STEP: usize = 128;
/// Number of blocks that `CacheState::promised_room` counts in addition to those of calls: the headers of two segments
/// in flight.
const UNDER_WAY: usize = 2;
/// While nothing is destaged, waiting writes may hold `dram_bytes / HELD_SHARE` of memory in addition to the
/// cached blocks: 64 MiB with the default of 256 MiB, or 128 writes of 512 KiB.
const HELD_SHARE: u64 = 4;
/// A call that waits for room checks at this interval whether the lower volume still answers.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The longest wait of a write for a resize or a rollback of the log: twice the five seconds that a resize
/// allows the log disk, and less than the timeout of hosts.
const SOON: Duration = Duration::from_secs(10);
/// The longest wait for one step of a call that has already changed some blocks. Initiators abort a command
/// after 30 s (Linux) or 60 s (Windows), so this ends only the wait of a command that no initiator aborts.
pub(crate) const BETWEEN_STEPS: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests;
