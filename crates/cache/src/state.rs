//! What all paths of the cache share: the slot table, the queue for the log, the ring, claims.
//!
//! Everything behind the one lock is changed in short steps without waiting; the paths in
//! `commit`, `write`, `read` and `destage` do the waiting.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    task::Waker,
};

use bytes::Bytes;
use tokio::time::Instant;
use volume::Error;

use crate::{
    claim::SlotLocks,
    epoch::Epochs,
    fetch::SlotFetch,
    gauge::LogFillGauge,
    line::WaitLine,
    log::ring::SegmentRing,
    meter::Meter,
    nvram::NvramBuffer,
    orders::Orders,
    reach::DirtyFlags,
    settings::WriteMode,
    slot::{LogAddress, SLOT_BYTES, SlotEntry, SlotTable},
    streams::Streams,
    tier::Tiered,
};

/// What the lock protects.
pub(crate) struct CacheState {
    pub table: SlotTable,
    pub ring: SegmentRing,
    pub nvram: Option<NvramBuffer>,
    /// Waits for a segment, oldest first. At most `pending_limit` slots.
    pub queue: VecDeque<Queued>,
    /// How many have left the queue at its front, modulo 2^32: an entry's turn, less this, is its
    /// place in it.
    pub left_queue: u32,
    pub queued_slots: usize,
    /// Slots that a write is about to queue: it copies without the lock.
    pub copying_slots: usize,
    /// How many writes are about to.
    pub copying: usize,
    /// Records of bypassed writes in the queue or in flight.
    pub tombstones: usize,
    /// Ends of epochs in the queue or in flight.
    pub ends: usize,
    /// The turn of the newest of them that was ever queued, modulo 2^32.
    pub last_end_turn: u32,
    /// Its serial.
    pub last_end: u64,
    /// Something was queued since.
    pub unflushed: bool,
    /// A rollback to the last flush is running: new writes wait.
    pub rolling_back: bool,
    /// Calls wait for room that a round has to make.
    pub starving: bool,
    /// Room in the log that writes have reserved and have not used yet.
    pub reserved: Reserved,
    /// Writes that wait for room in the log, each with the blocks that it wants. They hold no reservation.
    pub log_line: WaitLine,
    /// Bytes of data that the writes in `log_line` keep in memory.
    pub held_bytes: usize,
    /// Writes with a reservation that wait for their next step, each with the slots that it wants.
    pub step_line: WaitLine,
    /// First slot and count of each record of the segment that is being written.
    pub in_flight: Vec<(u64, u32)>,
    pub in_flight_slots: usize,
    /// A driver is writing segments.
    pub committing: bool,
    /// No segment is begun: the ring is changing its layout.
    pub frozen: bool,
    /// The serial of the newest write.
    pub serial: u64,
    /// Every write up to here is in the log, stable.
    pub durable: u64,
    /// Recovery finds every write up to here in the log: the highest *complete* of a superblock or of a
    /// segment that ended an epoch. May be below `durable` after an opening.
    pub logged: u64,
    /// The newest write that the NVRAM holds, or held until the log had it. With NVRAMs in front of a pair's log, it is
    /// the newest write in the log.
    pub kept: u64,
    /// There are NVRAMs in front of the log. Then only `CacheCore::log_on_disk` raises `logged`.
    pub log_is_buffered: bool,
    /// The error of a failing log disk; writes up to this serial got it.
    pub failure: Option<(u64, Error)>,
    /// The log's file was removed, cut short or replaced.
    pub lost_log: Option<LostLog>,
    pub waiters: VecDeque<Waiter>,
    pub next_waiter: u64,
    pub claims: SlotLocks,
    pub epochs: Epochs,
    /// The destage round whose writes are being sent. During a flush: the next round if one has begun, otherwise the round
    /// that is being flushed.
    pub round: Option<DestageRound>,
    /// The last segment of the round that is being flushed, if `round` is the next one.
    pub flushing: Option<u64>,
    /// The lower volume may hold what was not flushed there.
    pub unflushed_below: bool,
    pub tier: Tiered,
    pub fetches: HashMap<u32, Arc<SlotFetch>>,
    pub next_fetch: u32,
    pub streams: Streams,
    /// When the oldest dirty data became dirty, or earlier.
    pub dirty_since: Option<Instant>,
    /// Sent with the claim on the lower volume: the log has dirty data, or is about to have it.
    pub dirty: DirtyFlags,
    /// The last call to the lower volume failed for good or for now.
    pub lower_error: Option<Error>,
    /// Start of the present series of failed calls to the lower volume.
    pub lower_fails_since: Option<Instant>,
    /// Since when the lower volume refuses destage rounds, and with which error. Only a completed round clears this,
    /// since other calls may succeed meanwhile.
    pub refuses: Option<(Instant, Error)>,
    /// The last write of the log's superblock failed.
    pub superblock_fails: bool,
    /// The last write of a frame of the log's index failed.
    pub index_fails: bool,
    pub orders: Orders,
    /// What goes down.
    pub destaging: Meter,
    /// Measures the rate at which the log fills.
    pub gauge: LogFillGauge,
    pub stopping: bool,
    /// The log is being closed or is closed: nothing may be queued any more.
    pub closed: bool,
    /// Destage without waiting for idle periods, until nothing is dirty.
    pub draining: usize,
}

