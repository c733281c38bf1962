//! The write path: copies data into slots, and queues the slots for the log.
//!
//! 1. Reserve room in the log for the whole write, or decide that the write bypasses the log (`room`).
//! 2. In steps of at most a segment: take pages under the lock, copy the data without the lock, then publish the
//!    pages under the lock (slot table, NVRAM, queue for the log).
//! 3. Depending on the write mode and the durability, wait until the log has the write. The files in `mode`
//!    decide that.
//!
//! A write with a reservation is never refused for lack of room. A published page holds every sector of its
//! slot that is newer than the lower volume, so its record in the log stands alone.

pub(crate) mod room;

use std::{pin::pin, sync::Arc, time::Duration};

use journal::{checksum::crc32c, segment::LogRecordKind};
use tokio::time::sleep;
use volume::{Data, Durability, Error};

use crate::{
    core::CacheCore,
    line::WaitTicket,
    rules::QueueOrder,
    slots::{
        pages::PageMut,
        sectors::{SECTOR_BYTES, SECTORS, SLOT_BYTES, copy_sectors, mask},
        table::{Came, LogAddress, NONE},
    },
    state::CacheState,
    write::room::{LogReservation, MAX_STEP, WantedRoom, WritePath},
};

enum WriteStep {
    /// This step of the write has put `slots` slots into the queue for the log.
    Placed { slots: usize, serial: u64 },
    /// No slot was placed: a page, room in the queue or the NVRAM, or a lock on a slot must become free
    /// first.
    Wait,
    /// The content of the slot at this place in the log must be read first, since the write covers only a
    /// part of the slot.
    Load { slot: u64, place: LogAddress },
}

/// The content of a slot, read from the log, that a write must merge with.
struct LoadedSlot {
    slot: u64,
    place: LogAddress,
    bytes: Data,
}

/// The part of a write that lies within one slot of 4 KiB.
#[derive(Clone, Copy)]
struct SlotWrite {
    slot: u64,
    /// The offset in the write's data.
    at: usize,
    first: u32,
    count: u32,
}

impl SlotWrite {
    fn mask(self) -> u8 {
        mask(self.first, self.count)
    }

    fn bytes(self) -> usize {
        self.count as usize * SECTOR_BYTES
    }
}

pub(crate) struct HostWrite {
    /// The first sector, counted in units of 512 bytes.
    pub sector: u64,
    /// The data to write: whole sectors of 512 bytes.
    pub data: Data,
    pub durability: Durability,
    /// True if the host's call has already changed other sectors. See [`WantedRoom::has_begun`].
    pub has_begun: bool,
}

/// Where the data of a write is when all of it has been placed.
pub(crate) enum PlacedWrite {
    /// The write bypassed the log and is stable in the lower volume.
    Bypassed,
    /// The data is in the slots and waits for the log. The serial is that of the last step.
    Queued(u64),
}

impl CacheCore {
    /// Puts the data of a write into slots and queues them for the log, or bypasses the log if that has no room.
    ///
    /// # Errors
    /// [`Error::Busy`] means that nothing was changed.
    pub async fn place_write(self: &Arc<Self>, write: HostWrite) -> Result<PlacedWrite, Error> {
        let HostWrite { sector, data, has_begun, .. } = write;
        let first = sector / u64::from(SECTORS);
        let end = (sector + (data.len() / SECTOR_BYTES) as u64).div_ceil(u64::from(SECTORS));
        let slots = (end - first) as usize;
        let wanted = WantedRoom { slots, bytes: data.len(), is_zeros: false, has_begun };
        match self.way(wanted).await? {
            WritePath::Bypass => {
                self.write_bypassing(sector, data).await.map(|()| PlacedWrite::Bypassed)
            }
            WritePath::Log(reservation) => {
                self.place_all(sector, data, reservation).await.map(PlacedWrite::Queued)
            }
        }
    }

    /// Waits until a queued write is in the log, and on the log disks if it must be stable.
    pub async fn wait_for_log(
        self: &Arc<Self>,
        serial: u64,
        durability: Durability,
    ) -> Result<(), Error> {
        self.decided(serial).await?;
        if durability == Durability::Stable { self.on_disk().await } else { Ok(()) }
    }

