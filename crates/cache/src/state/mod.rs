//! The state that all paths of the cache share, under one lock, grouped by noun.
//!
//! The state is changed in short steps without waiting while the lock is held; the paths in `commit`,
//! `write`, `read` and `destage` do the waiting. Each group has the methods that need only its own fields.
//! Methods of [`CacheState`] are those that touch several groups.

mod queue;
mod commits;
mod destage;
mod fetches;
mod log;
mod lower;
mod room;

use journal::ring::SegmentRing;
use volume::Error;

pub(crate) use self::{
    commits::Commits,
    destage::{DestageRound, DestageState},
    fetches::Fetches,
    log::{LogState, LostLog, SPLIT_QUIET},
    lower::LowerState,
    queue::{CommitQueue, Queued, QueuedSlot},
    room::WriteRoom,
};
use crate::{
    epoch::Epochs,
    nvram::NvramBuffer,
    rules::QueueOrder,
    slots::{locks::SlotLocks, sectors::SLOT_BYTES, table::SlotTable},
    tier::Tiered,
};

/// The state of a cache that its lock protects.
pub(crate) struct CacheState {
    pub table: SlotTable,
    pub log: LogState,
    pub nvram: Option<NvramBuffer>,
    pub queue: CommitQueue,
    pub room: WriteRoom,
    pub commits: Commits,
    pub epochs: Epochs,
    pub destage: DestageState,
    pub lower: LowerState,
    pub slot_locks: SlotLocks,
    pub fetches: Fetches,
    pub tier: Tiered,
}

impl CacheState {
    pub fn new(
        (table, epochs): (SlotTable, Epochs),
        ring: SegmentRing,
        nvram: Option<NvramBuffer>,
        serial: u64,
    ) -> Self {
        Self {
            table,
            log: LogState::new(ring),
            nvram,
            queue: CommitQueue::default(),
            room: WriteRoom::default(),
            commits: Commits::new(serial),
            epochs,
            destage: DestageState::new(),
            lower: LowerState::new(),
            slot_locks: SlotLocks::default(),
            fetches: Fetches::new(),
            tier: Tiered::default(),
        }
    }

    /// Returns true if the log has, or is about to have, data that the lower volume lacks.
    pub fn is_dirty(&self) -> bool {
        self.table.dirty() > 0 || !self.queue.entries.is_empty() || self.queue.in_flight_slots > 0
    }

    /// Returns true if the log has, or is about to have, content of any slot of `first .. end`. For a run
    /// that is longer than `LOOKED_UP`, returns true if anything is dirty.
    pub fn may_be_logged(&self, first: u64, end: u64) -> bool {
        if end - first > LOOKED_UP {
            return self.is_dirty();
        }
        if self.log.has_lost(first, end) {
            return true;
        }
        (first..end).filter_map(|slot| self.table.find(slot)).any(|index| {
            let entry = self.table.entry(index);
            entry.place.is_some() || entry.pending()
        })
    }

    /// Queues the newest content of an entry for the log, as write `serial`. If the entry is in the queue
    /// already, it keeps its position there, and its newest content is written in that position.
    pub fn queue_slot(&mut self, index: u32, serial: u64) {
        self.queue.ends.is_due = true;
        let entry = self.table.entry_mut(index);
        self.destage.dirty_flags.set(entry.slot);
        entry.version = serial;
        // A fetch that is in progress returns older content than this write. Clear its id, so that the slot
        // ignores it.
        entry.fetch = 0;
        self.tier.void(entry.slot);
        if !entry.queued {
            entry.queued = true;
            entry.turn = self.queue.push_slot(index, serial);
        }
    }

    /// Ends the epoch of all writes queued until now, if there are any. Returns the serial that is durable
    /// when the epoch has ended.
    pub fn end_epoch(&mut self) -> u64 {
        if self.queue.ends.is_due { self.queue_end(false) } else { self.queue.ends.last_serial }
    }