/// Room in the log that is reserved for writes.
#[derive(Default)]
pub(crate) struct Reserved {
    /// Writes with a reservation.
    pub live: usize,
    /// Slots that these writes have not placed yet.
    pub slots: usize,
    /// Segment headers for the steps that these writes have not begun yet.
    pub headers: usize,
}

/// A log that counts as stable no more, although the open file may still be read and written.
pub(crate) struct LostLog {
    pub reason: Arc<str>,
    /// Destage has sent everything that could be read from the log; a part of the log could not be read.
    pub all_sent: bool,
    /// An event has reported that the lower volume has everything that the log held.
    pub is_told: bool,
    /// Slots that are clean although the log still has records of them. A write that bypasses the log would have to
    /// void these records, which a lost log cannot store, so such a write is refused. At most one per log block.
    pub sent: HashSet<u64>,
}

/// One that waits for a serial to become durable.
pub(crate) struct Waiter {
    pub serial: u64,
    pub id: u64,
    pub waker: Waker,
}

/// What waits for a segment.
pub(crate) enum Queued {
    /// The newest content of an entry. `since` is the serial of the write that queued it.
    Slot { index: u32, since: u64 },
    /// Content of an entry that was overwritten before its turn, see [`CacheState::keep_order`].
    Older { index: u32, since: u64, content: Box<QueuedSlot> },
    /// A record that voids older ones.
    Drop { slot: u64, count: u32, since: u64 },
    /// The end of an epoch. If `voids`, what is open is given up, and nothing of it is behind this in
    /// the queue.
    End { since: u64, voids: bool },
}

/// One version of a slot on its way to the log.
pub(crate) struct QueuedSlot {
    /// Serial of the newest write in it.
    pub version: u64,
    /// Zeros, if there is none.
    pub page: Option<Bytes>,
    /// Which sectors of the page are right.
    pub valid: u8,
    pub checksum: u32,
}

/// A level 2 round: the oldest sealed epoch is being sent down.
pub(crate) struct DestageRound {
    /// Number of its last segment.
    pub cut: u64,
    /// Runs of slots that are being sent.
    pub in_flight: Vec<(u64, u64)>,
    /// Bytes that the round has sent.
    pub sent_bytes: u64,
    /// Slots whose content cannot be read from the log.
    pub rotten: Vec<(u64, LogAddress)>,
    /// The flush of the previous round has failed. This round sends no more writes, and those that it has sent are rolled
    /// back.
    pub is_void: bool,
}