    /// Waits until every segment that is in the log now is on the log disks. An error that may pass does not
    /// end the wait, as in [`Self::decided`].
    async fn on_disk(self: &Arc<Self>) -> Result<(), Error> {
        loop {
            match self.log_on_disk().await {
                Err(error) if error.may_pass() => {}
                ended => return ended,
            }
            self.may_go_on(&self.state.lock())?;
            sleep(RETRY).await;
        }
    }

    /// Waits until a write is stable in the log or has failed for good. An error of the log disk that may
    /// pass does not end the wait: the blocks are changed already, and BUSY would tell the host that they are
    /// not.
    async fn decided(&self, serial: u64) -> Result<(), Error> {
        match self.committed(serial).await {
            Err(error) if error.may_pass() => {}
            decided => return decided,
        }
        self.wait_until(|state| {
            // A restart would not find a lost log, so a write to it must not count as stable.
            if let Some(lost) = state.risk() {
                return Some(Err(lost));
            }
            if state.commits.durable >= serial {
                return Some(Ok(()));
            }
            let error = state.commits.failure_of(serial).filter(|error| !may_pass(error));
            error.map(|error| Err(error.clone()))
        })
        .await
    }

    /// Puts the data of a whole write into slots, in steps. Returns the serial of the last step.
    async fn place_all(
        self: &Arc<Self>,
        sector: u64,
        data: Data,
        mut reservation: LogReservation<'_>,
    ) -> Result<u64, Error> {
        let mut at = 0;
        let mut last = 0;
        let mut loaded = None;
        while at < data.len() {
            let here = sector + (at / SECTOR_BYTES) as u64;
            let step = match self.place(here, &data, at, &mut loaded, &mut reservation, None)? {
                WriteStep::Wait => {
                    self.wait_to_place(here, &data, at, &mut loaded, &mut reservation).await?
                }
                step => step,
            };
            match step {
                WriteStep::Placed { slots, serial } => {
                    last = serial;
                    at = (at + slots * SLOT_BYTES
                        - (here % u64::from(SECTORS)) as usize * SECTOR_BYTES)
                        .min(data.len());
                }
                WriteStep::Load { slot, place } => {
                    let read = self.load(slot, place).await;
                    let read = read.map_err(|error| if at > 0 { stalled(error) } else { error })?;
                    if let Some(bytes) = read {
                        loaded = Some(LoadedSlot { slot, place, bytes });
                    }
                }
                WriteStep::Wait => {}
            }
        }
        Ok(last)
    }

    /// Waits for the next step of a write, in turn with the steps of other writes.
    async fn wait_to_place(
        self: &Arc<Self>,
        sector: u64,
        data: &Data,
        at: usize,
        loaded: &mut Option<LoadedSlot>,
        reservation: &mut LogReservation<'_>,
    ) -> Result<WriteStep, Error> {
        tracing::trace!(bytes = data.len() - at, "a write waits for memory or for the log");
        let slot = sector / u64::from(SECTORS);
        let mut turn = None;
        loop {
            let mut changed = pin!(self.signals.changed.notified());
            changed.as_mut().enable();
            let mut returned = pin!(self.pages.returned().notified());
            returned.as_mut().enable();
            {
                let mut state = self.state.lock();
                // Leave the queue while the slot is locked: the lock may last until the lower volume answers
                // again, and other writes must not wait behind this one.
                if self.is_claimed(&state, slot) {
                    drop(state);
                    turn = None;
                } else if turn.is_none() {
                    turn = Some(WriteTurn::begin(self, &mut state, reservation));
                }
            }
            let ticket = turn.as_ref().map(|turn: &WriteTurn| turn.ticket);
            match self.place(sector, data, at, loaded, reservation, ticket)? {
                WriteStep::Wait => {}
                step => return Ok(step),
            }
            tokio::select! {
                () = changed => {}
                () = returned => {}
            }
        }
    }

