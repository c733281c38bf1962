//! The core of a cache: its settings, its parts, and the one lock over what all paths share.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::Notify;
use volume::{Data, Durability, Error, Geometry, Holding, JoinedVolume, Lba, Stack, Volume};

use crate::{
    alone::PairWitness,
    confirmed::Confirming,
    dram::{PageMut, SlotPagePool, scratch_block},
    flow::Flow,
    frames::LogIndexFrames,
    heard::Heard,
    log::{
        recovery::copy_to_mend,
        seal::Salt,
        superblock::{InstanceId, Superblock},
    },
    mutant::Mutation,
    nvram::NvramBuffer,
    reach::MemberExtents,
    seals::Seals,
    settings::{DestageOrder, LogErrorPolicy, Settings, WriteMode},
    slot::{SLOT_BYTES, WHOLE},
    state::CacheState,
    statistics::{AllTimes, BYPASS_ALLOWED, Counters},
    window::Window,
};

/// The cache without its outside.
pub(crate) struct CacheCore {
    pub settings: Settings,
    pub lower: Heard,
    pub log: Stack,
    /// One half of the log is with a partner.
    pub pair: Option<PairWitness>,
    /// The volumes, if there are several; then `lower` is all of them.
    pub joined: Option<Arc<JoinedVolume>>,
    /// Of the lower volume, when the cache was opened; how far it reaches now says `reach`.
    pub opened: Geometry,
    pub reach: MemberExtents,
    pub pool: Arc<SlotPagePool>,
    /// Pages for the headers of segments and for superblocks.
    pub scratch: Arc<SlotPagePool>,
    /// Slots that may wait for the log.
    pub pending_limit: usize,
    /// The fields that every segment header carries.
    pub identity: SegmentIdentity,
    /// What seals the log's blocks, if they are sealed.
    pub seals: Option<Seals>,
    /// Slots that an epoch may have, whatever the order and size of its writes; 0 if writes count
    /// without a flush.
    pub epoch_slots: u64,
    /// Entries that the table may have beside one for each block of the log, with the older places that epochs keep, before discards go past
    /// the log, or wait.
    pub entries_beside_log: usize,
    /// Taken before `pool`'s lock; never held across a wait.
    pub state: Mutex<CacheState>,
    /// Of the log. Nothing else is locked, nor waited for, under its lock.
    pub index: Mutex<LogIndexFrames>,
    /// What the superblock says; the lock makes its writers take turns. Taken before `state`.
    pub superblock: tokio::sync::Mutex<Superblock>,
    /// The superblock copy that is written first: the one whose write failed last, since it may be damaged.
    pub first_copy: AtomicU64,
    /// Serializes flushes of the lower volume, which reports a loss only once, to one of them.
    pub lower_flush: tokio::sync::Mutex<()>,
    /// Serializes the flushes of a log with NVRAMs in front of it.
    pub log_flush: tokio::sync::Mutex<()>,
    /// Where the lower volume's epochs are whole or nothing: a round has it alone, and whoever goes
    /// past the log shares it, since the flush of one would count half of the other.
    pub lower_epoch_turn: Arc<tokio::sync::RwLock<()>>,
    /// The number of calls that wait for `lower_epoch_turn` in order to bypass the log. While it is not 0, no round begins
    /// during the flush of another one.
    pub waits_for_turn: AtomicUsize,
    /// Serializes resizes of the log.
    pub resizing: Arc<tokio::sync::Mutex<()>>,
    /// Held shared by reads as of the last flush, and exclusively by a destage round while it begins.
    pub flushed_reads: tokio::sync::RwLock<()>,
    /// Serializes rollbacks to the last flush.
    pub rolling_back: tokio::sync::Mutex<()>,
    /// Flushes of the lower volume that failed.
    pub lower_losses: AtomicU64,
    /// The lower volume has made stable what it held when the cache was opened.
    pub lower_is_stable: AtomicBool,
    /// Notifies calls that something changed that they may wait for: room, a commit, a claim, a run.
    pub changed: Notify,
    /// Level 2 has something to look at.
    pub wake_destage: Notify,
    pub counters: Counters,
    pub times: Arc<AllTimes>,
    /// Calls from the host so far.
    pub requests: AtomicU64,
    /// What an epoch that goes down may weigh: as the lower volume said last; 0 if it has none.
    pub lower_epoch: AtomicU64,
    /// What destage may have under way. Nothing else is locked, nor waited for, under its lock.
    pub far_writes: Mutex<Window>,
    /// Admits reads of the lower volume to the link.
    pub far_reads: Flow,
    /// Fetches under way that a host waits for.
    pub host_fetches: AtomicUsize,
    /// Passes the number of the newest confirmed write to the places outside of log and NVRAM that keep it.
    pub confirming: Confirming,
    /// What is done wrong on purpose.
    pub mutation: Mutation,
}

