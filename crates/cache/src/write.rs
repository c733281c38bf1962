//! The write path: data into slots, slots into the queue for the log.

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout};
use volume::{Data, Durability, Error};

use crate::{
    checksum::crc32c,
    dram::PageMut,
    log::segment::Kind,
    nvram::Buffer,
    settings::{Report, TooLarge},
    slot::{Came, NONE, Place, SECTOR_BYTES, SECTORS, SLOT_BYTES, copy_sectors, mask},
    state::{Shared, State},
};

/// How far a step of a write came.
enum Step {
    /// So many slots are in the queue.
    Placed { slots: usize, serial: u64 },
    /// Something must change first.
    Wait,
    /// This part of the slot's content must come from the log first.
    Load { slot: u64, place: Place },
    /// The log has no room.
    Full,
}

/// What may be queued for the log.
enum Room {
    /// So many slots, at least one.
    Slots(usize),
    /// Nothing before something else is done.
    Later,
    /// Nothing before destage moves the tail of the log, or the log disk works again.
    Full,
    /// Nothing before the next flush, since what is in the log has not ended its epoch.
    TooLarge,
}

/// Content of a slot that a write needs and that was read from the log.
struct Loaded {
    slot: u64,
    place: Place,
    bytes: Data,
}

/// What a write puts into one slot.
#[derive(Clone, Copy)]
struct Part {
    slot: u64,
    /// Where in the write's data.
    at: usize,
    first: u32,
    count: u32,
}

impl Part {
    fn mask(self) -> u8 {
        mask(self.first, self.count)
    }

    fn bytes(self) -> usize {
        self.count as usize * SECTOR_BYTES
    }
}

impl Shared {
    /// Replaces sectors from `sector` on; done when the report mode says so.
    pub async fn write(
        self: &Arc<Self>,
        sector: u64,
        data: Data,
        durability: Durability,
    ) -> Result<(), Error> {
        if self.settings.report.is_past() {
            return self.write_past(sector, data).await;
        }
        let mut at = 0;
        let mut last = 0;
        let mut loaded = None;
        while at < data.len() {
            let here = sector + (at / SECTOR_BYTES) as u64;
            let rest = &data;
            match self.place(here, rest, at, &mut loaded)? {
                Step::Placed { slots, serial } => {
                    last = serial;
                    at = (at + slots * SLOT_BYTES
                        - (here % u64::from(SECTORS)) as usize * SECTOR_BYTES)
                        .min(data.len());
                }
                Step::Wait => self.wait_for_space(here, data.len() - at).await?,
                Step::Load { slot, place } => {
                    if let Some(bytes) = self.load(slot, place).await? {
                        loaded = Some(Loaded { slot, place, bytes });
                    }
                }
                Step::Full => {
                    self.write_past(here, data.slice(at, data.len() - at)).await?;
                    break;
                }
            }
        }
        if !self.waits_for_log(durability) {
            return Ok(());
        }
        // A stable write is a write and a flush.
        if self.is_by_flush() { self.settle().await } else { self.committed(last).await }
    }

    /// Whether what was acknowledged becomes stable with a flush only.
    pub fn is_volatile(&self) -> bool {
        self.settings.report.is_early() && !self.settings.nvram_is_stable()
    }

    /// Whether a write that is in its slots, and in the NVRAM, is not done yet.
    fn waits_for_log(&self, durability: Durability) -> bool {
        if self.settings.nvram_is_stable() {
            return !self.tells_early(&self.state.lock());
        }
        !self.settings.report.is_early() || durability == Durability::Stable
    }

    /// Whether a write that promises no more than others is told of before it is in the log.
    pub fn tells_early(&self, state: &State) -> bool {
        if self.settings.nvram_is_stable() {
            return state.nvram.as_ref().is_some_and(Buffer::is_sound);
        }
        self.settings.report.is_early()
    }