    /// Puts as much of `data` (from `at` on) into slots as there is room for, at least one slot.
    fn place(
        self: &Arc<Self>,
        sector: u64,
        data: &Data,
        at: usize,
        loaded: &mut Option<LoadedSlot>,
        reservation: &mut LogReservation<'_>,
        ticket: Option<WaitTicket>,
    ) -> Result<WriteStep, Error> {
        let parts = parts(sector, data.len() - at, at);
        // First take pages and room in the queue and the NVRAM.
        let mut pages = Vec::new();
        {
            let mut state = self.state.lock();
            self.may_go_on(&state)?;
            let Some(free) = reservation.step(&state, ticket) else { return Ok(WriteStep::Wait) };
            let wanted = parts.clone().take(free);
            for part in wanted {
                if self.is_claimed(&state, part.slot) {
                    break;
                }
                if let Some(place) = needs_log(&state, part, loaded.as_ref()) {
                    if pages.is_empty() {
                        return Ok(WriteStep::Load { slot: part.slot, place });
                    }
                    break;
                }
                let Some(page) = self.take_page(&mut state) else { break };
                pages.push(page);
            }
            if pages.is_empty() {
                return Ok(WriteStep::Wait);
            }
            reservation.begin_step(&mut state, pages.len());
        }
        // Copy the data of the write into the pages without holding the cache's lock.
        let mut filled = Vec::with_capacity(pages.len());
        for (part, mut page) in parts.zip(pages) {
            let range = part.first as usize * SECTOR_BYTES..;
            data.slice(part.at, part.bytes()).copy_to_slice(&mut page[range][..part.bytes()]);
            let checksum = if part.count == SECTORS { crc32c(&page) } else { 0 };
            filled.push((part, page, checksum));
        }
        Ok(self.publish_parts(filled, reservation, loaded))
    }

    /// Checks that a write with a reservation can be finished. The write may have changed some of its blocks
    /// already.
    ///
    /// # Errors
    /// Only errors that do not pass by themselves, see [`Error::may_pass`].
    fn may_go_on(&self, state: &CacheState) -> Result<(), Error> {
        self.lower.volume.check()?;
        if state.queue.is_closed {
            return Err(Error::Device("the cache was stopped in the middle of the write".into()));
        }
        state.log_error().filter(|error| !may_pass(error)).map_or(Ok(()), Err)
    }

    /// Makes the filled pages the newest content of their slots, and queues them for the log.
    fn publish_parts(
        self: &Arc<Self>,
        filled: Vec<(SlotWrite, PageMut, u32)>,
        reservation: &mut LogReservation<'_>,
        loaded: &mut Option<LoadedSlot>,
    ) -> WriteStep {
        let mut state = self.state.lock();
        let state = &mut *state;
        let begun = filled.len();
        state.commits.serial += 1;
        let serial = state.commits.serial;
        let mut placed = 0;
        for (part, page, checksum) in filled {
            // A bypassing call may have locked the slot while this write copied its data without the lock, so
            // check again.
            if self.is_claimed(state, part.slot)
                || needs_log(state, part, loaded.as_ref()).is_some()
            {
                break;
            }
            let index = state.table.find_or_insert(part.slot);
            let (page, valid) = merge(state, index, part, page, loaded.as_ref());
            state.keep_order(index, self.rules.queue_order);
            let checksum = if part.count == SECTORS { checksum } else { crc32c(&page) };
            let page = page.freeze();
            self.keep_in_nvram(state, index, serial, valid, &page, checksum);
            state.table.set_page(index, page, valid, Came::Wanted);
            state.table.entry_mut(index).checksum = checksum;
            state.queue_slot(index, serial);
            placed += 1;
        }
        reservation.end_step(state, begun, placed);
        self.start_commit(state);
        if placed == 0 { WriteStep::Wait } else { WriteStep::Placed { slots: placed, serial } }
    }

