//! Builds segments: moves entries from the queue into a batch, and from a stable batch into the slot table.

use std::task::Waker;

use bytes::Bytes;
use journal::{
    checksum::crc32c,
    seal::{SealedBlockId, Sealer, Which},
    segment::{LogRecord, LogRecordKind, MAX_ZERO_SLOTS, NO_TAG, SegmentHeader},
};
use tokio::time::Instant;

use crate::{
    core::SegmentIdentity,
    slots::{
        sectors::WHOLE,
        table::{LogAddress, NONE},
    },
    state::{CacheState, Queued, QueuedSlot},
};

/// A segment that is being built or written.
pub(crate) struct Batch {
    pub header: SegmentHeader,
    pub pages: Vec<Bytes>,
    /// The sealed blocks that are written instead of the pages, if the log is sealed.
    sealed: Vec<Bytes>,
    slots: Vec<BatchSlot>,
    tombstones: usize,
    /// Number of epochs that end in this segment: 0 or 1.
    ends: usize,
}

impl Batch {
    fn new(identity: &SegmentIdentity, number: u64, ends_epoch: bool) -> Self {
        Self {
            header: SegmentHeader {
                instance: identity.instance,
                generation: identity.generation,
                number,
                complete: 0,
                ends_epoch,
                voids_open: false,
                salt: identity.salt,
                noted: false,
                records: Vec::new(),
            },
            pages: Vec::new(),
            sealed: Vec::new(),
            slots: Vec::new(),
            tombstones: 0,
            ends: 0,
        }
    }

    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Returns the data blocks of this segment for the log disk: the encrypted ones if the log has a key.
    pub fn blocks(&self) -> &[Bytes] {
        if self.sealed.is_empty() { &self.pages } else { &self.sealed }
    }

    /// Seals the pages, once, before the first attempt to write them: later attempts write the same bytes.
    /// `block` allocates a block, calls its argument to fill it, and returns it.
    pub fn seal(&mut self, sealer: &Sealer, block: impl Fn(&mut dyn FnMut(&mut [u8])) -> Bytes) {
        let number = self.header.number;
        let data = |kind: LogRecordKind| kind == LogRecordKind::Data;
        let records = self.header.records.iter_mut().filter(|record| data(record.kind));
        let slots = self.slots.iter_mut().filter(|slot| data(slot.kind));
        for (((record, slot), page), ordinal) in records.zip(slots).zip(&self.pages).zip(1..) {
            let about = SealedBlockId { slot: record.slot, mask: record.mask, serial: 0 };
            let sealed = block(&mut |bytes| {
                bytes.copy_from_slice(page);
                record.tag = sealer.seal(Which(number, ordinal), about, bytes);
                record.checksum = crc32c(bytes);
            });
            slot.checksum = record.checksum;
            self.sealed.push(sealed);
        }
    }
}

struct BatchSlot {
    index: u32,
    version: u64,
    /// Position of the data block in the segment, counted from 1; 0 for zeros.
    block: u32,
    checksum: u32,
    mask: u8,
    kind: LogRecordKind,
}

/// The results of [`CacheState::publish`] for a segment that has become stable.
pub(crate) struct PublishedSegment {
    pub start: u32,
    pub wakers: Vec<Waker>,
    pub absorbed: u64,
    /// True if no slot was dirty before this segment: the age of the dirty data is then counted from this segment.
    pub first_dirty: bool,
}

impl CacheState {
    /// Builds the next segment from the queue. With `by_flush` only a flush ends an epoch, otherwise every
    /// segment does.
    pub fn take_batch(&mut self, identity: &SegmentIdentity, by_flush: bool) -> Option<Batch> {
        if self.queue.is_frozen {
            return None;
        }
        let mut batch = Batch::new(identity, self.log.ring.next(), !by_flush);
        while batch.ends == 0 && self.take_next(&mut batch) {}
        // `complete` is the serial before the write that queued the first remaining entry: this segment or an
        // earlier one holds all writes up to it. A newer write to a slot in the queue keeps the position of
        // the older write, so it is in the log no later than that one.
        let next = self.queue.entries.front();
        batch.header.complete = next.map_or(self.commits.serial, |next| next.since() - 1);
        if batch.header.records.is_empty() && batch.ends == 0 {
            return None;
        }
        if identity.noted
            && let Some(nvram) = &mut self.nvram
        {
            // Record the segment before it can be in the log. An older copy of the NVRAM then lacks the log's
            // newest segment, and is refused.
            nvram.note_begun(batch.header.number);
            batch.header.noted = nvram.is_sound();
        }
        self.queue.in_flight = batch.header.records.iter().map(|r| (r.slot, r.count)).collect();
        self.queue.in_flight_slots = batch.slots.len();
        self.queue.slots -= batch.slots.len();
        Some(batch)
    }

