//! The log's index while a cache runs: the headers of stable segments, gathered into frames.

use std::{collections::VecDeque, mem};

use volume::Lba;

use crate::{
    index::{IndexFrame, IndexFrameStamp},
    recovery::FoundIndex,
    segment::SegmentHeader,
    superblock::Superblock,
};

/// The frames of a running cache.
pub struct LogIndexFrames {
    /// What does not change: places, sizes, whose frames these are.
    shape: Superblock,
    /// Most segments in a frame.
    most: u32,
    filling: IndexFrame,
    /// Full frames, oldest first; at most [`MOST_WAITING`] beside those that recovery left.
    waiting: VecDeque<IndexFrame>,
    /// The last segment of each frame on the disk, from number `tail` on.
    written: VecDeque<u64>,
    /// The oldest frame that the superblock on the disk wants.
    tail: u64,
    /// A driver is writing frames.
    writing: bool,
    /// No frame is begun: the index is about to move.
    held: bool,
}

impl LogIndexFrames {
    /// The index as recovery found it. `superblock` is of this opening.
    pub fn new(superblock: &Superblock, most: u32, found: FoundIndex) -> Self {
        let mut waiting = VecDeque::from(found.untold);
        let filling = waiting.pop_back().unwrap_or_default();
        Self {
            tail: superblock.index_tail,
            shape: superblock.clone(),
            most,
            filling,
            waiting,
            written: found.frames.into(),
            writing: false,
            held: false,
        }
    }

    /// The oldest frame that recovery needs if it begins with segment `tail`.
    pub fn oldest_for(&self, tail: u64) -> u64 {
        self.tail + self.written.partition_point(|&last| last < tail) as u64
    }

    /// The superblock on the disk needs no frame before `number` any more.
    pub fn release(&mut self, number: u64) {
        while self.tail < number && self.written.pop_front().is_some() {
            self.tail += 1;
        }
    }

    /// Takes a stable segment into the frame that is being filled.
    pub fn note(&mut self, start: u32, header: &SegmentHeader) {
        let bytes = self.shape.frame_bytes();
        if self.filling.count >= self.most || !self.filling.push(start, header, bytes) {
            let full = mem::take(&mut self.filling);
            if self.waiting.len() < MOST_WAITING {
                self.waiting.push_back(full);
            }
            self.filling.push(start, header, bytes);
        }
    }

    /// Whether a driver has to be started, which writes what waits. It counts as started then.
    pub fn start(&mut self) -> bool {
        let starts = !self.writing && !self.held && !self.waiting.is_empty();
        self.writing |= starts;
        starts
    }

    /// The next frame to be written: where, and its bytes. `None` ends the driver.
    pub fn take(&mut self) -> Option<(Lba, FrameToWrite)> {
        if self.held {
            self.writing = false;
            return None;
        }
        let number = self.next();
        let room = (self.written.len() as u64) < self.shape.frames();
        let Some(frame) = self.waiting.pop_front().filter(|_| room) else {
            // Those behind one without a place have none either.
            self.waiting.clear();
            self.writing = false;
            return None;
        };
        let stamp = IndexFrameStamp {
            instance: self.shape.instance,
            generation: self.shape.generation,
            number,
        };
        let bytes = frame.encode(stamp, self.shape.frame_bytes());
        let lba = Lba(self.shape.frame_block(number));
        Some((lba, FrameToWrite { bytes, last: frame.last() }))
    }

    /// Begins no frame until [`Self::let_go`]. Whether one is still being written.
    pub fn hold(&mut self) -> bool {
        self.held = true;
        self.writing
    }

    /// Frames are written again.
    pub fn let_go(&mut self) {
        self.held = false;
    }

    /// The number of the next frame.
    pub fn next(&self) -> u64 {
        self.tail + self.written.len() as u64
    }

    /// The index is where this superblock says, and empty. While it is held.
    pub fn move_to(&mut self, superblock: &Superblock) {
        self.tail = superblock.index_tail;
        self.written.clear();
        self.shape = superblock.clone();
    }

    /// The frame that was taken last is stable. Before its number is used again or let go of:
    /// nobody else adds frames.
    pub fn wrote(&mut self, last: u64) {
        self.written.push_back(last);
    }
}

/// A frame on its way to the log disk.
pub struct FrameToWrite {
    /// The frame as it is written.
    pub bytes: Vec<u8>,
    /// The number of its last segment.
    pub last: u64,
}

/// Frames that wait while one is written. Each stands for megabytes of log, so only a log disk
/// that does not answer lets more wait.
const MOST_WAITING: usize = 4;
