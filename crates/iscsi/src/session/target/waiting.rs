//! Memory of writes that wait for commands before them, for the rest of their data, or for room.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use crate::{Bhs, pdu::DataOut};

/// The bytes that a session holds for waiting writes, and their limit.
///
/// Each holder has a [`Charge`] for what it holds and gives it back when it is dropped, whichever way its
/// write ends.
#[derive(Debug)]
pub(super) struct Waiting {
    held: Arc<AtomicUsize>,
    limit: usize,
}

/// A part of what a session holds.
#[derive(Debug)]
pub(super) struct Charge {
    /// The session's total. Only its driver changes it; it is atomic because a session moves between threads.
    held: Arc<AtomicUsize>,
    bytes: usize,
}

/// Measures for how long a transfer has made no progress. Time for which the target itself read nothing from the
/// socket does not count, up to a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stall {
    /// Time of the last progress, moved forward by the time that does not count.
    pub(super) since: Instant,
    /// The time that did not count so far.
    excused: Duration,
}

/// A write makes no progress if fewer bytes than this, and not its last one, have come within
/// `Settings::stalled_after`. With the default time that is 4 kB/s; a login would not succeed on so slow a
/// link.
pub(super) const PROGRESS: u32 = 64 * 1024;

/// Bytes that a Data-Out takes beside its data while it waits for its command: its place in a vector, which
/// may have grown to twice what is in it, and the least that an allocator takes for its data.
pub(super) const KEPT_DATA_OUT: usize = 2 * size_of::<(DataOut, Bhs)>() + 32;

impl Stall {
    /// Some progress was made.
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, excused: Duration::ZERO }
    }

    /// Leaves out the time up to now, but never more than `most` in all.
    pub(super) fn excuse(&mut self, now: Instant, most: Duration) {
        let passed = now.saturating_duration_since(self.since);
        let excused = passed.min(most.saturating_sub(self.excused));
        self.since += excused;
        self.excused += excused;
    }
}

impl Waiting {
    pub(super) fn unlimited() -> Self {
        Self { held: Arc::default(), limit: usize::MAX }
    }

    pub(super) fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    pub(super) fn set_limit(&mut self, bytes: usize) {
        self.limit = bytes;
    }

    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.held().saturating_add(bytes) <= self.limit
    }

    /// A charge for nothing yet.
    pub(super) fn charge(&self) -> Charge {
        Charge { held: Arc::clone(&self.held), bytes: 0 }
    }
}

impl Charge {
    /// Adds to the charge. The caller has seen that there is room.
    pub(super) fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.held.fetch_add(bytes, Relaxed);
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn clear(&mut self) {
        self.held.fetch_sub(self.bytes, Relaxed);
        self.bytes = 0;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.clear();
    }
}