impl DestageRound {
    /// Makes the round of the epoch that ends with segment `cut`.
    pub fn new(cut: u64) -> Self {
        Self { cut, in_flight: Vec::new(), sent_bytes: 0, rotten: Vec::new(), is_void: false }
    }
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
            ring,
            nvram,
            queue: VecDeque::new(),
            left_queue: 0,
            queued_slots: 0,
            copying_slots: 0,
            copying: 0,
            tombstones: 0,
            ends: 0,
            last_end_turn: 0,
            last_end: 0,
            unflushed: false,
            rolling_back: false,
            starving: false,
            reserved: Reserved::default(),
            log_line: WaitLine::default(),
            held_bytes: 0,
            step_line: WaitLine::default(),
            in_flight: Vec::new(),
            in_flight_slots: 0,
            committing: false,
            frozen: false,
            serial,
            durable: serial,
            logged: 0,
            kept: 0,
            log_is_buffered: false,
            failure: None,
            lost_log: None,
            waiters: VecDeque::new(),
            next_waiter: 0,
            claims: SlotLocks::default(),
            epochs,
            round: None,
            flushing: None,
            // Who was here before us may have left something there.
            unflushed_below: true,
            tier: Tiered::default(),
            fetches: HashMap::new(),
            next_fetch: 1,
            streams: Streams::default(),
            dirty_since: None,
            dirty: DirtyFlags::of_one(),
            lower_error: None,
            lower_fails_since: None,
            refuses: None,
            superblock_fails: false,
            index_fails: false,
            orders: Orders::default(),
            destaging: Meter::new(),
            gauge: LogFillGauge::default(),
            stopping: false,
            closed: false,
            draining: 0,
        }
    }

    /// Slots that wait for the log or are about to.
    pub fn pending_slots(&self) -> usize {
        self.queued_slots + self.in_flight_slots + self.copying_slots
    }

    /// Nothing waits for the log.
    pub fn is_settled(&self) -> bool {
        self.queue.is_empty() && !self.committing && self.copying == 0
    }

    /// Whether any slot of `first .. end` waits for the log.
    pub fn is_pending(&self, first: u64, end: u64) -> bool {
        let inside = |slot: u64, count: u32| slot < end && first < slot + u64::from(count);
        self.in_flight.iter().any(|&(slot, count)| inside(slot, count))
            || self.queue.iter().any(|queued| match *queued {
                Queued::Slot { index, .. } | Queued::Older { index, .. } => {
                    inside(self.table.entry(index).slot, 1)
                }
                Queued::Drop { slot, count, .. } => inside(slot, count),
                Queued::End { .. } => false,
            })
    }

    /// Whether the log has, or is about to have, what the lower volume has not.
    pub fn is_dirty(&self) -> bool {
        self.table.dirty() > 0 || !self.queue.is_empty() || self.in_flight_slots > 0
    }

    /// Whether the log has, or is about to have, content of any slot of `first .. end`. May say so
    /// of a long run without need.
    pub fn may_be_logged(&self, first: u64, end: u64) -> bool {
        if end - first > LOOKED_UP {
            return self.is_dirty();
        }
        let sent = self.lost_log.as_ref().map(|lost| &lost.sent);
        if sent.is_some_and(|sent| (first..end).any(|slot| sent.contains(&slot))) {
            return true;
        }
        (first..end).filter_map(|slot| self.table.find(slot)).any(|index| {
            let entry = self.table.entry(index);
            entry.place.is_some() || entry.pending()
        })
    }

    /// Whether a destage run under way touches any slot of `first .. end`.
    pub fn is_being_sent(&self, first: u64, end: u64) -> bool {
        let overlaps = |&(start, stop): &(u64, u64)| start < end && first < stop;
        self.round.as_ref().is_some_and(|round| round.in_flight.iter().any(overlaps))
    }

    /// Puts an entry in the queue for the log, as write `serial`. It keeps its turn if it is in
    /// the queue already: its newest content goes then.
    pub fn queue_slot(&mut self, index: u32, serial: u64) {
        let turn = self.next_turn();
        self.unflushed = true;
        let entry = self.table.entry_mut(index);
        self.dirty.set(entry.slot);
        entry.version = serial;
        // A fetch that is under way brings older content.
        entry.fetch = 0;
        self.tier.void(entry.slot);
        if !entry.queued {
            entry.queued = true;
            entry.turn = turn;
            self.queue.push_back(Queued::Slot { index, since: serial });
            self.queued_slots += 1;
        }
    }

    fn next_turn(&self) -> u32 {
        self.left_queue.wrapping_add(self.queue.len() as u32)
    }

    /// Ends the epoch of all that was queued until now, if that is anything. Gives the serial that
    /// is durable when it has ended.
    pub fn end_epoch(&mut self) -> u64 {
        if self.unflushed { self.queue_end(false) } else { self.last_end }
    }

    /// Puts the end of an epoch into the queue.
    pub fn queue_end(&mut self, voids: bool) -> u64 {
        self.serial += 1;
        (self.last_end, self.last_end_turn) = (self.serial, self.next_turn());
        self.queue.push_back(Queued::End { since: self.serial, voids });
        self.ends += 1;
        self.unflushed = false;
        self.serial
    }

    /// Where reports come before the log, before an entry gets newer content: its content of now
    /// takes the turn that it has in the queue, if the newer one must not go that early.
    ///
    /// - With immediate report: if it could get into an earlier segment than what is behind it. The
    ///   log, even without its NVRAM, then holds what was reported up to some moment and nothing
    ///   reported later.
    /// - At flush: if the end of an epoch is behind it.
    pub fn keep_order(&mut self, index: u32, report: WriteMode) {
        let entry = self.table.entry(index);
        let ahead = |turn: u32| turn.wrapping_sub(self.left_queue) as usize;
        let moves_up = match report {
            // Whatever waits goes into one segment, which is there as a whole or not at all.
            WriteMode::Immediate => self.queue.len() > self.ring.longest_data() as usize,
            WriteMode::AtFlush => {
                let end = ahead(self.last_end_turn);
                end < self.queue.len() && ahead(entry.turn) < end
            }
            WriteMode::AfterComplete | WriteMode::Through | WriteMode::Around => false,
        };
        if !entry.queued || !moves_up {
            return;
        }
        let content = self.content(index);
        let entry = self.table.entry_mut(index);
        entry.queued = false;
        let place = entry.turn.wrapping_sub(self.left_queue) as usize;
        let queued = &mut self.queue[place];
        let Queued::Slot { index: found, since } = *queued else {
            unreachable!("the turn of an entry is that of its newest content");
        };
        assert_eq!(found, index, "each entry has its own turn");
        *queued = Queued::Older { index, since, content: Box::new(content) };
    }

    /// The newest content of an entry that waits for the log.
    pub fn content(&self, index: u32) -> QueuedSlot {
        let entry = self.table.entry(index);
        let page = (!entry.zero)
            .then(|| self.table.page(index).expect("pending content stays in memory").clone());
        let SlotEntry { version, valid, checksum, .. } = *entry;
        QueuedSlot { version, page, valid, checksum }
    }

    /// Puts a record into the queue that voids the older records of some slots. It is counted in
    /// `tombstones` already.
    pub fn queue_tombstone(&mut self, slot: u64, count: u32) -> u64 {
        self.serial += 1;
        self.queue.push_back(Queued::Drop { slot, count, since: self.serial });
        self.serial
    }

    /// Tells all that wait that the log disk fails. They may come back later.
    pub fn fail(&mut self, error: Error) -> Vec<Waker> {
        self.failure = Some((self.serial, error));
        self.waiters.drain(..).map(|waiter| waiter.waker).collect()
    }

    /// The same for what is yet to come: nothing more is written to the log.
    pub fn fail_for_good(&mut self, error: Error) -> Vec<Waker> {
        let wakers = self.fail(error.clone());
        self.failure = Some((u64::MAX, error));
        wakers
    }

    /// Forgets all that is known of a slot whose newest content is in the lower volume, past the
    /// log. Nothing of it waits for the log.
    pub fn drop_slot(&mut self, index: u32) {
        self.table.drop_page(index);
        self.table.clear_place(index);
        let entry = self.table.entry_mut(index);
        entry.zero = false;
        entry.fetch = 0;
        self.table.remove_if_empty(index);
    }

    /// How the log disk fails, if it does.
    pub fn log_error(&self) -> Option<Error> {
        let failure = || self.failure.as_ref().map(|(_, error)| error.clone());
        self.lost_log.as_ref().map(LostLog::error).or_else(failure)
    }
}

/// Slots looked up under the lock at once: some tens of microseconds.
const LOOKED_UP: u64 = 1024;

impl WriteMode {
    /// Whether a write is acknowledged when it is in the NVRAM.
    pub(crate) fn is_immediate(self) -> bool {
        self == Self::Immediate
    }

    /// Whether a write may be acknowledged before it is in the log.
    pub(crate) fn is_early(self) -> bool {
        matches!(self, Self::Immediate | Self::AtFlush)
    }
}

const _: () = assert!(SLOT_BYTES == crate::log::BLOCK_BYTES, "a data block holds a slot");