    /// With immediate report, makes the content stable in the NVRAM before the write is acknowledged. If the
    /// NVRAM fails, it keeps the older version until the log has this one, and the write is acknowledged only
    /// when the log has it.
    fn keep_in_nvram(
        &self,
        state: &mut CacheState,
        index: u32,
        serial: u64,
        valid: u8,
        page: &[u8],
        checksum: u32,
    ) {
        if !self.rules.keeps_in_nvram {
            return;
        }
        let nvram = state.nvram.as_mut().expect("immediate report was refused without NVRAM");
        if !nvram.is_sound() {
            return;
        }
        let entry = state.table.entry_mut(index);
        let newer = nvram.put(serial, entry.slot, valid, page, checksum);
        if !nvram.is_sound() {
            nvram.release(newer);
            return;
        }
        state.commits.kept = serial;
        // Free the slot's older version in the NVRAM only after the newer one is complete: a crash may come in between.
        let older = std::mem::replace(&mut entry.nvram, newer);
        if older != NONE {
            nvram.release(older);
        }
    }

    fn is_claimed(&self, state: &CacheState, slot: u64) -> bool {
        state.slot_locks.overlap(slot, slot + 1)
    }

    /// Makes whole slots read as zeros, through the log, in steps. Returns false if the log has no room and
    /// the rest must bypass it; some slots may be zeros already. Sets `begun` when the first slot is about to
    /// change: from then on each step may wait longer, and no error is [`Error::Busy`].
    pub async fn write_zeros(
        self: &Arc<Self>,
        first: u64,
        end: u64,
        durability: Durability,
        begun: &mut bool,
    ) -> Result<bool, Error> {
        let mut slot = first;
        let mut last = 0;
        while slot < end {
            let slots = ((end - slot) as usize).min(MAX_STEP);
            let wanted = WantedRoom { slots, bytes: 0, is_zeros: true, has_begun: *begun };
            match self.way(wanted).await {
                Ok(WritePath::Log(reservation)) => {
                    *begun = true;
                    last = self.place_zeros(slot, slots, reservation).await?;
                }
                Ok(WritePath::Bypass) => return Ok(false),
                Err(error) => return Err(if *begun { stalled(error) } else { error }),
            }
            slot += slots as u64;
        }
        if durability == Durability::Stable {
            self.decided(last).await?;
        }
        Ok(true)
    }

    /// Places zeros in slots that have a reservation. Returns the serial of the last step.
    async fn place_zeros(
        self: &Arc<Self>,
        first: u64,
        slots: usize,
        mut reservation: LogReservation<'_>,
    ) -> Result<u64, Error> {
        let end = first + slots as u64;
        let mut slot = first;
        let mut turn = None;
        loop {
            let mut changed = pin!(self.signals.changed.notified());
            changed.as_mut().enable();
            {
                let mut state = self.state.lock();
                self.may_go_on(&state)?;
                let ticket = turn.as_ref().map(|turn: &WriteTurn| turn.ticket);
                if state.slot_locks.overlap(slot, end) {
                    drop(state);
                    turn = None;
                } else if let Some(count) = reservation.step(&state, ticket) {
                    reservation.begin_step(&mut state, count);
                    state.commits.serial += 1;
                    let step = slot..slot + count as u64;
                    slot = step.end;
                    step.for_each(|slot| place_zero(&mut state, slot, self.rules.queue_order));
                    reservation.end_step(&mut state, count, count);
                    self.start_commit(&mut state);
                    if slot == end {
                        return Ok(state.commits.serial);
                    }
                    drop(state);
                    turn = None;
                    continue;
                } else if turn.is_none() {
                    turn = Some(WriteTurn::begin(self, &mut state, &reservation));
                }
            }
            changed.await;
        }
    }
}

/// The position of a write in the queue of writes that wait for their next step.
struct WriteTurn<'a> {
    shared: &'a CacheCore,
    ticket: WaitTicket,
}

impl<'a> WriteTurn<'a> {
    fn begin(
        shared: &'a CacheCore,
        state: &mut CacheState,
        reservation: &LogReservation<'_>,
    ) -> Self {
        let wants = reservation.next_step(state);
        Self { shared, ticket: state.room.step_line.join(wants) }
    }
}