    /// Puts as much of `data` (from `at` on) into slots as there is room for, at least one slot.
    fn place(
        self: &Arc<Self>,
        sector: u64,
        data: &Data,
        at: usize,
        loaded: &mut Option<Loaded>,
    ) -> Result<Step, Error> {
        let parts = parts(sector, data.len() - at, at);
        // First the promises: pages, room in the log and in the NVRAM.
        let mut pages = Vec::new();
        {
            let mut state = self.state.lock();
            let free = match self.room(&mut state)? {
                Room::Slots(free) => free,
                Room::Later => return Ok(Step::Wait),
                Room::Full => return Ok(Step::Full),
                Room::TooLarge => return self.end_too_large(&mut state).map(|()| Step::Wait),
            };
            let wanted = parts.clone().take(free);
            for part in wanted {
                if self.is_claimed(&state, part.slot) {
                    break;
                }
                if let Some(place) = needs_log(&state, part, loaded.as_ref()) {
                    if pages.is_empty() {
                        return Ok(Step::Load { slot: part.slot, place });
                    }
                    break;
                }
                let Some(page) = self.take_page(&mut state) else { break };
                pages.push(page);
            }
            if pages.is_empty() {
                return Ok(Step::Wait);
            }
            state.reserved_slots += pages.len();
            state.reserving += 1;
        }
        let reserved = pages.len();
        // Then the copies, without the lock.
        let mut filled = Vec::with_capacity(pages.len());
        for (part, mut page) in parts.zip(pages) {
            let range = part.first as usize * SECTOR_BYTES..;
            data.slice(part.at, part.bytes()).copy_to_slice(&mut page[range][..part.bytes()]);
            let checksum = if part.count == SECTORS { crc32c(&page) } else { 0 };
            filled.push((part, page, checksum));
        }
        Ok(self.publish_parts(filled, reserved, loaded))
    }

    /// Whether a write would be taken now.
    pub fn admit(&self) -> Result<(), Error> {
        let mut state = self.state.lock();
        if self.settings.report.is_past() {
            return self.refusal(&state).map_or(Ok(()), |error| Err(self.refuse(error)));
        }
        self.room(&mut state).map(drop)
    }

    /// How much may be queued for the log now.
    fn room(&self, state: &mut State) -> Result<Room, Error> {
        if let Some(error) = self.refusal(state) {
            return Err(self.refuse(error));
        }
        if state.rolling_back || state.frozen {
            return Ok(Room::Later);
        }
        if state.log_error().is_some() {
            return Ok(Room::Full);
        }
        let mut free = self.pending_limit.saturating_sub(state.pending_slots());
        if self.settings.report.is_immediate() {
            let held = state.nvram.as_ref().map_or(0, Buffer::free);
            free = free.min(held.saturating_sub(state.reserved_slots));
        }
        // Many slots, or one by one when the log is nearly full.
        for slots in [free.min(MAX_STEP), free.min(1)] {
            if slots == 0 {
                return Ok(Room::Later);
            }
            if self.room_for(state, slots) {
                return Ok(Room::Slots(slots));
            }
        }
        // A write past the log would wait for the lower volume, with its data accepted.
        if self.is_away(state) {
            return Err(self.refuse(Error::Busy("the log is full and the lower volume is away")));
        }
        if !self.is_strict() {
            return Ok(Room::Full);
        }
        self.wait_for_round(state)
    }

    /// Room comes from a round, since nothing may overtake the log.
    fn wait_for_round(&self, state: &mut State) -> Result<Room, Error> {
        if let Some(why) = state.orders.hold() {
            return Err(self.refuse(Error::Busy(why)));
        }
        let open_only = state.epochs.oldest().is_none() && state.ends == 0;
        if self.is_by_flush() && open_only && !state.rolling_back {
            return Ok(Room::TooLarge);
        }
        if !std::mem::replace(&mut state.starving, true) {
            self.wake_destage.notify_one();
        }
        Ok(Room::Later)
    }

    /// What is between two flushes is too much for the log: refuses more, or ends the epoch here.
    fn end_too_large(self: &Arc<Self>, state: &mut State) -> Result<(), Error> {
        if self.settings.too_large == TooLarge::Refused {
            self.counters.refused_epochs.add(1);
            return Err(Error::Device(
                "the log has no room for what was written since the last flush".into(),
            ));
        }
        self.counters.split_epochs.add(1);
        tracing::warn!("what was written since the last flush does not fit into the log: split");
        state.end_epoch();
        self.start_commit(state);
        Ok(())
    }

