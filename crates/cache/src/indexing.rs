//! Keeping the log's index: the header of every stable segment goes into a frame, and full frames
//! go to the log disk behind everybody's back.
//!
//! A frame that cannot be written is dropped: recovery then reads its segments in full.

use std::{collections::VecDeque, mem, sync::Arc};

use volume::{Data, Durability, Lba};

use crate::{
    log::{
        index::{Frame, Stamp},
        recovery::FoundIndex,
        segment::Header,
        superblock::Superblock,
    },
    state::Shared,
};

/// The frames of a running cache.
pub(crate) struct Index {
    /// What does not change: places, sizes, whose frames these are.
    shape: Superblock,
    /// Most segments in a frame.
    most: u32,
    filling: Frame,
    /// Full frames, oldest first; at most [`MOST_WAITING`] beside those that recovery left.
    waiting: VecDeque<Frame>,
    /// The last segment of each frame on the disk, from number `tail` on.
    written: VecDeque<u64>,
    /// The oldest frame that the superblock on the disk wants.
    tail: u64,
    /// A driver is writing frames.
    writing: bool,
}

impl Index {
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
    fn note(&mut self, start: u32, header: &Header) {
        let bytes = self.shape.frame_bytes();
        if self.filling.count >= self.most || !self.filling.push(start, header, bytes) {
            let full = mem::take(&mut self.filling);
            if self.waiting.len() < MOST_WAITING {
                self.waiting.push_back(full);
            }
            self.filling.push(start, header, bytes);
        }
    }

    /// The next frame to be written, if there is a place for it.
    fn take(&mut self) -> Option<Frame> {
        let frame = self.waiting.pop_front();
        if (self.written.len() as u64) < self.shape.frames() { frame } else { None }
    }
}

impl Shared {
    /// Takes note of a stable segment, which begins in block `start`.
    pub fn index_segment(self: &Arc<Self>, start: u32, header: &Header) {
        self.index.lock().note(start, header);
        self.start_index();
    }

    /// Starts the driver that writes frames, if one waits and none runs.
    pub fn start_index(self: &Arc<Self>) {
        let mut index = self.index.lock();
        if !index.writing && !index.waiting.is_empty() {
            index.writing = true;
            tokio::spawn(write_frames(Arc::clone(self)));
        }
    }
}

async fn write_frames(shared: Arc<Shared>) {
    loop {
        let (frame, number) = {
            let mut index = shared.index.lock();
            let Some(frame) = index.take() else {
                // Those behind one without a place have none either.
                index.waiting.clear();
                index.writing = false;
                return;
            };
            (frame, index.tail + index.written.len() as u64)
        };
        let (lba, bytes) = {
            let index = shared.index.lock();
            let (instance, generation) = (index.shape.instance, index.shape.generation);
            let stamp = Stamp { instance, generation, number };
            let bytes = frame.encode(stamp, index.shape.frame_bytes());
            (Lba(index.shape.frame_block(number)), bytes)
        };
        // Stable, or all frames since the last power-on could be missing after a failure.
        let written = shared.log.write(lba, Data::from(bytes), Durability::Stable).await;
        match written {
            Ok(()) => {
                // Before its number is used again or let go of: nobody else adds frames.
                shared.index.lock().written.push_back(frame.last());
            }
            Err(error) => {
                shared.counters.log_errors.add(1);
                tracing::warn!(%error, "cannot write the index of the log");
            }
        }
    }
}

/// Frames that wait while one is written. Each stands for megabytes of log, so only a log disk
/// that does not answer lets more wait.
const MOST_WAITING: usize = 4;