impl CacheCore {
    /// Waits until `check` gives something; it is called again after every change.
    pub async fn wait_until<T>(&self, mut check: impl FnMut(&mut CacheState) -> Option<T>) -> T {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(value) = check(&mut self.state.lock()) {
                return value;
            }
            changed.await;
        }
    }

    /// A page, taking one from clean content if need be; none if all are in use.
    pub fn take_page(&self, state: &mut CacheState) -> Option<PageMut> {
        // A page that is taken from the table may still be on its way to a host; more than a few
        // of those in a row mean that memory is short for now.
        for _ in 0..8 {
            if let Some(page) = self.pool.take_beyond(state.tier.unused_pages()) {
                return Some(page);
            }
            let evicted = state.table.evict()?;
            if state.tier.takes(&evicted) && self.whole(evicted.slot) == WHOLE {
                state.tier.admit(evicted);
            }
        }
        self.pool.take_beyond(state.tier.unused_pages())
    }

    /// Returns the blocks that the log must keep free: those promised to calls and records, and the ring's reserve.
    pub fn promised_room(&self, state: &CacheState) -> u32 {
        (self.blocks_promised(state) + state.queue.tombstones) as u32 + state.log.ring.reserve()
    }

    /// Returns true if the log has room for one more record of a bypassing write.
    pub fn room_for_tombstone(&self, state: &CacheState) -> bool {
        // While the ring changes its layout its room is not known.
        let taken = self.blocks_promised(state) + state.queue.tombstones;
        !state.queue.is_frozen && state.log.ring.room() as usize > taken
    }

    /// Returns the log blocks that queued and reserved slots will take: data, one header for each full
    /// segment, two for segments in flight, one for each step that a write has begun or
    /// reserved, and one for each end of an epoch.
    fn blocks_promised(&self, state: &CacheState) -> usize {
        let slots = state.queue.pending_slots() + state.room.reserved.slots;
        let longest = state.log.ring.longest_data() as usize;
        let steps = state.queue.copying + state.room.reserved.headers;
        slots + slots.div_ceil(longest) + 2 + steps + state.queue.ends.pending
    }

    /// Whether memory has room for so many more entries.
    pub fn has_entries(&self, state: &CacheState, more: usize) -> bool {
        let limit = self.entries_beside_log + state.log.ring.blocks() as usize;
        state.table.len() + state.epochs.kept() + more <= limit
    }

    /// Whether nothing may overtake the log.
    pub fn is_strict(&self) -> bool {
        self.settings.order == DestageOrder::Strict && !self.settings.report.is_past()
    }

    /// Whether what a round sends is to count as a whole or not at all: one epoch of the lower volume.
    pub fn is_atomic_below(&self) -> bool {
        self.is_strict() && self.lower.geometry().epoch_blocks > 0
    }

    /// Returns true if a round that is under way must not go on: when the cache stops; when the flush before the
    /// round has failed; and when destage is held while the log disk fails, if hosts' writes had to wait for the
    /// round's end.
    pub fn ends_round(&self, state: &CacheState) -> bool {
        let is_held = state.destage.round.is_some() && state.destage.orders.hold().is_some();
        let is_void = state.destage.round.as_ref().is_some_and(|round| round.is_void);
        is_void
            || state.destage.is_stopping
            || (is_held && state.log_error().is_some() && self.is_atomic_below())
    }

    /// Whether writes count with the next flush only.
    pub fn is_by_flush(&self) -> bool {
        self.settings.report == WriteMode::AtFlush
    }

    /// What the lower volume alone is if this cache is lost, in words.
    pub fn promise(&self) -> &'static str {
        if self.settings.report.is_past() {
            // What an earlier mode has left in the log is lost with it.
            if self.state.lock().is_dirty() { EMPTYING } else { "every write that was answered" }
        } else if !self.is_strict() {
            BYPASS_ALLOWED
        } else if self.joined.is_some() && self.has_atomic_epochs() {
            "epochs, atomic in each volume"
        } else if self.has_atomic_epochs() {
            "epochs, atomic"
        } else {
            "epochs, flush between"
        }
    }

    /// Whether an epoch comes to the lower volume as a whole: without a claim, a flush of somebody
    /// else ends it in the middle.
    fn has_atomic_epochs(&self) -> bool {
        self.lower_epoch.load(Ordering::Relaxed) > 0 && self.lower.holding() == Holding::Held
    }

    /// The mask of all sectors of a slot that the volume has.
    pub fn whole(&self, slot: u64) -> u8 {
        let sectors = self.end_of(slot).saturating_sub(slot * 8);
        if sectors >= 8 { WHOLE } else { (1 << sectors) - 1 }
    }

    /// The address in the lower volume of a sector.
    pub fn lba(&self, sector: u64) -> Lba {
        Lba(sector / self.sectors_per_block())
    }

    /// Sectors of 512 bytes in a block of the lower volume.
    pub fn sectors_per_block(&self) -> u64 {
        u64::from(self.opened.block_size) / 512
    }

    /// Blocks of the lower volume in a slot.
    pub fn blocks_per_slot(&self) -> u64 {
        SLOT_BYTES as u64 / u64::from(self.opened.block_size)
    }

    /// Of the volume as it is used; of several, of all their places.
    pub fn geometry(&self) -> Geometry {
        let blocks = if self.joined.is_some() { self.opened.blocks } else { self.reach.blocks(0) };
        Geometry { blocks, ..self.opened }
    }

    /// The sector after the last of the volume that a slot is of. The last slot of a volume may be cut
    /// short by that.
    pub fn end_of(&self, slot: u64) -> u64 {
        let block = slot.saturating_mul(self.blocks_per_slot());
        self.reach.end(block).saturating_mul(self.sectors_per_block())
    }

    /// Writes both superblocks, first changed by `change` and brought up to date.
    ///
    /// One after the other: whatever happens to one write, the other copy is whole. What the new
    /// state frees may be overwritten only after this has returned.
    pub async fn write_superblock(
        &self,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<(), Error> {
        let mut superblock = self.superblock.lock().await;
        {
            let state = self.state.lock();
            superblock.committed = state.log.ring.next() - 1;
            superblock.serial = state.commits.serial;
            superblock.complete = state.commits.durable;
            superblock.noted = self.settings.report.is_immediate()
                && state.nvram.as_ref().is_some_and(NvramBuffer::is_sound);
        }
        // A failed attempt may have reached the disk: its number is not used again.
        superblock.sequence += 1;
        let mut next = superblock.clone();
        change(&mut next);
        let is_this_opening = self.pair.as_ref().is_none_or(|pair| !pair.has_question());
        if is_this_opening
            && next.granted < next.generation
            && self.lower.holding() == Holding::Held
        {
            next.note_grant();
        }
        if let Some(joined) = &self.joined {
            next.note_members(joined);
        }
        let moves = next.log_blocks != superblock.log_blocks;
        if !moves {
            next.index_tail = self.index.lock().oldest_for(next.tail);
        }
        let layouts = std::mem::take(&mut next.layouts);
        next.keep_layouts(layouts.into_iter());
        let first = self.first_copy.load(Ordering::Relaxed);
        let written = write_copies_from(first, &self.log, &self.scratch, &next).await;
        let written = written.map_err(|(copy, error)| {
            self.first_copy.store(copy, Ordering::Relaxed);
            error
        });
        self.tell_of_superblock(&written);
        written?;
        if !moves {
            self.index.lock().release(next.index_tail);
        }
        *superblock = next;
        Ok(())
    }

    /// Reports once that the superblock cannot be written, and once that it can again.
    fn tell_of_superblock(&self, written: &Result<(), Error>) {
        let failed =
            std::mem::replace(&mut self.state.lock().log.superblock_fails, written.is_err());
        match written {
            Ok(()) if failed => tracing::info!("the superblock of the log is written again"),
            Err(error) if !failed => tracing::warn!(
                %error,
                "cannot write the superblock of the log: it is tried again until that succeeds"
            ),
            _ => {}
        }
    }

    /// Returns why new writes are refused now, if they are.
    pub fn refusal(&self, state: &CacheState) -> Option<Error> {
        if state.destage.is_stopping {
            return Some(Error::Busy("the cache is stopping"));
        }
        // A write that bypasses an empty log does not need the log.
        let needs_log = !self.settings.report.is_past() || state.is_dirty();
        let stops = self.settings.on_log_error == LogErrorPolicy::StopWrites;
        state.log_error().filter(|_| stops && needs_log)
    }
}