impl Drop for WriteTurn<'_> {
    fn drop(&mut self) {
        self.shared.state.lock().room.step_line.leave(self.ticket);
        self.shared.signals.changed.notify_waiters();
    }
}

/// Returns true for an error of the log disk that may pass by itself.
pub(crate) fn may_pass(error: &Error) -> bool {
    error.may_pass()
}

/// Returns the error of a call that has changed some blocks and cannot continue. The error is never BUSY.
pub(crate) fn stalled(error: Error) -> Error {
    if !may_pass(&error) {
        return error;
    }
    Error::Device(format!("a part of the blocks was changed, then {error}").into())
}

fn place_zero(state: &mut CacheState, slot: u64, order: QueueOrder) {
    let serial = state.commits.serial;
    let index = state.table.find_or_insert(slot);
    state.keep_order(index, order);
    state.table.drop_page(index);
    state.table.entry_mut(index).zero = true;
    state.queue_slot(index, serial);
}

/// Returns the place of logged content that a partial write of a slot must be merged with, unless the content
/// is in memory or in `loaded`.
fn needs_log(
    state: &CacheState,
    part: SlotWrite,
    loaded: Option<&LoadedSlot>,
) -> Option<LogAddress> {
    if part.count == SECTORS {
        return None;
    }
    let index = state.table.find(part.slot)?;
    let entry = state.table.entry(index);
    if entry.zero || state.table.page(index).is_some() {
        return None;
    }
    let place = entry.place.filter(|place| place.kind == LogRecordKind::Data)?;
    // The write replaces all sectors of the logged content, so nothing has to be merged.
    if place.mask & !part.mask() == 0 {
        return None;
    }
    let have = loaded.is_some_and(|loaded| loaded.slot == part.slot && loaded.place == place);
    (!have).then_some(place)
}

/// Fills the rest of a page with the other known sectors of its slot. The page then holds every sector that
/// is newer than the lower volume, so that its record in the log stands alone.
fn merge(
    state: &CacheState,
    index: u32,
    part: SlotWrite,
    mut page: PageMut,
    loaded: Option<&LoadedSlot>,
) -> (PageMut, u8) {
    let new = part.mask();
    if part.count == SECTORS {
        return (page, new);
    }
    let entry = state.table.entry(index);
    let valid = if entry.zero {
        clear_sectors(&mut page, !new);
        return (page, u8::MAX);
    } else if let Some(old) = state.table.page(index) {
        copy_sectors(old, &mut page, entry.valid & !new);
        entry.valid | new
    } else if let Some(place) = entry.place
        && let Some(loaded) = loaded.filter(|l| l.slot == part.slot && l.place == place)
    {
        let mut old = [0; SLOT_BYTES];
        loaded.bytes.copy_to_slice(&mut old);
        copy_sectors(&old, &mut page, place.mask & !new);
        place.mask | new
    } else {
        new
    };
    // Clear the sectors that are not valid: the page still has content of other slots there.
    clear_sectors(&mut page, !valid);
    (page, valid)
}

fn clear_sectors(page: &mut [u8], mask: u8) {
    copy_sectors(&[0; SLOT_BYTES], page, mask);
}

/// Cuts `length` bytes from `sector` on at the boundaries of slots. `at` is the offset of these bytes in the
/// write's data.
fn parts(sector: u64, length: usize, at: usize) -> impl Iterator<Item = SlotWrite> + Clone {
    let end = sector + (length / SECTOR_BYTES) as u64;
    let mut here = sector;
    std::iter::from_fn(move || {
        (here < end).then(|| {
            let first = (here % u64::from(SECTORS)) as u32;
            let count = u64::from(SECTORS - first).min(end - here) as u32;
            let part = SlotWrite {
                slot: here / u64::from(SECTORS),
                at: at + ((here - sector) as usize) * SECTOR_BYTES,
                first,
                count,
            };
            here += u64::from(count);
            part
        })
    })
}

/// The pause before a flush of the log is tried again after an error that may pass.
const RETRY: Duration = Duration::from_millis(100);