    /// Counts a refusal.
    pub fn refuse(&self, error: Error) -> Error {
        if matches!(error, Error::Busy(_)) {
            self.counters.refused_busy.add(1);
        }
        error
    }

    /// Makes the filled pages the newest content of their slots and queues them.
    fn publish_parts(
        self: &Arc<Self>,
        filled: Vec<(Part, PageMut, u32)>,
        reserved: usize,
        loaded: &mut Option<Loaded>,
    ) -> Step {
        let mut state = self.state.lock();
        let state = &mut *state;
        state.reserved_slots -= reserved;
        state.reserving -= 1;
        state.serial += 1;
        let serial = state.serial;
        let mut placed = 0;
        for (part, page, checksum) in filled {
            // What was true a moment ago, before the copies, may not be now.
            if self.is_claimed(state, part.slot)
                || needs_log(state, part, loaded.as_ref()).is_some()
            {
                break;
            }
            let index = state.table.find_or_insert(part.slot);
            let (page, valid) = merge(state, index, part, page, loaded.as_ref());
            state.keep_order(index, self.settings.report);
            let checksum = if part.count == SECTORS { checksum } else { crc32c(&page) };
            let page = page.freeze();
            self.keep_in_nvram(state, index, serial, valid, &page, checksum);
            state.table.set_page(index, page, valid, Came::Wanted);
            state.table.entry_mut(index).checksum = checksum;
            state.queue_slot(index, serial);
            placed += 1;
        }
        self.start_commit(state);
        if placed == 0 { Step::Wait } else { Step::Placed { slots: placed, serial } }
    }

    /// With immediate report: the content is stable in the NVRAM before anyone is told. In one that has
    /// failed the older version stays until the log has this one, and whoever writes it waits for that.
    fn keep_in_nvram(
        &self,
        state: &mut State,
        index: u32,
        serial: u64,
        valid: u8,
        page: &[u8],
        checksum: u32,
    ) {
        if !self.settings.report.is_immediate() {
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
        // The older version only after the newer one is whole.
        let older = std::mem::replace(&mut entry.nvram, newer);
        if older != NONE {
            nvram.release(older);
        }
    }

    fn is_claimed(&self, state: &State, slot: u64) -> bool {
        state.claims.overlap(slot, slot + 1)
    }

    /// Waits until a write of these sectors may go on: pages, queue, NVRAM, claims; for a round that
    /// makes room in the log, not too long.
    async fn wait_for_space(&self, sector: u64, bytes: usize) -> Result<(), Error> {
        let slot = sector / u64::from(SECTORS);
        let started = Instant::now();
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let mut returned = pin!(self.pool.returned().notified());
            returned.as_mut().enable();
            let starving = {
                let mut state = self.state.lock();
                let later = matches!(self.room(&mut state)?, Room::Later);
                if !later && !self.is_claimed(&state, slot) {
                    let page = self.take_page(&mut state);
                    if page.is_some() {
                        return Ok(());
                    }
                }
                later && state.starving
            };
            tracing::trace!(bytes, "a write waits for memory or for the log");
            let something = async {
                tokio::select! {
                    () = changed => {}
                    () = returned => {}
                }
            };
            if starving {
                self.look_again(started, something).await?;
            } else {
                something.await;
            }
        }
    }

    /// Waits for a change while a round has to make room, which has taken since `started`. Silence of
    /// the lower volume is no change.
    async fn look_again(
        &self,
        started: Instant,
        change: impl Future<Output = ()>,
    ) -> Result<(), Error> {
        if started.elapsed() >= PATIENCE {
            return Err(self.refuse(Error::Busy("the log is full")));
        }
        let _ = timeout(LOOK_EVERY, change).await;
        Ok(())
    }