/// Writes the two copies of a superblock, a damaged copy first.
pub(crate) async fn write_copies(
    log: &Stack,
    scratch: &Arc<SlotPagePool>,
    superblock: &Superblock,
) -> Result<(), Error> {
    let first = copy_to_mend(log).await?;
    write_copies_from(first, log, scratch, superblock).await.map_err(|(_, error)| error)
}

/// Writes the two copies of a superblock. The copy `first`, which may be damaged, is written first: otherwise a power
/// failure during the write of the other copy could leave both damaged. An error names the copy that was not written.
async fn write_copies_from(
    first: u64,
    log: &Stack,
    scratch: &Arc<SlotPagePool>,
    superblock: &Superblock,
) -> Result<(), (u64, Error)> {
    let block = scratch_block(scratch, |block| superblock.encode(block));
    for copy in [first, 1 - first] {
        let written = log.write(Lba(copy), Data::from(block.clone()), Durability::Stable).await;
        written.map_err(|error| (copy, error))?;
    }
    Ok(())
}

/// Pages of the scratch pool: a segment's header, a superblock, and some that writes which were
/// given up still hold for a moment.
pub(crate) const SCRATCH_PAGES: u32 = 8;

/// What is told while a log is emptied by a cache that writes nothing to it any more.
const EMPTYING: &str = "none (the log holds older writes)";

/// The fields that every segment header carries.
#[derive(Clone, Copy)]
pub(crate) struct SegmentIdentity {
    pub instance: InstanceId,
    pub generation: u64,
    /// The salt of this opening, if blocks are sealed.
    pub salt: Option<Salt>,
    /// The NVRAM holds acknowledged writes, so it notes the number of each segment before the segment is written.
    pub noted: bool,
}
