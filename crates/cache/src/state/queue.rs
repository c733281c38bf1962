//! The queue for the log: entries that wait for a segment, and the content of the segment that is being
//! written.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::slots::table::{SlotEntry, SlotTable};

/// An entry of the queue of writes that wait for the log.
pub(crate) enum Queued {
    /// The newest content of a slot. `since` is the serial of the write that queued it.
    Slot { index: u32, since: u64 },
    /// Content of a slot that a later write has replaced while it waited for the log. See `CacheState::keep_order`.
    Older { index: u32, since: u64, content: Box<QueuedSlot> },
    /// A record that voids the older log content of `count` slots from `slot` on.
    Drop { slot: u64, count: u32, since: u64 },
    /// The end of an epoch. If `voids` is set, it discards the open epoch; no entry of that epoch is behind
    /// it in the queue.
    End { since: u64, voids: bool },
}

impl Queued {
    /// Returns the serial of the write that queued the entry.
    pub fn since(&self) -> u64 {
        match *self {
            Self::Slot { since, .. }
            | Self::Older { since, .. }
            | Self::Drop { since, .. }
            | Self::End { since, .. } => since,
        }
    }
}

/// The content of a slot that waits in the queue for the log.
pub(crate) struct QueuedSlot {
    /// Serial of the newest write that this content contains.
    pub version: u64,
    /// The content; `None` stands for zeros.
    pub page: Option<Bytes>,
    /// A bit for each sector of the page that holds data.
    pub valid: u8,
    pub checksum: u32,
}

impl QueuedSlot {
    /// Returns the newest content of an entry of the table that waits for the log.
    pub fn of(table: &SlotTable, index: u32) -> Self {
        let entry = table.entry(index);
        let page = (!entry.zero)
            .then(|| table.page(index).expect("pending content stays in memory").clone());
        let SlotEntry { version, valid, checksum, .. } = *entry;
        Self { version, page, valid, checksum }
    }
}

/// The ends of epochs that flushes have put into the queue.
#[derive(Default)]
pub(crate) struct EpochEnds {
    /// Number of ends of epochs that are in the queue or in the segment that is being written.
    pub pending: usize,
    /// Turn (position in the queue, modulo 2^32) of the epoch end that was queued last.
    pub last_turn: u32,
    /// Serial of the epoch end that was queued last.
    pub last_serial: u64,
    /// True if a write was queued since the newest end of an epoch, so that the next flush has to end an epoch.
    pub is_due: bool,
}

/// The entries that wait for the log, and the segment that is being written to it.
#[derive(Default)]
pub(crate) struct CommitQueue {
    /// The writes that wait for the log, oldest first. Together they hold at most `CacheLimits::pending_slots` slots.
    pub entries: VecDeque<Queued>,
    /// The number of entries that have left the queue at its front, modulo 2^32. The turn of an entry minus
    /// this number is the index of the entry in `entries`.
    pub left: u32,
    /// The number of slots in `entries`.
    pub slots: usize,
    /// Number of slots that steps of writes are about to queue. A step copies its data without the
    /// lock.
    pub copying_slots: usize,
    /// Number of write steps that are copying host data into pages at this moment.
    pub copying: usize,
    /// Number of records of bypassing writes that are reserved, in the queue, or in the segment
    /// that is being written.
    pub tombstones: usize,
    pub ends: EpochEnds,
    /// First slot and number of slots of each record of the segment that is being written.
    pub in_flight: Vec<(u64, u32)>,
    /// Number of slots in the segment that is being written.
    pub in_flight_slots: usize,
    /// True if a driver task is writing segments.
    pub is_writing: bool,
    /// True if no segment may be begun, because the layout of the ring is being changed.
    pub is_frozen: bool,
    /// True if the log is being closed or is closed: no entry may be queued any more.
    pub is_closed: bool,
}

impl CommitQueue {
    /// Returns the number of slots that wait for the log or are about to be queued.
    pub fn pending_slots(&self) -> usize {
        self.slots + self.in_flight_slots + self.copying_slots
    }

    /// Returns true if no write waits for the log.
    pub fn is_settled(&self) -> bool {
        self.entries.is_empty() && !self.is_writing && self.copying == 0
    }

    /// Returns true if any slot of `first .. end` is in the queue or in flight.
    pub fn holds(&self, table: &SlotTable, first: u64, end: u64) -> bool {
        let inside = |slot: u64, count: u32| slot < end && first < slot + u64::from(count);
        self.in_flight.iter().any(|&(slot, count)| inside(slot, count))
            || self.entries.iter().any(|queued| match *queued {
                Queued::Slot { index, .. } | Queued::Older { index, .. } => {
                    inside(table.entry(index).slot, 1)
                }
                Queued::Drop { slot, count, .. } => inside(slot, count),
                Queued::End { .. } => false,
            })
    }

    /// Returns the turn of the next entry that is queued.
    pub fn next_turn(&self) -> u32 {
        self.left.wrapping_add(self.entries.len() as u32)
    }

    /// Returns the index in `entries` of the entry with this turn. The index of a turn that has left the
    /// queue is beyond its end.
    pub fn index_of(&self, turn: u32) -> usize {
        turn.wrapping_sub(self.left) as usize
    }

    /// Returns true if the end of an epoch is behind the entry with this turn in the queue.
    pub fn ends_behind(&self, turn: u32) -> bool {
        let end = self.index_of(self.ends.last_turn);
        end < self.entries.len() && self.index_of(turn) < end
    }

    /// Queues the newest content of an entry of the table. Returns its position, modulo 2^32.
    pub fn push_slot(&mut self, index: u32, since: u64) -> u32 {
        let turn = self.next_turn();
        self.entries.push_back(Queued::Slot { index, since });
        self.slots += 1;
        turn
    }

    /// Queues the end of the open epoch, with serial `since`.
    pub fn push_end(&mut self, since: u64, voids: bool) {
        (self.ends.last_serial, self.ends.last_turn) = (since, self.next_turn());
        self.entries.push_back(Queued::End { since, voids });
        self.ends.pending += 1;
        self.ends.is_due = false;
    }

    /// Fixes the content that the table entry `index` has now for its position `turn` in the queue: newer
    /// content of the entry does not replace it there.
    pub fn set_older(&mut self, index: u32, turn: u32, content: QueuedSlot) {
        let place = self.index_of(turn);
        let queued = &mut self.entries[place];
        let Queued::Slot { index: found, since } = *queued else {
            unreachable!("the turn of an entry is that of its newest content");
        };
        assert_eq!(found, index, "each entry has its own turn");
        *queued = Queued::Older { index, since, content: Box::new(content) };
    }
}