    /// Makes whole slots read as zeros, through the log. False if there is no room for that.
    pub async fn write_zeros(self: &Arc<Self>, first: u64, end: u64) -> Result<bool, Error> {
        let mut slot = first;
        let mut last = 0;
        let mut starved = Instant::now();
        while slot < end {
            let placed = {
                let mut state = self.state.lock();
                let mut wanted = (end - slot) as usize;
                if self.is_strict() {
                    wanted = wanted.min(MAX_STEP);
                }
                let fits = self.has_entries(&state, wanted);
                if !fits && !self.is_strict() {
                    return Ok(false);
                }
                let room = self.room(&mut state)?;
                match if fits { room } else { self.wait_for_round(&mut state)? } {
                    Room::Full => return Ok(false),
                    Room::Later => 0,
                    Room::TooLarge => self.end_too_large(&mut state).map(|()| 0)?,
                    Room::Slots(free) => {
                        let n = wanted.min(free);
                        let run = slot..slot + n as u64;
                        if state.claims.overlap(run.start, run.end) {
                            0
                        } else {
                            state.serial += 1;
                            last = state.serial;
                            let report = self.settings.report;
                            run.for_each(|slot| place_zero(&mut state, slot, report));
                            self.start_commit(&mut state);
                            n
                        }
                    }
                }
            };
            if placed == 0 {
                self.wait_for_zeros(slot, starved).await?;
            } else {
                (slot, starved) = (slot + placed as u64, Instant::now());
            }
        }
        if !self.is_by_flush() {
            self.committed(last).await?;
        }
        Ok(true)
    }

    async fn wait_for_zeros(&self, slot: u64, started: Instant) -> Result<(), Error> {
        let free = self.wait_until(|state| {
            let later = matches!(self.room(state), Ok(Room::Later));
            let claimed = state.claims.overlap(slot, slot + MAX_STEP as u64);
            let crowded = self.is_strict() && !self.has_entries(state, MAX_STEP);
            (!later && !claimed && !crowded).then_some(())
        });
        if self.is_strict() {
            return self.look_again(started, free).await;
        }
        free.await;
        Ok(())
    }
}

fn place_zero(state: &mut State, slot: u64, report: Report) {
    let serial = state.serial;
    let index = state.table.find_or_insert(slot);
    state.keep_order(index, report);
    state.table.drop_page(index);
    state.table.entry_mut(index).zero = true;
    state.queue_slot(index, serial);
}

/// The logged content that a part of a slot must be merged with and that is not in memory.
fn needs_log(state: &State, part: Part, loaded: Option<&Loaded>) -> Option<Place> {
    if part.count == SECTORS {
        return None;
    }
    let index = state.table.find(part.slot)?;
    let entry = state.table.entry(index);
    if entry.zero || state.table.page(index).is_some() {
        return None;
    }
    let place = entry.place.filter(|place| place.kind == Kind::Data)?;
    // What the write replaces altogether is not needed.
    if place.mask & !part.mask() == 0 {
        return None;
    }
    let have = loaded.is_some_and(|loaded| loaded.slot == part.slot && loaded.place == place);
    (!have).then_some(place)
}

/// Completes a page with what else is known of the slot. The page then holds every sector that
/// is not in the lower volume, so its record in the log stands alone.
fn merge(
    state: &State,
    index: u32,
    part: Part,
    mut page: PageMut,
    loaded: Option<&Loaded>,
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
    // The page has held other slots.
    clear_sectors(&mut page, !valid);
    (page, valid)
}

fn clear_sectors(page: &mut [u8], mask: u8) {
    copy_sectors(&[0; SLOT_BYTES], page, mask);
}

/// Cuts `length` bytes from `sector` on at slots; `at` is where they begin in the write's data.
fn parts(sector: u64, length: usize, at: usize) -> impl Iterator<Item = Part> + Clone {
    let end = sector + (length / SECTOR_BYTES) as u64;
    let mut here = sector;
    std::iter::from_fn(move || {
        (here < end).then(|| {
            let first = (here % u64::from(SECTORS)) as u32;
            let count = u64::from(SECTORS - first).min(end - here) as u32;
            let part = Part {
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

/// Slots that one step of a write takes: those of a full segment, so that one large write does
/// not keep others from the log for longer.
const MAX_STEP: usize = 128;
/// How often a call that waits for a round sees whether the lower volume still answers.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long it waits: half of the half minute after which hosts abort.
const PATIENCE: Duration = Duration::from_secs(15);
