//! The index while a cache runs: gathers the headers of stable segments into frames, and hands out full
//! frames to be written.

use std::{collections::VecDeque, mem};

use volume::Lba;

use crate::{
    index::{IndexFrame, IndexFrameStamp},
    recovery::FoundIndex,
    segment::SegmentHeader,
    superblock::Superblock,
};

/// The frames of a running cache: one that is being filled, full ones that wait, and those on the disk.
pub struct LogIndexFrames {
    /// The superblock of this opening, for the position and size of frames and the id of the log.
    shape: Superblock,
    /// Maximum number of segments in a frame.
    most: u32,
    filling: IndexFrame,
    /// Full index frames, oldest first: at most [`MOST_WAITING`], and those that recovery has left.
    waiting: VecDeque<IndexFrame>,
    /// The last segment of each frame on the disk. The first entry is of frame `tail`.
    written: VecDeque<u64>,
    /// The oldest frame that the superblock on the disk refers to.
    tail: u64,
    /// True if a driver task is writing frames.
    writing: bool,
    /// True if no frame may be written, since the index is about to move.
    held: bool,
}

impl LogIndexFrames {
    /// Starts with the index frames that recovery has found. `superblock` is that of the opening in progress.
    pub fn new(superblock: &Superblock, most: u32, found: FoundIndex) -> Self {
        let mut waiting = VecDeque::from(found.unindexed);
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

    /// Returns the number of the oldest frame that recovery needs if the tail of the log is segment `tail`.
    pub fn oldest_for(&self, tail: u64) -> u64 {
        self.tail + self.written.partition_point(|&last| last < tail) as u64
    }

    /// Frees the frames before `number`, which the superblock on the disk does not refer to any more.
    pub fn release(&mut self, number: u64) {
        while self.tail < number && self.written.pop_front().is_some() {
            self.tail += 1;
        }
    }

    /// Adds a stable segment to the frame that is being filled.
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

    /// Returns true if the caller must start the driver, which writes the waiting frames. The driver counts
    /// as started then.
    pub fn start(&mut self) -> bool {
        let starts = !self.writing && !self.held && !self.waiting.is_empty();
        self.writing |= starts;
        starts
    }

    /// Returns the next index frame to write, with its block address; `None` ends the writing task.
    pub fn take(&mut self) -> Option<(Lba, FrameToWrite)> {
        if self.held {
            self.writing = false;
            return None;
        }
        let number = self.next();
        let room = (self.written.len() as u64) < self.shape.frames();
        let Some(frame) = self.waiting.pop_front().filter(|_| room) else {
            // The index has no free position, so drop all waiting frames: each frame must follow the
            // previous one. Recovery then reads their segments in full.
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

    /// Stops the writing of frames until [`Self::let_go`]. Returns true if a frame is still being written.
    pub fn hold(&mut self) -> bool {
        self.held = true;
        self.writing
    }

    pub fn let_go(&mut self) {
        self.held = false;
    }

    /// Returns the number that the next frame to be written gets.
    pub fn next(&self) -> u64 {
        self.tail + self.written.len() as u64
    }

    /// Moves the index to the position that `superblock` gives. The index is empty after that. Call this
    /// only while frames are [held](Self::hold).
    pub fn move_to(&mut self, superblock: &Superblock) {
        self.tail = superblock.index_tail;
        self.written.clear();
        self.shape = superblock.clone();
    }

    /// Records that the frame that was taken last is stable. Call this before taking the next frame: frames are
    /// numbered in the order of these calls.
    pub fn wrote(&mut self, last: u64) {
        self.written.push_back(last);
    }
}

/// A frame that is to be written to the log disk.
pub struct FrameToWrite {
    pub bytes: Vec<u8>,
    /// Number of the last segment in the frame.
    pub last: u64,
}

/// Maximum number of full frames that wait while one is written. Each stands for megabytes of log, so more of them wait
/// only if the log disk does not answer.
const MOST_WAITING: usize = 4;