    /// Moves the first entry of the queue into a segment. Returns false if the queue is empty, or if the
    /// segment must not take the entry.
    fn take_next(&mut self, batch: &mut Batch) -> bool {
        let Some(next) = self.queue.entries.front() else { return false };
        let taken = match *next {
            Queued::Slot { index, .. } => {
                let content = QueuedSlot::of(&self.table, index);
                let taken = self.add_slot(batch, index, content);
                let entry = self.table.entry_mut(index);
                entry.queued &= !taken;
                taken
            }
            Queued::Older { index, ref content, .. } => {
                let QueuedSlot { version, ref page, valid, checksum } = **content;
                let content = QueuedSlot { version, page: page.clone(), valid, checksum };
                self.add_slot(batch, index, content)
            }
            Queued::Drop { slot, count, since } => {
                batch.tombstones += 1;
                let kind = LogRecordKind::Dropped;
                let (mask, checksum, tag) = (WHOLE, 0, NO_TAG);
                add_record(
                    batch,
                    LogRecord { slot, count, kind, mask, checksum, tag, serial: since },
                )
            }
            // A rollback mark must open a new segment: it voids records in earlier segments only.
            Queued::End { voids: true, .. } if !batch.header.records.is_empty() => false,
            Queued::End { voids, .. } => {
                (batch.header.ends_epoch, batch.header.voids_open) = (true, voids);
                batch.ends = 1;
                true
            }
        };
        if taken {
            self.queue.entries.pop_front();
            self.queue.left = self.queue.left.wrapping_add(1);
        }
        taken
    }

    /// Adds content of an entry to a segment. Returns false if the segment has no room for it.
    fn add_slot(&mut self, batch: &mut Batch, index: u32, content: QueuedSlot) -> bool {
        let (slot, serial) = (self.table.entry(index).slot, content.version);
        let tag = NO_TAG;
        let record = if content.page.is_none() {
            // All slots of a segment must fit into one epoch, so limit the slots of zeros. The data blocks of
            // a segment always fit.
            let limit = self.epochs.limit().max(u64::from(self.log.ring.longest_data()));
            if batch.slots.len() as u64 >= limit.min(u64::from(MAX_ZERO_SLOTS)) {
                return false;
            }
            let (kind, mask) = (LogRecordKind::Zero, WHOLE);
            LogRecord { slot, count: 1, kind, mask, checksum: 0, tag, serial }
        } else {
            if batch.pages.len() >= self.log.ring.longest_data() as usize {
                return false;
            }
            let (mask, checksum) = (content.valid, content.checksum);
            LogRecord { slot, count: 1, kind: LogRecordKind::Data, mask, checksum, tag, serial }
        };
        if !add_record(batch, record) {
            return false;
        }
        let mut block = 0;
        if let Some(page) = content.page {
            batch.pages.push(page);
            block = batch.pages.len() as u32;
        }
        batch.slots.push(BatchSlot {
            index,
            version: serial,
            block,
            checksum: record.checksum,
            mask: record.mask,
            kind: record.kind,
        });
        self.table.entry_mut(index).in_flight = true;
        true
    }

    /// Records that a segment is stable: its content becomes the newest logged content. Returns the wakers of
    /// the writes that are durable now.
    pub fn publish(
        &mut self,
        batch: &Batch,
        by_flush: bool,
        now: impl Fn() -> Instant,
    ) -> PublishedSegment {
        let segment = batch.header.number;
        let nothing_sealed = self.epochs.oldest().is_none();
        if !by_flush {
            self.epochs.make_room(segment, batch.slots.len());
        }
        let start = self.log.ring.push(batch.pages.len() as u32 + 1);
        let mut absorbed = 0;
        for slot in &batch.slots {
            let place = LogAddress {
                segment,
                block: start + slot.block,
                checksum: slot.checksum,
                mask: slot.mask,
                kind: slot.kind,
            };
            absorbed += u64::from(self.table.entry(slot.index).place.is_some());
            self.epochs.supersede(&mut self.table, slot.index, place);
            let entry = self.table.entry_mut(slot.index);
            entry.in_flight = false;
            // Release the NVRAM slot only if it holds this version. Otherwise it holds a newer version that
            // still waits for the log.
            if entry.version == slot.version && entry.nvram != NONE {
                let index = std::mem::replace(&mut entry.nvram, NONE);
                self.nvram.as_mut().expect("it is in use").release(index);
            }
        }
        if by_flush && batch.header.ends_epoch {
            let going_down = self.destage.round.as_ref().map(|round| round.cut);
            self.epochs.seal_together(segment, going_down);
        }
        self.queue.in_flight.clear();
        self.queue.in_flight_slots = 0;
        self.queue.ends.pending -= batch.ends;
        self.queue.tombstones -= batch.tombstones;
        self.commits.durable = batch.header.complete;
        if self.commits.log_is_buffered {
            self.commits.kept = self.commits.durable;
        } else if batch.header.ends_epoch {
            self.commits.logged = self.commits.logged.max(self.commits.durable);
        }
        self.commits.failure = None;
        // Set the watermark before any write is acknowledged: from then on recovery must notice if the
        // segment is missing.
        if let Some(nvram) = &mut self.nvram {
            nvram.set_watermark(segment);
        }
        if self.destage.dirty_since.is_none() && self.table.dirty() > 0 {
            self.destage.dirty_since = Some(now());
        }
        let first_dirty = match by_flush {
            true => nothing_sealed && batch.header.ends_epoch,
            false => self.log.ring.segments() == 1,
        };
        let wakers = self.commits.take_durable();
        PublishedSegment { start, wakers, absorbed, first_dirty }
    }
}

/// Adds a record. If it and the last record are adjacent zeros, joins them. Returns false if there is no
/// room.
fn add_record(batch: &mut Batch, record: LogRecord) -> bool {
    let most = batch.header.most_records();
    let records = &mut batch.header.records;
    if let Some(last) = records.last_mut()
        && record.kind == LogRecordKind::Zero
        && last.kind == LogRecordKind::Zero
        && last.slot + u64::from(last.count) == record.slot
        && last.count < MAX_ZERO_SLOTS
    {
        last.count += 1;
        last.serial = last.serial.max(record.serial);
        return true;
    }
    if records.len() == most {
        return false;
    }
    records.push(record);
    true
}