    /// Queues the end of the open epoch for the log, and returns the serial of this queue entry.
    pub fn queue_end(&mut self, voids: bool) -> u64 {
        let serial = self.commits.next_serial();
        self.queue.push_end(serial, voids);
        serial
    }

    /// Prepares an entry for newer content. Usually the newer content takes the position of the entry in the
    /// queue for the log. In the following cases it must not: then the present content keeps the position,
    /// and the newer content is queued again.
    ///
    /// - [`QueueOrder::Segments`]: the newer content could get into an earlier segment than entries behind
    ///   it. With this rule, the log, even without its NVRAM, holds all writes that were acknowledged up to
    ///   some moment, and no later one.
    /// - [`QueueOrder::Epochs`]: the end of an epoch is in the queue behind the entry.
    pub fn keep_order(&mut self, index: u32, order: QueueOrder) {
        let entry = self.table.entry(index);
        let moves_up = match order {
            QueueOrder::Any => false,
            // If all queued entries fit into one segment, recovery finds either all of them or none, in any order.
            QueueOrder::Segments => {
                self.queue.entries.len() > self.log.ring.longest_data() as usize
            }
            QueueOrder::Epochs => self.queue.ends_behind(entry.turn),
        };
        if !entry.queued || !moves_up {
            return;
        }
        let content = QueuedSlot::of(&self.table, index);
        let entry = self.table.entry_mut(index);
        entry.queued = false;
        self.queue.set_older(index, entry.turn, content);
    }

    /// Queues a record that voids the older records of some slots. The caller has counted it in
    /// `CommitQueue::tombstones`. Returns its serial.
    pub fn queue_tombstone(&mut self, slot: u64, count: u32) -> u64 {
        let since = self.commits.next_serial();
        self.queue.entries.push_back(Queued::Drop { slot, count, since });
        since
    }

    /// Returns the number of blocks that the log must keep free: those promised to calls and records, and the ring's
    /// reserve.
    pub fn promised_room(&self) -> u32 {
        (self.blocks_promised() + self.queue.tombstones) as u32 + self.log.ring.reserve()
    }

    /// Returns true if the log has room for one more record of a bypassing write.
    pub fn room_for_tombstone(&self) -> bool {
        // While a resize changes the layout of the ring (`is_frozen`), the free room is not known.
        let taken = self.blocks_promised() + self.queue.tombstones;
        !self.queue.is_frozen && self.log.ring.room() as usize > taken
    }

    /// Returns the number of log blocks that queued and reserved slots will take: data, one header for each full
    /// segment, two for segments in flight, one for each step that a write has begun or reserved, and one for each end
    /// of an epoch.
    fn blocks_promised(&self) -> usize {
        let slots = self.queue.pending_slots() + self.room.reserved.slots;
        let longest = self.log.ring.longest_data() as usize;
        let steps = self.queue.copying + self.room.reserved.headers;
        slots + slots.div_ceil(longest) + 2 + steps + self.queue.ends.pending
    }

    /// Removes a slot whose newest content is in the lower volume after a bypassing call. The slot must not
    /// be waiting for the log.
    pub fn drop_slot(&mut self, index: u32) {
        self.table.drop_page(index);
        self.table.clear_place(index);
        let entry = self.table.entry_mut(index);
        entry.zero = false;
        entry.fetch = 0;
        self.table.remove_if_empty(index);
    }

    /// Returns the current error of the log disk, or of a lost log.
    pub fn log_error(&self) -> Option<Error> {
        let failure = || self.commits.failure.as_ref().map(|(_, error)| error.clone());
        self.log.lost.as_ref().map(LostLog::error).or_else(failure)
    }

    /// Returns the error of flushes while the log is lost and the lower volume lacks some of its data.
    pub fn risk(&self) -> Option<Error> {
        self.log.lost.as_ref().filter(|_| self.is_dirty()).map(LostLog::error)
    }
}

/// Number of slots that are looked up in one go under the lock: some tens of microseconds.
const LOOKED_UP: u64 = 1024;

const _: () = assert!(SLOT_BYTES == journal::BLOCK_BYTES, "a data block holds a slot");
